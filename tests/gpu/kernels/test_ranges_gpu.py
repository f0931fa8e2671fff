"""The jagged moves of `tests/kernels` on a GPU, by Triton."""

import importlib.util

import pytest
import torch
from ranges_cases import CASES, DTYPES, check, check_backward

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_moves_are_those_of_the_reference(name, dtype):
    check(CASES[name], (3,), dtype, device="cuda")
    check_backward(CASES[name], device="cuda")


@pytest.mark.parametrize("trailing", [(16,), (4, 8)], ids=str)
def test_wide_items_which_travel_as_vectors(trailing):
    for dtype in DTYPES:
        check(CASES["dispatch"], trailing, dtype, device="cuda")
