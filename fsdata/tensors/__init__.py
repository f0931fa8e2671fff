"""Balances the batches of a user's own loader, as `FreeScaleDataLoader` balances its own.

`rebalancing` iterates over any loader in a thread. `parts` reads its batches as parts of steps, and `balanced_tensors`
exchanges their samples. `tensor_tree` splits a batch of any structure into samples and builds it again; `entries`
encodes texts and numbers of samples as bytes.
"""
