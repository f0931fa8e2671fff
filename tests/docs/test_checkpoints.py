"""The program of docs/checkpoints.md: stopped after a checkpoint, then resumed on two ranks, on one, and on three."""

import contextlib
import runpy
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from pages import blocks
from test_example_programs import ran_in
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from typer.testing import CliRunner
from worlds import shared_world

import fscomm
import fsdata
from freescale_tools.cli import app

STEPS, STOP, GLOBAL_BATCH = 8, 4, 48
PROGRAM = "train.py"

# Of torchrec about DDP, and of torch about the sharded tensors of torchrec.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with the data, the program, and its checkpoints after STOP and STEPS on two ranks."""
    folder = tmp_path_factory.mktemp("checkpoints")
    (program,) = blocks("docs/checkpoints.md", "python")
    assert program.title == PROGRAM
    (folder / PROGRAM).write_text(program.text)
    synth = ["synth", "sources", str(folder / "data"), "--rows", "192", "--median", "20", "--p95", "60"]
    assert CliRunner().invoke(app, synth).exit_code == 0
    run(2, folder)
    return folder


def run(ranks: int, folder: Path) -> None:
    shared_world(ranks).run(ran_in, folder, PROGRAM, "--steps", str(STEPS), "--every", str(STOP))


def stopped(trained: Path, folder: Path) -> Path:
    """A copy in which the program was stopped after its first checkpoint."""
    copy = folder / "stopped"
    shutil.copytree(trained, copy)
    shutil.rmtree(copy / "checkpoints" / str(STEPS))
    return copy


def saved(folder: Path, step: int) -> dict[str, Any]:
    """What a checkpoint holds of all ranks, by path."""
    dcp_to_torch_save(str(folder / "checkpoints" / str(step)), str(folder / "whole.pt"))
    return dict(leaves(torch.load(folder / "whole.pt", weights_only=False)))


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict):
        for name, value in state.items():
            yield from leaves(value, f"{path}/{name}")
    else:
        yield path, state


def different(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    assert one.keys() == other.keys()
    return [
        name
        for name, value in one.items()
        if not (torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name])
    ]


def test_a_job_that_resumes_is_the_job_that_did_not_stop(trained, tmp_path):
    folder = stopped(trained, tmp_path)
    run(2, folder)
    expected = saved(trained, STEPS)
    assert sum(isinstance(value, torch.Tensor) for value in expected.values()) >= 6  # weights, and their optimizers'
    assert different(expected, saved(folder, STEPS)) == []
    assert different(expected, saved(folder, STOP)) != []


