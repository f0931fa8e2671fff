"""Chunks and parts; pieces of `host-staged` on a machine in virtual time: a copy engine each way, and a network."""

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual import Clock, Engine, Process

from fscomm.transports.cutting import (
    Chunk,
    Cut,
    Part,
    Pipeline,
    Stage,
    StageStart,
    chunks,
    cut,
    grown,
    in_order,
    parts,
    room_for,
    spans_of,
)

BYTES = 8


@given(size=st.integers(1, 5), slot_bytes=st.integers(1, 9), data=st.data())
def test_a_plan_moves_every_byte_once_and_both_sides_agree_on_the_order(
    size: int, slot_bytes: int, data: st.DataObject
) -> None:
    sent = data.draw(st.lists(st.lists(st.integers(0, 30), min_size=size, max_size=size), min_size=size, max_size=size))
    plans = [list(in_order(r, sent[r], [row[r] for row in sent], slot_bytes)) for r in range(size)]
    for rank in range(size):
        for peer in set(range(size)) - {rank}:
            puts = [(c.start, c.stop) for c in plans[rank] if c.is_put and c.peer == peer]
            takes = [(c.start, c.stop) for c in plans[peer] if not c.is_put and c.peer == rank]
            assert puts == takes == chunks(sent[rank][peer], slot_bytes)
    assert [sum(c.stop - c.start for c in p if c.is_put) for p in plans] == [
        sum(row) - row[rank] for rank, row in enumerate(sent)
    ]


def test_a_plan_alternates() -> None:
    kinds = [chunk.is_put for chunk in in_order(0, [0, 40], [0, 20], 10)]
    assert kinds == [True, False, True, False, True, True]
    assert next(in_order(0, [0, 0, 5], [0, 7, 0], 10)) == Chunk(peer=2, is_put=True, start=0, stop=5)


@pytest.mark.parametrize(("largest", "slots"), [(0, 64), (64, 64), (65, 128), (1000, 1024), (1025, 1500), (9999, 1500)])
def test_slots_grow_to_powers_of_two_and_not_beyond_the_most(largest: int, slots: int) -> None:
    assert grown(64, largest, most=1500) == slots
    assert grown(4096, largest, most=1500) == 4096  # never smaller


def test_room() -> None:
    assert [room_for(n, 2) for n in range(5)] == [0, 0, 1, 2, 3]


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_slots_hold_the_largest_part_and_never_shrink(now: int, largest: int) -> None:
    slot = grown(now, largest)
    assert slot >= largest
    assert slot >= now
    assert slot == grown(slot, largest)
    if slot > max(now, 1):
        assert slot & (slot - 1) == 0
        assert slot < 2 * largest


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(0, 64))
def test_parts_cover_a_tensor_in_the_order_of_the_ranks(splits: list[int], row_bytes: int) -> None:
    found = parts(splits, row_bytes)
    covered = [byte for part in found for byte in range(part.start, part.stop)]
    assert covered == list(range(sum(splits) * row_bytes))
    expected = {peer: rows * row_bytes for peer, rows in enumerate(splits) if rows * row_bytes}
    assert {part.peer: part.stop - part.start for part in found} == expected
    assert parts([2, 0, 1], 4) == [Part(peer=0, start=0, stop=8), Part(peer=2, start=8, stop=12)]


class Machine:
    """The engines of one rank, which all its transports share. `speeds`: seconds of a piece of BYTES, by stage."""

    def __init__(self, clock: Clock, *speeds: float) -> None:
        self.clock = clock
        self.online = True
        stages: tuple[Stage, ...] = ("down", "exchange", "up")
        self.engines = {
            stage: Engine(clock, bytes_per_s=BYTES / each) for stage, each in zip(stages, speeds, strict=True)
        }


