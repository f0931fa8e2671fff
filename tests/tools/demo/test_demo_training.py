"""The demo's training: the command on two ranks, and what it promises of results that are equal to the bit."""

import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from demo_folders import request_folder
from exact_managed import needs_mpzch
from typer.testing import CliRunner
from worlds import shared_world

from freescale_tools.cli import app
from freescale_tools.demo.command import trained
from freescale_tools.demo.data import synthetic
from freescale_tools.demo.discover import discover
from freescale_tools.demo.ranks import Job
from freescale_tools.demo.results import check_same_samples, difference
from freescale_tools.demo.train import Variant, build, train, weights
from freescale_tools.write.synth import presets as synth
from fscomm.report.report import Managed
from fscomm.tables.group_tables import Tables
from fscomm.tables.torchrec.maps import MapsAhead
from fsdata import Balance


@needs_mpzch
def test_the_command_trains_on_two_ranks(tmp_path, monkeypatch):
    """On requests of users with no event, with one and with more."""
    monkeypatch.setenv("COLUMNS", "130")
    data, out = request_folder(tmp_path), tmp_path / "out"
    options = ["--steps", "10", "--batch-size", "4", "--parts", "2", "--zch", "--link", "1gbit", "--folder", str(out)]
    done = CliRunner().invoke(app, ["demo", "--data", str(data), *options])
    assert done.exit_code == 0, done.output
    assert "the ranks share a link of 1000 Mbit/s" in done.stdout
    for expected in (
        *("memory .* prioritized .* plain", "memory .* both .* balanced", "memory .* shared, both .* shared"),
        "memory .* prioritized, zch .* plain, zch",
        *("1000 Mbit/s .* TrainPipelineSparseDist .* plain", "1000 Mbit/s .* prioritized .* plain"),
        "1000 Mbit/s .* prioritized, 2 parts .* plain, 2 parts",
    ):
        assert re.search(expected.replace(" .* ", "[^\\n]* ") + " +│$", done.stdout, re.MULTILINE), expected
    assert re.search(r"^prioritized, zch: \d of 10 forwards served$", done.stdout, re.MULTILINE)
    balancing, title, on_link, on_memory, dense, _ = done.stdout.splitlines()[-6:]
    assert balancing.startswith("Balancing ")
    assert title.startswith("Prioritized communication")
    assert re.match(r"- 1000 Mbit/s, \d+% of ids collide: it .* in 2 parts it .* TorchRec's pipeline ", on_link)
    assert re.match(r"- memory, \d+% of ids collide: it ", on_memory)
    assert re.search(r"\d+ ms are DDP's all-reduce of dense gradients", dense)
    (picture,) = out.iterdir()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"picture: {picture}" in done.stdout


def test_a_rank_that_fails_ends_the_command_with_status_1(tmp_path):
    """torch takes no seed of that many bits."""
    options = ["--folder", str(tmp_path / "out"), "--link", "none", "--seed", "-1000000000000000000000"]
    done = CliRunner().invoke(app, ["demo", "--data", str(request_folder(tmp_path)), *options])
    assert done.exit_code == 1, done.output
    assert "training failed with status 1" in done.stderr


def test_a_terminated_command_ends_its_launcher(tmp_path, monkeypatch):
    launchers = []

    class Terminated(subprocess.Popen):
        """SIGTERM reaches the command while it waits for this process, which would sleep."""

        def wait(self, timeout=None):
            if not launchers:
                launchers.append(self)
                signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)
            return super().wait(timeout)

    sleeps = tmp_path / "sleeps"
    sleeps.write_text("#!/bin/sh\nexec sleep 1000\n")
    sleeps.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(sleeps))
    monkeypatch.setattr(subprocess, "Popen", Terminated)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        trained(Job(data=discover(request_folder(tmp_path), max_length=20, batch_size=16), steps=1), ranks=2)
    assert ended.value.code == 128 + signal.SIGTERM
    assert launchers[0].returncode == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_sharing_and_balancing_change_only_the_order_of_additions(one_rank, tmp_path):
    data = discover(request_folder(tmp_path), max_length=20, batch_size=16)
    plain, balanced, shared = (
        train(data, Variant(name="test", **options), 5, 0)
        for options in ({}, {"balance": Balance()}, {"balance": Balance(), "share": True})
    )
    assert difference(plain, balanced) is None, "on one rank"
    check_same_samples(plain, shared)
    np.testing.assert_allclose(plain.losses, shared.losses, rtol=1e-5)
    assert plain.stored == 1
    assert shared.stored < 0.9


