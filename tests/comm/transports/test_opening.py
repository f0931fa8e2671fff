"""How ranks agree on a transport: opened by all, tried once, said in one line.

Host collectives by name, from this package and from installed ones.
"""

import logging
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from exact_configs import CONFIGS
from exact_model import build
from patience import PATIENCE_S
from worlds import shared_world

import fscomm
from fscomm.device import Host
from fscomm.transports import opening, together
from fscomm.transports.opening import Choice
from fscomm.transports.staged.host_staged import host_collective, host_collectives
from fsranks.errors import MismatchError
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
    assert set(threading.enumerate()) <= threads
    return choice, lines.texts


@pytest.mark.parametrize(
    ("asked", "taken", "why_not"),
    [
        ("auto", "gloo", ""),
        ("gloo", "gloo", ""),
        ("copy-engine", "copy-engine", ""),
        ("host-staged:shared-memory", "host-staged", ""),
        ("nccl", None, "nccl moves rows between GPUs, these are on the CPU: take gloo"),
    ],
)
def test_one_line_says_what_was_taken_or_why_nothing_was(asked: str, taken: str | None, why_not: str) -> None:
    for choice, lines in shared_world(2).run(agreed, asked):
        assert choice == Choice(asked=asked, name=taken, why_not=why_not)
        said = f": {why_not}" if why_not else ""
        way = "there is no transport for these rows" if taken is None else f"rows travel by {taken}"
        assert lines == [f"fscomm: {way} (transport={asked!r}){said}"]


@pytest.mark.parametrize(
    ("asked", "where", "taken"),
    [
        ("auto", "cpu", "gloo"),
        ("auto", "cuda", None),
        ("copy-engine", "cuda", "copy-engine"),
        ("nccl", "cpu", "nccl"),
    ],
)
def test_the_only_rank_has_nothing_to_lack_but_on_cuda_it_has_to_ask(asked: str, where: str, taken: str | None) -> None:
    """As more ranks have: tables on CUDA run plainly under auto."""
    choice = opening.agree_on(asked, PLACE, torch.device(where), timeout_s=PATIENCE_S)
    assert choice.name == taken
    assert ("Name one (nccl, nccl-ce, copy-engine, host-staged)" in choice.why_not) == (taken is None)


def test_the_line_about_auto_names_a_program_of_this_repository() -> None:
    (program,) = [word for word in opening.NOT_YET.split() if word.endswith(".py")]
    assert "torchrun --nnodes 2" in opening.NOT_YET
    assert (Path(__file__).parents[3] / program).is_file()


@pytest.mark.parametrize(
    ("name", "folder"),
    [("host-staged", "staged"), ("host-staged:gloo", "staged"), ("copy-engine", "ring"), ("nccl-ce", "ring")],
)
def test_a_transport_whose_folder_is_deleted_is_refused_by_name(
    name: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda module: None)
    why = f"'{name.partition(':')[0]}' needs fscomm.transports.{folder}, which is not installed: take one of gloo, nccl"
    with pytest.raises(ValueError, match=re.escape(why)):
        opening.split_name(name)
    assert opening.split_name("gloo") == ("gloo", "gloo")


@pytest.mark.parametrize("name", opening.NAMES)
def test_the_only_rank_is_served_whatever_it_asks_for(name: str) -> None:
    """As it has nobody to send to, also for tables on CUDA."""
    on_cuda: Any = SimpleNamespace(where=torch.device("cuda", 0))
    transport = opening.open_transport(name, PLACE, on_cuda, timeout_s=PATIENCE_S)
    rows, out = torch.randn(3, 2), torch.zeros(3, 2)
    transport.all_to_all_v(out, rows, [3], [3], largest_bytes=rows.nbytes).wait()
    transport.barrier()
    assert torch.equal(out, rows)
    with pytest.raises(MismatchError, match="the only rank sends 3 rows to itself, but expects 1"):
        transport.all_to_all_v(out[:1], rows, [1], [3], largest_bytes=rows.nbytes)
    transport.close("done")


