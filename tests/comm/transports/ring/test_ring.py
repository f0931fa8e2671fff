"""Rings over a fabric of the test: what goes where, what waits for what, and what ends a wait."""

import threading
from typing import Any

import pytest
import torch
from fake_driver import Board, FakeDriver, FakeGroup, Machine
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S

from fscomm.transports.ring.ring import Ring
from fscomm.transports.ring.slots import in_circle
from fscomm.transports.transport import Handle
from fsranks.errors import PeerError


class Fleet:
    """One ring, on all ranks of a machine. slots: how many, their bytes, the most bytes."""

    def __init__(
        self,
        machine: Machine,
        *,
        slots: tuple[int, int, int] = (2, 64, 64),
        limit_s: float = PATIENCE_S,
        capacity: int | None = None,
    ) -> None:
        self.machine, self.size = machine, machine.world_size
        self.board, (number, slot_bytes, most) = Board(), slots
        self.drivers = [FakeDriver(machine, rank, capacity=capacity) for rank in range(self.size)]
        self.rings = [
            Ring(
                driver,
                FakeGroup(self.board, rank, self.size, limit_s),  # type: ignore[arg-type]
                name="fake",
                slots=number,
                slot_bytes=slot_bytes,
                most_slot_bytes=most,
                most_waiting=256,  # one rank issues all of an operation before another begins
            )
            for rank, driver in enumerate(self.drivers)
        ]
        self.slots = [ring._slots for ring in self.rings]

    def exchange(self, sent: list[list[int]], width: int = 1) -> "Exchange":
        """sent: [W senders][W receivers] rows of so many bytes."""
        return Exchange(self, sent, width)

    def idle(self, *ranks: int) -> bool:
        self.machine.run()
        return all(not queue.todo for rank in ranks for queue in self.drivers[rank].queues)


class Exchange:
    """An operation that ranks issue one by one."""

    def __init__(self, fleet: Fleet, sent: list[list[int]], width: int) -> None:
        self._fleet, self._sent = fleet, sent
        self.largest = width * max(map(max, sent))
        self.inps = [torch.randint(0, 256, (sum(row), width), dtype=torch.uint8) for row in sent]
        parts = [inp.split(row) for inp, row in zip(self.inps, sent, strict=True)]
        self.expected = [torch.cat([part[rank] for part in parts]) for rank in range(fleet.size)]
        self.outs = [torch.ones_like(expected) for expected in self.expected]
        self.handles: dict[int, Handle] = {}

    def issue(self, *ranks: int) -> "Exchange":
        for rank in ranks or range(self._fleet.size):
            received = [row[rank] for row in self._sent]
            ring = self._fleet.rings[rank]
            splits = received, self._sent[rank]
            self.handles[rank] = ring.all_to_all_v(
                self.outs[rank], self.inps[rank], *splits, largest_bytes=self.largest
            )
        return self

    def check(self) -> None:
        for rank, handle in list(self.handles.items()):
            handle.wait()
            assert handle.done()
            assert torch.equal(self.outs[rank], self.expected[rank]), rank


@given(size=st.integers(1, 5), data=st.data())
def test_skewed_exchanges_in_flight_through_tiny_slots(size: int, data: st.DataObject) -> None:
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    fleet = Fleet(Machine(size, seed=draw(0, 1000)), slots=(draw(1, 3), draw(8, 40), draw(8, 100)))
    for _ in range(draw(1, 3)):
        row = st.lists(st.integers(0, 30), min_size=size, max_size=size)
        splits, width = st.lists(row, min_size=size, max_size=size), draw(0, 12)
        several = [fleet.exchange(data.draw(splits), width) for _ in range(draw(1, 3))]
        for exchange in several:
            exchange.issue()
        for exchange in several:
            exchange.check()


def test_counts_go_round_the_circle() -> None:
    fleet = Fleet(Machine(2))
    ago = (1 << 31) - 3
    for ring, words in zip(fleet.rings, fleet.slots[0]._words, strict=True):
        for counts in (ring._put, ring._taken):
            counts[:] = [ago, ago]
        words[: 4 * 16 : 16] = ago
    for _ in range(3):
        fleet.exchange([[3, 200], [300, 0]]).issue().check()
    assert in_circle(int(fleet.slots[0]._words[0][16])) < 0, "the circle was not closed"


