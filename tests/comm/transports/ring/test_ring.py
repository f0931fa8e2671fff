"""Rings over a fabric in virtual time: what goes where, what waits for what, and what ends a wait."""

import threading
from typing import Any

import pytest
import torch
from fake_driver import Agreed, FakeDriver, FakeHandshake, Machine, Shelf
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S
from virtual import Process

from fscomm.transports.ring.fabric import Fabric, in_circle
from fscomm.transports.ring.ring import Ring
from fscomm.transports.transport import Handle
from fsranks.errors import PeerError

KIB, MIB = 1 << 10, 1 << 20
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


class Fleet:
    """One ring, on all ranks of a machine."""

    def __init__(
        self,
        machine: Machine,
        *,
        slots: int = 2,
        slot_bytes: int = 64,
        most: int = 64,
        timeout_s: float = PATIENCE_S,
        capacity: int | None = None,
    ) -> None:
        self.machine, self.size = machine, machine.world_size
        self.agreed, shelf = Agreed(), Shelf(machine)
        self.drivers = [FakeDriver(machine, shelf, rank, capacity=capacity) for rank in range(self.size)]
        self.fabrics = [Fabric(driver, slots=slots, slot_bytes=slot_bytes) for driver in self.drivers]
        self.rings = [
            Ring(
                fabric,
                FakeHandshake(self.agreed, rank, self.size, timeout_s),  # type: ignore[arg-type]
                name="fake",
                most_slot_bytes=most,
                most_waiting=256,  # one rank issues all of an operation before another begins
            )
            for rank, fabric in enumerate(self.fabrics)
        ]

    def exchange(self, sent: list[list[int]], width: int = 1, dtype: torch.dtype = torch.uint8) -> "Exchange":
        """sent: [W senders][W receivers] rows."""
        return Exchange(self, sent, width, dtype)


class Exchange:
    """An operation that ranks issue one by one."""

    def __init__(self, fleet: Fleet, sent: list[list[int]], width: int, dtype: torch.dtype) -> None:
        self._fleet, self._sent = fleet, sent
        self.largest = width * dtype.itemsize * max(map(max, sent))
        self.inps = [torch.randint(0, 256, (sum(row), width * dtype.itemsize), dtype=torch.uint8) for row in sent]
        if dtype == torch.bool:
            self.inps = [inp % 2 for inp in self.inps]
        self.inps = [inp.view(dtype) if width else torch.empty(len(inp), 0, dtype=dtype) for inp in self.inps]
        parts = [inp.split(row) for inp, row in zip(self.inps, sent, strict=True)]
        self.expected = [torch.cat([part[rank] for part in parts]) for rank in range(fleet.size)]
        self.outs = [torch.ones_like(expected) for expected in self.expected]
        self.handles: dict[int, Handle] = {}

    def issue(self, *ranks: int) -> "Exchange":
        self._fleet.agreed.largest = self.largest
        for rank in ranks or range(self._fleet.size):
            received = [row[rank] for row in self._sent]
            ring = self._fleet.rings[rank]
            self.handles[rank] = ring.all_to_all_v(self.outs[rank], self.inps[rank], received, self._sent[rank])
        return self

    def check(self) -> None:
        for rank, handle in self.handles.items():
            handle.wait()
            assert handle.done()
            bits = [t.contiguous().view(torch.uint8) for t in (self.outs[rank], self.expected[rank])]
            assert torch.equal(*bits), rank


def pair(nbytes: int, size: int = 2) -> list[list[int]]:
    """Rank 0 sends to rank 1, and nobody else anything."""
    return [[nbytes if (s, r) == (0, 1) else 0 for r in range(size)] for s in range(size)]


@given(size=st.integers(1, 5), data=st.data())
def test_skewed_exchanges_in_flight_through_tiny_slots(size: int, data: st.DataObject) -> None:
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    slow = data.draw(st.sampled_from([(1e9, 1e9), (1e9, 1e7), (1e7, 1e9)]))
    machine = Machine(size, send=slow[0], receive=slow[1])
    fleet = Fleet(machine, slots=draw(1, 3), slot_bytes=draw(8, 40), most=draw(8, 100))
    for _ in range(draw(1, 3)):
        width, dtype = draw(0, 3), data.draw(st.sampled_from(DTYPES))
        row = st.lists(st.integers(0, 9), min_size=size, max_size=size)
        splits = st.lists(row, min_size=size, max_size=size)
        several = [fleet.exchange(data.draw(splits), width, dtype) for _ in range(draw(1, 3))]
        for exchange in several:
            exchange.issue()
        for exchange in several:
            exchange.check()


