"""TrainPipelineFreeScale: what `progress` does is, to the bit, what a plain loop does."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from exact import Run, compare, new_run
from exact_configs import CONFIGS
from exact_model import Batch
from patience import PATIENCE_S
from torch import nn
from worlds import shared_world

from fscomm.pipeline import TrainPipelineFreeScale

CPU = torch.device("cpu")


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


def pipeline(run: Run) -> Any:
    model = WithLoss(run)
    if run.mode == "plain":
        return Plain(model, run.optimizer)
    made: TrainPipelineFreeScale[Batch] = TrainPipelineFreeScale(model, run.optimizer, CPU, timeout_s=PATIENCE_S)
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


def to_the_end(run: Run) -> None:
    pipe = pipeline(run)
    batches = iter(run.loader())
    assert steps(run, pipe, batches, "output") == run.steps
    with pytest.raises(StopIteration):
        pipe.progress(batches)
    run.record_raw("before close")
    pipe.close()
    pipe.close()


def epochs(run: Run) -> None:
    pipe = pipeline(run)
    for epoch, stop in enumerate([3, 0, 1]):
        assert steps(run, pipe, iter(run.loader(0, stop)), f"epoch {epoch}") == stop
        run.record_raw(f"after epoch {epoch}")
    pipe.close()


def left_early(run: Run) -> None:
    pipe = pipeline(run)
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
    pipe = pipeline(run)
    batches = iter(run.loader())
    for step in range(run.steps):
        pipe_model = pipe._model
        pipe_model.train(step % 3 != 1)
        run.record(f"output {step}", pipe.progress(batches).detach())
        pipe_model.train()
    pipe.close()


def another_iterator(run: Run) -> None:
    """Given before the first has ended: nothing of either is lost."""
    pipe = pipeline(run)
    first, second = iter(run.loader(0, 5)), iter(run.loader(5, 8))
    for step in range(2):
        run.record(f"output {step}", pipe.progress(first))
    if run.mode == "fscomm":
        run.record("output 2", pipe.progress(second))
        rest = second
    else:
        run.record("output 2", pipe.progress(first))
        rest = second
    assert steps(run, pipe, rest, "rest") == 3
    assert len(list(first)) == 2
    pipe.close()


@pytest.mark.parametrize("loop", [to_the_end, epochs, left_early, eval_between, another_iterator])
def test_bitwise(loop: Callable[[Run], None]) -> None:
    for found, said in shared_world(2).run(compare, CONFIGS["loops"], loop):
        assert found == []
        assert said["fallbacks"] == {}


def raising(rank: int, size: int) -> list[str]:
    run = new_run(rank, size, CONFIGS["loops"], "fscomm")

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


def test_an_error_of_the_model_is_the_user_s() -> None:
    assert shared_world(2).run(raising) == [["step", "step", '"the model\'s own"']] * 2


def unsharded(rank: int, size: int) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="no sharded TorchRec module"):
        TrainPipelineFreeScale(model, torch.optim.SGD(model.parameters(), lr=0.1), CPU)


def test_a_model_without_sharded_modules() -> None:
    shared_world(2).run(unsharded)


def by_the_arguments_of_torchrec(run: Run) -> None:
    """As loops for TrainPipelineSparseDist make it; the model's forward is another function."""
    model = WithLoss(run)
    if run.mode == "plain":
        pipe: Any = Plain(model, run.optimizer)
    else:
        pipe = TrainPipelineFreeScale(
            run.model,
            run.optimizer,
            CPU,
            execute_all_batches=True,
            apply_jit=False,
            pipeline_postproc=True,
            custom_model_fwd=model,
            enqueue_batch_after_forward=True,
            transport="gloo",
            strict=True,
            calls=run.config.calls,
            timeout_s=PATIENCE_S,
        )
        run.reports.append(pipe.comm)
    steps(run, pipe, iter(run.loader()), "output")
    pipe.close()


@pytest.mark.parametrize("name", ["loops", pytest.param("called twice", marks=pytest.mark.long)])
def test_it_takes_the_arguments_of_torchrec_s_pipeline(name: str) -> None:
    config = CONFIGS[name]
    for found, said in shared_world(2).run(compare, config, by_the_arguments_of_torchrec):
        assert found == []
        assert said["report"]["transport"] == "gloo"
        forwards = sum(each["served"] for each in said["report"]["forwards"].values())
        assert forwards == 2 * config.calls * (config.steps - 1)


@pytest.mark.parametrize("option", [{"execute_all_batches": False}, {"apply_jit": True}])
def test_arguments_that_are_not_supported_are_refused(option: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match="leave out"):
        TrainPipelineFreeScale(nn.Linear(1, 1), torch.optim.SGD([torch.ones(1)], lr=1), CPU, **option)
