"""How ranks agree on a transport: from what all of them have, shown in a warm-up, said in one line.

Host collectives by name, from this package and from installed ones.
"""

import dataclasses
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exact_configs import CONFIGS
from exact_model import build
from patience import PATIENCE_S
from worlds import shared_world

import fscomm
from fscomm.transports import capabilities, opening
from fscomm.transports.choice import Choice
from fscomm.transports.opening import host_collective, host_collectives
from fscomm.transports.ring.ring import Ring
from fscomm.transports.transport import AloneTransport
from fsranks.rank_context import RankContext, resolve

CPU = torch.device("cpu")
Install = Callable[[str, str, str, str], None]
PLACE = RankContext(rank=0, world_size=1)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def agreed(asked: str) -> tuple[Choice, list[str]]:
    """What this rank takes, and what it says about it; no thread stays."""
    log, lines, threads = logging.getLogger("fscomm"), Lines(), set(threading.enumerate())
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        choice = opening.agree_on(asked, resolve(), CPU, timeout_s=PATIENCE_S)
    finally:
        log.removeHandler(lines)
        log.setLevel(logging.NOTSET)
    assert set(threading.enumerate()) == threads
    return choice, lines.texts


def ask(rank: int, size: int, asked: str) -> tuple[Choice, list[str]]:
    return agreed(asked)


@pytest.mark.parametrize(
    ("asked", "taken"),
    [("auto", "gloo"), ("copy-engine", "copy-engine"), ("host-staged:shared-memory", "host-staged"), ("nccl", None)],
)
def test_one_line_says_what_was_taken_and_why_nothing_else(asked: str, taken: str | None) -> None:
    answers = shared_world(2).run(ask, asked)
    assert answers[0] == answers[1]
    choice, lines = answers[0]
    assert choice.name == taken
    assert lines == [f"fscomm: {choice.line()}"]
    for name in {"gloo", "nccl", "nccl-ce", "copy-engine", "host-staged"} - {taken}:
        assert f"not {name}: " in lines[0]


def one_rank_elsewhere(rank: int, size: int) -> list[Choice]:
    with pytest.MonkeyPatch.context() as patch:
        here = capabilities.read(CPU)
        patch.setattr(opening, "read", lambda where: dataclasses.replace(here, host=f"host of {rank // 2}"))
        return [agreed(asked)[0] for asked in ("auto", "copy-engine")]


def test_ranks_that_differ_take_the_same() -> None:
    answers = shared_world(3).run(one_rank_elsewhere)
    assert answers[0] == answers[1] == answers[2]
    by_itself, by_name = answers[0]
    assert by_itself.name == "gloo"
    assert by_name.name is None
    assert "ranks 0, 1 and rank 2 are apart" in by_name.why_not["copy-engine"]


def swapped(self: Any, out: torch.Tensor, *given: Any, **more: Any) -> Any:
    handle = moved(self, out, *given, **more)
    handle.wait()
    if self.rank == 1 and len(out) > 1:
        out.copy_(out.flip(0))
    return handle


moved = Ring.all_to_all_v


def enable_broken(rank: int, size: int) -> tuple[dict[str, str], str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ring, "all_to_all_v", swapped)
        model, _ = build(CONFIGS["row"], size)
        with pytest.raises(fscomm.NotServedError) as error:
            fscomm.enable(model, transport="copy-engine", strict=True, timeout_s=PATIENCE_S).__enter__()
        with fscomm.enable(model, transport="copy-engine", timeout_s=PATIENCE_S) as comm:
            return dict(comm.report().fallbacks), str(error.value)


def test_a_transport_that_brings_other_rows_serves_nobody() -> None:
    """One rank alone sees it; all of them run plainly, for the same reason, or raise it."""
    answers = shared_world(2).run(enable_broken)
    assert answers[0] == answers[1]
    fallbacks, raised = answers[0]
    assert list(fallbacks) == ["embeddings.a"]
    for said in (fallbacks["embeddings.a"], raised):
        assert "not copy-engine: its warm-up failed: " in said
        assert "rank 1" in said


def enabled(rank: int, size: int, asked: str) -> tuple[str | None, str | None, str]:
    model, _ = build(CONFIGS["row"], size)
    with fscomm.enable(model, transport=asked, timeout_s=PATIENCE_S) as comm:
        report = comm.report()
    return report.transport, report.to_dict()["transport"], str(report).splitlines()[0]


@pytest.mark.parametrize("asked", ["gloo", "host-staged:shared-memory"])
def test_the_report_says_how_rows_travel(asked: str) -> None:
    for rank, (name, written, shown) in enumerate(shared_world(2).run(enabled, asked)):
        assert name == written == asked
        assert shown == f"fscomm, rank {rank}, mean of 0 steps, rows by {asked}"


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
    found = host_collective("rdma", PLACE, timeout_s=PATIENCE_S)
    assert isinstance(found, AloneTransport)
    assert found.name == f"rdma 1 {PATIENCE_S}"


def test_a_name_that_does_not_exist_gives_those_that_do() -> None:
    with pytest.raises(ValueError, match="must be one of gloo, shared-memory, got 'mpi'"):
        host_collective("mpi", PLACE, timeout_s=PATIENCE_S)


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
        host_collective("mine", PLACE, timeout_s=PATIENCE_S)


def test_a_name_that_is_given_twice_is_refused(install: Install) -> None:
    install("other_gloo", "other_gloo_for_tests", "gloo = other_gloo_for_tests:open_it", "")
    with pytest.raises(ValueError, match=r"'gloo' is given more than once, .*gloo\w* \(fscomm\).*\(other_gloo 1.5\)"):
        host_collective("gloo", PLACE, timeout_s=PATIENCE_S)


def exchanged(rank: int, world_size: int, name: str) -> None:
    host = host_collective(name, resolve(), timeout_s=PATIENCE_S)
    inp = torch.full((3 * world_size,), rank, dtype=torch.uint8)
    out = torch.full_like(inp, 99)
    host.all_to_all_v(out, inp, [3] * world_size, [3] * world_size).wait()
    host.close("is done with the test")
    assert out.tolist() == [sender for sender in range(world_size) for _ in range(3)]


@pytest.mark.parametrize("name", ["gloo", "shared-memory"])
def test_those_of_this_package_move_bytes(name: str) -> None:
    shared_world(2).run(exchanged, name)
