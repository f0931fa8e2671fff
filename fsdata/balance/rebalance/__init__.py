"""The balanced step around any loader.

`rebalance` is the iterator, over `fsdata.nodes.Dealt`; `tensor_tree` splits a batch of any structure into rows and
back; `template_text` describes that structure for a rank that has no batch.
"""
