"""The meter among ranks: TorchRec models stay exact to the bit, and what was injected is found where it was put."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from exact import Run, differences, train
from exact_model import Config, mixed
from test_meter import Clock, changed, parts, state
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import shared_world

from fsmeter import BubbleMeter

CONFIG = Config(modules={"a": mixed()}, steps=6, static_graph=False)


def plain_loop(run: Run) -> None:
    for step, batch in enumerate(run.loader()):
        run.train(step, batch)


def metered(run: Run) -> None:
    with run.enable() as comm, BubbleMeter(run.model) as meter:
        for step, batch in enumerate(meter.watch(comm.lookahead(run.loader()))):
            run.train(step, batch)
    run.reports.append(meter)


def metered_around(run: Run) -> None:
    with BubbleMeter(run.model) as meter, run.enable() as comm:
        for step, batch in enumerate(meter.watch(comm.lookahead(run.loader()))):
            run.train(step, batch)
    run.reports.append(meter)


def case_measured(rank: int, size: int, loop: Any, mode: Any, folder: str) -> Any:
    """What differs from the plain loop, the steps that the report of all ranks has, and those of this rank alone."""
    expected = train(rank, size, CONFIG, plain_loop, "plain")
    before = state()
    run = train(rank, size, CONFIG, loop, mode)
    assert not changed(before)
    meter = run.reports[-1]
    path = Path(folder) / f"{rank}.json"
    meter.save(path)
    assert path.exists() == (rank == 0), "rank 0 writes for all"
    local = meter.report(local=True)  # kinds with their stragglers: none is 0
    return differences(expected.log, run.log), meter.report().to_dict()["steps"], [parts(step) for step in local.steps]


@pytest.mark.parametrize(
    ("loop", "mode"),
    [(metered, "plain"), (metered, "fscomm"), pytest.param(metered_around, "fscomm", marks=pytest.mark.long)],
)
def test_a_torchrec_model_trains_to_the_same_bits_and_leaves_a_whole_record(
    loop: Any, mode: str, tmp_path: Path
) -> None:
    answers = shared_world(2).run(case_measured, loop, mode, str(tmp_path))
    saved = json.loads((tmp_path / "0.json").read_text())["steps"]
    assert [(step["step"], step["rank"]) for step in saved] == [(n, r) for n in range(CONFIG.steps) for r in range(2)]
    for found, steps, alone in answers:
        assert found == []
        assert [each["seconds"] for each in steps] == [each["seconds"] for each in saved], "all see the steps of all"
        assert all({"ids", "embeddings", "dense", "compute"} <= set(step) for step in alone)
    # A thread of fscomm may exchange at the end of one step or at the start of the next.
    assert {"ids", "embeddings", "gradients", "dense"} <= {kind for step in saved for kind in step["exchanges"]}
    for step in saved:
        times = step["compute_s"], step["data_s"], step["straggler_s"], *step["exposed_s"].values()
        assert sum(times) == pytest.approx(step["seconds"])
        assert min(*times, *step["passes_s"].values()) >= -1e-9
        assert {"forward", "backward"} <= set(step["passes_s"])
        assert step["lengths"], "found in the batches"
        assert step["bytes"]["dense"] > 0
        assert all(seconds >= 0 for _, _, seconds in step["transfers"])
        if mode == "plain":
            assert step["rows"]["lookup"] == step["rows"]["update"] > 0


SLOW = {  # seconds that waits take more, by who waits in TorchRec
    ("torchrec.distributed.dist_data", "_wait_impl"): ("ids", 0.5),
    ("torchrec.distributed.comm_ops", "forward"): ("embeddings", 0.25),
    ("torchrec.distributed.comm_ops", "backward"): ("gradients", 0.125),
}


@contextlib.contextmanager
def waiting_by(wait: Callable[[Callable[..., Any], Any], Any]) -> Iterator[None]:
    """`wait(original, work)` in the place of `Work.wait`, below the meter."""
    original = vars(dist.Work)["wait"]
    dist.Work.wait = lambda work, *args: wait(original, work)  # type: ignore[method-assign]
    try:
        yield
    finally:
        dist.Work.wait = original  # type: ignore[method-assign]


def slow_kind(frame: FrameType | None) -> tuple[str, float] | None:
    while frame is not None and not frame.f_globals["__name__"].startswith("torchrec."):
        frame = frame.f_back
    return None if frame is None else SLOW.get((frame.f_globals["__name__"], frame.f_code.co_name))


def case_delays(rank: int, size: int) -> Any:
    clock = Clock()
    slowed: list[dict[str, float]] = []

    def slow(original: Any, work: Any) -> Any:
        if (found := slow_kind(sys._getframe(2))) is not None:
            kind, seconds = found
            slowed[-1][kind] = slowed[-1].get(kind, 0.0) + seconds
            clock.tick(seconds)
        return original(work)

    def loop(run: Run) -> None:
        with waiting_by(slow), BubbleMeter(run.model, clock=clock) as meter:
            slowed.append({})
            for step, batch in enumerate(meter.watch(run.loader())):
                run.train(step, batch)
                clock.tick(2)
                slowed.append({})
        run.reports.append(meter.report())

    run = train(rank, size, CONFIG, loop, "plain")
    return slowed[:-1], [parts(step) for step in run.reports[0].steps if step.rank == rank]


def test_delays_of_torchrec_are_found_again() -> None:
    for slowed, steps in shared_world(2).run(case_delays):
        assert all(each.keys() == {"ids", "embeddings", "gradients"} for each in slowed)
        assert steps == [{"compute": 2, **each} for each in slowed]


def case_late_rank(rank: int, size: int) -> Any:
    """Logical time: an exchange ends everywhere when the last rank has issued it, and takes half a second then."""
    clock = Clock()

    def wait_logically(original: Any, work: Any) -> Any:
        done = original(work)
        now = torch.tensor([clock.now], dtype=torch.float64)
        original(dist.group.WORLD.allreduce([now], dist.ReduceOp.MAX))
        clock.now = float(now) + 0.5
        return done

    with waiting_by(wait_logically), BubbleMeter(nn.Linear(1, 1), clock=clock) as meter:
        for n in meter.watch(range(3)):
            clock.tick(1 + rank * n)
            dist.all_reduce(torch.ones(1))
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
    return [parts(step) for step in meter.report().steps if step.rank == rank]


def test_a_slow_dense_all_reduce_is_found_again() -> None:
    for steps in shared_world(2).run(case_slow_all_reduce):
        assert steps == [{"compute": 1 + n, "dense": 0.25} for n in range(3)]