def on_cuda(rank: int, size: int, names: Sequence[str], of_last: dict[str, str]) -> list[str]:
    """Why there is no transport for tables on GPUs that are not there. of_last: the environment of the last rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "device_of", lambda where: SimpleNamespace(where=where))
        for name in (*ENOUGH, "CUDA_DEVICE_MAX_COPY_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"):
            patch.delenv(name, raising=False)
        for name, value in (of_last if rank == size - 1 else ENOUGH).items():
            patch.setenv(name, value)
        where = torch.device("cuda", 0)
        return [opening.agree_on(name, resolve(), where, timeout_s=PATIENCE_S).why_not for name in names]


ENOUGH = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
QUEUES = "CONNECTIONS={}: fscomm issues to up to 20 streams .*CONNECTIONS=32 in the environment .* first CUDA call$"
BLOCKING = "CUDA_LAUNCH_BLOCKING=1: every copy would block the thread that issues it. Unset it"


@pytest.mark.parametrize(
    ("of_last", "why"),
    [
        ({}, "CUDA_DEVICE_MAX_" + QUEUES.format(r"8 \(not set\)")),  # what the driver takes
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "CUDA_DEVICE_MAX_" + QUEUES.format(1)),  # as Megatron has it
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "many"}, "CUDA_DEVICE_MAX_" + QUEUES.format("many")),
        ({**ENOUGH, "CUDA_DEVICE_MAX_COPY_CONNECTIONS": "8"}, "CUDA_DEVICE_MAX_COPY_" + QUEUES.format(8)),
        ({**ENOUGH, "CUDA_LAUNCH_BLOCKING": "1"}, BLOCKING),
    ],
)
def test_what_would_stop_ranks_on_cuda_is_refused_for_every_transport(of_last: dict[str, str], why: str) -> None:
    """But kernels of nccl may block their thread."""
    names = [name for name in opening.NAMES[1:] if name != "nccl" or why != BLOCKING]
    one, other = shared_world(2).run(on_cuda, names, of_last)
    assert one == other
    assert all(re.match(f"on rank 1: RuntimeError: {why}", said) for said in one)


def test_what_tables_on_cuda_may_not_have_is_said_with_what_to_do() -> None:
    one, other = shared_world(2).run(on_cuda, ["auto", "gloo", "nccl"], ENOUGH)
    assert one == other
    auto, gloo, nccl = one
    assert auto == opening.NOT_YET
    assert "host-staged takes them over gloo" in gloo
    assert nccl.startswith("on ranks 0, 1: RuntimeError: ")  # of torch: it knows no CUDA, or not in a forked process


class Released(Host):
    def __init__(self) -> None:
        self.times = 0

    def release(self) -> None:
        self.times += 1


def released(rank: int, size: int) -> list[int]:
    """How often the streams of a trial were released: of one that passes, and of one that rank 1 fails."""
    times = []
    with pytest.MonkeyPatch.context() as patch:
        for fails in (False, True):
            device, wrong = Released(), "other rows" if fails and rank == 1 else ""
            patch.setattr(opening, "device_of", lambda where, device=device: device)
            patch.setattr(opening, "wrong_rows", lambda transport, where, wrong=wrong: wrong)
            opening.agree_on("host-staged", resolve(), CPU, timeout_s=PATIENCE_S)
            times.append(device.times)
    return times


def test_streams_of_a_trial_are_used_again_unless_they_may_hang() -> None:
    assert shared_world(2).run(released) == [[1, 1], [1, 0]]


def differing(rank: int, size: int) -> list[str]:
    """Rank 0 has its tables elsewhere; then the last rank is on another host."""
    where = torch.device("cuda") if rank == 0 else CPU
    said = [opening.agree_on("copy-engine", resolve(), where, timeout_s=PATIENCE_S).why_not]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(together, "machine", lambda: f"host {rank // 2}")
        for asked in ("copy-engine", "host-staged:shared-memory", "auto"):
            said.append(agreed(rank, size, asked)[0].why_not)
    return said


def test_ranks_that_differ_take_the_same() -> None:
    answers = shared_world(3).run(differing)
    assert answers[0] == answers[1] == answers[2]
    on_both, apart, apart_too, by_itself = answers[0]
    assert on_both.endswith("on rank 0: tables on cuda; on ranks 1, 2: tables on cpu")
    assert apart == "all ranks must be processes of one host, ranks 0, 1 and rank 2 are apart: use gloo"
    assert apart_too == apart
    assert by_itself == ""


def enabled(rank: int, size: int, asked: str) -> tuple[str | None, str | None, str]:
    model, _ = build(CONFIGS["row"], size)
    with fscomm.enable(model, transport=asked, timeout_s=PATIENCE_S) as comm:
        report = comm.report()
    return report.transport, report.to_dict()["transport"], str(report).splitlines()[1]


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
from fscomm.transports.gloo import GlooTransport

def open_it(context, *, timeout_s):
    host = GlooTransport(context, timeout_s=timeout_s)
    moved = host.all_to_all_v

    def swapped(out, *given, largest_bytes):
        handle = moved(out, *given, largest_bytes=largest_bytes)
        handle.wait()
        if host.rank == 1 and len(out) > 1:
            out.copy_(out.flip(0))
        return handle

    host.all_to_all_v = swapped
    return host
"""


