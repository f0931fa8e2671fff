"""How ranks agree on a transport: from what all of them have, shown in a warm-up, said in one line."""

import dataclasses
import logging
import os
import signal
import threading
from typing import Any

import pytest
import torch
from exact_configs import CONFIGS
from exact_model import build
from worlds import World, shared_world

import fscomm
from fscomm.transports.choice import agree, capabilities
from fscomm.transports.choice.rules import Choice
from fscomm.transports.handshake import Handshake
from fscomm.transports.ring.ring import Ring
from fsranks.rank_context import resolve

CPU = torch.device("cpu")
LIMIT_S = 10.0


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
        choice = agree.agree_on(asked, resolve(), CPU, timeout_s=LIMIT_S)
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
        patch.setattr(agree, "read", lambda where: dataclasses.replace(here, host=f"host of {rank // 2}"))
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
            fscomm.enable(model, transport="copy-engine", strict=True, timeout_s=LIMIT_S).__enter__()
        with fscomm.enable(model, transport="copy-engine", timeout_s=LIMIT_S) as comm:
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
    with fscomm.enable(model, transport=asked, timeout_s=LIMIT_S) as comm:
        report = comm.report()
    return report.transport, report.to_dict()["transport"], str(report).splitlines()[0]


@pytest.mark.parametrize("asked", ["gloo", "host-staged:shared-memory"])
def test_the_report_says_how_rows_travel(asked: str) -> None:
    for rank, (name, written, shown) in enumerate(shared_world(2).run(enabled, asked)):
        assert name == written == asked
        assert shown == f"fscomm, rank {rank}, mean of 0 steps, rows by {asked}"


def die_in_the_warm_up(rank: int, size: int) -> str:
    original = Handshake.agree

    def once(self: Handshake, *given: Any) -> int:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handshake, "agree", once)
        with pytest.raises(fscomm.PeerError) as error:
            agree.agree_on("copy-engine", resolve(), CPU, timeout_s=4)
    return str(error.value)


def test_a_rank_that_dies_in_the_warm_up_is_named() -> None:
    with World(3) as world:
        first, _, last = world.run(die_in_the_warm_up, lost=[1])
    assert "rank 1 did not come" in first
    assert "rank 1 did not come" in last
