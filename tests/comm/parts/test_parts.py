"""Steps that are computed in parts: to the bit what one call of the embedding modules for the whole batch gives."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from exact import Run, check_equal, compare, new_run
from exact_configs import CONFIGS, configs
from exact_device import compare_played
from exact_model import Config
from exact_parts import LOOPS, Numbers, at, in_parts, loss_of, own_dense_gradients, steps
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S
from torch import nn
from torchrec import KeyedJaggedTensor
from worlds import World, shared_world

import fscomm
from fscomm import comm
from fscomm.engine.engine import Engine
from fscomm.engine.step import Step
from fscomm.exchange.executor import Threads
from fscomm.exchange.operations import Due, Kind, Operation
from fscomm.loop.lookahead import Lookahead
from fscomm.loop.moving import Moving
from fscomm.parts.batch_parts import InOnePart, cut_batch, cut_points
from fscomm.parts.dedup_plan import DedupMerge
from fscomm.parts.number_of_parts import SPAN, NumberOfParts
from fscomm.parts.schedule import PartSchedule
from fscomm.report.recorder import Recorder
from fscomm.tables.torchrec.features import make_features
from fsranks.errors import MismatchError


def compared(
    rank: int, size: int, config: Config, loop: str, parts: Numbers, options: dict[str, Any], ahead: bool, streams: bool
) -> tuple[list[str], Any]:
    """ahead, streams: see `compare_played`."""
    allowed: Any = parts
    with contextlib.ExitStack() as patched:
        if not isinstance(parts, int):
            allowed = sorted(set(parts))
            patched.enter_context(
                mock.patch.object(
                    NumberOfParts, "of", lambda self, step: at(parts, step) if self.numbers != (1,) else 1
                )
            )
        options = {"parts": allowed, **options}
        return compare_played(rank, size, config, in_parts(loop, parts), options, ahead=ahead, streams=streams)


def check(
    world: World,
    config: Config,
    loop: str,
    parts: Numbers,
    *,
    ahead: bool = False,
    streams: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """Nothing differs. Returns what fscomm said of itself on every rank."""
    return check_equal(world, compared, config.but(static_graph=False), loop, parts, options, ahead, streams)


MODELS = [  # one for each kind of sharding, of precision on the way, of bags; and each transport
    ("odd tables", 1, 4, "gloo"),
    ("half output", 2, 3, "host-staged"),
    ("one KJT", 2, 3, "copy-engine"),
    ("pooled hosts", 2, 2, "gloo"),
    ("pooled weighted", 3, 2, "gloo"),
    ("quantised", 2, 2, "gloo"),
]


@pytest.mark.parametrize(("name", "size", "parts", "transport"), MODELS, ids=[f"{m[0]}-{m[1]}" for m in MODELS])
def test_models(name: str, size: int, parts: int, transport: str) -> None:
    """All forwards but those of the first step are served."""
    config = CONFIGS[name]
    for said in check(shared_world(size), config, "base", parts, transport=transport):
        assert said["fallbacks"] == {}
        for forwards in said["report"]["forwards"].values():
            assert forwards["served"] == config.steps - 1


CASES = [(loop, (2, 1, 3), True) for loop in LOOPS if loop != "evaluated"]  # whose steps have other numbers
CASES += [(loop, 3, False) for loop in ("evaluated", "base", "some_backwards")]


@pytest.mark.parametrize(("loop", "parts", "device"), CASES)
def test_loops(loop: str, parts: Numbers, device: bool) -> None:
    for said in check(shared_world(2), CONFIGS["small"], loop, parts, ahead=device, streams=device):
        assert said["fallbacks"] == {}


@pytest.mark.parametrize("name", ["several", "pooled mixed", "quantised sums", "one KJT"])
def test_every_step_in_another_number_of_parts(name: str) -> None:
    config = CONFIGS[name]
    for said in check(shared_world(2), config, "base", (1, 3, 1, 1, 4, 2)):
        assert said["fallbacks"] == {}


def summed(rank: int, size: int, config: Config) -> tuple[list[str], tuple[int, bool]]:
    """What differs; of how many sums the indices were seen by the device, and whether all of them were."""
    seen = []
    sent_after = DedupMerge.sent_after

    def noted(self: DedupMerge, gradients: Sequence[Any]) -> Any:
        device = comm.device_of(torch.device("cpu"))
        seen.append({id(each) for each in self.read_after(len(gradients) - 1)} <= device.read)
        return sent_after(self, gradients)

    with mock.patch.object(DedupMerge, "sent_after", noted):
        found, _ = compared(rank, size, config, "base", 3, {}, True, True)
    return found, (len(seen), all(seen))


def test_index_dedup_on_a_device() -> None:
    """What the ids worker made and a backward pass reads is not freed before the device has read it."""
    for sums, all_read in check_equal(shared_world(2), summed, CONFIGS["one KJT"].but(static_graph=False)):
        assert sums > 0
        assert all_read


def test_tables_with_a_cache() -> None:
    for said in check(shared_world(2), CONFIGS["small"].but(cached=True), "base", 3, ahead=True, streams=True):
        assert said["fallbacks"] == {}


def with_graph_in_parts(run: Run) -> None:
    with run.enable() as comm:
        for step, parts in steps(run, comm, 3):
            with parts as of_step, own_dense_gradients(run):
                for i, part in enumerate(of_step):
                    loss_of(run, f"{step}.{i}", part).backward(create_graph=True)
            run.optimizer.step()


def test_backward_that_makes_a_graph_in_parts() -> None:
    config = CONFIGS["small"].but(data_parallel=False)
    for said in check_equal(shared_world(2), compare, config, with_graph_in_parts, "fscomm", {"parts": 3}):
        assert said["fallbacks"] == {}


STEP_MS = {1: 90, 2: 50, 4: 40, 8: 60}


class Drawn(list[Any]):
    """A loader that draws a random number for each batch."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            torch.rand(1)
            yield batch


