"""Host collectives by name, from this package and from installed ones."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from worlds import shared_world

from fscomm.transports.staged.host import host_collective, host_collectives
from fscomm.transports.transport import AloneTransport
from fsranks.rank_context import RankContext, resolve

Install = Callable[[str, str, str, str], None]
PLACE = RankContext(rank=0, world_size=1)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a distribution with one module and one host collective on the path."""

    def put(distribution: str, module: str, entry: str, code: str) -> None:
        about = tmp_path / f"{distribution}-1.5.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
        (about / "entry_points.txt").write_text(f"[freescale.host_collectives]\n{entry}\n")
        (tmp_path / f"{module}.py").write_text(code)

    monkeypatch.syspath_prepend(tmp_path)
    return put


def test_an_installed_host_collective_is_opened_by_its_name(install: Install) -> None:
    install(
        "rdma_host",
        "rdma_host_for_tests",
        "rdma = rdma_host_for_tests:open_rdma",
        "from fscomm.transports.transport import AloneTransport\n"
        "def open_rdma(place, *, timeout_s):\n"
        "    return AloneTransport(f'rdma {place.world_size} {timeout_s}')\n",
    )
    assert host_collectives() == ["gloo", "rdma", "shared-memory"]
    found = host_collective("rdma", PLACE, timeout_s=5)
    assert isinstance(found, AloneTransport)
    assert found.name == "rdma 1 5"


def test_a_name_that_does_not_exist_gives_those_that_do() -> None:
    with pytest.raises(ValueError, match="must be one of gloo, shared-memory, got 'mpi'"):
        host_collective("mpi", PLACE, timeout_s=5)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError('no such adapter')", "cannot be loaded: OSError: no such adapter"),
        ("", "cannot be loaded: AttributeError: "),
        ("open_it = 7", "must be a function .* got 7"),
    ],
)
def test_a_broken_package_is_named(install: Install, monkeypatch: pytest.MonkeyPatch, code: str, said: str) -> None:
    install("broken_host", "broken_host_for_tests", "mine = broken_host_for_tests:open_it", code)
    monkeypatch.delitem(sys.modules, "broken_host_for_tests", raising=False)
    with pytest.raises(ImportError, match=rf"'mine' .* of broken_host 1.5 {said}"):
        host_collective("mine", PLACE, timeout_s=5)


def test_a_name_that_is_given_twice_is_refused(install: Install) -> None:
    install("other_gloo", "other_gloo_for_tests", "gloo = other_gloo_for_tests:open_it", "")
    with pytest.raises(ValueError, match=r"'gloo' is given more than once, .*gloo \(fscomm\).*\(other_gloo 1.5\)"):
        host_collective("gloo", PLACE, timeout_s=5)


def exchanged(rank: int, world_size: int, name: str) -> None:
    host = host_collective(name, resolve(), timeout_s=20)
    inp = torch.full((3 * world_size,), rank, dtype=torch.uint8)
    out = torch.full_like(inp, 99)
    host.all_to_all_v(out, inp, [3] * world_size, [3] * world_size).wait()
    host.close("is done with the test")
    assert out.tolist() == [sender for sender in range(world_size) for _ in range(3)]


@pytest.mark.parametrize("name", ["gloo", "shared-memory"])
def test_those_of_this_package_move_bytes(name: str) -> None:
    shared_world(2).run(exchanged, name)
