"""Reading a stream: the plan's order whatever the threads, drops passed over, any position resumable."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fakes import SCHEMA, FakeSource, numbers_in
from hypothesis import given
from hypothesis import strategies as st

from fsdata.order.progress import Progress
from fsdata.steps.dataset import Dataset

EXECUTORS = {threads: ThreadPoolExecutor(threads) for threads in (1, 3)}


def dataset(sources, *, mix="sequential", shuffle=False):
    return Dataset(sources, SCHEMA, mix=mix, shuffle=shuffle, shuffle_window=2, seed=1)


def read_all(data, *, world_size=1, takes=(3,), threads=1, epoch=0):
    """Row numbers per rank, and the position after each take."""
    progress = Progress.start(epoch, world_size)
    out = []
    for stream in data.streams(progress, world_size):
        reader = data.reader(stream, epoch=epoch, executor=EXECUTORS[threads], num_threads=threads)
        rows, positions = [], [0]
        while True:
            table = reader.take(takes[len(positions) % len(takes)])
            if not table.num_rows:
                break
            rows.append(numbers_in(table))
            positions.append(reader.position)
        out.append((rows, positions))
    return out


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@given(sizes, sizes, st.sampled_from(["sequential", "weighted", "time"]), st.booleans(), st.integers(1, 3), st.data())
def test_every_row_that_survives_arrives_once(one, two, mix, shuffle, world_size, data):
    rows = sum(one) + sum(two)
    dropped = data.draw(st.frozensets(st.integers(0, rows - 1)))
    sources = [
        FakeSource(one, 0, 0, dropped, times=np.arange(sum(one)) * 2),
        FakeSource(two, sum(one), 1, dropped, times=np.arange(sum(two)) * 3),
    ]
    results = {}
    for threads in EXECUTORS:
        results[threads] = read_all(
            dataset(sources, mix=mix, shuffle=shuffle), world_size=world_size, threads=threads, takes=(3, 1, 4)
        )
    assert results[1] == results[3]
    seen = [number for rank_rows, _ in results[1] for take in rank_rows for number in take]
    assert sorted(seen) == sorted(set(range(rows)) - dropped)


@given(sizes, st.booleans(), st.frozensets(st.integers(0, 40)))
def test_reading_on_from_any_position_gives_the_same_rows(of, shuffle, dropped):
    data = dataset([FakeSource(of, dropped=dropped)], shuffle=shuffle)
    ((rows, positions),) = read_all(data)
    for at, position in enumerate(positions):
        progress = Progress(epoch=0, step=at, history=(), positions=(position,))
        reader = data.reader(data.streams(progress, 1)[0], epoch=0, executor=EXECUTORS[1], num_threads=1)
        assert numbers_in(reader.take(1000)) == [number for take in rows[at:] for number in take]


@given(sizes, st.booleans(), st.frozensets(st.integers(0, 40)), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_rows_that_are_put_back_come_again(of, shuffle, dropped, back):
    data = dataset([FakeSource(of, dropped=dropped)], shuffle=shuffle)
    stream = data.streams(Progress.start(0, 1), 1)[0]
    ((want, _),) = read_all(data, takes=(1,))
    want = [number for take in want for number in take]
    reader = data.reader(stream, epoch=0, executor=EXECUTORS[3], num_threads=2)
    seen = []
    for turn in range(1000):
        table = reader.take(4)
        if not table.num_rows:
            break
        kept = max(1, table.num_rows - back[turn % len(back)])
        seen += numbers_in(table.take(slice(kept)))
        reader.put_back(table.take(slice(kept, None)))
        assert seen == want[: len(seen)]
        on = Progress(epoch=0, step=0, history=(), positions=(reader.position,))
        again = data.reader(data.streams(on, 1)[0], epoch=0, executor=EXECUTORS[1], num_threads=1)
        assert numbers_in(again.take(1000)) == want[len(seen) :]
    assert seen == want
    assert reader.position == sum(of)


def test_weighted_and_time_orders():
    sources = [
        FakeSource([4, 4], 0, 0, times=np.arange(8) * 10, weight=2.0),
        FakeSource([4], 100, 1, times=np.arange(4) * 20 + 5, weight=1.0),
    ]
    (([rows], _),) = read_all(dataset(sources, mix="time"), takes=(100,))
    assert rows == [0, 100, 1, 2, 101, 3, 4, 102, 5, 6, 103, 7]
    (([rows], _),) = read_all(dataset(sources, mix="weighted"), takes=(100,))
    assert rows == [0, 100, 1, 2, 101, 3, 4, 102, 5, 6, 103, 7]
    (([rows], _),) = read_all(dataset(sources), takes=(100,))
    assert rows == [*range(8), *range(100, 104)]


def test_an_error_comes_at_the_row_concerned():
    class Broken(FakeSource):
        def read(self, group, layout, start, stop):
            if group.index == 2:
                raise ValueError("broken group")
            return super().read(group, layout, start, stop)

    data = dataset([Broken([4, 4, 4])])
    reader = data.reader(data.streams(Progress.start(0, 1), 1)[0], epoch=0, executor=EXECUTORS[3], num_threads=3)
    assert numbers_in(reader.take(8)) == list(range(8))
    with pytest.raises(ValueError, match="broken group"):
        reader.take(1)


@pytest.mark.parametrize("position", [0, 1, 511, 512, 513, 1400])
def test_the_small_first_window_changes_nothing(position):
    data = dataset([FakeSource([1500, 300])])
    progress = Progress(epoch=0, step=0, history=(), positions=(position,))
    reader = data.reader(data.streams(progress, 1)[0], epoch=0, executor=EXECUTORS[3], num_threads=2)
    assert numbers_in(reader.take(100)) == list(range(position, position + 100))
    assert reader.position == 100
    assert numbers_in(reader.take(5000)) == list(range(position + 100, 1800))
    assert reader.position == 1800 - position
