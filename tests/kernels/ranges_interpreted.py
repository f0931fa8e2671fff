"""The Triton kernel on CPU tensors, through its interpreter: TRITON_INTERPRET=1. Prints how many cases passed."""

import torch
from ranges_cases import CASES, DTYPES, same_bits, values_of

from fsdata.kernels import ranges as kernel
from fsdata.kernels.ranges_triton import launch

passed = 0
for name, ranges in CASES.items():
    for number, dtype in enumerate(DTYPES):
        trailing = [(), (3,)][number % 2]
        values = values_of(ranges.source_items, trailing, dtype)
        found, wanted = (torch.zeros(ranges.target_items, *trailing, dtype=dtype) for _ in range(2))
        kernel.reference(values, wanted, ranges.starts, ranges.places, ranges.lengths)
        if len(ranges.lengths) and values.numel():
            word = kernel._WORDS[dtype.itemsize]
            width = values[0].numel()
            launch(values.view(word), found.view(word), ranges.starts, ranges.places, ranges.lengths, width)
        assert same_bits(found, wanted), (name, dtype)
        passed += 1
print(passed)
