"""Programs of the kinds that others wrote, unchanged but for one line: the same to the bit, and served."""

from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import program_models
import pytest
import torch
from exact import Run, check_equal, compare
from exact_model import Config
from patience import PATIENCE_S
from program_models import STEPS, by_freescale, by_torch
from worlds import shared_world

from fscomm.pipeline import TrainPipelineFreeScale
from fscomm.report.report import WARM_UP

LOADERS = {"FreeScale": by_freescale, "torch": by_torch}
SIZE = 2


def built(program: str, config: Config, size: int) -> tuple[Any, Any]:
    return program_models.build(program, size)


def by_hand(run: Run, batches: Any) -> None:
    """The loop of the README: one line more."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(batches)):
            run.optimizer.zero_grad()
            loss, logits = run.model(batch)
            loss.backward()
            run.optimizer.step()
            run.record(f"logits {step}", logits)


def by_pipeline(run: Run, batches: Any) -> None:
    """A loop for TorchRec's pipelines: one name changed."""
    if run.mode == "plain":
        by_hand(run, batches)
        return
    made = TrainPipelineFreeScale[Any](run.model, run.optimizer, torch.device("cpu"), timeout_s=PATIENCE_S)
    with closing(made) as pipeline:
        rest = iter(batches)
        for step in range(STEPS):
            run.record(f"logits {step}", pipeline.progress(rest))
        with pytest.raises(StopIteration):
            pipeline.progress(rest)
    run.reports.append(pipeline.comm)


LOOPS = {"by hand": by_hand, "by pipeline": by_pipeline}


def train(run: Run, folder: str, loader: str, loop: str) -> None:
    batches = LOADERS[loader](folder, run.rank, run.size, run.model.module.adapt)
    with batches if hasattr(batches, "close") else nullcontext():
        LOOPS[loop](run, batches)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("impressions")
    program_models.write(folder, SIZE)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(("loader", "loop"), [("FreeScale", "by hand"), ("torch", "by pipeline")])
@pytest.mark.parametrize("program", program_models.PROGRAMS)
def test_served_after_the_first_step(program: str, loader: str, loop: str, folder: Path, record_property: Any) -> None:
    config = Config(modules={}, builder=partial(built, program))
    training = partial(train, folder=str(folder), loader=loader, loop=loop)
    for said in check_equal(shared_world(SIZE), compare, config, training):
        assert said["fallbacks"] == {}
        of_modules = said["report"]["forwards"]
        ids = sum(each["ids"] for each in of_modules.values())
        share = ids / (ids + sum(each["plain_ids"] for each in of_modules.values()))
        record_property("ids served", share)
        record_property("summary", f"{program}, {loader}, {loop}: {share:.1%} of the ids served")
        assert share >= 0.95 * (STEPS - 1) / STEPS
        for each in of_modules.values():
            assert each["plain"] == {WARM_UP: 1}
            assert each["served"] == STEPS - 1
