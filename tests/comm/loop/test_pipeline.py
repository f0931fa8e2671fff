"""TrainPipelineFreeScale: what `progress` does is, to the bit, what a plain loop does."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from exact import Run, compare, new_run
from exact_configs import CONFIGS
from exact_model import Batch
from patience import PATIENCE_S
from torch import nn
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from worlds import shared_world

from fscomm.pipeline import TrainPipelineFreeScale

CPU = torch.device("cpu")
CONFIG = CONFIGS["small"].but(steps=6)


class WithLoss(nn.Module):
    """Gives (losses, output), as TorchRec's pipelines expect of a model."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.inner = run.model

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.inner(batch)
        return (output - batch.target) ** 2 * batch.weight, output


class Plain:
    """The plain loop with the pipeline's interface."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer

    def progress(self, batches: Iterator[Batch]) -> torch.Tensor:
        batch = next(batches)
        if not self._model.training:
            return self._model(batch)[1]
        self._optimizer.zero_grad()
        losses, output = self._model(batch)
        losses.sum().backward()
        self._optimizer.step()
        return output

    def close(self) -> None:
        pass

    attach = reset = close


def pipeline(run: Run, model: WithLoss, **options: Any) -> Any:
    """options: the model that it is given has no loss then, and `custom_model_fwd` has."""
    if run.mode == "plain":
        return Plain(model, run.optimizer)
    if options:
        made = TrainPipelineFreeScale[Batch](
            run.model, run.optimizer, CPU, timeout_s=PATIENCE_S, custom_model_fwd=model, **options
        )
    else:
        made = TrainPipelineFreeScale[Batch](model, run.optimizer, CPU, timeout_s=PATIENCE_S)
    run.reports.append(made.comm)
    return made


def steps(run: Run, pipe: Any, batches: Iterator[Batch], name: str) -> int:
    """Until the end; the learning rate changes at every step."""
    step = 0
    while True:
        run.set_rate(step)
        try:
            output = pipe.progress(batches)
        except StopIteration:
            return step
        run.record(f"{name} {step}", output)
        step += 1


def by_the_arguments_of_torchrec(run: Run) -> None:
    """As loops for TrainPipelineSparseDist make it; the model's forward is another function."""
    pipe = pipeline(
        run,
        WithLoss(run),
        execute_all_batches=True,
        apply_jit=False,
        pipeline_postproc=True,
        enqueue_batch_after_forward=True,
        transport="gloo",
        strict=True,
        calls=run.config.calls,
    )
    batches = iter(run.loader())
    assert steps(run, pipe, batches, "output") == run.steps
    with pytest.raises(StopIteration):
        pipe.progress(batches)
    run.record_raw("before close")
    pipe.close()
    pipe.close()


def epochs(run: Run) -> None:
    pipe = pipeline(run, WithLoss(run))
    for epoch, stop in enumerate([3, 0, 1]):
        assert steps(run, pipe, iter(run.loader(0, stop)), f"epoch {epoch}") == stop
        run.record_raw(f"after epoch {epoch}")
    pipe.close()


def left_early(run: Run) -> None:
    pipe = pipeline(run, WithLoss(run))
    batches = iter(run.loader())
    for step in range(3):
        run.record(f"output {step}", pipe.progress(batches))
    pipe.close()
    run.record_raw("closed")
    if run.mode == "fscomm":
        run.record("next", pipe.comm.unconsumed.target)
        with pytest.raises(RuntimeError, match="closed"):
            pipe.progress(batches)
        assert len(list(batches)) == run.steps - 4
    else:
        run.record("next", next(batches).target)


def eval_between(run: Run) -> None:
    model = WithLoss(run)
    pipe = pipeline(run, model)
    batches = iter(run.loader())
    for step in range(run.steps):
        model.train(step % 3 != 1)
        run.record(f"output {step}", pipe.progress(batches).detach())
    pipe.close()


def another_iterator(run: Run) -> None:
    """Given before the first has ended: nothing of either is lost."""
    pipe = pipeline(run, WithLoss(run))
    first, second = iter(run.loader(0, 5)), iter(run.loader(5, 8))
    for step in range(2):
        run.record(f"output {step}", pipe.progress(first))
    for step in range(2, 4):
        run.record(f"output {step}", pipe.progress(second))
    for step in range(4, 6):
        run.record(f"output {step}", pipe.progress(first))
    assert steps(run, pipe, second, "rest of the second") == 1
    assert steps(run, pipe, first, "rest of the first") == 1
    pipe.close()


def evaluates_with_the_same_pipeline(run: Run) -> None:
    """Another iterator every time, which is left early: no batch to train on is evaluated, and none is lost."""
    model = WithLoss(run)
    pipe = pipeline(run, model)
    batches = iter(run.loader())
    for step in range(run.steps):
        run.record(f"output {step}", pipe.progress(batches))
        model.eval()
        others = iter(run.loader(30, 36))
        with torch.no_grad():
            for number in range(2):
                run.record(f"evaluated {step}.{number}", pipe.progress(others))
        model.train()
    with pytest.raises(StopIteration):
        pipe.progress(batches)
    pipe.close()


