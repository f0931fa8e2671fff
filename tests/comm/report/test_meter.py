"""The meter finds what was injected, by a clock that only the test turns, and leaves no trace."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from fscomm.meter.clocks import StreamClock
from fscomm.meter.intervals import KINDS, BubbleReport, StepTimes, Timeline, Wait, align, attribute
from fscomm.meter.meter import BubbleMeter
from fscomm.report.recorder import Recorder


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


# Arithmetic


def wait(kind: str = "ids", issued: float = 0, begin: float = 0, end: float = 0, **changes: Any) -> Wait:
    given = {"group": "g", "issued_in": 0, "number": 1, "in_pull": False} | changes
    return Wait(kind=kind, issued=issued, begin=begin, end=end, **given)


def test_a_step_is_data_waits_and_compute() -> None:
    waits = (
        wait("ids", 1, 2, 3, number=1, in_pull=True),
        wait("embeddings", 11, 12, 15, number=2),
        wait("dense", 20, 21, 22, number=3),
    )
    (step,) = attribute({0: [Timeline(0, 0, 10, 30, waits)]}, [0.0])
    assert parts(step) == {"data": 9, "ids": 1, "embeddings": 3, "dense": 1, "compute": 16}
    assert step.seconds == 30


@pytest.mark.parametrize(
    ("begin", "end", "issued_there", "late"),
    [
        (5, 9, 4, 0),  # the other was there before
        (5, 9, 7, 2),  # came in the middle
        (5, 9, 20, 4),  # never more than the wait: a clock may be wrong
    ],
)
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_waiting_for_a_late_rank_is_not_exposed(
    begin: float, end: float, issued_there: float, late: float, offset: float
) -> None:
    here = Timeline(0, 0, 0, 10, (wait("embeddings", 5, begin, end),))
    there = Timeline(
        0, -offset, -offset, 10 - offset, (wait("embeddings", issued_there - offset, 8 - offset, 9 - offset),)
    )
    mine, _ = attribute({0: [here], 1: [there]}, [0.0, offset])
    assert mine.straggler == late
    assert mine.exposed["embeddings"] == end - begin - late


def test_only_exchanges_of_the_same_group_step_and_number_are_compared() -> None:
    here = Timeline(0, 0, 0, 10, (wait(issued=1, begin=1, end=5),))
    for change in ({"group": "h"}, {"issued_in": 1}, {"number": 2}):
        there = Timeline(0, 0, 0, 10, (wait(issued=4, begin=4, end=5, **change),))
        mine, _ = attribute({0: [here], 1: [there]}, [0.0, 0.0])
        assert parts(mine) == {"ids": 4, "compute": 6}, change


def test_without_offsets_stragglers_are_unknown() -> None:
    (step,) = attribute({3: [Timeline(0, 0, 0, 10, (wait(issued=1, begin=1, end=5),))]}, None)
    assert step.straggler is None
    assert parts(step) == {"ids": 4, "compute": 6}
    assert "within the kinds" in str(BubbleReport(world_size=4, steps=(step,)))


@pytest.mark.parametrize("shift", [0.0, 1e-4, -3.0, 12345.0])
def test_clocks_are_aligned_within_half_of_the_shortest_barrier(shift: float) -> None:
    random = np.random.default_rng(0)
    entered = np.arange(32) + random.uniform(0, 0.01, (3, 32))
    left = entered.max(0) + random.uniform(1e-5, 0.005, (3, 32))
    local = np.array([[0.0], [shift], [0.0]])  # rank 1's clock shows the true time minus shift
    offsets = align(entered - local, left - local)
    assert offsets[0] == 0
    assert offsets[2] == 0
    assert offsets[1] == pytest.approx(shift, abs=0.003)
    assert (shift == 0) == (offsets[1] == 0) or abs(shift) < 0.003


def test_report_shows_saves_and_refuses() -> None:
    steps = [
        StepTimes(
            step=n, rank=r, seconds=0.1, compute=0.05, data=0.01, exposed=dict.fromkeys(KINDS, 0.006), straggler=0.01
        )
        for n in range(2)
        for r in range(2)
    ]
    report = BubbleReport(world_size=2, steps=tuple(steps))
    assert report.mean(rank=1)["ids"] == pytest.approx(0.006)
    assert report.bubble == pytest.approx(0.5)
    text = str(report)
    assert "mean of 2 steps" in text
    assert "not compute: 50.0%" in text
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["0", "1", "all"]
    with pytest.raises(ValueError, match=r"no measured step of rank 7; there are those of \[0, 1\]"):
        report.mean(rank=7)
    assert str(BubbleReport(world_size=1, steps=())) == "bubble meter: no complete step"


# One process, no process group


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
    assert report.mean()["data"] == pytest.approx(0.25)


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
    with BubbleMeter(nn.Linear(2, 2), clock=clock) as meter:
        for _ in meter.watch(lookahead()):
            for kind in kinds:
                with recorder.wait(kind, step=0), recorder.wait("ids", step=0):  # the inner one is part of the outer
                    clock.tick(1)
            with recorder.span("exclusive apply", step=0):
                clock.tick(2)
    for step in meter.report().steps:
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
    with pytest.raises(RuntimeError, match=r"outside `with BubbleMeter"):
        list(meter.watch([1]))
    with meter, pytest.raises(RuntimeError, match="already entered"):
        meter.__enter__()


def wrapped() -> dict[str, Any]:
    """Every attribute of the classes that a meter wraps."""
    owners = (dist.Work, dist.ProcessGroup, Recorder)
    return {f"{owner.__name__}.{name}": value for owner in owners for name, value in vars(owner).items()}


def test_everything_is_put_back() -> None:
    before = wrapped()
    model = nn.Linear(2, 2)
    with BubbleMeter(model):
        changed = [name for name, value in wrapped().items() if before[name] is not value]
        assert {"Work.wait", "Recorder.wait", "ProcessGroup.alltoall_base"} <= set(changed)
        with BubbleMeter(model):
            pass
        assert [name for name, value in wrapped().items() if before[name] is not value] == changed
    assert all(before[name] is value for name, value in wrapped().items())


def test_what_others_wrapped_meanwhile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = wrapped()
    meter = BubbleMeter(nn.Linear(1, 1))
    meter.__enter__()
    monkeypatch.setattr(dist.Work, "wait", lambda *_: True)
    with pytest.raises(RuntimeError, match=r"Work\.wait was replaced inside"):
        meter.__exit__(None, None, None)
    monkeypatch.undo()
    dist.Work.wait = before["Work.wait"]  # type: ignore[method-assign]
    assert all(before[name] is value for name, value in wrapped().items())


class FakeEvent:
    """A CUDA event on a stream whose time the test sets; like CUDA's it tells differences as float32 milliseconds."""

    now_ms = 0.0
    done = True

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: str) -> None:
        assert stream == "stream of cuda:3"
        self.at_ms = FakeEvent.now_ms

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return FakeEvent.done

    def elapsed_time(self, later: "FakeEvent") -> float:
        return float(np.float32(later.at_ms - self.at_ms))


