"""`jagged_ops` moves jagged rows of tensors by the ranges of `fsdata.kernels.ranges`."""
