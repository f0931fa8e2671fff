"""What the job's store is asked for when many ranks meet: by one rank a few keys, by all together in proportion."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from patience import PATIENCE_S, until

from fsranks import meeting
from fsranks.collecting import hear
from fsranks.connecting import Connector
from fsranks.errors import PeerError
from fsranks.job_store import JobStore, StoreConnection
from fsranks.meeting import Meeting
from fsranks.rank_context import RankContext

SIZES = (16, *(pytest.param(size, marks=pytest.mark.long) for size in (64, 256)))
Asked = dict[int, set[str]]  # by rank, the keys that it asks for and posts


class Noting:
    """One rank's view of a store: remembers the keys that it asks for and posts."""

    def __init__(self, store: dist.Store, asked: set[str]) -> None:
        self._store, self._asked = store, asked

    def set(self, key: str, text: str) -> None:
        self._asked.add(key)
        self._store.set(key, text)

    def check(self, keys: list[str]) -> bool:
        self._asked.update(keys)
        return self._store.check(keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._asked.update(keys)
        return self._store.multi_get(keys)

    def compare_set(self, key: str, expected: str, text: str) -> bytes:
        self._asked.add(key)
        return self._store.compare_set(key, expected, text)


def all_ranks(world_size: int, job: Callable[[JobStore, int], Any], late: int = -1) -> tuple[list[Any], Asked]:
    """What `job` gave on every rank, threads of this process, and what each asked for.

    Rank `late` begins when all others have.
    """
    shared, asked = dist.HashStore(), defaultdict(set)
    found: list[Any] = [None] * world_size

    def run(rank: int) -> None:
        if rank == late:
            until(lambda: sum(map(bool, list(asked.values()))) == world_size - 1, "all other ranks")
        store = JobStore(StoreConnection(shared), "")
        store.store = Noting(shared, asked[rank])
        try:
            found[rank] = job(store, rank)
        except PeerError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, asked


def check_asked(asked: Asked, world_size: int) -> None:
    assert max(len(asked[rank]) for rank in range(1, world_size)) <= 4
    assert len(asked[0]) <= 2 * world_size + 4


def meet(store: JobStore, rank: int, world_size: int, seed: int = 7) -> list[str]:
    one = Meeting(RankContext(rank=rank, world_size=world_size), what="test", timeout_s=PATIENCE_S)
    one._store = store
    return one.agree({"seed": str(seed)}, tell=f"I am {rank}")


@pytest.mark.parametrize("world_size", SIZES)
@pytest.mark.parametrize("late", [-1, 0, 9], ids=["all in time", "rank 0 late", "rank 9 late"])
def test_a_rank_meets_all_others_for_a_few_keys(world_size: int, late: int) -> None:
    told, asked = all_ranks(world_size, lambda s, r: meet(s, r, world_size), late)
    assert told == [[f"I am {rank}" for rank in range(world_size)]] * world_size
    check_asked(asked, world_size)


@pytest.mark.parametrize("world_size", SIZES)
def test_texts_are_gathered_for_a_few_keys(world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = {}
    monkeypatch.setattr(meeting, "job_store", lambda group, *_: stores[group])

    def job(store: JobStore, rank: int) -> list[str]:
        stores[rank] = store
        context = RankContext(rank=rank, world_size=world_size, group=rank)  # type: ignore[arg-type]
        return meeting.gather(context, f"text {rank}", what="test", timeout_s=PATIENCE_S)

    texts, asked = all_ranks(world_size, job)
    assert texts == [[f"text {rank}" for rank in range(world_size)]] * world_size
    check_asked(asked, world_size)


def connector(store: JobStore, rank: int, world_size: int) -> Connector:
    return Connector(
        store=store, rank=rank, world_size=world_size, timeout_s=PATIENCE_S, wait_s=PATIENCE_S, grace_s=1.5
    )


@pytest.mark.parametrize("world_size", SIZES)
def test_ranks_tell_each_other_that_they_are_connected_for_a_few_keys(
    world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connector, "connect_once", lambda *_: object())
    found, asked = all_ranks(world_size, lambda s, r: connector(s, r, world_size).connect())
    assert all(len(neighbours) == world_size - 1 for _, neighbours in found)
    check_asked(asked, world_size)


def test_where_rank_0_does_not_answer_the_first_answer_counts_for_all() -> None:
    posted = threading.Barrier(7)

    def job(store: JobStore, rank: int) -> Any:
        if rank == 0:
            return None
        if rank != 5:
            store.post(f"x/{rank}", f"note {rank}", PATIENCE_S)
        posted.wait()
        return json.loads(hear(store, "x/", rank, 8, json.dumps, 0.05))

    answers = all_ranks(8, job)[0]
    assert answers[1:] == [{str(rank): f"note {rank}" for rank in range(1, 8) if rank != 5}] * 7


def test_the_first_answer_counts_for_ranks_that_come_later() -> None:
    """Rank 1 gave up waiting and answered without rank 0, which then has all notes: it may not answer otherwise."""
    store = JobStore(StoreConnection(dist.HashStore()), "")
    store.post("1", "one", PATIENCE_S)
    first = hear(store, "", 1, 2, lambda notes: f"without {sorted({0, 1} - set(notes))}", 0.05)
    store.post("0", "zero", PATIENCE_S)
    assert first == "without [0]"
    assert hear(store, "", 0, 2, lambda notes: f"heard {sorted(notes)}", PATIENCE_S) == first
    assert hear(store, "", 1, 2, lambda notes: "never asked", PATIENCE_S) == first