@pytest.mark.parametrize("send", [1e7, 1e9, 1e11])
def test_slots_are_used_again_only_when_they_are_free_and_read_only_when_they_are_full(send: float) -> None:
    fleet = Fleet(Machine(3, send=send, receive=1e9), slots=3)
    several = [fleet.exchange([[700, 1000, 0], [64, 0, 640], [1, 65, 3]]).issue() for _ in range(4)]
    for exchange in several:
        exchange.check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (5,), (5, 3), (0, 3), (4, 0), (2, 3, 5)])
def test_all_gather(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    fleet = Fleet(Machine(3))
    inps = [torch.randint(-50, 50, shape).to(dtype) for _ in range(3)]
    outs = [torch.full((3 * shape[0], *shape[1:]), 1).to(dtype) for _ in range(3)]
    handles = [ring.all_gather(out, inp) for ring, out, inp in zip(fleet.rings, outs, inps, strict=True)]
    for handle, out in zip(handles, outs, strict=True):
        handle.wait()
        assert torch.equal(out, torch.cat(inps))


def test_splits_that_do_not_fit_are_refused_before_anything_is_said() -> None:
    fleet = Fleet(Machine(2))
    rows = torch.zeros(4, 2)
    with pytest.raises(ValueError, match="add up"):
        fleet.rings[0].all_to_all_v(rows, rows, [2, 2], [1, 2])
    with pytest.raises(ValueError, match="contiguous"):
        fleet.rings[0].all_to_all_v(rows.T, rows.T, [1, 1], [1, 1])
    assert fleet.agreed.events == []


def test_counts_go_round_the_circle() -> None:
    fleet = Fleet(Machine(2))
    ago = (1 << 31) - 3
    for ring, fabric, words in zip(fleet.rings, fleet.fabrics, fleet.fabrics[0]._words, strict=True):
        for counts in (ring._put, ring._taken, fabric._put, fabric._taken):
            counts[:] = [ago, ago]
        words[: 4 * 16 : 16] = ago
    for _ in range(3):
        fleet.exchange([[3, 200], [300, 0]]).issue().check()
    assert in_circle(int(fleet.fabrics[0]._words[0][16])) < 0, "the circle was not closed"


def test_slots_grow_on_all_ranks_because_of_one_piece_and_only_once_all_are_idle() -> None:
    fleet = Fleet(Machine(3), slots=2, slot_bytes=16, most=256)
    small = fleet.exchange([[0, 100, 16], [3, 0, 100], [16, 16, 0]])
    small.largest = 16  # as if nothing larger had been sent
    small.issue()
    fleet.agreed.events.clear()
    large = fleet.exchange(pair(200, 3)).issue()
    assert [fabric.slot_bytes for fabric in fleet.fabrics] == [256] * 3
    for rank in range(3):
        assert [event[0] for event in fleet.agreed.events if event[1] == rank] == ["all_to_all_v", "meet"]
    again = fleet.exchange([[7, 999, 256], [257, 0, 1], [512, 3, 3]]).issue()
    for exchange in (small, large, again):
        exchange.check()
    assert [fabric.slot_bytes for fabric in fleet.fabrics] == [256] * 3


def test_memory_that_cannot_be_had_breaks_the_ring() -> None:
    fleet = Fleet(Machine(2), slot_bytes=16, most=64)

    def too_small(nbytes: int) -> Any:
        raise OSError(28, "too small")

    fleet.drivers[0].memory = too_small  # type: ignore[method-assign]
    with pytest.raises(OSError, match="too small"):
        fleet.exchange(pair(60)).issue(0)
    with pytest.raises(PeerError, match=r"failed: OSError.*too small"):
        fleet.rings[0].meet()
    assert ("abort", 0, "failed: OSError: [Errno 28] too small") in fleet.agreed.events
    assert fleet.fabrics[1].poisoned()


def test_a_late_receiver_stalls_its_sender_after_all_slots_and_nobody_else() -> None:
    fleet = Fleet(Machine(3), slots=3)
    exchange = fleet.exchange([[0, 640, 64], [0, 0, 0], [64, 0, 0]]).issue(0, 2)
    fleet.machine.run()
    sends, _ = fleet.drivers[0].queues
    assert sends.copies == 3
    assert fleet.fabrics[0].behind({1: (0, 10), 2: (1, 0)}) == [1]
    exchange.issue(1)
    exchange.check()
    assert sends.copies == 11


@pytest.mark.parametrize("size", [2, 3, pytest.param(5, marks=pytest.mark.long)])
def test_hosts_do_not_block_each_other_in_queues_that_take_little(size: int) -> None:
    """And an operation of thousands of chunks never has more than a few hundred waiting."""
    fleet = Fleet(Machine(size), slots=2, slot_bytes=8, most=8, capacity=12)
    exchange = fleet.exchange([[(1 + (s + 2 * r) % 3) * 400 for r in range(size)] for s in range(size)])
    errors: list[BaseException] = []

    def issue(rank: int) -> None:
        try:
            exchange.issue(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=issue, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    exchange.check()


def test_a_long_operation_is_issued_only_as_far_as_a_device_accepts() -> None:
    fleet = Fleet(Machine(2), slots=2, slot_bytes=8, most=8, timeout_s=0.2)
    fleet.agreed.gone = [1]
    with pytest.raises(PeerError, match="rank 1 has ended"):
        fleet.exchange(pair(80_000)).issue(0)
    assert fleet.drivers[0].queues[0].issued < 1000


def over_at(fleet: Fleet, exchange: Exchange) -> list[float]:
    """When the operation ended, to be filled in as the clock runs."""
    seen: list[float] = []

    def watch() -> Process:
        yield lambda: all(handle.done() for handle in exchange.handles.values())
        seen.append(fleet.machine.clock.now)

    fleet.machine.clock.spawn(watch())
    return seen


@pytest.mark.parametrize("own", [False, True])
def test_a_collision_exchange_passes_between_two_chunks_of_an_exclusive_exchange(own: bool) -> None:
    """Also when the exclusive is what ranks keep."""
    machine = Machine(2)
    exclusive_ring = Fleet(machine, slots=4, slot_bytes=256 * KIB, most=256 * KIB)
    collision_ring = Fleet(machine, slots=4, slot_bytes=64 * KIB, most=64 * KIB)
    large = 16 * MIB
    exclusive = exclusive_ring.exchange([[large, 8], [8, large]] if own else [[8, large], [large, 8]]).issue()
    machine.run(until=2.3e-3)
    assert machine.clock.now > 1e-3
    start = machine.clock.now
    collision = collision_ring.exchange([[0, 64 * KIB], [64 * KIB, 0]]).issue()
    collided, ended = over_at(collision_ring, collision), over_at(exclusive_ring, exclusive)
    machine.run()
    chunk_s, small_s = 256 * KIB / 1e9, 64 * KIB / 1e9
    assert collided[0] - start <= 2 * (chunk_s + small_s) + 1e-9  # at the sending and at the receiving engine
    assert ended[0] - start > 10 * (collided[0] - start)
    collision.check()
    exclusive.check()


def idle(fleet: Fleet, *ranks: int) -> bool:
    fleet.machine.run()
    return all(not queue.todo for rank in ranks for queue in fleet.drivers[rank].queues)


def a_dead_rank(timeout_s: float) -> tuple[Fleet, Exchange]:
    """Rank 1 of 4 has issued its part and dies in the middle of it."""
    fleet = Fleet(Machine(4), timeout_s=timeout_s)
    fleet.exchange([[99] * 4] * 4).issue().check()
    exchange = fleet.exchange([[500] * 4] * 4).issue()
    fleet.machine.run(until=fleet.machine.clock.now + 1e-6)
    fleet.drivers[1].close()
    fleet.machine.run()
    assert not any(exchange.handles[rank].done() for rank in (0, 2, 3))
    return fleet, exchange


def test_a_dead_process_is_named_at_once_and_releases_every_queue_of_every_rank() -> None:
    fleet, exchange = a_dead_rank(timeout_s=PATIENCE_S)
    fleet.agreed.gone = [1]
    with pytest.raises(PeerError, match="the process of rank 1 has ended"):
        exchange.handles[0].wait()
    fleet.agreed.gone = []  # the others need not see it themselves
    for rank in (2, 3):
        assert exchange.handles[rank].done()
        with pytest.raises(PeerError, match="rank 0 found that the process of rank 1 has ended"):
            exchange.handles[rank].wait()
    assert idle(fleet, 0, 2, 3)


def test_a_rank_that_is_silent_is_blamed_at_the_time_limit() -> None:
    fleet, exchange = a_dead_rank(timeout_s=0.3)
    fleet.agreed.dead = 1
    with pytest.raises(PeerError, match="rank 1 did not answer"):
        exchange.handles[0].wait()
    for rank in (2, 3):
        with pytest.raises(PeerError, match="rank 1 did not answer"):
            exchange.handles[rank].wait()
    assert idle(fleet, 0, 2, 3)
    with pytest.raises(PeerError, match="fake is broken on rank 2: rank 1 did not answer"):
        fleet.rings[2].meet()


def test_counts_that_come_late_do_not_undo_poison() -> None:
    """What a peer's queue was about to write replaces the counts that ended the waits here."""
    fleet = Fleet(Machine(2), timeout_s=0.1)
    handle = fleet.exchange([[0, 500], [500, 0]]).issue(0).handles[0]
    poison, given = fleet.fabrics[0].poison, 0

    def overtaken() -> None:
        nonlocal given
        poison()
        given += 1
        if given < 5:
            fleet.fabrics[0]._words[0][: 4 * 16] = 0

    fleet.fabrics[0].poison = overtaken  # type: ignore[method-assign]
    with pytest.raises(PeerError):
        handle.wait()
    assert idle(fleet, 0)


def test_poison_ends_waits_now_and_later_whoever_gave_it() -> None:
    """Rank 0 does not wait itself; queues of the others, that wait for each other's, are over, too."""
    fleet = Fleet(Machine(4))
    fleet.exchange([[500] * 4] * 4).issue(1, 2)
    fleet.machine.run()
    assert not idle(fleet, 1, 2)
    fleet.fabrics[0].poison()
    assert idle(fleet, 1, 2)
    assert all(fabric.poisoned() for fabric in fleet.fabrics)
    fleet.fabrics[3].await_arrival(2, 7)
    fleet.fabrics[3].await_room(1, 7)
    for fabric in fleet.fabrics:
        fabric.poison()
    assert idle(fleet, 3)


def test_an_operation_that_a_rank_ended_well_does_not_fail_because_it_has_left() -> None:
    fleet = Fleet(Machine(3))
    exchange = fleet.exchange([[0, 50, 50], [50, 0, 50], [50, 50, 0]]).issue()
    fleet.machine.run()
    fleet.agreed.gone = [1]
    exchange.check()


def test_a_rank_that_left_after_its_part_is_not_taken_for_the_one_that_is_late() -> None:
    """Rank 2 has left, rank 1 has not come yet."""
    fleet = Fleet(Machine(3), slots=4)
    exchange = fleet.exchange([[0, 9, 9], [9, 0, 0], [9, 0, 0]]).issue(0, 2)
    fleet.machine.run()
    fleet.drivers[2].close()
    fleet.agreed.gone = [2]
    late = threading.Timer(0.7, lambda: exchange.issue(1))  # after a look at who is gone
    handle = exchange.handles[0]
    late.start()
    handle.wait()
    late.join()
    assert torch.equal(exchange.outs[0], exchange.expected[0])


def test_abort_ends_the_wait_of_another_thread() -> None:
    fleet = Fleet(Machine(2), timeout_s=PATIENCE_S)
    handle = fleet.exchange([[0, 500], [500, 0]]).issue(0).handles[0]
    soon = threading.Timer(0.1, lambda: fleet.rings[0].abort("gave up"))
    soon.start()
    with pytest.raises(PeerError, match="gave up"):
        handle.wait()
    soon.join()
    assert handle.done()
    assert fleet.fabrics[1].poisoned()
    with pytest.raises(PeerError, match="gave up"):
        fleet.rings[0].all_gather(torch.zeros(2), torch.zeros(1))


def test_a_closed_ring_says_so_and_holds_nothing() -> None:
    fleet = Fleet(Machine(2))
    exchange = fleet.exchange([[0, 500], [500, 0]]).issue()
    exchange.check()
    for ring, driver in zip(fleet.rings, fleet.drivers, strict=True):
        ring.close("was closed")
        assert driver.ended
        with pytest.raises(PeerError, match="was closed"):
            ring.meet()
