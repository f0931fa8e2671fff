"""Jagged rows of tensors: `jagged_ops` moves them by `ranges`, which are copied or added up (CUDA: `ranges_triton`)."""