def line_of_parts(report: fscomm.Report) -> str:
    (line,) = (each for each in str(report).splitlines() if each == report.parts_line())
    return line


def trials(rank: int, size: int, steps: int, parts: Any = "auto", *, draws: bool = False) -> tuple[list[int], Any, str]:
    """In how many parts each step was, on a clock that runs while a rank computes, on the last rank twice as fast.

    draws: loader and training draw from the same random numbers.
    """
    config = CONFIGS["small"].but(static_graph=False, steps=steps)
    now, numbers = [0.0], []
    with mock.patch.object(comm, "Recorder", functools.partial(Recorder, clock=lambda: now[0])):
        run = new_run(rank, size, config, "fscomm", {"parts": parts})
        loader = Drawn(run.loader()) if draws else run.loader()
        with run.enable() as block:
            for step in block.lookahead(loader):
                if draws:
                    torch.rand(1)
                numbers.append(0)
                for part in step.parts():
                    run.model(part).sum().backward()
                    numbers[-1] += 1
                now[0] += STEP_MS[numbers[-1]] / 1e3 / (1 if rank == size - 1 else 2)
            report = block.report()
    return numbers, report, line_of_parts(report)


def test_auto_takes_the_number_that_is_fastest_on_the_slowest_rank() -> None:
    ran = [8] * SPAN + [4] * SPAN + [2] * SPAN + [1] * SPAN
    for rank, (numbers, report, line) in enumerate(shared_world(2).run(trials, 4 * SPAN + 8)):
        assert numbers[: len(ran)] == ran
        assert numbers[-3:] == [4] * 3
        assert report.parts == 4
        assert {each.parts: each.step_ms for each in report.tried} == STEP_MS
        took = [pytest.approx(STEP_MS[number] / (1 if rank == 1 else 2)) for number in numbers]
        assert [each.step_ms for each in report.steps] == [*took[:-1], None]
        assert report.to_dict()["tried"][0] == {"parts": 1, "steps": 4, "step_ms": 90.0, "exposed_ms": 0.0}
        assert line.startswith("steps in 4 parts; measured: 1 part 90 ms a step, 0 of it exposed, 2 parts 50 ms")


def test_until_all_numbers_were_tried_none_is_chosen() -> None:
    for _, report, line in shared_world(2).run(trials, 2 * SPAN):
        assert report.parts is None
        assert line.startswith("number of parts still to be chosen; measured: 4 parts 40 ms")


def test_a_number_is_chosen_where_no_batch_is_pulled_early() -> None:
    for _, report, _ in shared_world(2).run(functools.partial(trials, draws=True), 2 * SPAN + 4, (1, 2)):
        assert report.parts == 2


def test_where_nothing_is_served_steps_have_one_part() -> None:
    steps = list(Lookahead(["a", "b"], listener=InOnePart(), moving=Moving(None)))
    assert [(step.batch, list(step.parts())) for step in steps] == [("a", ["a"]), ("b", ["b"])]


def other_numbers(rank: int, size: int, config: Config) -> str:
    run = new_run(rank, size, config, "fscomm", {"parts": [2, 4] if rank else "auto"})
    with pytest.raises(MismatchError) as raised, run.enable():
        pass
    return str(raised.value)


def test_all_ranks_try_the_same_numbers() -> None:
    for error in shared_world(2).run(other_numbers, CONFIGS["small"].but(static_graph=False)):
        assert "parts" in error
        assert "(2, 4)" in error


