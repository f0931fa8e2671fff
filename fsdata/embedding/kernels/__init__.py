"""`jagged_ops`: moves of jagged rows inside a rank, by the kernels of `fsdata.kernels.ranges`."""