def test_slots_grow_on_all_ranks_because_of_one_piece_and_only_once_all_are_idle() -> None:
    fleet = Fleet(Machine(3), slots=(2, 16, 256))
    small = fleet.exchange([[0, 16, 16], [3, 0, 16], [16, 16, 0]]).issue()
    fleet.board.events.clear()
    large = fleet.exchange([[0, 200, 0], [0, 0, 0], [0, 0, 0]]).issue()
    assert [slots.slot_bytes for slots in fleet.slots] == [256] * 3
    for rank in range(3):
        assert [event[0] for event in fleet.board.events if event[1] == rank] == ["all-gather"]
    again = fleet.exchange([[7, 999, 256], [257, 0, 1], [512, 3, 3]]).issue()
    for exchange in (small, large, again):
        exchange.check()
    assert [slots.slot_bytes for slots in fleet.slots] == [256] * 3


def test_memory_that_cannot_be_had_breaks_the_ring() -> None:
    fleet = Fleet(Machine(2), slots=(2, 16, 64))

    def too_small(nbytes: int) -> Any:
        raise OSError(28, "too small")

    fleet.drivers[0].memory = too_small  # type: ignore[method-assign]
    with pytest.raises(OSError, match="too small"):
        fleet.exchange([[0, 60], [0, 0]]).issue(0)
    with pytest.raises(PeerError, match=r"failed: OSError.*too small"):
        fleet.rings[0].barrier()
    assert ("abort", 0, "failed: OSError: [Errno 28] too small") in fleet.board.events
    assert fleet.slots[1].poisoned()


def test_a_late_receiver_stalls_its_sender_after_all_slots_and_nobody_else() -> None:
    fleet = Fleet(Machine(3), slots=(3, 64, 64))
    exchange = fleet.exchange([[0, 640, 64], [0, 0, 0], [64, 0, 0]]).issue(0, 2)
    fleet.machine.run()
    sends, _ = fleet.drivers[0].queues
    assert len(sends.copied) == 3
    assert fleet.slots[0].behind({1: (0, 10), 2: (1, 0)}) == [1]
    exchange.issue(1)
    exchange.check()
    assert len(sends.copied) == 11


