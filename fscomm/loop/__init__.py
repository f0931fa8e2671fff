"""The user's loop: the `lookahead` over its batches, `moving` to a device, and which features each module reads.

`feature_finder` learns it at the first forward: `kjt_paths` says where in a batch a KJT lies and whether it still holds
what it did, `kjt_recipes` how a model builds one of parts of the batch, and `kjt_search` finds these parts. `tensors`
looks at tensors of any kind. `random_numbers` are what loader and training draw from. `parts` cuts a batch that is
computed in parts.
"""
