"""How ranks agree on a transport: from what all of them have, shown in a warm-up, said in one line.

Host collectives by name, from this package and from installed ones.
"""

import dataclasses
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path

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
from fsranks.rank_context import RankContext, resolve

CPU = torch.device("cpu")
Install = Callable[..., None]
PLACE = RankContext(rank=0, world_size=1)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def agreed(rank: int, size: int, asked: str, *folders: str) -> tuple[Choice, list[str]]:
    """What this rank takes, and what it says about it; no thread stays. Packages are installed in `folders`."""
    log, lines, threads = logging.getLogger("fscomm"), Lines(), set(threading.enumerate())
    sys.path[:0] = folders
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        choice = opening.agree_on(asked, resolve(), CPU, timeout_s=PATIENCE_S)
    finally:
        log.removeHandler(lines)
        log.setLevel(logging.NOTSET)
        del sys.path[: len(folders)]
    assert set(threading.enumerate()) == threads
    return choice, lines.texts


@pytest.mark.parametrize(
    ("asked", "taken"),
    [("auto", "gloo"), ("copy-engine", "copy-engine"), ("host-staged:shared-memory", "host-staged"), ("nccl", None)],
)
def test_one_line_says_what_was_taken_and_why_nothing_else(asked: str, taken: str | None) -> None:
    answers = shared_world(2).run(agreed, asked)
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
        return [agreed(rank, size, asked)[0] for asked in ("auto", "copy-engine")]


def test_ranks_that_differ_take_the_same() -> None:
    answers = shared_world(3).run(one_rank_elsewhere)
    assert answers[0] == answers[1] == answers[2]
    by_itself, by_name = answers[0]
    assert by_itself.name == "gloo"
    assert by_name.name is None
    assert "ranks 0, 1 and rank 2 are apart" in by_name.why_not["copy-engine"]


def enabled(rank: int, size: int, asked: str) -> tuple[str | None, str | None, str]:
    model, _ = build(CONFIGS["row"], size)
    with fscomm.enable(model, transport=asked, timeout_s=PATIENCE_S) as comm:
        report = comm.report()
    return report.transport, report.to_dict()["transport"], str(report).splitlines()[0]


def test_the_report_says_how_rows_travel() -> None:
    asked = "host-staged:shared-memory"
    for rank, found in enumerate(shared_world(2).run(enabled, asked)):
        assert found == (asked, asked, f"fscomm, rank {rank}, mean of 0 steps, rows by {asked}")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a distribution with one host collective, `open_it` of its module, on the path."""

    def put(distribution: str, entry: str, code: str) -> None:
        about, module = tmp_path / f"{distribution}-1.5.dist-info", f"{distribution}_for_tests"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
        (about / "entry_points.txt").write_text(f"[freescale.host_collectives]\n{entry} = {module}:open_it\n")
        (tmp_path / f"{module}.py").write_text(code)
        monkeypatch.delitem(sys.modules, module, raising=False)

    monkeypatch.syspath_prepend(tmp_path)
    return put


SWAPS = """
from fscomm.transports.opening import gloo_collective

def open_it(context, *, timeout_s):
    host = gloo_collective(context, timeout_s=timeout_s)
    moved = host.all_to_all_v

    def swapped(out, *given):
        handle = moved(out, *given)
        handle.wait()
        if host.rank == 1 and len(out) > 1:
            out.copy_(out.flip(0))
        return handle

    host.all_to_all_v = swapped
    return host
"""


def test_a_transport_that_brings_other_rows_serves_nobody(install: Install, tmp_path: Path) -> None:
    """One rank alone sees it; all of them take nothing, for the same reason."""
    install("swapping_host", "swapping", SWAPS)
    assert host_collectives() == ["gloo", "shared-memory", "swapping"]
    answers = shared_world(2).run(agreed, "host-staged:swapping", str(tmp_path))
    assert answers[0] == answers[1]
    choice, (line,) = answers[0]
    assert choice.name is None
    assert "not host-staged: its warm-up failed: on rank 1: all-to-all of" in line


@pytest.mark.parametrize(
    ("entry", "code", "error", "said"),
    [
        ("mpi", "", ValueError, "must be one of gloo, other, shared-memory, got 'mpi'"),
        ("gloo", "", ValueError, r"'gloo' is given more than once, .*gloo\w* \(fscomm\).*\(some_host 1.5\)"),
        ("other", "raise OSError('no such adapter')", ImportError, "cannot be loaded: OSError: no such adapter"),
        ("other", "", ImportError, "'other' .* of some_host 1.5 cannot be loaded: AttributeError: "),
        ("other", "open_it = 7", ImportError, "'other' .* of some_host 1.5 must be a function .* got 7"),
    ],
)
def test_names_and_packages_that_are_no_good_are_told(
    install: Install, entry: str, code: str, error: type[Exception], said: str
) -> None:
    install("some_host", "other" if entry == "mpi" else entry, code)
    with pytest.raises(error, match=said):
        host_collective(entry, PLACE, timeout_s=PATIENCE_S)