def detached(run: Run) -> None:
    """And attached again, by the user or by `progress`; the batches that were fetched ahead are trained on."""
    pipe = pipeline(run, WithLoss(run))
    batches = iter(run.loader())
    for step in range(run.steps):
        run.record(f"output {step}", pipe.progress(batches))
        if step % 3 == 1 and run.mode == "fscomm":
            model = pipe.detach()
            assert not any("forward" in vars(module) for module in model.modules())
            if step % 2:
                pipe.attach(model)
    pipe.close()
    with pytest.raises(RuntimeError, match="closed") if run.mode == "fscomm" else contextlib.nullcontext():
        pipe.attach()


def dropped(run: Run) -> None:
    """`reset` drops what was fetched ahead."""
    pipe = pipeline(run, WithLoss(run))
    batches = iter(run.loader())
    for step in range(3):
        run.record(f"output {step}", pipe.progress(batches))
    pipe.reset()
    if run.mode == "plain":
        next(batches)
    assert steps(run, pipe, batches, "rest") == run.steps - 4
    pipe.close()


@pytest.mark.parametrize(
    "loop",
    [
        by_the_arguments_of_torchrec,
        epochs,
        left_early,
        eval_between,
        another_iterator,
        evaluates_with_the_same_pipeline,
        detached,
        dropped,
    ],
)
def test_bitwise(loop: Callable[[Run], None]) -> None:
    for found, said in shared_world(2).run(compare, CONFIG, loop):
        assert found == []
        assert said["fallbacks"] == {}
        assert loop is not by_the_arguments_of_torchrec or said["report"]["transport"] == "gloo"


def raising(rank: int, size: int) -> list[str]:
    run = new_run(rank, size, CONFIG, "fscomm")

    class Breaks(WithLoss):
        calls = 0

        def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            self.calls += 1
            if self.calls == 3:
                raise KeyError("the model's own")
            return super().forward(batch)

    batches = iter(run.loader())
    seen = []
    try:
        with TrainPipelineFreeScale(Breaks(run), run.optimizer, CPU, timeout_s=PATIENCE_S) as pipe:
            while True:
                pipe.progress(batches)
                seen.append("step")
    except KeyError as error:
        seen.append(str(error))
    assert not any("forward" in vars(module) for module in run.model.modules())
    return seen


def in_turn(rank: int, size: int) -> None:
    run = new_run(rank, size, CONFIG, "fscomm")
    pipe = pipeline(run, WithLoss(run))
    lists, generators = ([iter(run.loader(0, 9)) for _ in range(3)], [(b for b in run.loader(0, 9)) for _ in range(2)])
    for iterator in [*lists, *lists, *generators, *generators]:
        pipe.progress(iterator)
    with pytest.raises(RuntimeError, match="more than 4 iterators take turns"):
        pipe.progress(lists[0])
    pipe.progress(generators[0])
    pipe.close()


def test_more_iterators_in_turn_than_are_kept_lose_no_batch_in_silence() -> None:
    shared_world(2).run(in_turn)


def test_an_error_of_the_model_is_the_user_s() -> None:
    assert shared_world(2).run(raising) == [["step", "step", '"the model\'s own"']] * 2


def unsharded(rank: int, size: int) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="no sharded TorchRec module"):
        TrainPipelineFreeScale(model, torch.optim.SGD(model.parameters(), lr=0.1), CPU)


def test_a_model_without_sharded_modules() -> None:
    shared_world(2).run(unsharded)


def test_the_signature_is_that_of_torchrec() -> None:
    """Positional where TorchRec's is, of the same names in the same order; what comes after is by name only."""
    for name in ("__init__", "progress", "attach", "detach", "reset"):
        theirs = list(inspect.signature(getattr(TrainPipelineSparseDist, name)).parameters.values())
        ours = list(inspect.signature(getattr(TrainPipelineFreeScale, name)).parameters.values())
        assert [(each.name, each.kind) for each in ours[: len(theirs)]] == [(each.name, each.kind) for each in theirs]
        more = ours[len(theirs) :]  # ours, and what newer versions of torchrec have
        assert all(each.kind is inspect.Parameter.KEYWORD_ONLY or each.default is not each.empty for each in more)
        for our, their in zip(ours, theirs, strict=False):
            assert our.name == "context_type" or our.default == their.default


@pytest.mark.parametrize("option", [{"execute_all_batches": False}, {"apply_jit": True}])
def test_arguments_that_are_not_supported_are_refused(option: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match="leave out"):
        TrainPipelineFreeScale(nn.Linear(1, 1), torch.optim.SGD([torch.ones(1)], lr=1), CPU, **option)
