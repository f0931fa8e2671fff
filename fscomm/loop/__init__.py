"""The user's loop: the `lookahead` over its batches, `moving` to a device, and which features each module reads.

`feature_finder` learns it at the first forward: `kjt_paths` says where in a batch a KJT is and whether its contents are
unchanged. An extension, `fscomm/recipes/`, finds how a model builds one. `tensors` compares tensors of any kind.
`random_numbers` are what loader and training draw from. `parts` cuts a batch that is computed in parts.
"""
