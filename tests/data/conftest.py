"""The files that the tests of the loader read."""

from contextlib import ExitStack
from functools import partial

import histories
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rank_loaders import loader_on
from sets import two_sources


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    two_sources(folder)
    return folder


@pytest.fixture(scope="module")
def id_folder(tmp_path_factory):
    """The files of `sets`, with ids of every row: texts of many lengths, of which every fourth is empty, and others."""
    folder = tmp_path_factory.mktemp("ids")
    two_sources(folder)
    for path in sorted(folder.glob("*/*.parquet")):
        table, group = pq.read_table(path), pq.ParquetFile(path).metadata.row_group(0).num_rows
        rows = table["row"].to_pylist()
        ids = [f"row é{row} {'x' * 40}"[: (row % 4) * (row % 11) * 7] for row in rows]
        table = table.append_column("request_id", pa.array(ids).dictionary_encode())
        table = table.append_column("number", pa.array([10**15 + row for row in rows]))
        table = table.append_column("other", pa.array([str(row) for row in rows], pa.large_string()))
        pq.write_table(table, path, row_group_size=group)
    return folder


@pytest.fixture(scope="module")
def history_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("histories")
    histories.write(folder)
    return folder


@pytest.fixture
def loader_of(folder):
    """Makes loaders, of the two sources if it is given no others. They are closed at the end of the test."""
    with ExitStack() as opened:
        make = partial(loader_on, folder)
        yield lambda *given, **options: opened.enter_context(make(*given, **{"prefetch": 0} | options))
