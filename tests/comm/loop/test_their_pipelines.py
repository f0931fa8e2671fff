"""TorchRec's train pipelines, which replace the forward of sharded modules, before, in and after a block."""

from typing import Any

import pytest
import torch
from exact import Run, compare, new_run
from exact_kinds import TWO
from exact_model import DENSE, WIDTH, Batch, Config, Net, build_net
from torch import nn
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineSparseDist
from torchrec.streamable import Pipelineable
from worlds import shared_world

from fscomm.errors import NotServedError

CPU = torch.device("cpu")
Pipelineable.register(Batch)


class Rest(nn.Module):
    """All but the look-ups. The pipeline's tracer does not look into it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(DENSE, WIDTH)
        self.after = nn.Linear(WIDTH, 1)

    def forward(self, dense: torch.Tensor, *found: Any) -> torch.Tensor:
        gate = torch.tanh(self.dense(dense))
        for answer in found:
            for name in sorted(answer.keys()):
                sample = torch.repeat_interleave(torch.arange(len(gate)), answer[name].lengths().long())
                gate = gate.index_add(0, sample, answer[name].values() * 0.3)
        return self.after(torch.tanh(gate)).squeeze(1)


class Traced(nn.Module):
    """Takes its ids from the batch in a way that TorchRec's tracer understands."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = Net(config).embeddings
        self.rest = Rest()

    def forward(self, batch: Batch) -> torch.Tensor:
        a = self.embeddings["a"](batch.ids["a"])
        b = self.embeddings["b"](batch.ids["b"])
        return self.rest(batch.dense, a, b)


def traced(config: Config, size: int) -> tuple[Any, Any]:
    return build_net(config, size, Traced(config))  # type: ignore[arg-type]


CONFIG = Config(modules=TWO, even=True, builder=traced)


def pipeline(run: Run) -> Any:
    def forward(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        output = run.model(batch)
        return ((output - batch.target) ** 2 * batch.weight).mean(), output

    return TrainPipelineSparseDist(run.model, run.optimizer, CPU, custom_model_fwd=forward)


def progress(run: Run, pipe: Any, batches: Any, steps: int) -> None:
    for _ in range(steps):
        run.record(f"output {len(run.log)}", pipe.progress(batches))


def made_before(run: Run) -> None:
    """And running: its forward is kept, in the block and after."""
    pipe, batches = pipeline(run), iter(run.loader())
    progress(run, pipe, batches, 2)
    with run.enable():
        progress(run, pipe, batches, 3)
        run.record_raw("in the block")
    progress(run, pipe, batches, 2)


def made_inside(run: Run) -> Any:
    """And used after the block."""
    batches = iter(run.loader())
    with run.enable(clean=False):
        pipe = pipeline(run)
        progress(run, pipe, batches, 4)
    progress(run, pipe, batches, 2)
    return pipe


def detached(run: Run) -> None:
    """After the block: what it puts back is not in the way of a plain step, nor of the next block."""
    made_inside(run).detach()
    run.train(20, run.loader(6, 7)[0])
    with run.enable(clean=False) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader(0, 4)), 21):
            run.train(step, batch)


def made_in_a_loop(run: Run) -> None:
    """Fed by a lookahead."""
    with run.enable(clean=False) as comm:
        progress(run, pipeline(run), iter(comm.lookahead(run.loader())), 5)


LOOPS = {loop.__name__: loop for loop in (made_before, made_inside, made_in_a_loop)}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_pipeline_of_torchrec_runs_as_ever(loop: str) -> None:
    for found, said in shared_world(2).run(compare, CONFIG, LOOPS[loop]):
        assert found == []
        assert said["fallbacks"], "the report says so"
        for why in said["fallbacks"].values():
            assert "its forward was replaced" in why
            assert "PipelinedForward" in why


def strict(rank: int, size: int, loop: str) -> None:
    run = new_run(rank, size, CONFIG, "fscomm", {"strict": True})
    with pytest.raises(NotServedError, match=r"its forward was replaced .*PipelinedForward"):
        LOOPS[loop](run)


def test_strict_refuses_by_name() -> None:
    shared_world(2).run(strict, "made_inside")


def test_after_a_pipeline_was_detached_all_is_served_again() -> None:
    for found, said in shared_world(2).run(compare, CONFIG, detached):
        assert found == []
        assert said["fallbacks"] == {}
