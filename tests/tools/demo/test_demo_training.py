"""The demo's training: the command on two ranks, and what it promises of results that are equal to the bit."""

import re
from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from demo_folders import request_folder
from typer.testing import CliRunner
from worlds import shared_world

from freescale_tools.cli import app
from freescale_tools.demo.data import schema, sources, synthetic
from freescale_tools.demo.discover import discover
from freescale_tools.demo.model.fingerprint import fingerprint
from freescale_tools.demo.outcome.equality import difference
from freescale_tools.demo.training.job import Job
from freescale_tools.demo.training.measure import Run, Step
from freescale_tools.demo.training.plain_loader import PlainLoader
from freescale_tools.demo.training.train import balanced_loader, train
from freescale_tools.write.synth import presets as synth
from fscomm.tables.group_tables import Tables
from fsdata import Balance, FreeScaleDataLoader, Polynomial


def test_the_command_trains_on_two_ranks(tmp_path):
    """On requests of users with no event, with one and with more."""
    data, out = request_folder(tmp_path), tmp_path / "out"
    done = CliRunner().invoke(app, ["demo", "--data", str(data), "--steps", "4", "--folder", str(out)])
    assert done.exit_code == 0, done.output
    for pair in ("plain and prioritized", "balanced and both", "shared and shared, both"):
        assert f"{pair} equal to the bit: yes" in done.stdout
    assert "8 ranks" in done.stdout
    assert re.search(r"is \d+% faster than plain: steps of|no run is faster than plain", done.stdout)
    assert (out / "freescale-demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(job, loader, **options):
    return train(job, loader, "test", lambda name, done: None, **options)


def losses(steps):
    return torch.tensor([step.loss for step in steps], dtype=torch.float64)


def same_samples(runs):
    first, *others = runs
    for run in others:
        assert [step.checksum for step in run] == [step.checksum for step in first]
        assert [step.lengths.tolist() for step in run] == [step.lengths.tolist() for step in first]


def test_on_one_rank_both_loaders_train_alike(one_rank, tmp_path):
    files = synth.demo_set(tmp_path, rows=120, row_group_rows=16, seed=1)
    data = synthetic(files, batch_size=8, max_length=200)
    job = Job(data=data, steps=6, seed=0, out=tmp_path / "outcome")
    plain = trained(job, PlainLoader(data, rank=0, world_size=1, workers=0)).ranks[0]
    options = {"batch_size": 8, "mix": "time", "balance": Balance(), "num_threads": 1}
    with FreeScaleDataLoader(sources(data), schema(data), **options) as loader:
        freescale = trained(job, loader).ranks[0]
    same_samples([plain, freescale])
    assert torch.equal(losses(plain), losses(freescale))


def test_shared_histories_change_only_the_order_of_additions(one_rank, tmp_path):
    data = discover(request_folder(tmp_path), max_length=20, batch_size=16)
    job = Job(data=data, steps=5, seed=0, out=tmp_path / "outcome")
    runs = [trained(job, PlainLoader(data, rank=0, world_size=1, workers=0)).ranks[0]]
    for share in (False, True):
        with FreeScaleDataLoader(sources(data), schema(data, share=share), batch_size=16, num_threads=1) as loader:
            runs.append(trained(job, loader).ranks[0])
    plain, unshared, shared = runs
    same_samples(runs)
    assert torch.equal(losses(plain), losses(unshared))
    assert plain[0].loss == shared[0].loss
    torch.testing.assert_close(losses(plain), losses(shared), rtol=1e-5, atol=1e-5)
    assert sum(step.held for step in shared) < 0.9 * sum(step.held for step in plain)


def twins(rank, world_size, files, balanced, drop_updates):
    """The job without and with fscomm: (where they part, collision rate, modules that ran plainly)."""
    data = synthetic(files, batch_size=8, max_length=200)
    job = Job(data=data, steps=5, seed=0, out=files.users)
    broken = mock.patch.object(Tables, "apply", return_value=None) if drop_updates else nullcontext()
    runs = []
    for serve in (False, True):
        plain = nullcontext(PlainLoader(data, rank=rank, world_size=world_size, workers=0))
        with balanced_loader(data, Polynomial()) if balanced else plain as loader, broken if serve else nullcontext():
            runs.append(trained(job, loader, serve=serve))
    return difference(*runs), runs[1].collisions, dict(runs[1].fallbacks)


@pytest.mark.long
@pytest.mark.parametrize(
    ("balanced", "drop_updates"), [(False, False), (True, False), (False, True)], ids=["plain", "balanced", "broken"]
)
def test_prioritized_communication_changes_no_bit_and_a_lost_update_would_be_noticed(tmp_path, balanced, drop_updates):
    files = synth.demo_set(tmp_path, rows=200, row_group_rows=16, seed=1)
    for where, collisions, fallbacks in shared_world(2).run(twins, files, balanced, drop_updates):
        assert (where or "").startswith("step 1, rank ") == drop_updates
        assert where is None or drop_updates
        assert fallbacks == {}
        assert 0 < collisions < 1


def run(*losses, lengths=(3, 1), weights=("a",)):
    lengths = np.array(lengths, np.int64)
    steps = [Step(wall=1.0, compute=1.0, loss=loss, lengths=lengths, held=4, checksum=0) for loss in losses]
    return Run(name="x", ranks=[steps], parts={}, guess=2.0, weights=weights)


def test_one_last_bit_is_a_difference():
    assert difference(run(1.0, 2.0), run(1.0, 2.0)) is None
    assert "step 1, rank 0" in difference(run(1.0, 2.0), run(1.0, np.nextafter(2.0, 3)))
    assert "2 and 1 steps" in difference(run(1.0, 2.0), run(1.0))
    assert "1 and 2 ranks" in difference(run(1.0), replace(run(1.0), ranks=[[], []]))
    assert "at the end" in difference(run(1.0), run(1.0, weights=("b",)))
    assert "NE 0.5 and 0.25" in difference(run(1.0), run(1.0, lengths=(3, 2)))


def test_the_fingerprint_sees_weights_and_optimizer_states():
    def printed(*, lr=0.5, momentum=0.5):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return fingerprint(model, optimizer)

    assert printed() == printed()
    assert len({printed(), printed(lr=0.25), printed(momentum=0.0)}) == 3
