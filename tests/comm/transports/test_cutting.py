"""How what a rank sends to a rank is cut into chunks, and in which order chunks travel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscomm.transports.cutting import RingChunk, chunks, even_slot, grown, in_order, joined, piece_of, room_for


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
    assert next(in_order(0, [0, 0, 5], [0, 7, 0], 10)) == RingChunk(peer=2, is_put=True, start=0, stop=5)
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


@given(
    size=st.integers(1, 5),
    row_bytes=st.sampled_from([1, 3, 8, 500]),
    most_bytes=st.sampled_from([1, 64, 100, 4096]),
    data=st.data(),
)
def test_all_ranks_cut_alike_and_every_byte_is_in_one_piece(
    size: int, row_bytes: int, most_bytes: int, data: st.DataObject
) -> None:
    row = st.lists(st.integers(0, data.draw(st.sampled_from([1, 5, 300]))), min_size=size, max_size=size)
    rows = data.draw(st.lists(row, min_size=size, max_size=size))
    sizes = [[n * row_bytes for n in of_rank] for of_rank in rows]
    largest = max(map(max, sizes)) or row_bytes
    slot_bytes = even_slot(largest, row_bytes, most_bytes=most_bytes)
    assert slot_bytes % row_bytes == 0
    assert slot_bytes <= max(most_bytes, row_bytes)
    covered: list[list[int]] = [[] for _ in range(size)]
    for k in range(-(-largest // slot_bytes)):
        sent = [piece_of(sizes[r], slot_bytes, k) for r in range(size)]
        received = [piece_of([sizes[s][r] for s in range(size)], slot_bytes, k) for r in range(size)]
        for r in range(size):
            lengths = [stop - start for start, stop in sent[r]]
            assert lengths == [received[s][r][1] - received[s][r][0] for s in range(size)]
            assert max(lengths) <= slot_bytes
            covered[r] += [byte for start, stop in joined(sent[r]) for byte in range(start, stop)]
    assert [sorted(each) for each in covered] == [list(range(sum(of_rank))) for of_rank in sizes]


def test_cutting_by_example() -> None:
    assert even_slot(80, 4, most_bytes=32) == 28  # three pieces, and not two of 32 and one of 16
    assert even_slot(3000, 1000, most_bytes=32) == 1000
    assert piece_of([20, 0, 8], 20, 0) == [(0, 20), (20, 20), (20, 28)]
    assert piece_of([20, 0, 8], 12, 0) == [(0, 12), (20, 20), (20, 28)]
    assert piece_of([20, 0, 8], 12, 1) == [(12, 20), (20, 20), (28, 28)]
    assert joined([(0, 20), (20, 20), (20, 28), (30, 31)]) == [(0, 28), (30, 31)]
    assert joined([(3, 3), (5, 5)]) == []
