"""Jagged moves against plain slices: every type, odd sizes, empty and giant rows, forward and backward."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranges_cases import BY_RANK, CASES, DTYPES, OVERLAPPING, check, check_backward

from fsdata.embedding.kernels.jagged_ops import (
    Ranges,
    indexed_permute,
    keyed_transpose,
    ranged_combine,
    ranged_dispatch,
)
from fsdata.kernels import ranges as kernel

lengths_of_keys = st.integers(1, 4).flatmap(
    lambda keys: st.lists(st.lists(st.integers(0, 9), min_size=keys, max_size=keys), min_size=1, max_size=12)
)


@pytest.mark.parametrize("name", CASES)
def test_moves_are_those_of_the_reference(name):
    for trailing in ((), (1,), (3,), (2, 5)):
        for dtype in DTYPES:
            check(CASES[name], trailing, dtype)
    check_backward(CASES[name])


@given(lengths=lengths_of_keys, ranks=st.integers(1, 5), seed=st.integers(0, 99))
def test_dispatch_combine_and_transpose_are_what_their_names_say(lengths, ranks, seed):
    table = torch.tensor(lengths).t().contiguous()  # [K, N]
    keys, samples = range(len(table)), range(len(lengths))
    rank = torch.from_numpy(np.random.default_rng(seed).integers(0, ranks, len(samples)))
    values = torch.arange(int(table.sum()))
    parts = iter(values.split(table.reshape(-1).tolist()))
    rows = [[next(parts).tolist() for _ in samples] for _ in keys]
    sent = ranged_dispatch(table, rank).apply(values)
    assert sent.tolist() == [
        i for to in range(ranks) for k in keys for n in samples if rank[n] == to for i in rows[k][n]
    ]
    assert torch.equal(ranged_combine(table, rank).apply(sent), values)
    turned = keyed_transpose(table)
    assert turned.apply(values).tolist() == [item for n in samples for k in keys for item in rows[k][n]]
    assert torch.equal(turned.inverse.apply(turned.apply(values)), values)


def test_rows_that_are_left_out_have_no_gradient():
    moved = indexed_permute(torch.tensor([2, 3, 1]), torch.tensor([2, 0]))
    values = torch.randn(6, 2, requires_grad=True)
    out = moved.apply(values)
    assert torch.equal(out, torch.cat([values[5:], values[:2]]))
    out.backward(torch.ones_like(out))
    assert values.grad is not None
    assert values.grad[:, 0].tolist() == [1, 1, 0, 0, 0, 1]


def test_a_plan_does_not_change_with_the_lengths_that_it_was_made_of():
    lengths = torch.tensor([[2, 1, 3]])
    moved = ranged_dispatch(lengths, torch.tensor([1, 0, 1]))
    lengths.fill_(1)
    assert moved.apply(torch.arange(6)).tolist() == [2, 0, 1, 3, 4, 5]


def test_beyond_two_to_the_31():
    """Memory is committed when it is touched: only the rows near the end are."""
    items = 2**31 + 1000
    source, target = torch.empty(items, dtype=torch.int16), torch.empty(items, dtype=torch.int16)
    source[-5:] = torch.arange(5, dtype=torch.int16)
    starts = torch.tensor([items - 5, items - 2])
    places = torch.tensor([items - 900, items - 3])
    kernel.copy_ranges(source, target, starts, places, torch.tensor([3, 2]))
    assert target[-900:-897].tolist() == [0, 1, 2]
    assert target[-3:-1].tolist() == [3, 4]


TWO = torch.zeros(2).long()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ranged_dispatch(torch.ones(3).long(), torch.zeros(3).long()), ValueError, "keys, samples"),
        (lambda: ranged_dispatch(torch.ones(2, 3).long(), TWO), ValueError, "one destination each"),
        (lambda: ranged_dispatch(torch.ones(2, 3).long(), torch.ones(3).long().to("meta")), ValueError, "move one of"),
        (lambda: keyed_transpose(torch.ones(2, 3).long()).apply(torch.zeros(5)), ValueError, "must be 6"),
        (
            lambda: Ranges(starts=TWO, places=TWO, lengths=TWO[:1], source_items=0, target_items=0),
            ValueError,
            "int64 of shape",
        ),
        (lambda: indexed_permute(torch.ones(3), torch.arange(3)), TypeError, "integers are needed"),
    ],
    ids=["one key", "ranks", "devices", "items", "shapes", "floats"],
)
def test_nonsense_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", OVERLAPPING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_sums_of_ranges_are_those_of_the_reference(name, dtype):
    starts, places, lengths, row, rows, items = OVERLAPPING[name]
    values = torch.randn(int(lengths.sum()), 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    found, wanted = (torch.ones(items, 3, dtype=dtype) for _ in range(2))
    kernel.add_reference(values, wanted, starts, places, lengths)
    kernel.add_ranges(values, found, starts, places, lengths, row, rows)
    assert torch.equal(found, wanted)


def test_triton_interpreted():
    """In a process of its own, as the interpreter is chosen at import."""
    pytest.importorskip("triton", reason="needs triton")
    command = [sys.executable, str(Path(__file__).with_name("ranges_interpreted.py"))]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [*CASES, *OVERLAPPING, *BY_RANK]