class Staged:
    """Does what a `Pipeline` says, as the thread of `host-staged` does, and looks that it may be done."""

    def __init__(self, machine: Machine, depth: int = 3) -> None:
        self.machine, self.depth = machine, depth
        self.pipeline = Pipeline(depth)
        self.peers = [self]
        self.sizes: list[int] = []
        self.began: dict[tuple[Stage, int], float] = {}
        self.ended: dict[tuple[Stage, int], float] = {}
        self.most_held = 0
        self._works = False

    def feed(self, sizes: Sequence[int]) -> range:
        self.sizes += sizes
        if not self._works:
            self._works = True
            self.machine.clock.spawn(self._serve())
        return self.pipeline.feed(len(sizes))

    def arrived(self) -> list[int]:
        return [piece for stage, piece in self.ended if stage == "up"]

    def held(self) -> int:
        return sum(stage == "down" for stage, _ in self.began) - len(self.arrived())

    def _serve(self) -> Process:
        while (step := self.pipeline.next()) is not None:
            if step.after is not None:
                yield self._is_over(step.after)
            self._look(step)
            self.began[step.stage, step.piece] = self.machine.clock.now
            self.most_held = max(self.most_held, self.held())
            self.machine.clock.spawn(self._run(step))
        self._works = False

    def _look(self, step: StageStart) -> None:
        piece, depth = step.piece, self.depth
        needs: dict[Stage, tuple[Stage, int]] = {
            "down": ("up", piece - depth),
            "exchange": ("down", piece),
            "up": ("exchange", piece),
        }
        needed = needs[step.stage]
        assert needed[1] < 0 or needed in self.ended, f"{step} before {needed}"

    def _run(self, step: StageStart) -> Process:
        if step.stage == "exchange":
            yield lambda: self.machine.online and all(("exchange", step.piece) in peer.began for peer in self.peers)
        yield from self.machine.engines[step.stage].copy(self.sizes[step.piece])
        self.ended[step.stage, step.piece] = self.machine.clock.now

    def _is_over(self, begun: tuple[Stage, int]) -> Callable[[], bool]:
        return lambda: begun in self.ended


@pytest.mark.parametrize("speeds", [(4, 1, 2), (4, 4, 1), (1, 4, 2), (2, 1, 4), (1, 4, 4), (2, 2, 2), (8, 8, 8)])
def test_pieces_take_the_time_of_the_slowest_stage_and_of_filling(speeds: tuple[float, ...]) -> None:
    clock = Clock()
    staged = Staged(Machine(clock, *speeds))
    staged.feed([BYTES] * 20)
    assert clock.run()
    assert clock.now == sum(speeds) + 19 * max(speeds)


def test_without_depth_nothing_overlaps() -> None:
    clock = Clock()
    Staged(Machine(clock, 4, 1, 2), depth=1).feed([BYTES] * 20)
    assert clock.run()
    assert clock.now == 20 * (4 + 1 + 2)


def test_a_slow_rank_slows_all_but_as_one_stage() -> None:
    clock = Clock()
    ranks = [Staged(Machine(clock, 1, 2, 1)), Staged(Machine(clock, 1, 2, 8))]
    for each in ranks:
        each.peers = ranks
        each.feed([BYTES] * 20)
    assert clock.run()
    assert clock.now == 1 + 2 + 8 + 19 * 8


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_any_cost_and_any_time_of_arrival_keep_order_and_buffers(depth: int, seed: int) -> None:
    draw = random.Random(seed)
    clock = Clock()
    ranks = [Staged(Machine(clock, *(draw.uniform(0.1, 9) for _ in range(3))), depth) for _ in range(3)]
    operations = [[draw.randrange(3 * BYTES) for _ in range(draw.randrange(6))] for _ in range(12)]

    def trainer(rank: Staged) -> Process:
        for sizes in operations:
            yield draw.uniform(0, 40)
            rank.feed(sizes)

    for each in ranks:
        each.peers = ranks
        clock.spawn(trainer(each))
    assert clock.run()
    for each in ranks:
        assert each.arrived() == list(range(sum(map(len, operations))))
        assert each.most_held <= depth


