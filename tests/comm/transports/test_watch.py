"""What ranks tell each other while a transport is made, and while an operation does not end: who is gone or late."""

import os
import subprocess
import weakref
from typing import Any

import pytest
import torch
from fake_driver import Board, FakeGroup
from patience import PATIENCE_S
from worlds import shared_world

from fscomm.transports.together import StepFailed, together
from fscomm.transports.watch import Watch
from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError
from fsranks.machine.local_processes import Neighbours, machine, own_process
from fsranks.rank_context import resolve

SIZE = 3
PLAYED_S = 9.0  # of a clock that goes on when somebody waits


def refused(rank: int, world_size: int) -> str:
    """By rank 1 alone; then all go on together."""
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)

    def refuse() -> int:
        if rank == 1:
            raise OSError("not here")
        return rank

    with pytest.raises(StepFailed) as caught:
        together(group, refuse)
    assert together(group, lambda: rank) == rank
    group.close("done")
    return str(caught.value)


def test_a_step_that_fails_on_one_rank_is_told_to_all() -> None:
    assert shared_world(SIZE).run(refused) == ["on rank 1: OSError: not here"] * SIZE


def test_only_processes_of_this_machine_are_neighbours() -> None:
    """A number says nothing of a process on another machine. One that ended and was not collected does not run."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert os.path.exists(f"/proc/{process.pid}")
    mine = own_process()
    assert mine == {"machine": machine(), "pid": os.getpid()}
    ended, elsewhere = {**mine, "pid": process.pid}, {"machine": "another", "pid": process.pid}
    neighbours = Neighbours.among({0: mine, 1: elsewhere, 2: mine, 3: ended}, 0)
    assert len(neighbours) == 2
    assert (neighbours.gone(), neighbours.active()) == ([3], [2])
    process.wait()


def watched(board: Board) -> tuple[Watch, list[str]]:
    ended: list[str] = []
    group: Any = FakeGroup(board, 0, 8, PLAYED_S)
    return Watch("fake", group, ended.append), ended


def test_a_process_that_ended_is_named_long_before_the_time_limit() -> None:
    board = Board()
    board.gone = [2, 4]
    watching, ended = watched(board)
    why = "the process of ranks 2, 4 has ended"
    with pytest.raises(PeerError, match=why):
        watching.until_done(lambda: False)
    assert board.events == [("abort", 0, f"found that {why}")]
    assert ended == ["lost an operation"]
    assert board.clock.now() < 1
    assert watching.is_over
    for call in (watching.check, lambda: watching.until_done(lambda: True), watching.meet):
        with pytest.raises(PeerError, match="ranks 2, 4"):
            call()


def test_a_rank_may_leave_that_is_through_with_the_operation() -> None:
    board = Board()
    board.gone = [2]
    watching, ended = watched(board)
    looked: list[None] = []
    board.meanwhile = lambda: looked.append(None)  # the operation ends while this rank looks who is gone
    watching.until_done(lambda: bool(looked))
    assert (board.events, ended) == ([], [])


def test_the_time_limit_ends_a_wait_and_names_who_is_late() -> None:
    board = Board()
    board.dead = 7
    error = watched(board)[0].failed(0.0, said=". The backend said: no")
    assert str(error).endswith("rank 7 did not answer. The backend said: no")
    watching, ended = watched(board)
    with pytest.raises(PeerError, match="fake is over on rank 0: rank 7 did not answer"):
        watching.until_done(lambda: False)
    assert ended == ["lost an operation"]
    assert PLAYED_S <= board.clock.now() < PLAYED_S + 1


def test_an_abort_ends_a_wait_and_its_reason_stands() -> None:
    """Another thread gives it up while this one asks whether the operation is done."""
    board = Board()
    watching, _ = watched(board)
    with pytest.raises(PeerError, match="had enough"):
        watching.until_done(lambda: watching.abort("had enough") is not None)
    assert board.events == [("abort", 0, "had enough")]
    watching.give_up("something else")
    assert "had enough" in str(watching.error())
    assert "had enough" in str(watching.failed(0.0, said=". The backend said: no"))


def test_what_was_given_up_while_ranks_met_begins_nothing() -> None:
    board = Board()
    watching, _ = watched(board)
    board.meanwhile = lambda: watching.abort("had enough")
    with pytest.raises(PeerError, match="had enough"):
        watching.meet()


def test_an_error_inside_an_operation_ends_it_for_all() -> None:
    board = Board()
    watching, ended = watched(board)
    with pytest.raises(OSError, match="the adapter is gone"), watching.guard():
        raise OSError("the adapter is gone")
    assert board.events == [("abort", 0, "failed: OSError: the adapter is gone")]
    assert ended == ["failed: OSError: the adapter is gone"]
    with pytest.raises(PeerError, match="the adapter is gone"):
        watching.check()


def test_what_is_under_way_keeps_its_tensors_until_it_is_done() -> None:
    """Also when the caller drops the handle."""
    watching, _ = watched(Board())
    done: list[None] = []

    def nothing() -> None:
        pass

    rows = torch.zeros(2)
    seen = weakref.ref(rows)
    watching.begun(rows, done=lambda: bool(done), wait=nothing, follow=nothing)
    del rows
    watching.begun(done=lambda: bool(done), wait=nothing, follow=nothing)
    assert seen() is not None
    done.append(None)
    watching.begun(done=lambda: True, wait=nothing, follow=nothing)
    assert seen() is None
