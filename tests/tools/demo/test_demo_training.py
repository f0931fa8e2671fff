"""The demo's training: the command on two ranks, how it ends, and which runs have equal results.

That prioritized communication changes no bit is tested in `tests/comm/exactness`. The command compares its own runs,
and fails if they differ: what it compares is tested here and in `test_demo_results.py`.
"""

import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from demo_folders import request_folder
from exact_managed import needs_mpzch
from tools_kit import ran, refused

from freescale_tools.console.errors import CommandFailed
from freescale_tools.demo.command import trained
from freescale_tools.demo.discover import discover
from freescale_tools.demo.ranks import Job
from freescale_tools.demo.results import check_same_samples, difference
from freescale_tools.demo.train import Variant, build, train, weights
from fsdata import Balance


@pytest.fixture
def requests(tmp_path):
    return discover(request_folder(tmp_path), max_length=20, batch_size=16)


@needs_mpzch
def test_the_command_trains_on_two_ranks(tmp_path, monkeypatch):
    """On requests of users with no event, with one and with more."""
    monkeypatch.setenv("COLUMNS", "130")
    data, out = request_folder(tmp_path), tmp_path / "out"
    options = ("--steps", 10, "--batch-size", 4, "--parts", 2, "--zch", "--link", "1gbit", "--folder", out)
    shown = ran("demo", "--data", data, *options).stdout
    assert "the ranks share a link of 1000 Mbit/s" in shown
    for expected in (
        *("memory .* prioritized .* plain", "memory .* both .* balanced", "memory .* shared, both .* shared"),
        "memory .* prioritized, zch .* plain, zch",
        *("1000 Mbit/s .* TrainPipelineSparseDist .* plain", "1000 Mbit/s .* prioritized .* plain"),
        "1000 Mbit/s .* prioritized, 2 parts .* plain, 2 parts",
    ):
        assert re.search(expected.replace(" .* ", "[^\\n]* ") + " +│$", shown, re.MULTILINE), expected
    served = re.search(r"^prioritized, zch: (\d+) of 10 forwards served$", shown, re.MULTILINE)
    assert int(served[1]) >= 4, "the first ones, and those of a new hour, run plainly"
    balancing, title, on_link, on_memory, dense, _ = shown.splitlines()[-6:]
    assert balancing.startswith("Balancing ")
    assert title.startswith("Prioritized communication")
    assert re.match(r"- 1000 Mbit/s, \d+% of ids collide: it .* in 2 parts it .* TorchRec's pipeline ", on_link)
    assert re.match(r"- memory, \d+% of ids collide: it ", on_memory)
    assert re.search(r"\d+ ms are DDP's all-reduce of dense gradients", dense)
    (picture,) = out.iterdir()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"picture: {picture}" in shown
    plainly = {line.partition(":")[0] for line in shown.splitlines() if " ran as in plain TorchRec: " in line}
    assert plainly <= {"prioritized, zch"}, "an hour begins there"


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Lets the demo launch a shell script instead of ranks."""

    def as_script(text):
        script = tmp_path / "script"
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(script))

    return as_script


def test_ranks_that_fail_end_the_command_with_status_1(requests, launched):
    launched("exit 3")
    with pytest.raises(CommandFailed, match="training failed with status 3; the error of the rank is above"):
        trained(Job(data=requests, steps=1), ranks=2)


def test_a_terminated_command_ends_its_launcher(requests, launched, monkeypatch):
    launchers = []

    class Terminated(subprocess.Popen):
        """SIGTERM reaches the command while it waits for this process, which would sleep."""

        def wait(self, timeout=None):
            if not launchers:
                launchers.append(self)
                signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)
            return super().wait(timeout)

    launched("exec sleep 1000")
    monkeypatch.setattr(subprocess, "Popen", Terminated)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        trained(Job(data=requests, steps=1), ranks=2)
    assert ended.value.code == 128 + signal.SIGTERM
    assert launchers[0].returncode == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--steps", "0"], "--steps must be at least 1"),
        (["--data", "nowhere"], "no such folder"),
        (["--parts", "65"], "--parts must be at most 64, got 65"),
        (["--parts", "3", "--batch-size", "2"], "give --batch-size 3 or more, fewer parts, or --link none"),
        (["--zch", "--steps", "7"], "--zch needs 8 steps, the data and --steps give 7"),
        (["--zch", "--batch-size", "16"], "--zch needs 8 steps, the data and --steps give 3"),
        (["--link", "fast"], "--link takes none, or a speed of at least 5 Mbit/s"),
        (["--steps", "5"], "the runs on the link need 6 steps, the data and --steps give 5"),
    ],
    ids=" ".join,
)
def test_options_that_do_not_fit_are_refused(tmp_path, given, told):
    assert told in refused("demo", "--data", request_folder(tmp_path), "--batch-size", 4, *given)
    assert "--sequence names columns of --data" in refused("demo", "--sequence", "a")


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def runs(data, *variants, steps=5):
    return [train(data, Variant(name="test", **options), steps, 0) for options in variants]


def test_loops_train_as_the_plain_one_does_and_sharing_changes_the_order_of_additions(one_rank, requests):
    balanced = {"balance": Balance()}
    plain, pipeline, balanced, shared = runs(
        requests, {}, {"loop": "pipeline"}, balanced, balanced | {"share": True}, steps=6
    )
    for other in (pipeline, balanced):
        check_same_samples(plain, other)
        assert difference(plain, other) is None
    check_same_samples(plain, shared)
    np.testing.assert_allclose(plain.losses, shared.losses, rtol=1e-5)
    assert plain.stored == 1
    assert shared.stored < 0.9


@pytest.mark.parametrize("batch_size", [2, 16], ids=["empty parts", "parts"])
def test_parts_add_up_to_the_step_that_they_cut(one_rank, tmp_path, batch_size):
    data = discover(request_folder(tmp_path), max_length=20, batch_size=batch_size)
    whole, plain, served = runs(data, {}, {"parts": 3}, {"parts": 3, "loop": "prioritized"})
    check_same_samples(whole, plain)
    np.testing.assert_allclose(plain.losses, whole.losses, rtol=1e-5)
    assert difference(plain, served) is None
    assert (0 < served.collisions < 1, served.fallbacks) == (True, {})


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


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")  # TorchRec's
@needs_mpzch
def test_the_fingerprint_sees_the_maps(one_rank, requests):
    model, optimizer = build(requests, 0, zch=True)
    found = {weights(model, optimizer)}
    for state in ("_hash_zch_identities", "_hash_zch_metadata"):
        (of_items,) = (each for name, each in model.state_dict().items() if name.endswith(f"table_item_ids.{state}"))
        of_items.local_shards()[0].tensor[3] += 1
        found.add(weights(model, optimizer))
    assert len(found) == 3
