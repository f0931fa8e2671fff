"""What ranks tell each other before an operation, and while one does not end: who is gone, who is late."""

import os
import signal
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from patience import PATIENCE_S, until
from played_clock import PlayedClock
from worlds import shared_world

from fscomm.transports.handshake import Handshake, Watch
from fsranks.errors import MismatchError, PeerError
from fsranks.local_processes import runs
from fsranks.rank_context import resolve

SIZE = 3


def agree(rank: int, world_size: int, verify: bool) -> list[int]:
    handshake = Handshake(resolve(), verify=verify, timeout_s=PATIENCE_S)
    found = [
        handshake.agree("all_to_all_v", torch.zeros(0, 5), [rank, 0, 2], [0, 0, 0] if rank else [0, 1, 2])
        if not verify
        else handshake.agree("all_to_all_v", torch.zeros(0, 5), [rank, 0, 2], [[0, 1, 2], [0, 0, 0], [2, 2, 2]][rank])
        for _ in range(2)
    ]
    found.append(handshake.agree("all_gather", torch.zeros(4, dtype=torch.bool), [4] * 3, [4] * 3))
    found.append(handshake.agree("meet", torch.zeros(0)))
    handshake.group.close("done")
    return found


@pytest.mark.parametrize("verify", [True, False])
def test_the_largest_piece_is_known_to_all(verify: bool) -> None:
    assert shared_world(SIZE).run(agree, verify) == [[40, 40, 4, 0]] * SIZE


def differ(rank: int, world_size: int, verify: bool) -> list[str]:
    """Rank 1 is somewhere else each time, and all go on from there."""
    handshake = Handshake(resolve(), verify=verify, timeout_s=PATIENCE_S)
    odd, rows, ones = rank == 1, torch.zeros(3, 4), [1] * SIZE
    calls = [
        lambda: handshake.agree("meet", rows) if odd else handshake.agree("all_gather", rows, ones, ones),
        lambda: handshake.agree("all_to_all_v", rows.int() if odd else rows, ones, ones),
        lambda: handshake.agree("all_to_all_v", rows.half() if odd else rows, ones, ones),
        lambda: handshake.agree("all_to_all_v", rows[:, :2] if odd else rows, ones, ones),
    ]
    texts = []
    for call in calls:
        with pytest.raises(MismatchError) as caught:
            call()
        texts.append(str(caught.value))
    assert handshake.agree("all_to_all_v", rows, ones, ones) == 16
    handshake.group.close("done")
    return texts


@pytest.mark.parametrize("verify", [True, False])
def test_differing_operations_dtypes_and_rows_are_refused_by_all(verify: bool) -> None:
    for texts in shared_world(SIZE).run(differ, verify):
        matches = ["operation by rank is ['all_gather', 'meet', 'all_gather']", "dtype", "dtype", "[16, 8, 16]"]
        for text, match in zip(texts, matches, strict=True):
            assert match in text


def test_processes_that_ended_and_were_not_collected_do_not_run() -> None:
    assert runs(os.getpid())
    process = subprocess.Popen(["sleep", "60"])
    os.kill(process.pid, signal.SIGSTOP)
    assert runs(process.pid)
    process.kill()
    until(lambda: not runs(process.pid), "the end of the process")
    assert os.path.exists(f"/proc/{process.pid}")
    assert not runs(process.pid)
    process.wait()
    assert not runs(process.pid)


class FakeHandshake:
    def __init__(self, gone: list[int], timeout_s: float, clock: PlayedClock) -> None:
        self.timeout_s = timeout_s
        self.told: list[str] = []
        self.group = SimpleNamespace(blame=self._blame, abort=self.told.append, clock=clock)
        self._gone = gone

    def gone(self) -> list[int]:
        return self._gone

    def _blame(self, waited_s: float) -> str:
        return f"rank 7 was later than {self.timeout_s:g} s" if waited_s >= self.timeout_s else "nobody knows"


def watched(gone: list[int], timeout_s: float, clock: PlayedClock | None = None) -> tuple[Watch, Any, list[str]]:
    ended: list[str] = []
    handshake: Any = FakeHandshake(gone, timeout_s, clock or PlayedClock())
    return Watch("fake", handshake, lambda: ended.append("ended")), handshake, ended


def test_a_process_that_ended_is_named_long_before_the_time_limit() -> None:
    watching, handshake, ended = watched([2, 4], 3600.0)
    with pytest.raises(PeerError, match="the process of ranks 2, 4 has ended"):
        watching.until(lambda: False)
    assert handshake.told == ["found that the process of ranks 2, 4 has ended"]
    assert ended == ["ended"]
    assert watching.is_over
    for call in (watching.check, lambda: watching.until(lambda: True)):
        with pytest.raises(PeerError, match="ranks 2, 4"):
            call()


def test_a_rank_may_leave_that_is_through_with_the_operation() -> None:
    clock = PlayedClock()
    watching, handshake, ended = watched([2], 3600.0, clock)
    done = iter([False, True, True])  # it ends between two questions, which are a second apart
    watching.until(lambda: clock.wait(1.0) or next(done))
    assert (handshake.told, ended) == ([], [])


def test_the_time_limit_ends_a_wait_and_names_who_is_late() -> None:
    watching, _, ended = watched([], 30.0)
    with pytest.raises(PeerError, match="fake is over on this rank: rank 7 was later than 30 s"):
        watching.until(lambda: False)
    assert ended == ["ended"]


def test_an_abort_ends_a_wait_and_its_reason_stands() -> None:
    clock = PlayedClock(60.0, lambda: watching.abort("had enough"))
    watching, handshake, _ = watched([], 3600.0, clock)
    with pytest.raises(PeerError, match="had enough"):
        watching.until(lambda: False)
    assert handshake.told == ["had enough"]
    assert watching.give_up("something else") == "had enough"
    assert "had enough" in str(watching.failed(0.0, "The backend said: no"))


def test_what_the_backend_said_is_passed_on() -> None:
    watching, _, _ = watched([], 3600.0)
    assert str(watching.failed(0.0, "The backend said: no")).endswith("nobody knows. The backend said: no")