def late_looks(rank: int, size: int) -> list[str]:
    """Rows of later parts are looked up when the user's thread waits for them, and not before."""
    submit, await_rows, output = Threads.submit, PartSchedule.await_rows, Engine.output
    held: list[Future[None]] = []

    def waits() -> None:
        for each in held:
            each.set_result(None)
        held.clear()

    def submitted(
        self: Threads, operations: Sequence[Operation], due: Due = Due.BACKGROUND, **expecting: Any
    ) -> list[Any]:
        if due is Due.NOW:
            waits()
        if due is not Due.NEXT:
            return submit(self, operations, due, **expecting)
        fetches = [each for each in operations if each.kind is Kind.FETCH]
        others = operations[: len(operations) - len(fetches)]
        done = submit(self, others, due) if others else []
        if fetches:
            held.append(Future())
            fetches[0] = replace(fetches[0], after=[*fetches[0].after, held[-1]])
            done += submit(self, fetches, due)
        return done

    def awaited(self: PartSchedule, m: int) -> None:
        waits()
        await_rows(self, m)

    def run(self: Engine, m: int, step: Step, features: Any, number: int) -> Any:
        if number > 0:
            waits()
        return output(self, m, step, features, number)

    with contextlib.ExitStack() as patched:
        for owner, name, function in (
            (Threads, "submit", submitted),
            (PartSchedule, "await_rows", awaited),
            (Engine, "output", run),
        ):
            patched.enter_context(mock.patch.object(owner, name, function))
        found, _ = compared(rank, size, CONFIGS["small"].but(steps=5), "looked_at", 3, {}, False, False)
    return found


def test_what_the_user_writes_between_parts_is_not_seen_by_later_ones() -> None:
    assert shared_world(2).run(late_looks) == [[], []]


@pytest.mark.long
@pytest.mark.timeout(7200)
@given(
    size=st.integers(1, 4),
    config=configs(),
    loop=st.sampled_from(sorted(LOOPS)),
    parts=st.sampled_from([2, 3, 4, 8]),
    spread=st.sampled_from([0.02, 0.2, 1.0]),
)
def test_random_models_with_index_dedup(size: int, config: Config, loop: str, parts: int, spread: float) -> None:
    """spread: of the ids of a table; from 2 % of them most ids of a batch are drawn more than once."""
    check(shared_world(size), config.but(calls=1, dedup=True, spread=spread), loop, parts)


@pytest.mark.long
@pytest.mark.timeout(7200)
@given(
    size=st.integers(1, 4),
    config=configs(),
    loop=st.sampled_from(sorted(LOOPS)),
    parts=st.sampled_from([2, 3, 4, 8]),
)
def test_many_random_models_and_loops(size: int, config: Config, loop: str, parts: int) -> None:
    check(shared_world(size), config.but(calls=1), loop, parts)


def misused(rank: int, size: int, config: Config, how: str) -> str:
    """The error of the loop, and nothing left behind."""
    run = new_run(rank, size, config, "fscomm", {"parts": 2, "timeout_s": PATIENCE_S})
    error = "none"
    try:
        with run.enable() as comm:
            for number, step in enumerate(comm.lookahead(run.loader())):
                if how == "another number":
                    step.parts(3)
                if how == "the whole batch":
                    run.model(step.batch)
                parts = step.parts(2)  # still there when the block is left
                for part in parts:
                    if how == "twice in a part" and number == 1:
                        run.model(part)
                    given_part = run.loader(7, 8)[0] if how == "another batch" and number == 1 else part
                    loss = run.model(given_part).sum()
                    loss.backward(retain_graph=how == "twice back")
                    if how == "twice back" and number == 1:
                        loss.backward()
                    if how == "another loop inside" and number == 1:
                        list(comm.lookahead(run.loader(0, 1)))
                if how == "twice a step":
                    step.parts(2)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    assert run.ddp.require_backward_grad_sync
    run.model(run.loader()[0]).sum().backward()  # the model is its own again
    dist.barrier()
    return error


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            "another number",
            "ValueError: parts(3), but enable(parts=...) has cut this batch into 2: leave the number out",
        ),
        ("the whole batch", "called in training outside of a part"),
        ("twice in a part", "called once in every part, in order"),
        ("another batch", "features= gave other ids than the module got"),
        ("twice back", "a second backward through a part"),
        ("another loop inside", "RuntimeError: embeddings.a is called in training in a part of a step that is over"),
        ("twice a step", "RuntimeError: the parts of a step are computed once"),
    ],
)
def test_misuse(how: str, words: str) -> None:
    for error in shared_world(2).run(misused, CONFIGS["small"], how):
        assert words in error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parts": 0}, "parts must be a number from 1 to 64, several of them, each once, or 'auto', got 0"),
        ({"parts": [2, 65]}, r"got \[2, 65\]"),
        ({"parts": (2, 2)}, r"got \(2, 2\)"),
        ({"parts": "4"}, "got '4'"),
        ({"parts": {2, 4}}, r"got {2, 4}"),
        ({"parts": 2, "calls": 2}, "parts=2 goes with calls=1 and ranks_per_host=1 only"),
        ({"parts": "auto", "ranks_per_host": 2}, "parts='auto' goes with calls=1 and ranks_per_host=1 only"),
    ],
)
def test_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fscomm.enable(nn.Linear(2, 2), **options)