def test_a_network_that_stalls_holds_back_the_device() -> None:
    clock = Clock()
    machine = Machine(clock, 1, 2, 1)
    staged = Staged(machine)
    staged.feed([BYTES] * 20)
    clock.run(until=8.5)
    machine.online = False
    assert not clock.run()
    assert (staged.most_held, len(staged.arrived())) == (3, 4)
    stuck = dict(staged.began)
    assert not clock.run(until=1000)
    assert staged.began == stuck
    machine.online = True
    assert clock.run()
    assert staged.arrived() == list(range(20))
    assert staged.most_held == 3


def test_the_next_operation_comes_down_while_the_last_one_is_on_the_wire() -> None:
    clock = Clock()
    staged = Staged(Machine(clock, 1, 4, 1))
    first, second = staged.feed([BYTES] * 3), staged.feed([BYTES] * 3)
    assert clock.run()
    assert staged.ended["down", second[0]] < staged.ended["exchange", first[-1]]
    assert clock.now == 1 + 4 + 1 + 5 * 4


def delay_behind_exclusive(pieces: int) -> float:
    """Seconds that one small piece takes while 64 * BYTES of another class are under way in so many pieces."""
    clock = Clock()
    machine = Machine(clock, 1, 4, 1)
    exclusive, collision = Staged(machine), Staged(machine)
    exclusive.feed([64 * BYTES // pieces] * pieces)

    def trainer() -> Process:
        yield 30.5
        collision.feed([BYTES // 8])

    clock.spawn(trainer())
    assert clock.run()
    assert len(exclusive.arrived()) == pieces
    return collision.ended["up", 0] - 30.5


def test_collision_rows_overtake_exclusive_between_its_pieces() -> None:
    alone = (1 + 4 + 1) / 8
    in_pieces, in_one = delay_behind_exclusive(64), delay_behind_exclusive(1)
    assert in_pieces <= alone + 1 + 4 + 1  # behind what an engine is just at, no more
    assert in_one > 20 * in_pieces


def test_depth_must_be_at_least_one() -> None:
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        Pipeline(0)


@pytest.mark.parametrize("seed", range(30))
def test_all_ranks_cut_alike_and_every_row_is_in_one_piece(seed: int) -> None:
    draw = random.Random(seed)
    size, row_bytes, chunk_bytes = draw.randrange(1, 6), draw.choice([1, 3, 8, 500]), draw.choice([1, 64, 100, 4096])
    most = draw.choice([0, 1, 5, 300])
    rows = [[draw.randrange(most + 1) for _ in range(size)] for _ in range(size)]
    how = cut(max(map(max, rows)) * row_bytes, row_bytes, world_size=size, chunk_bytes=chunk_bytes)
    covered: list[list[int]] = [[] for _ in range(size)]
    for piece in range(how.pieces):
        sent = [spans_of(rows[r], piece, how.pieces) for r in range(size)]
        received = [spans_of([rows[s][r] for s in range(size)], piece, how.pieces) for r in range(size)]
        for r in range(size):
            assert sent[r].sizes == [received[s].sizes[r] for s in range(size)]
            assert max(sent[r].sizes) <= how.rows
            for each in (sent[r], received[r]):
                assert sum(each.sizes) * row_bytes <= max(chunk_bytes, size * row_bytes)
                assert sum(end - first for first, end in each.spans) == sum(each.sizes)
                assert all(end > first for first, end in each.spans)
            covered[r] += [row for first, end in sent[r].spans for row in range(first, end)]
    for r in range(size):
        assert sorted(covered[r]) == list(range(sum(rows[r])))


def test_cutting_by_example() -> None:
    assert cut(0, 4, world_size=2, chunk_bytes=64) == Cut(pieces=0, rows=0)
    assert cut(80, 4, world_size=2, chunk_bytes=64) == Cut(pieces=3, rows=7)
    assert cut(3000, 1000, world_size=2, chunk_bytes=64) == Cut(pieces=3, rows=1)
    assert spans_of([5, 0, 2], 0, 1) == ([5, 0, 2], [(0, 7)])
    assert spans_of([5, 0, 2], 0, 2) == ([2, 0, 1], [(0, 2), (5, 6)])
    assert spans_of([5, 0, 2], 1, 2) == ([3, 0, 1], [(2, 5), (6, 7)])