@pytest.mark.parametrize("size", [3, pytest.param(5, marks=pytest.mark.long)])
def test_hosts_do_not_block_each_other_in_queues_that_take_little(size: int) -> None:
    """And an operation of thousands of chunks never has more than a few hundred waiting."""
    fleet = Fleet(Machine(size), slots=(2, 8, 8), capacity=12)
    exchange = fleet.exchange([[(1 + (s + 2 * r) % 3) * 400 for r in range(size)] for s in range(size)])
    threads = [threading.Thread(target=exchange.issue, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(exchange.handles) == size
    exchange.check()


def test_a_long_operation_is_issued_only_as_far_as_a_device_accepts() -> None:
    fleet = Fleet(Machine(2), slots=(2, 8, 8))
    fleet.board.gone = [1]
    with pytest.raises(PeerError, match="rank 1 has ended"):
        fleet.exchange([[0, 80_000], [0, 0]]).issue(0)
    assert fleet.drivers[0].queues[0].issued < 1000


def test_no_copy_is_larger_than_a_slot_so_that_other_exchanges_pass_between_two() -> None:
    """Also of what ranks keep: all rings of a rank share its copy engines."""
    fleet = Fleet(Machine(2))
    fleet.exchange([[6400, 8], [6400, 8]]).issue().check()
    assert max(nbytes for queue in fleet.machine.queues for nbytes in queue.copied) == 64


@pytest.mark.parametrize(
    ("limit_s", "reason"),
    [(PATIENCE_S, "the process of rank 1 has ended"), (0.0, "rank 1 did not answer")],
    ids=["dead", "silent"],
)
def test_a_lost_rank_is_named_and_every_queue_of_every_rank_is_released(limit_s: float, reason: str) -> None:
    """Rank 1 of 4 has issued its part and dies in the middle of it; its process may be seen to have ended, or not."""
    fleet = Fleet(Machine(4), limit_s=limit_s)
    fleet.exchange([[99] * 4] * 4).issue().check()
    exchange = fleet.exchange([[500] * 4] * 4).issue()
    fleet.machine.run(9)
    fleet.drivers[1].close()
    fleet.machine.run()
    assert not any(exchange.handles[rank].done() for rank in (0, 2, 3))
    fleet.board.gone, fleet.board.dead = ([1], -1) if limit_s else ([], 1)
    with pytest.raises(PeerError, match=reason):
        exchange.handles[0].wait()
    fleet.board.gone = []  # the others need not see it themselves
    for rank in (2, 3):
        assert exchange.handles[rank].done()
        with pytest.raises(PeerError, match=f"fake is over on rank {rank}: .*{reason}"):
            exchange.handles[rank].wait()
    assert fleet.idle(0, 2, 3)
    with pytest.raises(PeerError, match=reason):
        fleet.rings[2].barrier()


def test_counts_that_come_late_do_not_undo_poison() -> None:
    """What a peer's queue was about to write replaces the counts that ended the waits here."""
    fleet = Fleet(Machine(2), limit_s=0.0)
    handle = fleet.exchange([[0, 500], [500, 0]]).issue(0).handles[0]
    poison, given = fleet.slots[0].poison, 0

    def overtaken(most: int) -> None:
        nonlocal given
        poison(most)
        given += 1
        if given < 5:
            fleet.slots[0]._words[0][: 4 * 16] = 0

    fleet.slots[0].poison = overtaken  # type: ignore[method-assign]
    with pytest.raises(PeerError):
        handle.wait()
    assert fleet.idle(0)


@pytest.mark.parametrize(("sends", "expects"), [(64, 6400), (6400, 64), (6400, 6400), (0, 64)])
def test_sizes_that_disagree_end_at_the_time_limit(sends: int, expects: int) -> None:
    """Rank 0 sends 640 bytes and expects as many. Whoever gets all that it expects is through."""
    fleet, handles, outs = Fleet(Machine(2), limit_s=0.0), [], []
    for rank, (sent, received) in enumerate(((640, 640), (sends, expects))):
        inp, out = (torch.full((nbytes + 2,), 9, dtype=torch.uint8) for nbytes in (sent, received))
        splits = ([0, received], [0, sent]) if rank == 0 else ([received, 0], [sent, 0])
        handles.append(fleet.rings[rank].all_to_all_v(out[1:-1], inp[1:-1].zero_(), *splits, largest_bytes=6400))
        outs.append(out)
    lost = []
    for rank, handle in enumerate(handles):
        try:
            handle.wait()
        except PeerError as error:
            lost.append((rank, str(error)))
    assert lost, "nobody misses anything"
    assert all(f"fake is over on rank {rank}" in said for rank, said in lost)
    assert fleet.idle(0, 1)
    assert [(int(out[0]), int(out[-1])) for out in outs] == [(9, 9)] * 2, "written outside of out"


def test_a_rank_that_left_after_its_part_is_not_taken_for_the_one_that_is_late() -> None:
    """Rank 2 has left, rank 1 comes only at the second look at who is gone. Nor does what came fail for it."""
    fleet = Fleet(Machine(3), slots=(4, 64, 64))
    exchange = fleet.exchange([[0, 9, 9], [9, 0, 0], [9, 0, 0]]).issue(0, 2)
    fleet.machine.run()
    fleet.drivers[2].close()
    fleet.board.gone = [2]
    fleet.board.meanwhile = lambda: setattr(fleet.board, "meanwhile", lambda: exchange.issue(1))
    exchange.check()


def test_abort_ends_the_wait_of_another_thread() -> None:
    fleet = Fleet(Machine(2))
    handle = fleet.exchange([[0, 500], [500, 0]]).issue(0).handles[0]
    fleet.board.meanwhile = lambda: fleet.rings[0].abort("gave up")
    with pytest.raises(PeerError, match="gave up"):
        handle.wait()
    assert handle.done()
    assert fleet.slots[1].poisoned()
    with pytest.raises(PeerError, match="gave up"):
        fleet.rings[0].barrier()
