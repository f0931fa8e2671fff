"""The meter finds what was injected, by a clock that only the test turns, and leaves no trace."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from exact import Run, differences, train
from exact_model import Config, mixed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import World, shared_world

from fscomm.meter import BubbleMeter
from fscomm.meter_clock import StreamClock
from fscomm.meter_steps import KINDS, BubbleReport, StepTimes, Timeline, Wait, align, attribute
from fscomm.record import Recorder
from fsranks.errors import PeerError


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


# Ranks

CONFIG = Config(modules={"a": mixed()}, steps=6, static_graph=False)


def plain_loop(run: Run) -> None:
    for step, batch in enumerate(run.loader()):
        run.train(step, batch)


def metered_loop(run: Run) -> None:
    with BubbleMeter(run.model) as meter:
        for step, batch in enumerate(meter.watch(run.loader())):
            run.train(step, batch)
    run.reports.append(meter.report())


def case_results_stay_the_same(rank: int, size: int, static: bool) -> Any:
    config = CONFIG.but(static_graph=static)
    expected = train(rank, size, config, plain_loop, "plain")
    before = wrapped()
    metered = train(rank, size, config, metered_loop, "plain")
    assert all(before[name] is value for name, value in wrapped().items())
    assert all(p._post_accumulate_grad_hooks is None for p in metered.model.parameters())
    return differences(expected.log, metered.log), metered.reports[0].to_dict()


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_a_torchrec_model_trains_to_the_same_bits(size: int, static: bool) -> None:
    answers = shared_world(size).run(case_results_stay_the_same, static)
    assert [found for found, _ in answers] == [[]] * size
    reports = [report for _, report in answers]
    assert all(report == reports[0] for report in reports), "all ranks see the steps of all"
    assert [(step["step"], step["rank"]) for step in reports[0]["steps"]] == [
        (n, r) for n in range(6) for r in range(size)
    ]
    for step in reports[0]["steps"]:
        assert sum(step["exposed_s"].values()) + step["compute_s"] + step["data_s"] + step["straggler_s"] == (
            pytest.approx(step["seconds"])
        )
        assert min([step["compute_s"], step["data_s"], step["straggler_s"], *step["exposed_s"].values()]) >= -1e-9


def metered_inside(run: Run) -> None:
    with run.enable() as comm, BubbleMeter(run.model) as meter:
        for step, batch in enumerate(meter.watch(comm.lookahead(run.loader()))):
            run.train(step, batch)
    run.reports.append(meter.report(local=True))  # kinds with their stragglers: none is 0


def metered_around(run: Run) -> None:
    with BubbleMeter(run.model) as meter, run.enable() as comm:
        for step, batch in enumerate(meter.watch(comm.lookahead(run.loader()))):
            run.train(step, batch)
    run.reports.append(meter.report(local=True))  # kinds with their stragglers: none is 0


def case_with_fscomm(rank: int, size: int, loop: Any) -> Any:
    expected = train(rank, size, CONFIG, plain_loop, "plain")
    before = wrapped()
    metered = train(rank, size, CONFIG, loop, "fscomm")
    assert all(before[name] is value for name, value in wrapped().items())
    comm, report = metered.reports
    assert comm.report().fallbacks == {}
    return differences(expected.log, metered.log), [parts(step) for step in report.steps]


@pytest.mark.parametrize("loop", [metered_inside, metered_around])
def test_a_loop_with_fscomm_is_measured_and_stays_exact(loop: Any) -> None:
    for found, steps in shared_world(2).run(case_with_fscomm, loop):
        assert found == []
        assert len(steps) == CONFIG.steps
        assert all({"ids", "embeddings", "dense", "compute"} <= set(step) for step in steps)


class Slow:
    """Makes waits of one kind take `seconds` more by `clock`: wraps `Work.wait` below the meter, told by its caller."""

    WHERE: ClassVar = {
        "ids": ("torchrec.distributed.dist_data", "_wait_impl"),
        "embeddings": ("torchrec.distributed.comm_ops", "forward"),
        "gradients": ("torchrec.distributed.comm_ops", "backward"),
    }

    def __init__(self, clock: Clock, kind: str, seconds: float) -> None:
        self.calls = 0
        self._clock, self._kind, self._seconds = clock, kind, seconds
        self._original = vars(dist.Work)["wait"]

    def __enter__(self) -> "Slow":
        def slow(work: Any, *args: Any) -> Any:
            if self._is_wanted(sys._getframe(1)):
                self.calls += 1
                self._clock.tick(self._seconds)
            return self._original(work, *args)

        dist.Work.wait = slow  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        dist.Work.wait = self._original  # type: ignore[method-assign]

    def _is_wanted(self, frame: FrameType | None) -> bool:
        while frame is not None and not frame.f_globals["__name__"].startswith("torchrec."):
            frame = frame.f_back
        return frame is not None and (frame.f_globals["__name__"], frame.f_code.co_name) == self.WHERE[self._kind]


def case_delay(rank: int, size: int, kind: str) -> Any:
    clock = Clock()
    calls = []

    def loop(run: Run) -> None:
        with Slow(clock, kind, 0.5) as slow, BubbleMeter(run.model, clock=clock) as meter:
            for step, batch in enumerate(meter.watch(run.loader())):
                run.train(step, batch)
                clock.tick(2)
                calls.append(slow.calls)
        run.reports.append(meter.report())

    run = train(rank, size, CONFIG, loop, "plain")
    return np.diff([0, *calls]).tolist(), [parts(step) for step in run.reports[0].steps if step.rank == rank]


@pytest.mark.parametrize("kind", ["ids", "embeddings", "gradients"])
def test_a_delay_of_torchrec_is_found_again(kind: str) -> None:
    for calls, steps in shared_world(2).run(case_delay, kind):
        assert min(calls) >= 1
        assert steps == [{"compute": 2, kind: 0.5 * n} for n in calls]


def case_late_rank(rank: int, size: int) -> Any:
    """Logical time: an exchange ends everywhere when the last rank has issued it, and takes half a second then."""
    clock = Clock()
    original = vars(dist.Work)["wait"]

    def wait_logically(work: Any, *args: Any) -> Any:
        done = original(work, *args)
        now = torch.tensor([clock.now], dtype=torch.float64)
        original(dist.group.WORLD.allreduce([now], dist.ReduceOp.MAX))
        clock.now = float(now) + 0.5
        return done

    dist.Work.wait = wait_logically  # type: ignore[method-assign, assignment]
    try:
        with BubbleMeter(nn.Linear(1, 1), clock=clock) as meter:
            for n in meter.watch(range(3)):
                clock.tick(1 + rank * n)
                dist.all_reduce(torch.ones(1))
    finally:
        dist.Work.wait = original  # type: ignore[method-assign]
    return [[parts(step) for step in meter.report().steps if step.rank == r] for r in range(size)]


def test_waiting_for_a_late_rank_is_told_from_moving_bytes() -> None:
    for quick, late in shared_world(2).run(case_late_rank):
        assert late == [{"compute": 1 + n, "other": 0.5} for n in range(3)]
        assert quick == [{"compute": 1, "other": 0.5} | ({"straggler": n} if n else {}) for n in range(3)]


def case_slow_all_reduce(rank: int, size: int) -> Any:
    """A communication hook of the user's whose result comes late, by the logical clock, after the backward pass."""
    clock = Clock()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))

    def hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        answer: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def arrive() -> None:
            clock.tick(0.25)
            dist.all_reduce(bucket.buffer())
            answer.set_result(bucket.buffer())

        torch.autograd.Variable._execution_engine.queue_callback(arrive)
        return answer

    model.register_comm_hook(None, hook)
    with BubbleMeter(model, clock=clock) as meter:
        for n in meter.watch(range(3)):
            out = model(torch.ones(2, 3))
            clock.tick(1)
            out.sum().backward()
            clock.tick(n)
    assert all(p._post_accumulate_grad_hooks is None for p in model.parameters())
    return [parts(step) for step in meter.report().steps if step.rank == rank]


