"""The user's loop: the `lookahead` over its batches, `moving` to a device, and which features each module reads.

`feature_finder` learns it at the first forward: `kjt_paths` says where in a batch a KJT lies, `kjt_recipes` how a model
builds one of parts of the batch. `contents` tells whether a batch still holds what it did, and `random_streams` what
draws from the global random numbers. `uncompiled` is what torch.compile leaves alone in a loop.
"""
