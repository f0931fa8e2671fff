"""The examples of `docs/trainers.md`, on two ranks: served, and bitwise those without fscomm."""

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from exact import Run, compare
from exact_configs import CONFIGS
from exact_model import Batch
from pages import python
from worlds import World

STEPS = 12
LIBRARIES = "lightning", "accelerate", "transformers"
MISSING = [library for library in LIBRARIES if find_spec(library) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


class Loader:
    """Every batch with another learning rate."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._run.loader(0, STEPS))


@contextlib.contextmanager
def enabled(run: Run) -> Iterator[Any]:
    with run.enable() as comm:
        yield comm if run.mode == "fscomm" else SimpleNamespace(lookahead=lambda loader, device=None: loader)


def trained(library: str, folder: Path, run: Run) -> None:
    (example,) = (text for text in python("docs/trainers.md") if f"from {library}" in text)

    def loss(output: torch.Tensor, batch: Batch) -> torch.Tensor:
        run.record(f"output {len(run.log)}", output)
        return ((output - batch.target) ** 2 * batch.weight).mean()

    scope = {
        "model": run.model,
        "optimizer": run.optimizer,
        "loader": Loader(run),
        "device": torch.device("cpu"),
        "fscomm": SimpleNamespace(enable=lambda _: enabled(run)),
        "global_mean": loss,
        "torch": torch,
    }
    torchrun = {"RANK": run.rank, "LOCAL_RANK": run.rank, "WORLD_SIZE": run.size, "LOCAL_WORLD_SIZE": run.size}
    on_cpu = {"ACCELERATE_USE_CPU": "true", **{name: str(value) for name, value in torchrun.items()}}
    with mock.patch.dict(os.environ, on_cpu), contextlib.chdir(folder):
        exec(example.replace("report_to=[]", "report_to=[], use_cpu=True"), scope)
    assert len(run.log) == STEPS


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """These libraries change their process for good."""
    with World(2) as ranks:
        yield ranks


@pytest.mark.parametrize("library", LIBRARIES)
def test_bitwise_and_served(library: str, world: World, tmp_path: Path) -> None:
    for found, said in world.run(compare, CONFIGS["loops"], partial(trained, library, tmp_path)):
        assert found == []
        assert said["fallbacks"] == {}
        for forwards in said["report"]["forwards"].values():
            assert forwards["served"] >= STEPS - 2, forwards
