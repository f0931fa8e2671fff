"""What ends the wait for an operation that does not end, and which rank is named. `ring/` has it for transports."""

from collections.abc import Callable
from typing import Any

import pytest
from fake_driver import Board, FakeGroup

from fscomm.transports.transport import Chunk, Handle
from fscomm.transports.watch import Watched
from fsranks.errors import PeerError

PLAYED_S = 9.0  # of a clock that goes on when somebody waits


class Fake(Watched):
    """Notes why its operations are given up."""

    name = "fake"

    def __init__(self, board: Board) -> None:
        group: Any = FakeGroup(board, 0, 8, PLAYED_S)
        super().__init__(group)
        self.ended: list[str] = []

    def _begin(self, chunk: Chunk, row_bytes: int) -> Handle:
        raise NotImplementedError

    def _end(self, reason: str) -> None:
        self.ended.append(reason)

    def wait(self, is_done: Callable[[], bool] = lambda: False) -> None:
        self._until_done(is_done)


@pytest.mark.parametrize(
    ("gone", "why"), [([2, 4], "the process of ranks 2, 4 has ended"), ([], "rank 7 did not answer")]
)
def test_a_process_that_ended_ends_a_wait_at_once_and_the_time_limit_any(gone: list[int], why: str) -> None:
    board = Board()
    board.gone, board.dead = gone, 7
    transport = Fake(board)
    with pytest.raises(PeerError, match=f"fake is over on rank 0: {why}"):
        transport.wait()
    assert board.events == ([("abort", 0, f"found that {why}")] if gone else [])
    assert transport.ended == ["lost an operation"]
    assert board.clock.now() < 1 if gone else PLAYED_S <= board.clock.now() < PLAYED_S + 1
    assert transport._is_over
    for call in (transport._check, lambda: transport.wait(lambda: True), transport.barrier):
        with pytest.raises(PeerError, match=why):
            call()


def test_what_the_backend_said_is_told() -> None:
    board = Board()
    board.dead = 7
    error = Fake(board)._failed(0.0, detail=". The backend said: no")
    assert str(error).endswith("rank 7 did not answer. The backend said: no")


@pytest.mark.parametrize("in_a_barrier", [True, False])
def test_an_abort_ends_a_wait_and_its_reason_stands(in_a_barrier: bool) -> None:
    """Another thread gives it up while this one asks whether the operation is done, or while ranks meet."""
    board = Board()
    transport = Fake(board)

    def give_up() -> bool:
        transport.abort("had enough")
        return True

    board.meanwhile = give_up if in_a_barrier else None
    with pytest.raises(PeerError, match="had enough"):
        transport.barrier() if in_a_barrier else transport.wait(give_up)
    assert ("abort", 0, "had enough") in board.events
    transport.abort("something else")
    assert "had enough" in str(transport._error())
    assert "had enough" in str(transport._failed(0.0, detail=". The backend said: no"))
