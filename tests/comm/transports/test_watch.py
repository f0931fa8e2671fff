"""What ends the wait for an operation that does not end, and which rank is named. `ring/` has it for transports."""

from typing import Any

import pytest
from fake_driver import Board, FakeGroup

from fscomm.transports.watch import Watch
from fsranks.errors import PeerError

PLAYED_S = 9.0  # of a clock that goes on when somebody waits


def watched(board: Board) -> tuple[Watch, list[str]]:
    ended: list[str] = []
    group: Any = FakeGroup(board, 0, 8, PLAYED_S)
    return Watch("fake", group, ended.append), ended


@pytest.mark.parametrize(
    ("gone", "why"), [([2, 4], "the process of ranks 2, 4 has ended"), ([], "rank 7 did not answer")]
)
def test_a_process_that_ended_ends_a_wait_at_once_and_the_time_limit_any(gone: list[int], why: str) -> None:
    board = Board()
    board.gone, board.dead = gone, 7
    watching, ended = watched(board)
    with pytest.raises(PeerError, match=f"fake is over on rank 0: {why}"):
        watching.until_done(lambda: False)
    assert board.events == ([("abort", 0, f"found that {why}")] if gone else [])
    assert ended == ["lost an operation"]
    assert board.clock.now() < 1 if gone else PLAYED_S <= board.clock.now() < PLAYED_S + 1
    assert watching.is_over
    for call in (watching.check, lambda: watching.until_done(lambda: True), watching.barrier):
        with pytest.raises(PeerError, match=why):
            call()


def test_what_the_backend_said_is_told() -> None:
    board = Board()
    board.dead = 7
    error = watched(board)[0].failed(0.0, detail=". The backend said: no")
    assert str(error).endswith("rank 7 did not answer. The backend said: no")


def test_an_abort_ends_a_wait_and_its_reason_stands() -> None:
    """Another thread gives it up while this one asks whether the operation is done, or while ranks meet."""
    for waits in (
        Watch.barrier,
        lambda watching: watching.until_done(lambda: watching.abort("had enough") is not None),
    ):
        board = Board()
        watching, _ = watched(board)
        board.meanwhile = (lambda watching=watching: watching.abort("had enough")) if waits is Watch.barrier else None
        with pytest.raises(PeerError, match="had enough"):
            waits(watching)
        assert ("abort", 0, "had enough") in board.events
        watching.give_up("something else")
        assert "had enough" in str(watching.error())
        assert "had enough" in str(watching.failed(0.0, detail=". The backend said: no"))
