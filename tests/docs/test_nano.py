"""`examples/nano.py`: compared with a whole table, with fsdata's packing and order, and with sets of rows."""

import ast
import contextlib
import io
import subprocess
import sys
from itertools import chain
from types import SimpleNamespace
from typing import Any
from unittest import mock

import nano
import numpy as np
import pytest
import torch
import torch.distributed as dist
from pages import ROOT
from patience import PATIENCE_S
from worlds import shared_world

from fsdata.balance.packing import pack
from fsdata.order.deal import permutation

STEPS, STOP = 10, 4  # past the end of an epoch of 8 steps
State = dict[str, Any]
Run = tuple[list[tuple[list[int], float, float]], State]  # of each step the samples, the loss, the collision share


def as_type(kind: type, state: State, change: Any) -> State:
    return {name: change(value) if isinstance(value, kind) else value for name, value in state.items()}


def on_a_rank(rank: int, size: int, loop: str, state: State, steps: int) -> Run:
    done, after = nano.train(getattr(nano, loop), as_type(np.ndarray, state, torch.from_numpy), steps)
    return [(batch.samples.tolist(), *shares) for batch, *shares in done], as_type(torch.Tensor, after, np.asarray)


def trained(ranks: int, loop: str, state: State | None = None, steps: int = STEPS) -> list[Run]:
    """What each rank did, and the state after it; from the state before the first step if none is given."""
    state = nano.initial_state(seed=3) if state is None else state
    state = as_type(torch.Tensor, state, np.asarray)
    return shared_world(ranks).run(on_a_rank, loop, state, steps)


def losses(run: Run) -> list[float]:
    return [loss for _, loss, _ in run[0]]


def is_same(one: State, other: State) -> bool:
    return all(map(np.array_equal, one.values(), other.values()))


def whole_table(ranks: int, steps: int) -> tuple[list[float], State]:
    """The same training in one process, which computes the batches of all ranks and has one table for all."""
    state = nano.initial_state(seed=3)
    table, squares = state["table"], state["squares"]
    dense = {name: state[name].requires_grad_() for name in ("attention", "output")}
    found = []
    for position in range(steps):
        samples = [nano.read_sample(number) for number in nano.global_batch(3, position).tolist()]
        lengths = np.array([len(sample) - 1 for sample in samples])
        of_rank = nano.balance(lengths * (nano.LINEAR + nano.QUADRATIC * lengths), ranks)
        rows, gradients, total = [], [], torch.zeros(())
        for rank in range(ranks):
            mine = [torch.from_numpy(sample) for sample, owner in zip(samples, of_rank, strict=True) if owner == rank]
            labels, ids = torch.stack([sample[0] for sample in mine]).float(), [sample[1:] for sample in mine]
            batch = SimpleNamespace(labels=labels, lengths=list(map(len, ids)))
            rows.append(torch.cat(ids))
            used = table[rows[-1]].requires_grad_()
            loss = nano.Job.loss(SimpleNamespace(dense=dense), batch, used)
            loss.backward()  # dense gradients add up rank after rank
            gradients.append(used.grad)
            total += loss.detach()
        sums = np.zeros_like(table)
        np.add.at(sums, torch.cat(rows).numpy(), torch.cat(gradients).numpy())  # one after the other
        sums = torch.from_numpy(sums)
        squares += sums.square().mean(1)
        table -= nano.LEARNING_RATE * sums / (squares.sqrt() + nano.EPS)[:, None]
        for weight in dense.values():
            weight.data -= nano.LEARNING_RATE * weight.grad
            weight.grad = None
        found.append(float(total))
    after = state | {name: weight.detach() for name, weight in dense.items()} | {"position": steps}
    return found, as_type(torch.Tensor, after, np.asarray)


@pytest.fixture(scope="module")
def whole() -> list[Run]:
    return trained(2, "prioritized")


@pytest.fixture(scope="module")
def stopped() -> list[Run]:
    return trained(2, "prioritized", steps=STOP)


def test_both_loops_train_as_one_process_with_the_whole_table(whole: list[Run]) -> None:
    expected, state = whole_table(2, STEPS)
    for run in [*whole, *trained(2, "plain")]:
        assert losses(run) == expected
        assert is_same(run[1], state)
    assert min(share for _, _, share in whole[0][0][1:]) > 0.05  # steps collide


def test_a_run_that_stopped_is_the_run_that_did_not(whole: list[Run], stopped: list[Run]) -> None:
    first = stopped[0]
    second, _ = trained(2, "prioritized", first[1], STEPS - STOP)
    assert losses(first) + losses(second) == losses(whole[0])
    assert is_same(second[1], whole[0][1])


def test_on_another_number_of_ranks_steps_have_the_same_samples(whole: list[Run], stopped: list[Run]) -> None:
    """These are exact, in their order. Losses are sums in another order: equal to rounding."""
    first, other = stopped
    (second,) = trained(1, "prioritized", first[1], STEPS - STOP)
    assert [samples for samples, _, _ in second[0]] == [
        nano.global_batch(3, position).tolist() for position in range(STOP, STEPS)
    ]
    for position, steps in enumerate(zip(first[0], other[0], strict=True)):
        of_ranks = [samples for samples, _, _ in steps]
        batch = nano.global_batch(3, position).tolist()
        assert [sorted(samples, key=batch.index) for samples in of_ranks] == of_ranks
        assert sorted(chain(*of_ranks)) == sorted(batch)
    assert losses(second) == pytest.approx(losses(whole[0])[STOP:], rel=1e-4)


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 2, but this program reads version 1"):
        nano.Job(nano.initial_state(seed=3) | {"version": 2})


