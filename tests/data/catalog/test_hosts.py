"""Hosts of a job read shares of the footers, and each has the catalog that it would have made alone."""

import os
from collections import Counter
from unittest import mock

import numpy as np
import polars as pl
import pytest
from patience import PATIENCE_S, until
from worlds import shared_world

from fsdata import FreeScaleDataLoader, ParquetSource, PeerError, Schema
from fsdata.catalog import catalog, shared_arrays
from fsdata.catalog.listing import hosts

FILES = 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("hosts")
    for number in range(FILES):
        rows = pl.DataFrame({"row": np.arange(5) + 5 * number, "at": np.arange(5) + number % 7})
        below = made / f"day={number % 3}"
        below.mkdir(exist_ok=True)
        rows = rows.with_columns(more=pl.lit(1)) if number % 4 == 1 else rows
        rows.write_parquet(below / f"{number:03}.parquet", row_group_size=2)
    (made / "day=0" / "bad.parquet").write_bytes(b"PAR1 and nothing else")
    return made


def as_a_host(rank, folder, own, fail_on=None, slow=()):
    """This rank as if it were the only one of its host: (what the catalog holds, files read, files skipped).

    slow: ranks that do not go on with a file before another one has read it; the others begin after these have.
    """
    read, at_end = Counter(), []
    entry = catalog._entry

    def counting(file, schemas):
        read[file.name] += 1
        if rank == fail_on:
            raise PermissionError(f"{file.path}: not on this host")
        own.with_name(f"{rank} began").touch()
        if rank in slow:
            until(own.with_name(f"{os.path.basename(file.name)} read").exists)
        for other in slow:
            until(own.with_name(f"{other} began").exists)
        own.with_name(f"{os.path.basename(file.name)} read").touch()
        return entry(file, schemas)

    patches = [
        mock.patch.object(catalog, "_entry", counting),
        mock.patch.object(catalog, "SHARED_FROM", 10),
        mock.patch.object(hosts, "_LEAST", 4),
        mock.patch.object(hosts, "_PATIENCE_S", 0.3 if slow or fail_on is not None else PATIENCE_S),
        mock.patch.object(shared_arrays, "_folders", return_value=[own]),
        mock.patch.dict(os.environ),
    ]
    for patch in patches:
        patch.start()
    os.environ.pop("LOCAL_WORLD_SIZE", None)
    own.mkdir(exist_ok=True, mode=0o700)
    try:
        source = ParquetSource(folder, on_error="skip", filter=pl.col("at") < 1000)
        with FreeScaleDataLoader(
            source, Schema(context=("row",)), batch_size=4, num_threads=2, timeout_s=PATIENCE_S
        ) as loader:
            found = loader._data.sources[0].opened.catalog
            at_end = [found.size.tolist(), found.rows.tolist(), found.bounds["at"].tolist(), found.digests.tolist()]
            at_end += [[found.schema(number).names for number in range(len(found))], list(found.files.names())]
            skipped = [entry.file for entry in loader.skipped]
    finally:
        for patch in patches:
            patch.stop()
    return at_end, read, skipped


def on_every_host(rank, world_size, folder, own, slow=()):
    return as_a_host(rank, folder, own / str(rank), slow=slow)


def alone(folder):
    with FreeScaleDataLoader(
        ParquetSource(folder, on_error="skip", filter=pl.col("at") < 1000), Schema(context=("row",)), batch_size=4
    ) as loader:
        found = loader._data.sources[0].opened.catalog
        held = [found.size.tolist(), found.rows.tolist(), found.bounds["at"].tolist(), found.digests.tolist()]
        return [*held, [found.schema(number).names for number in range(len(found))], list(found.files.names())]


def test_each_footer_is_read_by_one_host(folder, tmp_path):
    found = shared_world(3).run(on_every_host, folder, tmp_path)
    assert all(held == alone(folder) for held, _, _ in found)
    assert all(skipped == ["day=0/bad.parquet"] for _, _, skipped in found)
    read = sum((of for _, of, _ in found), Counter())
    assert len(read) == FILES + 1
    assert set(read.values()) == {1}


def test_a_share_that_does_not_come_is_read_again(folder, tmp_path):
    found = shared_world(2).run(on_every_host, folder, tmp_path, (1,))
    assert all(held == alone(folder) for held, _, _ in found)
    read = sum((of for _, of, _ in found), Counter())
    assert len(read) == FILES + 1
    assert set(read.values()) == {1, 2}


def fail_on_one(rank, world_size, folder, own):
    with pytest.raises((PermissionError, PeerError)) as caught:
        as_a_host(rank, folder, own / str(rank), fail_on=1)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_host_that_cannot_read_is_named(folder, tmp_path):
    texts = shared_world(2).run(fail_on_one, folder, tmp_path)
    assert texts[1].startswith("PermissionError")
    assert "not on this host" in texts[0]
