"""The meter among ranks: TorchRec models stay exact to the bit, and what was injected is found where it was put."""

import sys
from types import FrameType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from exact import Run, differences, train
from exact_model import Config, mixed
from test_meter import Clock, parts, wrapped
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import shared_world

from fscomm.meter.meter import BubbleMeter

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


@pytest.mark.parametrize(
    ("size", "static"), [(2, False), *(pytest.param(*case, marks=pytest.mark.long) for case in ((2, True), (3, False)))]
)
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


@pytest.mark.parametrize("loop", [metered_inside, pytest.param(metered_around, marks=pytest.mark.long)])
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
