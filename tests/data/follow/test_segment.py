"""How a stretch is dealt, and what is left of it goes into the next: pure planning."""

import json
from functools import partial

import numpy as np
import test_plan
from hypothesis import given
from hypothesis import strategies as st

from fsdata.growing.segment import FileAt, Segment, UnitAt, rest_of
from fsdata.order.progress import Progress, parsed, to_state

rows_of = partial(test_plan.rows_of, seed=3, epoch=0)


def segment(number, first_unit, rest, rows):
    units = tuple(UnitAt(unit, 0, unit) for unit in np.unique(rest.unit).tolist())
    files, seen = (FileAt("a", "0"), FileAt("b", "1", ((0, "side", "2"),))), {"a": 1}
    return Segment(
        number=number, first_unit=first_unit, files=files, rows=(tuple(rows),), rest=rest, rest_units=units, seen=seen
    )


def streams_of(progress, shuffle):
    options = {"shuffle": shuffle, "shuffle_window": 2, "seed": 3}
    first = progress.segment.streams(progress.first_world_size, **options)
    left = progress.streams(first, len(progress.positions))
    return [stream.after(at) for stream, at in zip(left, progress.positions, strict=True)]


@given(
    extensions=st.lists(st.lists(st.integers(1, 9), max_size=9), min_size=1, max_size=5),
    worlds=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    batch=st.integers(1, 6),
    shuffle=st.booleans(),
)
def test_every_row_comes_once(extensions, worlds, batch, shuffle):
    """Stretches of any size on any number of ranks; in each as many global batches as there are."""
    wanted, came, first, left = [], [], 0, []
    progress = Progress.start(0, worlds[0])
    for number, (units, size) in enumerate(zip(extensions, worlds, strict=False)):
        progress = progress.on(size).extended(segment(number, first, rest_of(left), units), size)
        found = streams_of(progress, shuffle)
        again = streams_of(parsed(json.loads(json.dumps(to_state(progress, {}))), Segment.from_state)[0], shuffle)
        assert [rows_of(each, shuffle=shuffle) for each in found] == [rows_of(each, shuffle=shuffle) for each in again]
        sizes = [stream.rows for stream in found]
        assert max(sizes) - min(sizes) <= 1
        taken = min(sizes) // batch * batch
        came += [row for stream in found for row in rows_of(stream, shuffle=shuffle)[:taken]]
        left = [stream.after(taken) for stream in found]
        wanted += [(first + unit, row) for unit, count in enumerate(units) for row in range(count)]
        first += len(units)
    came += [row for stream in left for row in rows_of(stream, shuffle=shuffle)]
    assert sorted(came) == sorted(wanted)


def test_a_window_that_is_carried_keeps_its_order():
    one = segment(0, 0, rest_of([]), [5, 0, 6, 7])
    assert one.new_units == [(UnitAt(0, 1, 0), 5), (UnitAt(1, 1, 2), 6), (UnitAt(2, 1, 3), 7)]
    (stream,) = one.streams(1, shuffle=True, shuffle_window=3, seed=3)
    whole = rows_of(stream, shuffle=True)
    two = segment(1, 3, rest_of([stream.after(4)]), [2, 2])
    (stream,) = two.streams(1, shuffle=True, shuffle_window=3, seed=3)
    assert rows_of(stream, shuffle=True)[: len(whole) - 4] == whole[4:]
