"""Equal to the bit: what the demo promises of prioritized communication, and that it would notice if it were not so."""

from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from worlds import shared_world

from freescale_tools.demo.data import synthetic
from freescale_tools.demo.model.fingerprint import fingerprint
from freescale_tools.demo.outcome.equality import difference
from freescale_tools.demo.training.job import Job
from freescale_tools.demo.training.measure import Run, Step
from freescale_tools.demo.training.plain_loader import PlainLoader
from freescale_tools.demo.training.train import balanced_loader, train
from freescale_tools.write.synth import presets as synth
from fscomm.tables.shadow_kernels import Tables
from fsdata import Polynomial

STEPS = 5


def twins(rank, world_size, files, balanced=False, drop_updates=False):
    """The job without and with fscomm: (where they part, collision rate, modules that ran plainly)."""
    data = synthetic(files, batch_size=8, max_length=200)
    job = Job(data=data, steps=STEPS, seed=0, out=files.users)
    broken = mock.patch.object(Tables, "apply", return_value=None) if drop_updates else nullcontext()
    runs = []
    for serve in (False, True):
        plain = nullcontext(PlainLoader(data, rank=rank, world_size=world_size, workers=0))
        with balanced_loader(data, Polynomial()) if balanced else plain as loader, broken if serve else nullcontext():
            runs.append(train(job, loader, "test", lambda name, done, loss: None, serve=serve))
    return difference(*runs), runs[1].collisions, dict(runs[1].fallbacks)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return synth.demo_set(tmp_path_factory.mktemp("demo"), rows=200, row_group_rows=16, seed=1)


@pytest.mark.parametrize("balanced", [pytest.param(False, marks=pytest.mark.long), True], ids=["plain", "balanced"])
def test_prioritized_communication_changes_no_bit_on_two_ranks(files, balanced):
    for where, collisions, fallbacks in shared_world(2).run(twins, files, balanced):
        assert where is None
        assert fallbacks == {}
        assert 0 < collisions < 1


@pytest.mark.long
def test_lost_updates_are_noticed(files):
    for where, _, _ in shared_world(2).run(twins, files, False, True):
        assert where.startswith("step 1, rank ")


def run(*losses, weights=("a",)):
    lengths = np.array([3, 1], np.int64)
    steps = [Step(wall=1.0, compute=1.0, loss=loss, lengths=lengths, held=4, checksum=0) for loss in losses]
    return Run(name="x", ranks=[steps], parts={}, guess=2.0, weights=weights)


def test_one_last_bit_is_a_difference():
    assert difference(run(1.0, 2.0), run(1.0, 2.0)) is None
    assert "step 1, rank 0" in difference(run(1.0, 2.0), run(1.0, np.nextafter(2.0, 3)))
    assert "2 and 1 steps" in difference(run(1.0, 2.0), run(1.0))
    assert "at the end" in difference(run(1.0), run(1.0, weights=("b",)))
    shorter = run(1.0)
    shorter = replace(shorter, ranks=[[replace(shorter.ranks[0][0], lengths=np.array([3, 2], np.int64))]])
    assert "NE 0.5 and 0.25" in difference(run(1.0), shorter)


def test_the_fingerprint_sees_weights_and_optimizer_states():
    def trained(*, lr=0.5, momentum=0.5):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return fingerprint(model, optimizer)

    assert trained() == trained()
    assert len({trained(), trained(lr=0.25), trained(momentum=0.0)}) == 3
