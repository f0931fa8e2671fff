"""`freescale measure-links`: the file holds what was measured, and says of the rest where it comes from."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S
from tools_kit import refused

from freescale_tools.model.durations import all_reduce, exchange
from freescale_tools.model.hardware import ALL_TO_ALLS, load_hardware
from freescale_tools.write.links import as_toml, fits, measured_hardware

SIZES = [4**power for power in range(6, 13)]
LIKE = load_hardware("h100-ib")
FIRST, EACH = 2e-4, 1e-5  # seconds of an exchange, of every other rank
INSIDE, ACROSS = 4e9, 1e9  # bytes per second that leave a rank on its slowest link


def point(ranks, size, per_host):
    """All parts are equally large; links inside and across work at the same time."""
    near = size * (min(ranks, per_host) - 1) / ranks / INSIDE
    far = size * max(ranks - per_host, 0) / ranks / ACROSS
    return {"ranks": ranks, "bytes": size, "seconds": FIRST + EACH * (ranks - 1) + max(near, far)}


def measured(worlds=(2, 4, 8, 16), per_host=8, points=None, beside_s=0.0125):
    points = points or [point(ranks, size, per_host) for ranks in worlds for size in SIZES]
    given = {
        "where": "here", "ranks_per_host": per_host, "points": points, "all_reduce": {"bytes": 10**8, "seconds": 0.5},
        "product": {"alone_s": 0.01, "beside_s": beside_s},
    }  # fmt: skip
    return measured_hardware(given, LIKE), points


def test_exchanges_take_again_what_they_took(tmp_path):
    hardware, points = measured()
    for one in points:
        assert exchange(hardware, one["bytes"], one["ranks"]) == pytest.approx(1e3 * one["seconds"], rel=1e-6)
    assert all_reduce(hardware, 1e8, 16) == pytest.approx(500, rel=0.01)
    assert hardware.contention == pytest.approx(0.25)
    assert [fit["error"] for fit in fits(points)] == pytest.approx([0] * 4, abs=1e-9)
    (tmp_path / "links.toml").write_text(as_toml(hardware))
    assert load_hardware(tmp_path / "links.toml") == hardware


def test_what_was_not_measured_stays_and_says_so():
    hardware, _ = measured(worlds=(2,), per_host=2)
    assert hardware.network == pytest.approx(LIKE.network * LIKE.exchange_efficiency)
    assert hardware.sources["network"].startswith("h100-ib, times its exchange_efficiency: paper")
    assert hardware.sources["network"].endswith(LIKE.sources["exchange_efficiency"])
    assert hardware.sources["nvlink"].startswith("measured")
    assert hardware.sources["nvlink"].endswith(f"{ALL_TO_ALLS} 2 ranks"), "at others it is as good as assumed"
    assert (hardware.peak_flops, hardware.sources["peak_flops"]) == (LIKE.peak_flops, LIKE.sources["peak_flops"])
    assert hardware.sources["peer_latency"].endswith("within exchange_latency")
    assert exchange(hardware, 2**20, 2) == pytest.approx(1e3 * point(2, 2**20, 2)["seconds"])


def test_measured_numbers_stay_in_their_ranges():
    for beside, contention in ((0.009, 0.0), (0.05, 1.0)):
        assert measured(beside_s=beside)[0].contention == contention
    points = [{"ranks": ranks, "bytes": size, "seconds": size / 1e9 / ranks} for ranks in (2, 4, 8) for size in SIZES]
    found, _ = measured(points=points)
    assert min(found.exchange_latency, found.peer_latency) >= 0


@pytest.mark.long
def test_ranks_measure_and_one_writes(tmp_path):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python",
        Path(sys.executable).with_name("freescale"), "measure-links", "--sizes", "4096,8388608", "--repeats", "2",
        "--width", "64", "--out", tmp_path / "links.toml",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)
    assert done.returncode == 0, done.stderr
    hardware = load_hardware(tmp_path / "links.toml")
    assert hardware.name == "measured on 2 ranks, 2 a host, gloo, CPU"
    assert (hardware.gpus_per_host, hardware.sources["nvlink"].split(":")[0]) == (2, "measured")
    assert done.stdout.count("All-to-alls: 2 ranks") == 1, "rank 0 alone shows"


@pytest.mark.parametrize(
    ("ranks", "arguments", "message"),
    [
        (None, (), "start 2 or more with `torchrun"),
        (1, (), "start 2 or more with `torchrun"),
        (4, ("--worlds", "8"), "--worlds 8: 2 to 4, the ranks of this job"),
        (4, ("--repeats", "0"), "must be above 0"),
        (4, ("--like", "abacus"), "no hardware 'abacus'"),
    ],
)
def test_wrong_use_is_refused(monkeypatch, ranks, arguments, message):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", ranks)):
        monkeypatch.delenv(name, raising=False)
        if ranks:
            monkeypatch.setenv(name, str(value))
    assert message in refused("measure-links", *arguments)
