"""The jagged moves of `tests/kernels` on a GPU, by Triton."""

import importlib.util

import pytest
import torch
from ranges_cases import BY_RANK, CASES, DTYPES, check, check_backward

from fsdata.kernels.ranges import by_rank, by_rank_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]
RANDOM = torch.Generator().manual_seed(0)
# More samples than a program plans at a time, and more of them than an SM has room for at once.
MANY = torch.randint(0, 9, (3, 5000), generator=RANDOM), torch.randint(0, 512, (5000,), generator=RANDOM)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_moves_are_those_of_the_reference(name, dtype):
    check(CASES[name], (3,), dtype, device="cuda")
    check_backward(CASES[name], device="cuda")


@pytest.mark.parametrize("trailing", [(16,), (4, 8)], ids=str)
def test_wide_items_which_travel_as_vectors(trailing):
    for dtype in DTYPES:
        check(CASES["dispatch"], trailing, dtype, device="cuda")


@pytest.mark.parametrize("name", [*BY_RANK, "many samples"])
def test_plans_are_those_of_the_reference(name):
    lengths, rank = BY_RANK.get(name, MANY)
    found = by_rank(lengths.cuda(), rank.cuda())
    assert [each.tolist() for each in found] == [each.tolist() for each in by_rank_reference(lengths, rank)]