def unserved(rank: int, size: int, config: Config) -> tuple[str, str]:
    """The error of `parts=2`, and what the report of "auto" says of steps that are computed whole."""
    run = new_run(rank, size, config, "fscomm", {"parts": 2})
    with pytest.raises(ValueError) as raised, run.enable():
        pass
    run = new_run(rank, size, config, "fscomm", {"parts": "auto"})
    with run.enable() as block:
        for step in block.lookahead(run.loader()):
            for part in step.parts(1):
                assert part is step.batch
                run.model(part).sum().backward()
        assert block.report().parts == 1
        return str(raised.value), line_of_parts(block.report())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (CONFIGS["small"].but(static_graph=True), "a DefaultDataParallelWrapper(static_graph=False)"),
        (CONFIGS["planned"], "embeddings.b (data_parallel): sharding data_parallel is not served"),
    ],
)
def test_what_cannot_be_computed_in_parts(config: Config, words: str) -> None:
    for error, line in shared_world(2).run(unserved, config):
        assert words in error
        assert line.startswith("steps in 1 part: ")
        assert words in line


@given(costs=st.lists(st.integers(1, 50), max_size=30), number=st.integers(1, 9))
def test_parts_cost_about_the_same(costs: list[int], number: int) -> None:
    """No part is further from its share than by one sample at either end."""
    ends = cut_points(np.array(costs, np.int64), number)
    assert ends == sorted(ends)
    assert (len(ends), ends[-1]) == (number, len(costs))
    of_parts = [sum(costs[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    assert all(abs(cost - sum(costs) / number) <= max(costs, default=0) for cost in of_parts)


class Given:
    """A batch of a user's own class."""

    def __init__(self, samples: int, draw: torch.Generator) -> None:
        lengths = torch.randint(0, 4, (2 * samples,), generator=draw, dtype=torch.int32)
        values, weights = torch.randint(0, 99, (int(lengths.sum()),), generator=draw), torch.rand(int(lengths.sum()))
        self.kjt = KeyedJaggedTensor(["a", "b"], values, weights=weights, lengths=lengths, stride=samples)
        self.nested = {"dense": [torch.rand(samples, 2)], "names": ("x", torch.rand(samples + 1)), "number": 5}
        self.scalar = torch.tensor(1.0)
        self.whole = {"itself": self}
        self.fixed = MappingProxyType({"target": torch.rand(samples)})


@given(samples=st.integers(0, 9), number=st.integers(2, 5), seed=st.integers(0, 999))
def test_any_batch_with_a_kjt_is_cut(samples: int, number: int, seed: int) -> None:
    batch = Given(samples, torch.Generator().manual_seed(seed))
    parts = cut_batch(batch, number, make_features)
    assert sum(part.kjt.stride() for part in parts) == samples
    assert all(part.kjt.lengths().is_contiguous() for part in parts)
    for key, jagged in batch.kjt.to_dict().items() if samples else ():
        of_parts = [part.kjt[key] for part in parts if part.kjt.stride()]
        assert torch.equal(torch.cat([each.values() for each in of_parts]), jagged.values())
        assert torch.equal(torch.cat([each.weights() for each in of_parts]), jagged.weights())
        assert torch.equal(torch.cat([each.lengths() for each in of_parts]), jagged.lengths())
    assert torch.equal(torch.cat([part.nested["dense"][0] for part in parts]), batch.nested["dense"][0])
    assert torch.equal(torch.cat([part.fixed["target"] for part in parts]), batch.fixed["target"])
    for part in parts:
        assert part.nested["names"][1] is batch.nested["names"][1]
        assert (part.nested["number"], part.scalar) == (5, batch.scalar)
        assert part.whole is not batch.whole
    assert batch.kjt.stride() == samples  # as it was


def test_a_batch_with_slots_is_cut() -> None:
    @dataclass(slots=True)
    class Slots:
        kjt: KeyedJaggedTensor
        dense: torch.Tensor

    given = Given(4, torch.Generator().manual_seed(0))
    parts = cut_batch(Slots(given.kjt, torch.arange(4)), 2, make_features)
    assert torch.equal(torch.cat([part.dense for part in parts]), torch.arange(4))


def test_a_batch_without_a_kjt_has_to_cut_itself() -> None:
    with pytest.raises(ValueError, match=r"give it a method parts\(number\)"):
        cut_batch({"ids": torch.arange(4)}, 2, make_features)
