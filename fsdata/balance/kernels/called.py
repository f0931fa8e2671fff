"""Which kernels of balancing are called, those that take long to compile first."""

from fsdata.balance.kernels import packing
from fsdata.kernels import columns

BALANCING = (
    *(packing.improve, packing.lightest_first, columns.gather_samples, packing.descending, packing.fill_rows),
    *(packing.contiguous, packing.zigzag, packing.sums),
)
