"""The kernels that balancing calls, those that take longest to compile first."""

from fsdata.balance.kernels import packing
from fsdata.kernels import columns

BALANCING = (
    *(packing.improve, packing.lightest_first, columns.gather_samples, packing.descending, packing.fill_rows),
    *(packing.contiguous, packing.zigzag, packing.sums),
)