def test_on_cuda_time_is_that_of_the_compute_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    clock = StreamClock(torch.device("cuda:3"))
    start = clock.seconds([clock.mark()])[0]
    for step in range(1, 200):
        FakeEvent.now_ms += 123_456.0  # two minutes a step
        begin = clock.mark()
        FakeEvent.now_ms += 0.001
        seconds = clock.seconds([begin, clock.mark()])
        assert seconds[1] - seconds[0] == pytest.approx(1e-6, abs=1e-9), "hours later still exact"
        assert seconds[0] - start == pytest.approx(123.456 * step + 1e-6 * (step - 1))


def test_steps_of_a_stream_are_read_when_it_has_passed_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "stream of cuda:3")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: setattr(FakeEvent, "done", True))
    meter = BubbleMeter(nn.Linear(1, 1))
    meter._clock = StreamClock(torch.device("cuda:3"))
    monkeypatch.setattr(FakeEvent, "done", False)
    with meter:
        for _ in meter.watch(range(3)):
            FakeEvent.now_ms += 2.0
    assert len(meter._done) == 0
    assert [step.compute for step in meter.report().steps] == pytest.approx([0.002] * 3)


def test_the_saved_report_is_read_back(tmp_path: Path) -> None:
    clock = Clock()
    with BubbleMeter(nn.Linear(2, 2), clock=clock) as meter:
        for _ in meter.watch(ticking(clock, 0.5, 2)):
            clock.tick(1)
    meter.report().save(tmp_path / "steps.json")
    document = json.loads((tmp_path / "steps.json").read_text())
    assert document["version"] == 2
    assert [(step["step"], step["rank"], step["seconds"]) for step in document["steps"]] == [(0, 0, 1.5), (1, 0, 1.5)]
