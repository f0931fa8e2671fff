"""The demo's training job, small: equal losses on one rank, and the whole command on two."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from typer.testing import CliRunner

from freescale_tools.cli import app
from freescale_tools.demo.data import schema, sources, synthetic
from freescale_tools.demo.training.job import Job
from freescale_tools.demo.training.plain_loader import PlainLoader
from freescale_tools.demo.training.train import train
from freescale_tools.write.synth import presets as synth
from fsdata import Balance, FreeScaleDataLoader


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("balance", [pytest.param(None, marks=pytest.mark.long), Balance()], ids=["plain", "balanced"])
def test_on_one_rank_both_loaders_train_alike(one_rank, tmp_path, balance):
    files = synth.demo_set(tmp_path, rows=120, row_group_rows=16, seed=1)
    data = synthetic(files, batch_size=8, max_length=200)
    job = Job(data=data, steps=6, seed=0, out=tmp_path / "outcome")

    def run(loader):
        return train(job, loader, "test", lambda name, done, loss: None).ranks[0]

    plain = run(PlainLoader(data, rank=0, world_size=1, workers=0))
    with FreeScaleDataLoader(
        sources(data), schema(data), batch_size=8, mix="time", balance=balance, num_threads=1
    ) as loader:
        freescale = run(loader)
    for one, other in zip(plain, freescale, strict=True):
        np.testing.assert_array_equal(one.lengths, other.lengths)
    assert [step.checksum for step in plain] == [step.checksum for step in freescale]
    assert torch.equal(*(torch.tensor([step.loss for step in steps]) for steps in (plain, freescale)))


def test_the_command_runs_on_a_folder_with_histories_of_no_and_one_event(tmp_path):
    rng = np.random.default_rng(0)
    lengths = rng.permutation([0] * 20 + [1] * 20 + list(range(2, 60)))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    table = pa.table(
        {
            "item_ids": pa.ListArray.from_arrays(offsets, pa.array(rng.integers(0, 500, lengths.sum()))),
            "kinds": pa.ListArray.from_arrays(offsets, pa.array(rng.integers(0, 4, lengths.sum()).astype(np.int32))),
        }
    )
    pq.write_table(table, tmp_path / "events.parquet", row_group_size=16)
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["demo", "--data", str(tmp_path), "--steps", "4", "--folder", str(out)])
    assert done.exit_code == 0, done.output
    assert "plain and prioritized equal to the bit: yes" in done.stdout
    assert "balanced and both equal to the bit: yes" in done.stdout
    assert "8 ranks" in done.stdout
    assert (out / "freescale-demo.png").read_bytes().startswith(b"\x89PNG")
