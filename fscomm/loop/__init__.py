"""The user's loop: the `lookahead` over its batches, and which KJT of a batch each module reads.

`feature_finder` learns it at the first forward; `kjt_paths` says where in a batch it lies.
"""
