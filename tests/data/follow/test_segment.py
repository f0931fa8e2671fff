"""How a stretch is dealt, and what is left of it goes into the next: pure planning."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fsdata.order.deal import window_order
from fsdata.order.progress import Progress, from_state, to_state
from fsdata.order.segment import FileAt, Segment, UnitAt, rest_of


def segment(number, first_unit, rest, rows):
    units = tuple(UnitAt(unit, 0, unit) for unit in np.unique(rest.unit).tolist())
    files, seen = (FileAt("a", "0"), FileAt("b", "1", ((0, "side", "2"),))), {"a": 1}
    return Segment(
        number=number, first_unit=first_unit, files=files, rows=(tuple(rows),), rest=rest, rest_units=units, seen=seen
    )


def rows_of(stream, shuffle):
    """(unit, row) of a stream, in order."""
    found = []
    for window in stream:
        rows = [(piece.unit, row) for piece in window.pieces for row in range(piece.start, piece.stop)]
        order = window_order(window, seed=3, epoch=0) if shuffle else range(len(rows))
        found += [rows[n] for n in list(order)[window.start : window.stop]]
    return found


@given(
    extensions=st.lists(st.lists(st.integers(1, 9), max_size=9), min_size=1, max_size=5),
    worlds=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    batch=st.integers(1, 6),
    shuffle=st.booleans(),
)
def test_every_row_comes_once(extensions, worlds, batch, shuffle):
    """Stretches of any size on any number of ranks; in each as many global batches as there are."""
    wanted, came, first = [], [], 0
    progress = Progress.start(0, worlds[0])
    last = None
    for number, (units, world_size) in enumerate(zip(extensions, worlds, strict=False)):
        options = {"shuffle": shuffle, "shuffle_window": 2, "seed": 3}

        def streams(of, options=options):
            first = of.segment.streams(of.first_world_size, **options)
            left = of.streams(first, len(of.positions))
            return [stream.after(at) for stream, at in zip(left, of.positions, strict=True)]

        rest = rest_of([]) if last is None else rest_of(last)
        progress = progress.on(world_size).extended(segment(number, first, rest, units), world_size)
        again = from_state(json.loads(json.dumps(to_state(progress, {}))), {})
        found, found_again = streams(progress), streams(again)
        assert [rows_of(each, shuffle) for each in found] == [rows_of(each, shuffle) for each in found_again]
        sizes = [stream.rows for stream in found]
        assert max(sizes) - min(sizes) <= 1
        steps = min(sizes) // batch
        for stream in found:
            came += rows_of(stream, shuffle)[: steps * batch]
        half = steps // 2 * batch  # the job ends and goes on with another number of ranks
        progress = Progress(epoch=0, step=0, history=(), positions=(half,) * world_size, segment=progress.segment).on(
            worlds[-1 - number]
        )
        moved = streams(progress)
        sizes = [stream.rows for stream in moved]
        assert sum(sizes) == sum(len(rows_of(s, shuffle)) for s in found) - half * world_size
        came = came[: len(came) - steps * batch * world_size]
        for stream in found:
            came += rows_of(stream, shuffle)[:half]
        more = min(sizes) // batch * batch
        for stream in moved:
            came += rows_of(stream, shuffle)[:more]
        last = [stream.after(more) for stream in moved]
        wanted += [(first + unit, row) for unit, count in enumerate(units) for row in range(count)]
        first += len(units)
    for stream in last:
        came += rows_of(stream, shuffle)
    assert len(came) == len(set(came))
    assert sorted(came) == sorted(wanted)


def test_a_window_that_is_carried_keeps_its_order():
    one = segment(0, 0, rest_of([]), [5, 0, 6, 7])
    assert one.new_units == [(UnitAt(0, 1, 0), 5), (UnitAt(1, 1, 2), 6), (UnitAt(2, 1, 3), 7)]
    (stream,) = one.streams(1, shuffle=True, shuffle_window=3, seed=3)
    whole = rows_of(stream, True)
    two = segment(1, 3, rest_of([stream.after(4)]), [2, 2])
    (stream,) = two.streams(1, shuffle=True, shuffle_window=3, seed=3)
    assert rows_of(stream, True)[: len(whole) - 4] == whole[4:]
