"""Programs of the kinds that others wrote, unchanged but for one line: the same to the bit, and served."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import program_models
import pytest
import torch
from exact import Run, compare
from exact_model import Config
from patience import PATIENCE_S
from program_data import STEPS, by_freescale, by_torch, write
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from worlds import shared_world

from fscomm.pipeline import TrainPipelineFreeScale
from fscomm.report.served import WARM_UP

LOADERS = {"FreeScale": by_freescale, "torch": by_torch}
CPU = torch.device("cpu")
SIZE = 2
NOT_TRACED = ("HSTU", "DIN")  # that pipeline does not understand how they pick their ids, and leaves them as they are


@dataclass(frozen=True)
class Built:
    """Makes one of the programs, for `exact.build`."""

    program: str

    def __call__(self, config: Config, size: int) -> tuple[Any, Any]:
        return program_models.build(self.program, size)


@contextmanager
def batches_of(run: Run, folder: str, loader: str) -> Iterator[Any]:
    """A loader, closed at the end where it can be."""
    made = LOADERS[loader](folder, run.rank, run.size, run.model.module.batch_class)
    with made if hasattr(made, "close") else nullcontext():
        yield made


def by_hand(run: Run, folder: str, loader: str) -> None:
    """The loop of the README: one line more."""
    with batches_of(run, folder, loader) as batches, run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(batches)):
            run.optimizer.zero_grad()
            loss, logits = run.model(batch)
            loss.backward()
            run.optimizer.step()
            run.record(f"loss and logits {step}", [loss, logits])


def by_pipeline(run: Run, folder: str, loader: str) -> None:
    """A loop for TorchRec's pipelines: one name changed."""
    with batches_of(run, folder, loader) as batches:
        if run.mode == "plain":
            for step, batch in enumerate(batches):
                run.optimizer.zero_grad()
                loss, logits = run.model(batch)
                loss.backward()
                run.optimizer.step()
                run.record(f"logits {step}", logits)
            return
        with closing(TrainPipelineFreeScale(run.model, run.optimizer, CPU, timeout_s=PATIENCE_S)) as pipeline:
            _progress(run, pipeline, batches)
        run.reports.append(pipeline.comm)


def by_theirs(run: Run, folder: str, loader: str) -> None:
    """TorchRec's own pipeline in a block: it replaces the modules' forward, so nothing is served, and that is said."""
    with batches_of(run, folder, loader) as batches:
        pipeline = TrainPipelineSparseDist(run.model, run.optimizer, CPU)
        with run.enable(clean=False):
            _progress(run, pipeline, batches)
        pipeline.detach()


def _progress(run: Run, pipeline: Any, batches: Any) -> None:
    batches = iter(batches)
    for step in range(STEPS):
        run.record(f"logits {step}", pipeline.progress(batches))
    with pytest.raises(StopIteration):
        pipeline.progress(batches)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("impressions")
    write(folder, SIZE)
    return folder


def trained(program: str, folder: Path, loader: str, loop: Callable[[Run, str, str], None]) -> list[dict[str, Any]]:
    """What fscomm said of itself on every rank; the results are the plain ones."""
    config = Config(modules={}, builder=Built(program))
    said = []
    for found, of_rank in shared_world(SIZE).run(compare, config, partial(loop, folder=str(folder), loader=loader)):
        assert found == []
        said.append(of_rank)
    return said


@pytest.mark.long
@pytest.mark.parametrize("loop", [by_hand, by_pipeline])
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("program", program_models.PROGRAMS)
def test_served_after_the_first_step(
    program: str, loader: str, loop: Callable[[Run, str, str], None], folder: Path, record_property: Any
) -> None:
    for said in trained(program, folder, loader, loop):
        assert said["fallbacks"] == {}
        of_modules = said["report"]["forwards"]
        ids = sum(each["ids"] for each in of_modules.values())
        share = ids / (ids + sum(each["plain_ids"] for each in of_modules.values()))
        record_property("summary", f"{program}, {loader}, {loop.__name__}: {share:.1%} of the ids served")
        assert share >= 0.95 * (STEPS - 1) / STEPS
        for each in of_modules.values():
            assert each["plain"] == {WARM_UP: 1}
            assert each["served"] == STEPS - 1


@pytest.mark.long
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("program", sorted(program_models.PROGRAMS.keys() - {"list batches"}))  # it takes no lists
def test_their_pipeline_is_left_alone_by_name(program: str, loader: str, folder: Path) -> None:
    for said in trained(program, folder, loader, by_theirs):
        assert said["fallbacks"]
        for reason in said["fallbacks"].values():
            assert ("lookahead" if program in NOT_TRACED else "PipelinedForward") in reason
