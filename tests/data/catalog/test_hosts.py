"""Hosts of a job read shares of the footers, and each has the catalog that it would have made alone."""

import os
from collections import Counter
from unittest import mock

import numpy as np
import polars as pl
import pytest
from data_kit import loader_on, write
from patience import PATIENCE_S, until
from worlds import shared_world

from fsdata import ParquetSource, PeerError, Schema
from fsdata.catalog import catalog, shared_arrays
from fsdata.catalog.listing import hosts

FILES = 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("hosts")
    for number in range(FILES):
        columns = {"row": np.arange(5) + 5 * number, "at": np.arange(5) + number % 7}
        columns |= {"more": [1] * 5} if number % 4 == 1 else {}
        write(made / f"day={number % 3}" / f"{number:03}.parquet", columns, group=2)
    (made / "day=0" / "bad.parquet").write_bytes(b"PAR1 and nothing else")
    return made


def held(folder):
    """What the catalog of a loader holds; files skipped."""
    source = ParquetSource(folder, on_error="skip", filter=pl.col("at") < 1000)
    with loader_on(source, Schema(context=("row",)), num_threads=2) as loader:
        found = loader._data.sources[0].opened.catalog
        of_groups = [found.size.tolist(), found.rows.tolist(), found.bounds["at"].tolist(), found.digests.tolist()]
        names = [[found.schema(number).names for number in range(len(found))], list(found.files.names())]
        return of_groups, names, [entry.file for entry in loader.skipped]


def as_a_host(rank, world_size, folder, own, fail_on=None, slow=None):
    """This rank as if it were the only one of its host: (`held`, how often it has read each file), or its error.

    fail_on: a rank that cannot read. slow: one that does not go on with a file before another one has read it. The
    others begin after this one has.
    """
    read, raw_footer = Counter(), catalog.raw_footer
    first = slow if fail_on is None else fail_on

    def counting(file):
        read[file.name] += 1
        (own / f"{rank} began").touch()
        if rank == fail_on:
            raise PermissionError(f"{file.path}: not on this host")
        this = own / f"{os.path.basename(file.name)} read"
        if rank == slow:
            until(this.exists)
        elif first is not None:
            until((own / f"{first} began").exists)
        this.touch()
        return raw_footer(file)

    (own / str(rank)).mkdir(mode=0o700)
    with (
        mock.patch.object(catalog, "raw_footer", counting),
        mock.patch.object(catalog, "SHARED_FROM", 10),
        mock.patch.object(hosts, "_LEAST", 4),
        mock.patch.object(hosts, "_PATIENCE_S", PATIENCE_S if first is None else 0.3),
        mock.patch.object(shared_arrays, "_folder_paths", return_value=[own / str(rank)]),
        mock.patch.dict(os.environ),
    ):
        os.environ.pop("LOCAL_WORLD_SIZE", None)
        try:
            return held(folder), read
        except (PermissionError, PeerError) as error:
            return f"{type(error).__name__}: {error}", read


@pytest.mark.parametrize(("slow", "times"), [(None, {1}), (1, {1, 2})], ids=["all", "a slow one"])
def test_each_footer_is_read_by_one_host_and_again_where_its_share_does_not_come(folder, tmp_path, slow, times):
    found = shared_world(2).run(as_a_host, folder, tmp_path, None, slow)
    alone = held(folder)
    assert alone[2] == ["day=0/bad.parquet"]
    assert all(each == alone for each, _ in found)
    read = sum((of for _, of in found), Counter())
    assert len(read) == FILES + 1
    assert set(read.values()) == times


def test_a_host_that_cannot_read_is_named(folder, tmp_path):
    (other, _), (own, _) = shared_world(2).run(as_a_host, folder, tmp_path, 1)
    assert own.startswith("PermissionError")
    assert "not on this host" in other
