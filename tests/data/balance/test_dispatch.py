"""Embedding-stage balancing: bit for bit what comes out without moving anything, forward and backward."""

import itertools
import re

import numpy as np
import pytest
import torch
from patience import PATIENCE_S
from worlds import shared_world

from fsdata import Balance
from fsdata.balance.exchange.step_exchange import Assignment
from fsdata.balance.options import StepPlanner
from fsdata.embedding_balance.dispatch import Dispatcher, combine, dispatch, dispatch_samples
from fsdata.errors import MismatchError, PeerError

KEYS = ("uih", "candidates")


def shuffled(batch):
    """Any rank for any sample; in every third step all samples on one rank."""
    ranks = int(batch.home.max()) + 1 if len(batch.home) else 1
    random = np.random.default_rng(batch.number)
    if batch.number % 3 == 2:
        return Assignment(rank=np.full(len(batch.home), batch.number % ranks))
    return Assignment(rank=random.integers(0, ranks, len(batch.home)))


def balanced(size):
    return StepPlanner(Balance(), size)


def step_of(rank, step, trailing, *, dtype=torch.float32):
    """Lengths, values and per-sample rows; rank 1 has no sample in step 1."""
    random = torch.Generator().manual_seed(100 * step + rank)
    samples = 0 if (rank, step) == (1, 1) else 6 + rank
    lengths = {key: torch.randint(0, 5, (samples,), generator=random) for key in KEYS}
    items = sum(int(given.sum()) for given in lengths.values())
    values = torch.randn(items, *trailing, generator=random).to(dtype)
    return lengths, values, torch.randn(samples, 2, generator=random)


def model(lengths, values, rows):
    """[samples, 2], each sample alone: a product over its items, key by key, times its rows."""
    out = []
    parts = values.split(lengths.flatten().tolist())
    for sample in range(lengths.shape[1]):
        total = rows[sample]
        for key in range(lengths.shape[0]):
            for item in parts[key * lengths.shape[1] + sample]:
                total = total * torch.sin(item.flatten()[:2].float() + key) + 0.1
        out.append(total)
    return torch.stack(out) if out else rows * values.sum()


def same_as_at_home(rank, size, planner, trailing):
    with Dispatcher(shuffled if planner == "shuffled" else balanced(size), timeout_s=PATIENCE_S) as dispatcher:
        for step in range(4):
            lengths, values, rows = step_of(rank, step, trailing)
            results = []
            for moved in (False, True):
                given = [tensor.clone().requires_grad_() for tensor in (values, rows)]
                if moved:
                    handle = dispatcher.plan(lengths)
                    there = [dispatch(given[0], handle), dispatch_samples(given[1], handle)]
                    out = combine(model(handle.lengths, *there), handle)
                else:
                    out = model(torch.stack(list(lengths.values())), *given)
                weight = torch.arange(out.numel(), dtype=torch.float32).view_as(out) + rank
                (out * weight).sum().backward()
                results.append([out.detach(), *(tensor.grad for tensor in given)])
            for name, plain, other in zip(("outputs", "values", "rows"), *results, strict=True):
                assert torch.equal(plain, other), (step, name)
    return True


FAST = [(1, "shuffled", (2,)), (2, "balanced", (3, 2)), (3, "shuffled", (2,)), (3, "balanced", (3, 2))]
WAYS = list(itertools.product([1, 2, 3, 4], ["shuffled", "balanced"], [(2,), (3, 2)]))


@pytest.mark.parametrize(
    ("size", "planner", "trailing"),
    [way if way in FAST else pytest.param(*way, marks=pytest.mark.long) for way in WAYS],
    ids=str,
)
def test_moving_changes_no_bit(size, planner, trailing):
    assert shared_world(size).run(same_as_at_home, planner, trailing) == [True] * size


def all_types(rank, size):
    """A handle serves many dispatches; every type comes through, and origin says from where."""
    with Dispatcher(shuffled, timeout_s=PATIENCE_S) as dispatcher:
        lengths, _, rows = step_of(rank, 0, ())
        handle = dispatcher.plan(lengths)
        items = sum(int(given.sum()) for given in lengths.values())
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64):
            sent = (torch.arange(items) + 1000 * rank).to(dtype)
            there = dispatch(sent, handle)
            assert (there.dtype, len(there)) == (dtype, int(handle.lengths.sum()))
            assert torch.equal(handle._values.inverse.run(there, back=True), sent)
        named = torch.stack([torch.full((len(rows),), rank), torch.arange(len(rows))], dim=1)
        assert torch.equal(dispatch_samples(named, handle), handle.origin)
        assert torch.equal(combine(handle.origin, handle), named)
        return handle.num_samples, handle.moved


