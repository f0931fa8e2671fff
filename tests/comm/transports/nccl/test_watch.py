"""Waiting for what a library carries: who is gone, who is late, and what ends the wait."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fscomm.transports.nccl import deadlines
from fscomm.transports.nccl.deadlines import Watch
from fsranks.errors import PeerError


class FakeHandshake:
    def __init__(self, gone: list[int], timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.told: list[str] = []
        self.group = SimpleNamespace(blame=self._blame, abort=self.told.append)
        self._gone = gone

    def gone(self) -> list[int]:
        return self._gone

    def _blame(self, waited_s: float) -> str:
        return f"rank 7 was later than {self.timeout_s:g} s" if waited_s >= self.timeout_s else "nobody knows"


def watched(gone: list[int], timeout_s: float) -> tuple[Watch, Any, list[str]]:
    ended: list[str] = []
    handshake: Any = FakeHandshake(gone, timeout_s)
    return Watch("fake", handshake, lambda: ended.append("ended")), handshake, ended


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_SLICE_S", 0.01)


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


def test_a_rank_may_leave_that_is_through_with_the_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_SLICE_S", 0.0)
    watching, handshake, ended = watched([2], 3600.0)
    done = iter([False, True, True])  # it ends between two questions
    watching.until(lambda: next(done))
    assert (handshake.told, ended) == ([], [])


def test_the_time_limit_ends_a_wait_and_names_who_is_late() -> None:
    watching, _, ended = watched([], 0.05)
    with pytest.raises(PeerError, match=r"fake is over on this rank: rank 7 was later than 0\.05 s"):
        watching.until(lambda: False)
    assert ended == ["ended"]


def test_an_abort_ends_a_wait_and_its_reason_stands() -> None:
    watching, handshake, _ = watched([], 3600.0)
    threading.Timer(0.05, watching.abort, ["had enough"]).start()
    with pytest.raises(PeerError, match="had enough"):
        watching.until(lambda: False)
    assert handshake.told == ["had enough"]
    assert watching.give_up("something else") == "had enough"
    assert "had enough" in str(watching.failed(0.0, "The backend said: no"))


def test_what_the_backend_said_is_passed_on() -> None:
    watching, _, _ = watched([], 3600.0)
    assert str(watching.failed(0.0, "The backend said: no")).endswith("nobody knows. The backend said: no")