def loader_of(size: int) -> fsdata.FreeScaleDataLoader:
    """The program's, in its folder."""
    *files, _ = sorted(Path("data/source-0").glob("*.parquet"))
    schema, source = fsdata.Schema.from_toml("data/schema.toml"), fsdata.ParquetSource(files)
    options = {"shuffle": True, "balance": fsdata.Balance()}
    return fsdata.FreeScaleDataLoader(source, schema, batch_size=GLOBAL_BATCH // size, **options)


def users(batches: Iterable[fsdata.Batch]) -> list[int]:
    return [user for batch in batches for user in batch.features["user_id"].values().tolist()]


def resumed(rank: int, size: int, folder: str) -> tuple[int, list[int]]:
    """The step of the checkpoint, and the users that are left of the epoch. Saves what it has loaded as step STEPS."""
    with contextlib.chdir(folder):
        names = runpy.run_path(PROGRAM)
        with loader_of(size) as loader:
            model, optimizer = names["sharded"]()
            step = names["resume"](model, optimizer, loader)
            names["save"](STEPS, model, optimizer, loader)
            return step, users(loader)


def begun(rank: int, size: int, folder: str) -> list[int]:
    """The users of the first STOP steps of an epoch."""
    with contextlib.chdir(folder), loader_of(size) as loader:
        return users(islice(loader, STOP))


@pytest.mark.parametrize("ranks", [1, 3])
def test_another_number_of_ranks_has_the_state_and_the_rest_of_the_epoch(ranks, trained, tmp_path):
    folder = stopped(trained, tmp_path)
    steps, left = zip(*shared_world(ranks).run(resumed, str(folder)), strict=True)
    assert steps == (STOP,) * ranks
    assert set(different(saved(folder, STOP), saved(folder, STEPS))) <= {"/step", "/data"}
    *files, _ = sorted((folder / "data" / "source-0").glob("*.parquet"))
    everyone = Counter(pl.read_parquet(files)["user_id"].to_list())
    seen = Counter(chain(*shared_world(2).run(begun, str(folder))))
    assert seen.total() == STOP * GLOBAL_BATCH
    assert Counter(chain(*left)) == everyone - seen


EVALUATED = 3  # samples of a rank and step of an evaluation


def held_out_rows(folder: Path) -> tuple[Path, pl.Expr]:
    """The held-out file, and a filter that keeps rows of users at its beginning: ranks have different numbers then."""
    *_, held_out = sorted((folder / "data" / "source-0").glob("*.parquet"))
    users_of_file = pl.read_parquet(held_out)["user_id"].to_list()
    return held_out, pl.col("user_id").is_in(users_of_file[: len(users_of_file) // 3])


def evaluated(rank: int, size: int, folder: str) -> tuple[float, list[tuple[int, int]], list[int]]:
    """The program's `evaluate` with the model of the checkpoint, while a loop of fscomm holds a batch: its result;
    samples of this rank and of all ranks by step; and the users of all samples of this rank."""
    with contextlib.chdir(folder), loader_of(size) as training:
        names = runpy.run_path(PROGRAM)
        model, optimizer = names["sharded"]()
        names["resume"](model, optimizer, training)
        seen: list[fsdata.Batch] = []
        names["evaluate"].__globals__["with_a_sample"] = lambda batch: (
            seen.append(batch) or names["with_a_sample"](batch)
        )
        held_out, condition = held_out_rows(Path())
        source = fsdata.ParquetSource(held_out, filter=condition)
        schema = fsdata.Schema.from_toml("data/schema.toml")
        validation = fsdata.FreeScaleDataLoader(source, schema, batch_size=EVALUATED, uneven="empty")
        with validation, fscomm.enable(model) as comm:
            scores = []
            for batch in islice(comm.lookahead(training), 2):  # the loop goes on behind an evaluation
                scores.append(names["evaluate"](model, validation))
                losses = names["losses_of"](model, batch)
                fsdata.global_mean(losses, batch, over="candidate_labels").backward()
                optimizer.step()
        assert scores[0] != scores[1]
        seen = seen[: len(seen) // 2]
        sizes = [(len(batch), batch.stats.global_samples) for batch in seen]
        return scores[0], sizes, users(seen)


def test_evaluation_counts_every_sample_once_where_ranks_have_different_numbers(trained):
    held_out, condition = held_out_rows(trained)
    everyone = Counter(pl.read_parquet(held_out).filter(condition)["user_id"].to_list())
    scores, steps = [], {}
    for ranks in (1, 2):
        found, steps[ranks], of_ranks = zip(*shared_world(ranks).run(evaluated, str(trained)), strict=True)
        assert Counter(chain(*of_ranks)) == everyone
        assert len(set(found)) == 1
        scores.append(found[0])
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)
    one, two = steps[2]
    assert len(one) == len(two)  # or the forward of a sharded table would wait for ever
    assert [of_all for _, of_all in one] == [a + b for (a, _), (b, _) in zip(one, two, strict=True)]
    assert sum(a for a, _ in one) != sum(b for b, _ in two)
    empty = [0 in (a, b) for (a, _), (b, _) in zip(one, two, strict=True)]
    assert sum(empty) > 2
