"""The Triton kernel on CPU tensors, through its interpreter: TRITON_INTERPRET=1. Prints how many cases passed."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from ranges_cases import CASES, DTYPES, OVERLAPPING, same_bits, values_of

from fsdata.kernels import ranges as kernel
from fsdata.kernels import ranges_triton
from fsdata.kernels.ranges_triton import launch

copy: Any = ranges_triton._copy
add: Any = ranges_triton._add
current: list[torch.Tensor] = []  # whose device is the current one


@contextlib.contextmanager
def device_of(tensor: torch.Tensor) -> Iterator[None]:
    current.append(tensor)
    yield
    current.pop()


class Launched:
    """Triton launches on the current device, which has to be that of the tensors."""

    def __init__(self, launched: Any) -> None:
        self._launched = launched

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        def run(source: torch.Tensor, *rest: Any, **options: Any) -> None:
            assert [tensor.data_ptr() for tensor in current] == [source.data_ptr()], "launched on another device"
            self._launched[grid](source, *rest, **options)

        return run


ranges_triton._copy = Launched(copy)  # type: ignore[assignment]
ranges_triton._add = Launched(add)  # type: ignore[assignment]
torch.cuda.device_of = device_of  # type: ignore[assignment, misc]
ranges_triton._PROGRAMS = 8  # the interpreter is slow: a program of few has several blocks to do
passed = 0
for case, (name, ranges) in enumerate(CASES.items()):
    for number, dtype in enumerate(DTYPES):
        if case and case % len(DTYPES) != number:
            continue  # the interpreter is slow: all dtypes in the first case, one in each of the others
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
for name, ways in OVERLAPPING.items():
    for dtype in (torch.float32, torch.float64):
        for trailing in ((), (3,)):
            starts, places, lengths, row, rows, items = ways
            values = torch.randn(int(lengths.sum()), *trailing, dtype=dtype)
            found, wanted = (torch.ones(items, *trailing, dtype=dtype) for _ in range(2))
            kernel.add_reference(values, wanted, starts, places, lengths)
            if values.numel():
                ranges_triton.launch_add(values, found, starts, places, lengths, row, rows, values[0].numel())
            assert torch.equal(found, wanted), (name, dtype, trailing)
            passed += 1
print(passed)