@pytest.mark.parametrize("batch_size", [2, 16], ids=["empty parts", "parts"])
def test_parts_add_up_to_the_step_that_they_cut(one_rank, tmp_path, batch_size):
    data = discover(request_folder(tmp_path), max_length=20, batch_size=batch_size)
    whole, plain, served = (
        train(data, Variant(name="test", **options), 5, 0)
        for options in ({}, {"parts": 3}, {"parts": 3, "loop": "prioritized"})
    )
    check_same_samples(whole, plain)
    np.testing.assert_allclose(plain.losses, whole.losses, rtol=1e-5)
    assert difference(plain, served) is None
    assert 0 < served.collisions < 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--parts", "0"], "--parts must be at least 1, got 0"),
        (["--parts", "65"], "--parts must be at most 64, got 65"),
        (["--parts", "3", "--batch-size", "2"], "give --batch-size 3 or more, fewer parts, or --link none"),
        (["--zch", "--steps", "7"], "--zch needs 8 steps, the data and --steps give 7"),
        (["--zch", "--batch-size", "16"], "--zch needs 8 steps, the data and --steps give 3"),
        (["--link", "fast"], "--link takes none, or a speed of at least 5 Mbit/s"),
        (["--steps", "5"], "the runs on the link need 6 steps, the data and --steps give 5"),
    ],
    ids=" ".join,
)
def test_options_that_do_not_fit_the_data_are_refused(tmp_path, given, told):
    done = CliRunner().invoke(app, ["demo", "--data", str(request_folder(tmp_path)), "--batch-size", "4", *given])
    assert (done.exit_code, told in done.stderr) == (2, True), done.output


def twins(rank, world_size, files, balance, parts, drop_updates):
    """The job without and with fscomm: (where they differ, collision rate, modules that ran plainly)."""
    data = synthetic(files, batch_size=8, max_length=200)
    broken = mock.patch.object(Tables, "apply", return_value=None) if drop_updates else nullcontext()
    train(data, Variant(name="first", loop="prioritized"), 1, 0)  # with whole updates: fscomm tries them once a process
    plain = train(data, Variant(name="plain", balance=balance, parts=parts), 5, 0)
    with broken:
        served = train(data, Variant(name="served", balance=balance, loop="prioritized", parts=parts), 5, 0)
    return difference(plain, served), served.collisions, served.fallbacks


def test_torchrec_pipeline_trains_as_the_loop_does(one_rank, tmp_path):
    data = discover(request_folder(tmp_path), max_length=20, batch_size=16)
    plain, pipeline = (train(data, Variant(name=loop, loop=loop), 7, 0) for loop in ("plain", "pipeline"))
    check_same_samples(plain, pipeline)
    assert difference(plain, pipeline) is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("balance", "parts", "drop_updates"),
    [(None, 1, False), (Balance(), 1, False), (None, 4, False), (None, 1, True), (None, 4, True)],
    ids=["plain", "balanced", "parts", "broken", "broken parts"],
)
def test_prioritized_communication_changes_no_bit_and_a_lost_update_would_be_noticed(
    tmp_path, balance, parts, drop_updates
):
    files = synth.demo_set(tmp_path, rows=200, row_group_rows=16, seed=1)
    for where, collisions, fallbacks in shared_world(2).run(twins, files, balance, parts, drop_updates):
        assert (where or "").startswith("step 2: ") == drop_updates  # step 0 runs plainly
        assert where is None or drop_updates
        assert fallbacks == {}
        assert 0 < collisions < 1


def test_the_fingerprint_sees_weights_and_optimizer_states():
    def printed(*, lr=0.5, momentum=0.5):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return weights(model, optimizer)

    assert printed() == printed()
    assert len({printed(), printed(lr=0.25), printed(momentum=0.0)}) == 3


NOTICE_OF_TORCHREC = pytest.mark.filterwarnings("ignore:To copy construct from a tensor")


@NOTICE_OF_TORCHREC
@needs_mpzch
@pytest.mark.parametrize("state", ["_hash_zch_identities", "_hash_zch_metadata"])
def test_the_fingerprint_sees_the_maps(one_rank, tmp_path, state):
    model, optimizer = build(discover(request_folder(tmp_path)), 0, zch=True)
    before = weights(model, optimizer)
    (of_items,) = (each for name, each in model.state_dict().items() if name.endswith(f"table_item_ids.{state}"))
    of_items.local_shards()[0].tensor[3] += 1
    assert weights(model, optimizer) != before


def managed_twins(rank, world_size, folder, drop_maps):
    """The job behind managed collision without and with fscomm: (where they differ, the run with fscomm)."""
    data = discover(folder, max_length=20, batch_size=4)
    plain = train(data, Variant(name="plain", zch=True), 10, 0)
    with mock.patch.object(MapsAhead, "publish", return_value=None) if drop_maps else nullcontext():
        served = train(data, Variant(name="served", loop="prioritized", zch=True), 10, 0)
    return difference(plain, served), served


@NOTICE_OF_TORCHREC
@needs_mpzch
@pytest.mark.parametrize("drop_maps", [False, True], ids=["whole", "broken"])
def test_managed_collision_changes_no_bit_and_a_lost_map_would_be_noticed(tmp_path, drop_maps):
    for where, served in shared_world(2).run(managed_twins, request_folder(tmp_path), drop_maps):
        assert (where is not None) == drop_maps
        assert served.forwards.served >= 4  # of 10, of which the first and those of a new hour run plainly
        found = sum(served.managed.values(), Managed())
        assert found.evicted > 0
        assert 0 < found.late_share < found.own_share < 1
