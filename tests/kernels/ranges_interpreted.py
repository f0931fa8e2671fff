"""The Triton kernels on CPU tensors, through its interpreter: TRITON_INTERPRET=1. Prints which cases passed."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from ranges_cases import BY_RANK, CASES, DTYPES, OVERLAPPING, WORDS, same_bits, values_of

from fsdata.kernels import ranges as kernel
from fsdata.kernels import ranges_triton

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


ranges_triton._copy = Launched(ranges_triton._copy)  # type: ignore[assignment]
ranges_triton._add = Launched(ranges_triton._add)  # type: ignore[assignment]
ranges_triton._by_rank = Launched(ranges_triton._by_rank)  # type: ignore[assignment]
torch.cuda.device_of = device_of  # type: ignore[assignment, misc]
ranges_triton._PROGRAMS = 8  # the interpreter is slow: a program of few has several blocks to do
for case, (name, ranges) in enumerate(CASES.items()):
    for number, dtype in enumerate(DTYPES):
        if case and case % len(DTYPES) != number:
            continue  # all dtypes in the first case, one in each of the others
        trailing = [(), (3,)][number % 2]
        values = values_of(ranges.source_items, trailing, dtype)
        found, wanted = (torch.zeros(ranges.target_items, *trailing, dtype=dtype) for _ in range(2))
        kernel.reference(values, wanted, ranges.starts, ranges.places, ranges.lengths)
        if values.numel():
            words = [each.view(WORDS[dtype.itemsize]) for each in (values, found)]
            ranges_triton.launch(*words, ranges.starts, ranges.places, ranges.lengths, values[0].numel())
        assert same_bits(found, wanted), (name, dtype)
    print(name)
for name, (starts, places, lengths, row, rows, items) in OVERLAPPING.items():
    for dtype, trailing in ((torch.float32, (3,)), (torch.float64, ())):
        values = torch.randn(int(lengths.sum()), *trailing, dtype=dtype)
        found, wanted = (torch.ones(items, *trailing, dtype=dtype) for _ in range(2))
        kernel.add_reference(values, wanted, starts, places, lengths)
        if values.numel():
            ranges_triton.launch_add(values, found, starts, places, lengths, row, rows, values[0].numel())
        assert torch.equal(found, wanted), (name, dtype, trailing)
    print(name)
ranges_triton.BLOCK = 8  # some samples are more than a program plans at a time
for name, (lengths, rank) in BY_RANK.items():
    assert all(
        map(torch.equal, ranges_triton.launch_by_rank(lengths, rank), kernel.by_rank_reference(lengths, rank))
    ), name
    print(name)
