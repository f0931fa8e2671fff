"""Sources merged by time: each time column is read once, by one process of a host where there are many rows."""

from collections import Counter
from unittest import mock

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from data_kit import loader_on, rows_of

from fsdata import ParquetSource, Schema
from fsdata.decode.opened_source import OpenSource
from fsdata.nodes import times

ROWS, GROUP = 400, 32


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("times")
    rng = np.random.default_rng(2)
    for number in range(3):
        rows = {"row": np.arange(ROWS) + number * ROWS, "size": np.arange(ROWS) % 5}
        rows |= {"at": np.sort(rng.integers(0, 5_000, ROWS)), "seen": np.sort(rng.integers(0, 900, ROWS))}
        pl.DataFrame(rows).write_parquet(folder / f"{number}.parquet", row_group_size=GROUP)
    return [ParquetSource(folder / f"{number}.parquet") for number in range(3)]


def groups(sources):
    return sum(pq.ParquetFile(source.path_list[0]).num_row_groups for source in sources)


def read(sources, time="at"):
    counted = Counter()
    read_times = OpenSource.read_times

    def counting(self, group):
        counted[group.source, group.file, group.index] += 1
        return read_times(self, group)

    with mock.patch.object(OpenSource, "read_times", counting):
        loader = loader_on(sources, Schema(context=("row",), time=time), batch_size=64, mix="time", num_threads=2)
        rows = rows_of(loader) + rows_of(loader)
    return loader, rows, counted


def expected(sources, time="at"):
    frame = pl.concat([pl.read_parquet(source.path_list[0]) for source in sources])
    return frame.with_row_index().sort(time, "index", maintain_order=True)["row"].to_list()


@pytest.mark.parametrize("shared_from", [1, 1 << 20])
def test_a_time_column_is_read_once(sources, shared_from):
    with mock.patch.object(times, "SHARED_FROM", shared_from):
        loader, rows, counted = read(sources)
        with loader:
            assert rows == 2 * expected(sources)
            assert set(counted.values()) == {1}
            assert len(counted) == groups(sources)
            other, rows, counted = read(sources)
            with other:
                assert rows == 2 * expected(sources)
                assert len(counted) == (0 if shared_from == 1 else groups(sources))
            by_another, rows, _ = read(sources, "seen")
            with by_another:
                assert rows == 2 * expected(sources, "seen")