def test_a_slow_dense_all_reduce_is_found_again() -> None:
    for steps in shared_world(2).run(case_slow_all_reduce):
        assert steps == [{"compute": 1 + n, "dense": 0.25} for n in range(3)]


def case_absent(rank: int, size: int) -> str:
    meter = BubbleMeter(nn.Linear(1, 1), timeout_s=1)
    with meter:
        list(meter.watch(range(2)))
    assert len(meter.report(local=True).steps) == 2
    if rank == 0:
        try:
            meter.report()
        except PeerError as error:
            return str(error)
    return ""


def test_a_rank_that_does_not_report_is_named() -> None:
    with World(2) as world:
        assert "rank 1 did not" in world.run(case_absent)[0]


def test_the_saved_report_is_read_back(tmp_path: Path) -> None:
    clock = Clock()
    with BubbleMeter(nn.Linear(2, 2), clock=clock) as meter:
        for _ in meter.watch(ticking(clock, 0.5, 2)):
            clock.tick(1)
    meter.report().save(tmp_path / "steps.json")
    document = json.loads((tmp_path / "steps.json").read_text())
    assert document["version"] == 1
    assert [(step["step"], step["rank"], step["seconds"]) for step in document["steps"]] == [(0, 0, 1.5), (1, 0, 1.5)]
