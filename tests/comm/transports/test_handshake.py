"""What ranks tell each other before an operation."""

import os
import signal
import subprocess
import threading
import time

import pytest
import torch
from worlds import World, shared_world

from fscomm.transports.handshake import Handshake
from fsranks.errors import MismatchError, PeerError
from fsranks.local_processes import runs
from fsranks.rank_context import resolve

SIZE = 3
LIMIT_S = 30.0


def agree(rank: int, world_size: int, verify: bool) -> list[int]:
    handshake = Handshake(resolve(), verify=verify, timeout_s=LIMIT_S)
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
    handshake = Handshake(resolve(), verify=verify, timeout_s=LIMIT_S)
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


def see_gone(rank: int, world_size: int) -> tuple[bool, list[int], list[int]]:
    handshake = Handshake(resolve(), verify=False, timeout_s=LIMIT_S)
    before = handshake.gone()
    handshake.agree("meet", torch.zeros(0))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    end = time.monotonic() + LIMIT_S
    while not handshake.gone() and time.monotonic() < end:
        time.sleep(0.01)
    after = handshake.gone()
    handshake.group.close("done")
    return handshake.one_host, before, after


def test_a_rank_that_died_is_gone() -> None:
    with World(SIZE) as world:
        answers = world.run(see_gone, lost=(1,))
    assert answers == [(True, [], [1]), None, (True, [], [1])]


def lose_after_sending(rank: int, world_size: int) -> str:
    """Rank 1 dies when it has sent to all, and rank 2 has its word: of rank 0 alone, which cannot send any more."""
    handshake = Handshake(resolve(), verify=False, timeout_s=LIMIT_S)
    if rank == 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if rank == 0:
        while not handshake.gone():
            time.sleep(0.01)
        time.sleep(0.2)
    with pytest.raises(PeerError) as caught:
        handshake.agree("meet", torch.zeros(0))
    handshake.group.close("done")
    return str(caught.value)


def test_a_rank_that_waits_for_one_that_lives_is_not_taken_for_dead() -> None:
    with World(SIZE) as world:
        answers = world.run(lose_after_sending, lost=(1,))
    for rank in (0, 2):
        assert "process of rank 1 has ended" in answers[rank], answers


def test_processes_that_ended_and_were_not_collected_do_not_run() -> None:
    assert runs(os.getpid())
    process = subprocess.Popen(["sleep", "60"])
    os.kill(process.pid, signal.SIGSTOP)
    assert runs(process.pid)
    process.kill()
    end = time.monotonic() + LIMIT_S
    while runs(process.pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert os.path.exists(f"/proc/{process.pid}")
    assert not runs(process.pid)
    process.wait()
    assert not runs(process.pid)
