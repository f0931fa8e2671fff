"""The sentence that says why an exchange failed, from the notes of the ranks and the processes of a machine."""

import os
import subprocess

import pytest

from fsranks.diagnosis import Note, diagnose
from fsranks.machine.local_processes import Neighbours, machine, own_process

SIZE = 4
LIMIT_S = 1000.0


def sentence(notes: dict[int, Note], gone: tuple[int, ...] = (), active: tuple[int, ...] = ()) -> str:
    return diagnose(notes, rank=0, world_size=SIZE, limit_s=LIMIT_S, gone=gone, active=active)


def waited(*seconds: float | None) -> dict[int, Note]:
    """A note of every rank, by rank; no note where there is None."""
    return {rank: Note("", each) for rank, each in enumerate(seconds) if each is not None}


@pytest.mark.parametrize(
    ("notes", "gone", "active", "expected"),
    [
        (waited(2, None, None, 2), (2,), (1,), "the process of rank 2 has ended."),
        (waited(2, None, None, 2), (), (1,), "rank 2 did not answer within 2.0 s: dead or stopped."),
        (waited(2, None, None, 2), (), (), "ranks 1, 2 did not answer within 2.0 s: dead or stopped."),
        (
            waited(0, None, None, 999),
            (),
            (1, 2, 3),
            "ranks 1, 2 did not answer within 0.1 s: busy or blocked, not stop",
        ),
        (waited(0, None, None, 2), (), (1, 2, 3), "the connections broke although all ranks are alive"),
        (waited(999, 2, 2, None), (1,), (3,), "rank 3 did not answer within 999.0 s: busy or blocked, not stopped."),
        (waited(2, None, None, None), (), (1,), "connections of rank 0 broke, and no other rank has noticed"),
        (waited(1200, 1000, 1000, 1000), (), (), "rank 0 stopped for a while: a wait took 1200.0 s there, not 1000 s."),
        (waited(900, 490, 500, 100), (), (), "ranks 1, 3 came after the others had waited 900.0 s."),
        (waited(890, 490, 500, 100), (), (), "the connections broke although all ranks are alive"),
        (waited(900, 500, 500, 900), (), (), "the connections broke although all ranks are alive"),
    ],
)
def test_the_ranks_that_are_the_reason_are_named(
    notes: dict[int, Note], gone: tuple[int, ...], active: tuple[int, ...], expected: str
) -> None:
    assert sentence(notes, gone, active).startswith(expected)


def test_an_exchange_that_ended_on_some_ranks_counts_as_the_one_that_failed_on_others() -> None:
    """Rank 1 came just before the limit: ranks 1 and 2 fail in the next exchange."""
    notes = waited(1000, 0, 5, 999) | {1: Note("", 0, 1, 2), 2: Note("", 5, 1, 995)}
    assert sentence(notes).startswith("rank 1 came after the others had waited 1000.0 s.")


@pytest.mark.parametrize(
    ("before_s", "expected"),
    [
        (0, "an exchange that the other ranks finished did not end on ranks 0, 3 within 1000.0 s"),
        (1000, "ranks 1, 2 finished an exchange when the others had given it up: stopped meanwhile."),
    ],
)
def test_an_exchange_that_only_some_finished(before_s: float, expected: str) -> None:
    """Ranks 1 and 2 fail in the next one, for which they wait as long."""
    on = Note("", 990, 1, before_s)
    assert sentence(waited(1000, 0, 0, 1000) | {1: on, 2: on}).startswith(expected)


def test_a_rank_that_left_after_the_exchange_is_no_reason() -> None:
    notes = waited(1000, 1000, 0, 1000) | {2: Note("left the block", 0, 1)}
    assert sentence(notes) == "the connections broke although all ranks are alive"


def test_reasons_of_other_ranks_come_before_everything_else() -> None:
    notes = waited(2, None, 2, 2) | {2: Note("left", 0), 3: Note("was told to stop", 0)}
    assert sentence(notes, gone=(1,)) == "rank 2 left; rank 3 was told to stop"
    assert "rank 1 has ended" in sentence(waited(2, None, 2, 2) | {0: Note("own", 2)}, gone=(1,))


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
