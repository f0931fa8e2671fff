"""What ranks tell each other before an operation, and while one does not end: who is gone, who is late."""

import os
import subprocess
import weakref
from typing import Any

import pytest
import torch
from fake_driver import Agreed, FakeHandshake
from patience import PATIENCE_S
from worlds import shared_world

from fscomm.transports.handshake import Handshake, StepFailed, Watch, together
from fsranks.errors import MismatchError, PeerError
from fsranks.machine.local_processes import Neighbours, machine, own_process
from fsranks.rank_context import resolve

SIZE = 3
PLAYED_S = 9.0  # of a clock that goes on when somebody waits
SENT = [[0, 1, 2], [0, 0, 0], [2, 2, 2]]


def agree(rank: int, world_size: int, verify: bool) -> list[int]:
    """Without `verify` nobody looks whether splits agree: rank 0 expects more than is sent to it."""
    handshake = Handshake(resolve(), verify=verify, timeout_s=PATIENCE_S)
    rows, received = torch.zeros(0, 5), [of_rank[rank] for of_rank in SENT]
    if not verify and rank == 0:
        received[1] = 3
    found = [handshake.agree("all_to_all_v", rows, received, SENT[rank]) for _ in range(2)]
    found.append(handshake.agree("all_to_all_v", torch.zeros(4, dtype=torch.bool), [4] * SIZE, [4] * SIZE))
    found.append(handshake.agree("meet", torch.zeros(0)))
    handshake.group.close("done")
    return found


@pytest.mark.parametrize(("verify", "largest"), [(True, 40), (False, 60)])
def test_the_largest_piece_is_known_to_all(verify: bool, largest: int) -> None:
    assert shared_world(SIZE).run(agree, verify) == [[largest, largest, 4, 0]] * SIZE


def differ(rank: int, world_size: int, verify: bool) -> list[str]:
    """Rank 1 is somewhere else each time, and all go on from there."""
    handshake = Handshake(resolve(), verify=verify, timeout_s=PATIENCE_S)
    odd, rows, ones = rank == 1, torch.zeros(3, 4), [1] * SIZE
    calls = [
        lambda: handshake.agree("meet", rows) if odd else handshake.agree("all_to_all_v", rows, ones, ones),
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

    def refuse() -> None:
        if odd:
            raise OSError("not here")

    with pytest.raises(StepFailed, match=r"^on rank 1: OSError: not here$"):
        together(handshake.group, refuse)
    handshake.group.close("done")
    return texts


@pytest.mark.parametrize("verify", [True, False])
def test_differing_operations_dtypes_and_rows_are_refused_by_all(verify: bool) -> None:
    for texts in shared_world(SIZE).run(differ, verify):
        matches = ["operation by rank is ['all_to_all_v', 'meet', 'all_to_all_v']", "dtype", "dtype", "[16, 8, 16]"]
        for text, match in zip(texts, matches, strict=True):
            assert match in text


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


def watched(agreed: Agreed) -> tuple[Watch, list[str]]:
    ended: list[str] = []
    handshake: Any = FakeHandshake(agreed, 0, 8, PLAYED_S)
    return Watch("fake", handshake, ended.append), ended


def test_a_process_that_ended_is_named_long_before_the_time_limit() -> None:
    agreed = Agreed()
    agreed.gone = [2, 4]
    watching, ended = watched(agreed)
    why = "the process of ranks 2, 4 has ended"
    with pytest.raises(PeerError, match=why):
        watching.until_done(lambda: False)
    assert agreed.events == [("abort", 0, f"found that {why}")]
    assert ended == ["lost an operation"]
    assert agreed.clock.now() < 1
    assert watching.is_over
    for call in (watching.check, lambda: watching.until_done(lambda: True), watching.meet):
        with pytest.raises(PeerError, match="ranks 2, 4"):
            call()


def test_a_rank_may_leave_that_is_through_with_the_operation() -> None:
    agreed = Agreed()
    agreed.gone = [2]
    watching, ended = watched(agreed)
    looked: list[None] = []
    agreed.meanwhile = lambda: looked.append(None)  # the operation ends while this rank looks who is gone
    watching.until_done(lambda: bool(looked))
    assert (agreed.events, ended) == ([], [])


def test_the_time_limit_ends_a_wait_and_names_who_is_late() -> None:
    agreed = Agreed()
    agreed.dead = 7
    error = watched(agreed)[0].failed(0.0, said=". The backend said: no")
    assert str(error).endswith("rank 7 did not answer. The backend said: no")
    watching, ended = watched(agreed)
    with pytest.raises(PeerError, match="fake is over on rank 0: rank 7 did not answer"):
        watching.until_done(lambda: False)
    assert ended == ["lost an operation"]
    assert PLAYED_S <= agreed.clock.now() < PLAYED_S + 1


def test_an_abort_ends_a_wait_and_its_reason_stands() -> None:
    """Another thread gives it up while this one asks whether the operation is done."""
    agreed = Agreed()
    watching, _ = watched(agreed)
    with pytest.raises(PeerError, match="had enough"):
        watching.until_done(lambda: watching.abort("had enough") is not None)
    assert agreed.events == [("abort", 0, "had enough")]
    watching.give_up("something else")
    assert "had enough" in str(watching.error())
    assert "had enough" in str(watching.failed(0.0, said=". The backend said: no"))


def test_what_was_given_up_while_ranks_agreed_begins_nothing() -> None:
    agreed = Agreed()
    watching, _ = watched(agreed)
    agreed.meanwhile = lambda: watching.abort("had enough")
    with pytest.raises(PeerError, match="had enough"):
        watching.agree(torch.zeros(8), [1] * 8, [1] * 8, None)


def test_who_vouches_for_the_largest_piece_asks_nobody() -> None:
    agreed = Agreed()
    agreed.largest = 9
    handshake: Any = FakeHandshake(agreed, 0, 8, PLAYED_S)
    watching = Watch("fake", handshake, lambda reason: None)
    assert watching.agree(torch.zeros(8), [1] * 8, [1] * 8, 4) == 4
    assert agreed.events == []
    handshake.verify = True
    assert watching.agree(torch.zeros(8), [1] * 8, [1] * 8, 4) == 9


def test_an_error_inside_an_operation_ends_it_for_all() -> None:
    agreed = Agreed()
    watching, ended = watched(agreed)
    with pytest.raises(OSError, match="the adapter is gone"), watching.guard():
        raise OSError("the adapter is gone")
    assert agreed.events == [("abort", 0, "failed: OSError: the adapter is gone")]
    assert ended == ["failed: OSError: the adapter is gone"]
    with pytest.raises(PeerError, match="the adapter is gone"):
        watching.check()


def test_what_is_under_way_keeps_its_tensors_until_it_is_done() -> None:
    """Also when the caller drops the handle."""
    watching, _ = watched(Agreed())
    done: list[None] = []
    rows = torch.zeros(2)
    seen = weakref.ref(rows)
    watching.begun(lambda: bool(done), lambda: None, rows)
    del rows
    watching.begun(lambda: bool(done), lambda: None)
    assert seen() is not None
    done.append(None)
    watching.begun(lambda: True, lambda: None)
    assert seen() is None
