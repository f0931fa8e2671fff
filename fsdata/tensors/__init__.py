"""Batches of the user's own, dealt out like those of the loader.

`rebalancing` is the iterator around any loader; `parts` gives its batches to the steps of the ranks; `tensor_tree`
splits a batch of any structure into rows and back; `entries` are texts and numbers of samples, as bytes.
"""
