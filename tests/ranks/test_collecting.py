"""How often the job's store is asked when many ranks meet: by one rank a constant, by all together in proportion."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from fsranks import meeting
from fsranks.collecting import hear
from fsranks.connecting import Connector
from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError
from fsranks.job_store import JobStore, StoreConnection
from fsranks.local_processes import Neighbours
from fsranks.meeting import Meeting
from fsranks.rank_context import RankContext

LIMIT_S = 60.0
SIZES = (16, 64, 256)


class Counting:
    """One rank's view of a store: counts the keys that it asks for and posts."""

    def __init__(self, store: dist.Store, asked: Counter[int], rank: int) -> None:
        self._store, self._asked, self._rank = store, asked, rank

    def set(self, key: str, text: str) -> None:
        self._asked[self._rank] += 1
        self._store.set(key, text)

    def check(self, keys: list[str]) -> bool:
        self._asked[self._rank] += len(keys)
        return self._store.check(keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._asked[self._rank] += len(keys)
        return self._store.multi_get(keys)

    def compare_set(self, key: str, expected: str, text: str) -> bytes:
        self._asked[self._rank] += 1
        return self._store.compare_set(key, expected, text)


def all_ranks(
    world_size: int, job: Callable[[JobStore, int], Any], late: int = -1, late_s: float = 0.0
) -> tuple[list[Any], Counter[int], float]:
    """What `job` gave on every rank (threads of this process), keys that each asked for, and seconds of it all."""
    shared, asked = dist.HashStore(), Counter()
    found: list[Any] = [None] * world_size

    def run(rank: int) -> None:
        store = JobStore(StoreConnection(shared), "")
        store.store = Counting(shared, asked, rank)
        if rank == late:
            time.sleep(late_s)
        try:
            found[rank] = job(store, rank)
        except PeerError as error:
            found[rank] = error

    begin = time.monotonic()
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, asked, time.monotonic() - begin


def polls(seconds: float) -> int:
    """Questions about one key that a rank asks within this time: the first 50 ms every 5 ms, then ever less often."""
    return 30 + int(25 * seconds)


def check_counts(asked: Counter[int], world_size: int, seconds: float) -> None:
    others = [asked[rank] for rank in range(1, world_size)]
    assert max(others) <= 6 + polls(seconds)
    assert asked[0] <= 4 * world_size + 6 + polls(seconds)


def meet(store: JobStore, rank: int, world_size: int, seed: int = 7) -> list[str]:
    one = Meeting(RankContext(rank=rank, world_size=world_size), what="test", timeout_s=LIMIT_S)
    one._store = store
    return one.agree({"seed": str(seed)}, tell=f"I am {rank}")


@pytest.mark.parametrize("world_size", SIZES)
@pytest.mark.parametrize("late", [-1, 0, 9], ids=["all in time", "rank 0 late", "rank 9 late"])
def test_a_rank_meets_all_others_for_a_few_keys(world_size: int, late: int) -> None:
    told, asked, seconds = all_ranks(world_size, lambda s, r: meet(s, r, world_size), late, 0.5)
    assert told == [[f"I am {rank}" for rank in range(world_size)]] * world_size
    check_counts(asked, world_size, seconds)


@pytest.mark.parametrize("world_size", SIZES)
def test_texts_are_gathered_for_a_few_keys(world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = {}
    monkeypatch.setattr(meeting, "job_store", lambda group, *_: stores[group])

    def job(store: JobStore, rank: int) -> list[str]:
        stores[rank] = store
        context = RankContext(rank=rank, world_size=world_size, group=rank)  # type: ignore[arg-type]
        return meeting.gather(context, f"text {rank}", what="test", timeout_s=LIMIT_S)

    texts, asked, seconds = all_ranks(world_size, job)
    assert texts == [[f"text {rank}" for rank in range(world_size)]] * world_size
    check_counts(asked, world_size, seconds)


def connector(store: JobStore, rank: int, world_size: int) -> Connector:
    return Connector(store=store, rank=rank, world_size=world_size, timeout_s=LIMIT_S, wait_s=LIMIT_S, grace_s=1.5)


@pytest.mark.parametrize("world_size", SIZES)
def test_ranks_tell_each_other_that_they_are_connected_for_a_few_keys(
    world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connector, "connect_once", lambda *_: object())
    found, asked, seconds = all_ranks(world_size, lambda s, r: connector(s, r, world_size).connect())
    assert all(len(neighbours) == world_size - 1 for _, neighbours in found)
    check_counts(asked, world_size, seconds)


def blame(store: JobStore, rank: int, world_size: int, lost: int, grace_s: float) -> str:
    if rank == lost:
        return ""
    group = object.__new__(ControlGroup)
    group.rank, group.world_size, group.wait_s = rank, world_size, 10.0
    group._grace_s, group._posted, group._lock = grace_s, False, threading.Lock()
    group._store, group._neighbours = store, Neighbours({})
    return group._diagnose(3.0)


@pytest.mark.parametrize("world_size", SIZES[:2])
def test_a_lost_rank_is_found_for_a_few_keys(world_size: int) -> None:
    said, asked, seconds = all_ranks(world_size, lambda s, r: blame(s, r, world_size, 9, 4.0))
    assert all("rank 9 did not answer within 3.0 s" in text for rank, text in enumerate(said) if rank != 9)
    check_counts(asked, world_size, seconds)


def test_where_rank_0_is_lost_the_others_find_out() -> None:
    said, _, _ = all_ranks(16, lambda s, r: blame(s, r, 16, 0, 1.5))
    assert all("rank 0 did not answer within 3.0 s" in text for text in said[1:])


def test_where_rank_0_does_not_answer_the_first_answer_counts_for_all() -> None:
    def job(store: JobStore, rank: int) -> Any:
        if rank == 0:
            return None
        if rank != 5:
            store.post(f"x/{rank}", f"note {rank}", 1)
        return json.loads(hear(store, "x/", rank, 8, json.dumps, 0.3))

    answers = all_ranks(8, job)[0]
    assert answers[1:] == [{str(rank): f"note {rank}" for rank in range(1, 8) if rank != 5}] * 7


def test_the_first_answer_counts_for_ranks_that_come_later() -> None:
    """Rank 1 gave up waiting and answered without rank 0, which then has all notes: it may not answer otherwise."""
    store = JobStore(StoreConnection(dist.HashStore()), "")
    store.post("1", "one", LIMIT_S)
    first = hear(store, "", 1, 2, lambda notes: f"without {sorted({0, 1} - set(notes))}", 0.05)
    store.post("0", "zero", LIMIT_S)
    assert first == "without [0]"
    assert hear(store, "", 0, 2, lambda notes: f"heard {sorted(notes)}", LIMIT_S) == first
    assert hear(store, "", 1, 2, lambda notes: "never asked", LIMIT_S) == first
