"""Chunks and parts; the pieces of `host-staged`, and how long they take on two copy engines and a network."""

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscomm.transports.cutting import (
    Chunk,
    Cut,
    Part,
    Pipeline,
    Stage,
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
            assert [byte for start, stop in puts for byte in range(start, stop)] == list(range(sent[rank][peer]))


def test_a_plan_alternates_and_a_slot_has_room_once_it_was_emptied() -> None:
    kinds = [chunk.is_put for chunk in in_order(0, [0, 40], [0, 20], 10)]
    assert kinds == [True, False, True, False, True, True]
    assert next(in_order(0, [0, 0, 5], [0, 7, 0], 10)) == Chunk(peer=2, is_put=True, start=0, stop=5)
    assert [room_for(n, 2) for n in range(5)] == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("now", "largest", "most", "slots"),
    [
        (64, 0, 1500, 64),
        (64, 64, 1500, 64),
        (64, 65, 1500, 128),
        (64, 1025, 1500, 1500),
        (4096, 9999, 1500, 4096),  # never smaller
        (0, (1 << 40) + 1, None, 1 << 41),
    ],
)
def test_slots_grow_to_powers_of_two_and_not_beyond_the_most(
    now: int, largest: int, most: int | None, slots: int
) -> None:
    assert grown(now, largest, most=most) == slots


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(0, 64))
def test_parts_cover_a_tensor_in_the_order_of_the_ranks(splits: list[int], row_bytes: int) -> None:
    found = parts(splits, row_bytes)
    covered = [byte for part in found for byte in range(part.start, part.stop)]
    assert covered == list(range(sum(splits) * row_bytes))
    expected = {peer: rows * row_bytes for peer, rows in enumerate(splits) if rows * row_bytes}
    assert {part.peer: part.stop - part.start for part in found} == expected
    assert parts([2, 0, 1], 4) == [Part(peer=0, start=0, stop=8), Part(peer=2, start=8, stop=12)]


def timeline(
    operations: Sequence[tuple[float, Sequence[int]]], speeds: Sequence[float], depth: int
) -> dict[tuple[Stage, int], tuple[float, float]]:
    """When each stage of each piece begins and ends, as the thread of `host-staged` does what a `Pipeline` says.

    operations: in their order, when one comes and the bytes of its pieces. speeds: seconds of BYTES, by stage.
    """
    pipeline, waiting, sizes = Pipeline(depth), deque(operations), []
    found: dict[tuple[Stage, int], tuple[float, float]] = {}
    now, engines = 0.0, dict.fromkeys(("down", "exchange", "up"), 0.0)
    takes_s = dict(zip(engines, speeds, strict=True))
    while True:
        while waiting and waiting[0][0] <= now:
            pieces = waiting.popleft()[1]
            assert pipeline.feed(len(pieces)) == range(len(sizes), len(sizes) + len(pieces))
            sizes += pieces
        step = pipeline.next()
        if step is None and not waiting:
            return found
        if step is None:
            now = waiting[0][0]
            continue
        if step.after is not None:
            now = max(now, found[step.after][1])
        engines[step.stage] = max(engines[step.stage], now) + takes_s[step.stage] * sizes[step.piece] / BYTES
        found[step.stage, step.piece] = now, engines[step.stage]


@pytest.mark.parametrize(
    ("speeds", "depth", "takes_s"),
    [
        ((4, 1, 2), 3, 7 + 19 * 4),  # that of the slowest stage, and of filling
        ((1, 4, 2), 3, 7 + 19 * 4),
        ((2, 1, 4), 3, 7 + 19 * 4),
        ((1, 4, 4), 3, 9 + 19 * 4),
        ((2, 2, 2), 3, 6 + 19 * 2),
        ((4, 1, 2), 1, 20 * 7),  # nothing overlaps
    ],
)
def test_how_long_pieces_take(speeds: tuple[float, ...], depth: int, takes_s: float) -> None:
    """The second operation comes down while the first is on the wire."""
    found = timeline([(0, [BYTES] * 3), (0, [BYTES] * 17)], speeds, depth)
    assert max(end for _, end in found.values()) == takes_s


@given(
    operations=st.lists(st.tuples(st.integers(0, 300), st.lists(st.integers(0, 3 * BYTES), max_size=6)), max_size=12),
    speeds=st.tuples(*[st.integers(1, 90)] * 3),
    depth=st.integers(1, 4),
)
def test_any_cost_and_any_time_of_arrival_keep_order_and_buffers(
    operations: list[tuple[float, list[int]]], speeds: tuple[int, ...], depth: int
) -> None:
    found = timeline(sorted(operations, key=lambda each: each[0]), speeds, depth)
    number = sum(len(pieces) for _, pieces in operations)
    assert [piece for stage, piece in found if stage == "up"] == list(range(number))
    for piece in range(number):
        assert found["down", piece][1] <= found["exchange", piece][0]
        assert found["exchange", piece][1] <= found["up", piece][0]
        if piece >= depth:  # its buffers are those of an earlier piece, which has to be through
            assert found["up", piece - depth][1] <= found["down", piece][0]


def test_depth_must_be_at_least_one() -> None:
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        Pipeline(0)


@given(
    size=st.integers(1, 5),
    row_bytes=st.sampled_from([1, 3, 8, 500]),
    chunk_bytes=st.sampled_from([1, 64, 100, 4096]),
    data=st.data(),
)
def test_all_ranks_cut_alike_and_every_row_is_in_one_piece(
    size: int, row_bytes: int, chunk_bytes: int, data: st.DataObject
) -> None:
    row = st.lists(st.integers(0, data.draw(st.sampled_from([0, 1, 5, 300]))), min_size=size, max_size=size)
    rows = data.draw(st.lists(row, min_size=size, max_size=size))
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