def test_one_handle_many_dispatches():
    found = shared_world(3).run(all_types)
    assert sum(samples for samples, _ in found) == 6 + 7 + 8
    assert len({moved for _, moved in found}) == 1
    assert 0 < found[0][1] < 1


def planned_well(rank, size):
    with Dispatcher(balanced(size), timeout_s=PATIENCE_S) as dispatcher:
        handle = dispatcher.plan({"uih": torch.full((8,), 50 * (rank + 1))})
        return handle.straggler_before, handle.straggler_after, int(handle.lengths.sum())


def test_the_plan_balances():
    found = shared_world(2).run(planned_well)
    assert found[0][0] > 0.2
    assert found[0][1] < 0.001
    assert found[0][2] == found[1][2]


def other_call(rank, size, what):
    with pytest.raises(MismatchError) as caught, Dispatcher(shuffled, timeout_s=PATIENCE_S) as dispatcher:
        differ(dispatcher, rank, what)
    return str(caught.value)


def differ(dispatcher, rank, what):
    """Rank 1 does something else than rank 0."""
    lengths, values, rows = step_of(0, 0, (2,))
    if what == "keys" and rank == 1:
        lengths = {"other": lengths["uih"], "candidates": lengths["candidates"]}
    handle = dispatcher.plan(lengths)
    if what == "call" and rank == 1:
        dispatch_samples(rows, handle)
    dispatch(values.double() if what == "type" and rank == 1 else values, handle)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("keys", "do not plan the same step"),
        ("call", r"dispatch of step 0 .*; dispatch_samples of step 0"),
        ("type", r"8 bytes an item\); dispatch of step 0 .* 16 bytes"),
    ],
    ids=["keys", "call", "type"],
)
def test_ranks_that_differ_are_told_apart(what, message):
    for text in shared_world(2).run(other_call, what):
        assert re.search(message, text), text


def plans_differ(rank, size):
    def planner(batch):
        return Assignment(rank=(batch.home + rank) % size)

    with Dispatcher(planner, timeout_s=PATIENCE_S) as dispatcher:
        lengths, values, _ = step_of(0, 0, (2,))
        handle = dispatcher.plan(lengths)
        with pytest.raises(MismatchError, match="different exchanges: dispatch of step 0") as caught:
            dispatch(values, handle)
    return str(caught.value)


def test_plans_that_differ_move_nothing():
    for text in shared_world(2).run(plans_differ):
        assert text.count("plan ") == 2


def one_backward_only(rank, size):
    """Rank 1 leaves before its backward; rank 0 must not wait for ever."""
    lengths, values, _ = step_of(0, 0, (2,))
    values.requires_grad_()
    dispatcher = Dispatcher(shuffled, timeout_s=PATIENCE_S)
    there = dispatch(values, dispatcher.plan(lengths))
    if rank == 1:
        dispatcher.close()
        return ""
    with pytest.raises(PeerError) as caught:
        there.sum().backward()
    dispatcher.close()
    return str(caught.value)


def test_a_rank_that_leaves_is_named():
    said = shared_world(2).run(one_backward_only)
    assert "rank 1 closed its Dispatcher" in said[0]


def nonsense(rank, size):
    with Dispatcher(shuffled, timeout_s=PATIENCE_S) as dispatcher:
        for lengths, message in (
            ({}, "empty"),
            ({"a": torch.ones(2).long(), "b": torch.ones(3).long()}, "same n"),
        ):
            with pytest.raises(ValueError, match=message):
                dispatcher.plan(lengths)
        with pytest.raises(TypeError, match="integers"):
            dispatcher.plan({"a": torch.ones(2)})
        handle = dispatcher.plan({"a": torch.ones(2).long()})
        with pytest.raises(ValueError, match="must be 2"):
            dispatch(torch.ones(3), handle)
    return True


def test_nonsense_is_refused():
    assert shared_world(1).run(nonsense) == [True]
