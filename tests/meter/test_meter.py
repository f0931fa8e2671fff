"""The meter of one process finds what was injected, by a clock that only the test turns, and leaves no trace."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from fscomm.report.recorder import Recorder
from fsmeter import BubbleMeter
from fsmeter.intervals import KINDS, BubbleReport, Exchange, Pass, StepTimes, Timeline, Wait, align, attribute
from fsranks.observers import observers


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds


def parts(step: StepTimes) -> dict[str, float]:
    """The parts of a step that are not 0."""
    found = {"compute": step.compute, "data": step.data, **step.exposed, "straggler": step.straggler or 0.0}
    return {part: seconds for part, seconds in found.items() if abs(seconds) > 1e-9}


def wait(
    kind: str = "ids", issued: float = 0, begin: float = 0, end: float = 0, *, in_pull: bool = False, **changes: Any
) -> Wait:
    given = {"group": "g", "step": 0, "number": 1, "issued": issued} | changes
    return Wait(kind=kind, exchange=Exchange(**given), begin=begin, end=end, in_pull=in_pull)


def test_a_step_is_data_waits_and_compute_and_passes_are_timed_without_their_waits() -> None:
    waits = [
        wait("ids", 1, 2, 3, number=1, in_pull=True),
        wait("embeddings", 11, 12, 15, number=2),
        wait("dense", 20, 27, 29, number=3),
    ]
    passes = [
        Pass("forward", 11, 17, 0),
        Pass("lookup", 11, 12, 5),
        Pass("lookup", 16, 17, 7),
        Pass("backward", 18, 28, 0),
    ]
    line = Timeline(0, 0, 10, 30, waits, passes, [("ids", 8), ("dense", 4), ("ids", 2)], {"item": ([2], [1])})
    (step,) = attribute({0: [line]}, [0.0])
    assert parts(step) == {"data": 9, "ids": 1, "embeddings": 3, "dense": 2, "compute": 15}
    assert step.seconds == 30
    assert step.passes == {"forward": (3, 0), "lookup": (2, 12), "backward": (9, 0)}
    assert step.sent == {"ids": (2, 10), "dense": (1, 4)}
    assert step.lengths == {"item": ([2], [1])}


@pytest.mark.parametrize(
    ("issued_there", "late"),
    [
        (4, 0),  # the other was there before
        (7, 2),  # came in the middle
        (20, 4),  # never more than the wait: a clock may be wrong
    ],
)
def test_waiting_for_a_late_rank_is_not_exposed(issued_there: float, late: float) -> None:
    here = Timeline(0, 0, 0, 10, [wait("embeddings", 5, 5, 9)])
    there = Timeline(0, -100, -100, -90, [wait("embeddings", issued_there - 100, -92, -91)])
    mine, _ = attribute({0: [here], 1: [there]}, [0.0, 100.0])
    assert mine.straggler == late
    assert mine.exposed["embeddings"] == 4 - late


def test_only_exchanges_of_the_same_group_step_and_number_are_compared() -> None:
    here = Timeline(0, 0, 0, 10, [wait(issued=1, begin=1, end=5)])
    for change in ({"group": "h"}, {"step": 1}, {"number": 2}):
        there = Timeline(0, 0, 0, 10, [wait(issued=4, begin=4, end=5, **change)])
        mine, _ = attribute({0: [here], 1: [there]}, [0.0, 0.0])
        assert parts(mine) == {"ids": 4, "compute": 6}, change


def test_without_offsets_stragglers_are_unknown() -> None:
    (step,) = attribute({3: [Timeline(0, 0, 0, 10, [wait(issued=1, begin=1, end=5, size=64)])]}, None)
    assert step.straggler is None
    assert step.transfers == ()
    assert parts(step) == {"ids": 4, "compute": 6}
    assert "within the kinds" in str(BubbleReport(world_size=4, steps=(step,)))


def test_an_exchange_lasts_from_the_last_rank_that_gives_its_part() -> None:
    """Of what ended before the thread came to wait, and of what has no size, the duration is not known."""
    here = [
        wait("embeddings", 1, 2, 9, number=1, size=64),
        wait("ids", 1, 9, 9, number=2, size=64),
        wait("other", 1, 9, 10, number=3),
    ]
    there = [wait("embeddings", 104, 108, 109, number=1, size=32), wait("ids", 101, 109, 110, number=2, size=64)]
    mine, other = attribute({0: [Timeline(0, 0, 0, 10, here)], 1: [Timeline(0, 100, 100, 110, there)]}, [0.0, -100.0])
    assert [tuple(one) for one in mine.transfers] == [("embeddings", 64, 5)]
    assert [tuple(one) for one in other.transfers] == [("embeddings", 32, 5), ("ids", 64, 9)]


@pytest.mark.parametrize("shift", [0.0, -3.0, 12345.0])
def test_clocks_are_aligned_within_half_of_the_shortest_barrier(shift: float) -> None:
    random = np.random.default_rng(0)
    entered = np.arange(32) + random.uniform(0, 0.01, (3, 32))
    left = entered.max(0) + random.uniform(1e-5, 0.005, (3, 32))
    local = np.array([[0.0], [shift], [0.0]])  # rank 1's clock shows the true time minus shift
    offsets = align(entered - local, left - local)
    assert (offsets[0], offsets[2]) == (0, 0)
    assert offsets[1] == (pytest.approx(shift, abs=0.003) if shift else 0)


def test_report_shows_saves_and_refuses(tmp_path: Path) -> None:
    times = {"seconds": 0.1, "compute": 0.05, "data": 0.01, "straggler": 0.01}
    exposed = dict.fromkeys(KINDS, 0.006)
    steps = tuple(StepTimes(step=n, rank=r, exposed=exposed, **times) for n in range(2) for r in range(2))
    report = BubbleReport(world_size=2, steps=steps)
    assert report.mean(rank=1)["ids"] == pytest.approx(0.006)
    assert report.bubble == pytest.approx(0.5)
    text = str(report)
    assert "mean of 2 steps" in text
    assert "not compute: 50.0%" in text
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["0", "1", "all"]
    with pytest.raises(ValueError, match=r"no measured step of rank 7; there are those of \[0, 1\]"):
        report.mean(rank=7)
    assert str(BubbleReport(world_size=1, steps=())) == "bubble meter: no complete step"
    report.save(tmp_path / "steps.json")
    document = json.loads((tmp_path / "steps.json").read_text())
    assert document["version"] == 2
    assert [(step["step"], step["rank"], step["seconds"]) for step in document["steps"]] == [
        (n, r, 0.1) for n in range(2) for r in range(2)
    ]


def ticking(clock: Clock, seconds: float, count: int) -> Iterator[int]:
    for i in range(count):
        clock.tick(seconds)
        yield i
    clock.tick(99)  # noticing the end is no step's data


def test_data_and_compute_of_a_plain_module() -> None:
    clock = Clock()
    with BubbleMeter(nn.Linear(2, 2), clock=clock) as meter:
        for epoch in range(2):
            for batch in meter.watch(ticking(clock, 0.25, 3)):
                clock.tick(1 + batch + epoch)
    report = meter.report()
    assert [step.step for step in report.steps] == list(range(6))
    assert [parts(step) for step in report.steps[:3]] == [{"data": 0.25, "compute": 1.0 + i} for i in range(3)]
    assert [step.compute for step in report.steps[3:]] == pytest.approx([2, 3, 4])
    assert [step.step for step in meter.report(skip=4).steps] == [4, 5]


def test_waits_of_the_engine_count_even_while_a_batch_is_fetched() -> None:
    clock = Clock()
    recorder = Recorder(clock=clock)

    def lookahead() -> Iterator[int]:
        for i in range(2):
            clock.tick(0.5)
            with recorder.wait("ids", step=i):
                clock.tick(0.125)
            yield i

    kinds = {"agreement": "ids", "collision rows": "embeddings", "exclusive gradients": "gradients"}
    sent = {"ids": 3, "collision rows": 5, "collision rows, in host": 7}
    with BubbleMeter(nn.Linear(2, 2), clock=clock) as meter:
        for _ in meter.watch(lookahead()):
            for kind in kinds:
                with recorder.wait(kind, step=0), recorder.wait("ids", step=0):  # the inner one is part of the outer
                    clock.tick(1)
            with recorder.span("exclusive apply", step=0):
                clock.tick(2)
            for kind, size in sent.items():
                recorder.bytes("module", 0, kind, sent=size, received=99)
    for step in meter.report().steps:
        assert step.sent == {"ids": (1, 3), "embeddings": (2, 12)}
        assert parts(step) == {"data": 0.5, "ids": 1.125, "embeddings": 1, "gradients": 1, "compute": 2}
    assert recorder.report().total.exposed_ms["agreement"] == pytest.approx(2000)


def test_leaving_the_loop_early_ends_the_step_and_an_error_drops_it() -> None:
    clock = Clock()
    meter = BubbleMeter(nn.Linear(2, 2), clock=clock)
    with meter:
        for batch in meter.watch(ticking(clock, 1, 5)):
            clock.tick(2)
            if batch == 1:
                break
        clock.tick(50)
    assert [parts(step) for step in meter.report().steps] == [{"data": 1, "compute": 2}] * 2

    def failing() -> None:
        with meter:
            for batch in meter.watch(ticking(clock, 1, 5)):
                clock.tick(3)
                if batch == 1:
                    raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert [parts(step) for step in meter.report(skip=2).steps] == [{"data": 1, "compute": 3}]


def test_only_the_last_steps_are_kept() -> None:
    with BubbleMeter(nn.Linear(2, 2), keep=3) as meter:
        watched = meter.watch(range(10))
        assert len(watched) == 10
        assert list(watched) == list(range(10))
    assert [step.step for step in meter.report().steps] == [7, 8, 9]


def test_wrong_use_is_refused() -> None:
    with pytest.raises(TypeError, match=r"needs the torch.nn.Module that the loop trains, got list"):
        BubbleMeter([])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1 step, got 0"):
        BubbleMeter(nn.Linear(1, 1), keep=0)
    meter = BubbleMeter(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="ahead must be 0 or more batches, got -1"):
        meter.watch([1], ahead=-1)
    with pytest.raises(RuntimeError, match=r"outside `with BubbleMeter"):
        list(meter.watch([1]))
    with meter, pytest.raises(RuntimeError, match="already entered"):
        meter.__enter__()


def state() -> dict[str, Any]:
    """Everything of the process that a meter may touch."""
    owners = (dist.Work, dist.ProcessGroup, torch.autograd, Recorder)
    found = {f"{owner.__name__}.{name}": value for owner in owners for name, value in vars(owner).items()}
    return {**found, "observers": len(observers)}


def changed(before: dict[str, Any]) -> set[str]:
    return {name for name, value in state().items() if before.get(name) is not value}


WHILE_MEASURING = {"Work.wait", "torch.autograd.backward", "ProcessGroup.alltoall_base", "observers"}


@pytest.mark.parametrize("first_out", ["inner", "outer"])
@pytest.mark.parametrize("failing", [False, True])
def test_nothing_stays_when_the_last_meter_has_left_its_block(first_out: str, failing: bool) -> None:
    """Also where blocks do not end in the reverse order, or by an error."""
    before = state()
    models = [nn.Linear(2, 2) for _ in range(2)]
    meters = [BubbleMeter(model) for model in models]
    for meter in meters:
        meter.__enter__()
        assert changed(before) >= WHILE_MEASURING
    error = KeyError("step") if failing else None
    for meter in meters if first_out == "outer" else meters[::-1]:
        assert changed(before) >= WHILE_MEASURING
        meter.__exit__(type(error) if error else None, error, None)
    assert not changed(before)
    assert not any(model._forward_hooks or model._forward_pre_hooks for model in models)


def test_nothing_stays_where_entering_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state()
    model = nn.Linear(2, 2)
    meter = BubbleMeter(model)
    with monkeypatch.context() as patched:
        patched.setattr(model, "modules", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            meter.__enter__()
    assert not changed(before)
    assert not model._forward_hooks
    with meter:
        pass
    assert not changed(before)


def test_nothing_stays_where_the_last_step_cannot_be_told() -> None:
    before = state()

    def measured() -> None:
        with BubbleMeter(nn.Linear(2, 2)) as meter:
            for _ in meter.watch([1], lengths=lambda batch: {"item": torch.zeros(2)}):
                break

    with pytest.raises(TypeError, match="integers"):
        measured()
    assert not changed(before)


def test_what_others_replaced_meanwhile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state()
    meter = BubbleMeter(nn.Linear(1, 1))
    meter.__enter__()
    monkeypatch.setattr(dist.Work, "wait", lambda *_: True)
    with pytest.raises(RuntimeError, match=r"Work\.wait was replaced inside"):
        meter.__exit__(None, None, None)
    monkeypatch.undo()
    dist.Work.wait = before["Work.wait"]  # type: ignore[method-assign]
    assert not changed(before)


def test_a_meter_inside_anothers_block_measures_too() -> None:
    clock = Clock()
    recorder = Recorder(clock=clock)
    with BubbleMeter(nn.Linear(2, 2), clock=clock) as outer:
        for _ in outer.watch(range(2)):
            with BubbleMeter(nn.Linear(2, 2), clock=clock) as inner:
                for _ in inner.watch(range(1)):
                    with recorder.wait("collision rows"):
                        clock.tick(1)
                    clock.tick(2)
    for meter, count in ((outer, 2), (inner, 1)):
        assert [parts(step) for step in meter.report().steps] == [{"embeddings": 1, "compute": 2}] * count


class PlayedEvent:
    """A CUDA event on a stream whose time the test sets; like CUDA's it tells differences as float32 milliseconds."""

    now_ms = 0.0
    done = True

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: str) -> None:
        assert stream == "stream of cuda:3"
        self.at_ms = PlayedEvent.now_ms

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return PlayedEvent.done

    def elapsed_time(self, later: "PlayedEvent") -> float:
        assert PlayedEvent.done
        return float(np.float32(later.at_ms - self.at_ms))


def test_on_cuda_time_is_that_of_the_compute_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours later still exact. Steps are read when the stream has passed them."""
    device = torch.device("cuda:3")
    monkeypatch.setattr(torch.cuda, "Event", PlayedEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: setattr(PlayedEvent, "done", True))

    class OnCuda(nn.Module):
        def parameters(self, recurse: bool = True) -> Iterator[Any]:
            return iter([SimpleNamespace(is_cuda=True, device=device)])

    def slow() -> Iterator[int]:
        for step in range(200):
            PlayedEvent.now_ms += 123_456.0 if step < 100 else 0.0
            yield step

    monkeypatch.setattr(PlayedEvent, "done", False)
    with BubbleMeter(OnCuda()) as meter:
        for _ in meter.watch(slow()):
            PlayedEvent.now_ms += 0.001
    steps = meter.report().steps
    assert [step.data for step in steps] == pytest.approx([123.456] * 100 + [0.0] * 100)
    assert [step.compute for step in steps[100:]] == pytest.approx([1e-6] * 100, abs=1e-9)