def test_the_order_of_an_epoch_is_fsdatas() -> None:
    steps = nano.S // nano.N
    for epoch in range(2):
        found = np.concatenate([nano.global_batch(5, epoch * steps + step) for step in range(steps)])
        assert np.array_equal(found, permutation(nano.S, 5, epoch))


@pytest.mark.parametrize("largest", [1, 6, 10**4, 2**50])  # from ties only to none
def test_balance_is_fsdatas_zigzag_with_swaps(largest: int) -> None:
    draw = np.random.default_rng(largest)
    for _ in range(100):
        cost, ranks = draw.integers(0, largest, draw.integers(0, 60)), int(draw.integers(1, 12))
        assert np.array_equal(nano.balance(cost, ranks), pack(cost, ranks, method="fbs+swap").rank), (ranks, cost)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_balance_of_histories_is_fsdatas(ranks: int) -> None:
    """On 64 ranks one sample is more than a rank's share: every bound of the search is reached."""
    lengths = np.clip(np.random.default_rng(ranks).lognormal(7, 1, 32 * ranks), 1, 21_000).astype(np.int64)
    cost = lengths * (2000 + lengths)
    assert np.array_equal(nano.balance(cost, ranks), pack(cost, ranks).rank)


def batches_on(rank: int, size: int, steps: int) -> list[tuple[list[int], list[int], list[int], list[float]]]:
    batches = [nano.balanced_batch(3, position) for position in range(steps)]
    return [(each.samples.tolist(), each.lengths, each.ids.tolist(), each.straggler) for each in batches]


def test_every_rank_gets_the_samples_that_are_balanced_to_it() -> None:
    ranks = 3
    found = shared_world(ranks).run(batches_on, 2)
    for position in range(2):
        numbers = nano.global_batch(3, position)
        ids = [nano.read_sample(number)[1:].tolist() for number in numbers.tolist()]
        lengths = np.array(list(map(len, ids)))
        cost = lengths * (nano.LINEAR + nano.QUADRATIC * lengths)
        read, balanced = np.arange(nano.N) * ranks // nano.N, nano.balance(cost, ranks)
        loads = [np.bincount(of_rank, cost, ranks) for of_rank in (read, balanced)]
        shares = pytest.approx([1 - load.mean() / load.max() for load in loads], abs=1e-12)
        for rank, batches in enumerate(found):
            mine = [of_sample for of_sample, owner in zip(ids, balanced, strict=True) if owner == rank]
            samples = numbers[balanced == rank].tolist()
            assert batches[position] == (samples, list(map(len, mine)), list(chain(*mine)), shares)


def classes_on(rank: int, size: int, steps: list[list[list[int]]]) -> list[tuple[list[int], list[int]]]:
    """Of both steps, exclusive and collision: positions in the batch, and rows of the shard."""
    table = nano.Table(torch.zeros(9, 1), torch.zeros(9))
    here, there = (table.ask(torch.tensor(step[rank]))() for step in steps)
    routes = *here.split(torch.isin(here.rows, there.rows)), *there.split(torch.isin(there.rows, here.rows))
    return [(route.asked.tolist(), route.rows.tolist()) for route in routes]


def test_collision_rows_are_those_of_both_steps_and_exclusive_rows_the_others() -> None:
    draw = np.random.default_rng(0)
    steps = [[draw.integers(0, 9, 3).tolist() for _ in range(2)] for _ in range(2)]  # two steps of two ranks
    found, used = shared_world(2).run(classes_on, steps), [set(chain(*step)) for step in steps]
    assert used[0] & used[1]
    assert used[0] ^ used[1]
    for rank, of_rank in enumerate(found):
        first, size = 5 * rank, (5, 4)[rank]
        for step, by_rank in enumerate(steps):
            exclusive, collision = of_rank[2 * step : 2 * step + 2]
            shared = used[1 - step]
            assert sorted(collision[0]) == [at for at, row in enumerate(by_rank[rank]) if row in shared]
            assert sorted(exclusive[0] + collision[0]) == list(range(len(by_rank[rank])))
            served = [row for row in chain(*by_rank) if first <= row < first + size]
            assert collision[1] == [row - first for row in served if row in shared]
            assert exclusive[1] == [row - first for row in served if row not in shared]


def printed_on(rank: int, size: int) -> str:
    out = io.StringIO()
    with (
        mock.patch.object(dist, "init_process_group"),
        mock.patch.object(dist, "destroy_process_group"),
        contextlib.redirect_stdout(out),
    ):
        nano.main(rank, size, "")
    return out.getvalue()


def is_exact(printed: str, ranks: int) -> bool:
    lines = printed.splitlines()
    assert (lines[0], len(lines)) == (f"{ranks} ranks", 4 + nano.STEPS), printed
    return [line.split(": ")[1] for line in lines[-2:]] == [
        "bitwise identical to the plain loop",
        "bitwise identical to no stop",
    ]


def test_the_program_compares_on_three_ranks() -> None:
    printed = shared_world(3).run(printed_on)
    assert is_exact(printed[0], 3)
    assert printed[1:] == ["", ""]


@pytest.mark.long
def test_the_program_starts_its_ranks() -> None:
    command = [sys.executable, str(ROOT / "examples/nano.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    assert is_exact(done.stdout, 2)


def test_it_needs_torch_and_numpy_only() -> None:
    tree = ast.parse((ROOT / "examples/nano.py").read_text())
    names = [alias.name for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names]
    names += [str(each.module) for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"torch", "numpy"}