BROKEN_ON_ONE = """
import torch.distributed as dist
from fscomm.transports.gloo import GlooTransport as open_it

if dist.get_rank() == 1:
    raise OSError("no such adapter")
"""

FAILS = """
from fscomm.transports.gloo import GlooTransport

def open_it(context, *, timeout_s):
    host = GlooTransport(context, timeout_s=timeout_s)
    if host.rank == 1:
        host.all_to_all_v = fail
    return host

def fail(*given, largest_bytes):
    raise OSError("the adapter is gone")
"""

OF_BROKEN = r"'broken' \(broken_host\w*:open_it\) of broken_host 1.5 cannot be loaded: OSError: no such adapter"


@pytest.mark.parametrize(
    ("entry", "code", "why"),
    [
        ("broken", BROKEN_ON_ONE, f"on rank 1: ImportError: .*{OF_BROKEN}"),
        ("swapping", SWAPS, "its trial failed: on rank 1: rows from ranks 0, 1 are not what was sent$"),
        (
            "failing",
            FAILS,
            "its trial failed: on rank 0: PeerError: .*"
            "on rank 1: PeerError: host-staged is over on rank 1: failed: OSError: the adapter is gone",
        ),
    ],
)
def test_a_host_collective_that_is_wrong_on_one_rank_serves_nobody(
    install: Install, tmp_path: Path, entry: str, code: str, why: str
) -> None:
    install(f"{entry}_host", entry, code)
    assert host_collectives() == sorted(["gloo", "shared-memory", entry])
    (choice, lines), other = shared_world(2).run(agreed, f"host-staged:{entry}", str(tmp_path))
    assert (choice, lines) == other
    assert choice.name is None
    assert re.match(why, choice.why_not)
    assert lines[0].endswith(choice.why_not)


@pytest.mark.parametrize(
    ("entry", "code", "error", "said"),
    [
        ("gloo", "", ValueError, r"'gloo' is given more than once, .*GlooTransport \(fscomm\).*\(some_host 1.5\)"),
        ("other", "raise OSError('no such adapter')", ImportError, "cannot be loaded: OSError: no such adapter"),
        ("other", "", ImportError, "'other' .* of some_host 1.5 cannot be loaded: AttributeError: "),
        ("other", "open_it = 7", ImportError, "'other' .* of some_host 1.5 must be a function .* got 7"),
    ],
)
def test_names_and_packages_that_are_no_good_are_told(
    install: Install, entry: str, code: str, error: type[Exception], said: str
) -> None:
    install("some_host", entry, code)
    with pytest.raises(error, match=said):
        host_collective(entry)
