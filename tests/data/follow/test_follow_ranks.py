"""Folders that grow, followed by several ranks: files appear, jobs end and go on with other numbers of ranks.

`FREESCALE_RUNS` says how many random jobs there are.
"""

import os

import growing
import numpy as np
import polars as pl
import pyarrow.compute as pc
import pytest
from growing import ENDLESS, FAST, loader_of, read, rows_of, stage, write
from patience import PATIENCE_S
from worlds import shared_world

from fsdata import (
    Balance,
    CorruptFileError,
    Follow,
    FreeScaleDataLoader,
    ParquetSource,
    PeerError,
    Schema,
)

KINDS = ["tokens", "filter", "plain", "balanced"]
SEEDS = range(int(os.environ.get("FREESCALE_RUNS", "16")))
LONG = [(KINDS[seed % len(KINDS)], seed) for seed in SEEDS if seed not in (4, 5)]


def run(folder, kind, seed):
    """A job of several runs. (what was written, what was read): every row once."""
    rng = np.random.default_rng(seed)
    names, written, rows, state = 0, [], [], None
    for _ in range(int(rng.integers(1, 5))):
        for _ in range(int(rng.integers(0 if names else 1, 4))):
            count = int(rng.integers(1, 40))
            new = np.arange(count) + 100 * names
            write(folder, f"{names:03}.parquet", new, group=int(rng.integers(1, 12)))
            names += 1
            written += new.tolist()
        batches = int(rng.integers(1, 9)) if rng.random() < 0.8 else None
        found = shared_world(int(rng.integers(1, 4))).run(stage, folder, state, batches, kind, seed)
        if rng.random() < 0.3:
            continue  # this run was killed before it could save anything
        rows += [row for of_rank, _ in found for row in of_rank]
        assert all(saved == found[0][1] for _, saved in found)
        state = found[0][1]
    found = shared_world(2).run(stage, folder, state, None, kind, seed)
    rows += [row for of_rank, _ in found for row in of_rank]
    return [row for row in written if kind != "filter" or row % 3], rows


@pytest.mark.parametrize(
    ("kind", "seed"), [("tokens", 4), ("filter", 5), *(pytest.param(*of, marks=pytest.mark.long) for of in LONG)]
)
def test_every_row_comes_once(tmp_path, kind, seed):
    written, rows = run(tmp_path, kind, seed)
    assert sorted(rows) == sorted(written)


def sizes(rank, world_size, folder, balance):
    source = {"filter": pl.col("keep")}
    with loader_of(folder, Follow(**FAST, at_most=1), source=source, balance=balance) as loader:
        return [len(batch) for batch in loader]


@pytest.mark.parametrize("balance", [None, Balance()])
def test_batches_are_full_also_where_rows_drop_out(tmp_path, balance):
    for number in range(6):
        write(tmp_path, f"{number}.parquet", np.arange(10) + 10 * number)
    found = shared_world(2).run(sizes, tmp_path, balance)
    assert [of[:4] for of in found] == [[4] * 4, [4] * 4]
    assert sum(map(sum, found)) == 40 or balance is None


def grow(rank, world_size, folder):
    """Rank 0 writes while all read, until rank 1 leaves."""
    with loader_of(folder, Follow(**ENDLESS, at_most=2), batch_size=4) as loader:
        batches, rows = iter(loader), []
        for number in range(2, 9):
            if rank == 0:
                write(folder, f"{number:02}.parquet", np.arange(12) + 12 * number)
            rows += rows_of(next(batches))
        if rank == 0:
            with pytest.raises(PeerError, match="rank 1"):
                list(batches)
    return rows


def test_files_that_come_while_all_ranks_read(tmp_path):
    for number in range(2):
        write(tmp_path, f"{number:02}.parquet", np.arange(12) + 12 * number)
    rows = shared_world(2).run(grow, tmp_path)
    everything = [row for of_rank in rows for row in of_rank]
    assert len(everything) == len(set(everything)) == 2 * 7 * 4
    assert set(everything) <= set(range(12 * 9))


def fail_on_rank_0(rank, world_size, folder):
    with loader_of(folder) as loader, pytest.raises((CorruptFileError, PeerError)) as caught:
        read(loader)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_all_ranks_hear_what_rank_0_found(tmp_path):
    write(tmp_path, "0.parquet", range(20))
    (tmp_path / "1.parquet").write_bytes(b"PAR1, and then nothing")
    texts = shared_world(3).run(fail_on_rank_0, tmp_path)
    assert texts[0].startswith("CorruptFileError")
    assert all(text.startswith("PeerError: rank 0 failed") and "1.parquet" in text for text in texts[1:]), texts


def cannot_open(rank, world_size, folder):
    from fsdata.decode.opened_source import OpenSource

    extend = OpenSource.extend

    def broken(self, names, digests):
        if rank == 1:
            raise PermissionError("no permission on this host")
        return extend(self, names, digests)

    OpenSource.extend = broken
    try:
        with loader_of(folder) as loader, pytest.raises((PermissionError, PeerError)) as caught:
            next(iter(loader))  # no rank gets a batch before all have the files
    finally:
        OpenSource.extend = extend
    return f"{type(caught.value).__name__}: {caught.value}"


def test_all_ranks_hear_that_one_cannot_open_a_file(tmp_path):
    write(tmp_path, "0.parquet", range(20))
    texts = shared_world(2).run(cannot_open, tmp_path)
    assert texts[1].startswith("PermissionError")
    assert texts[0].startswith("PeerError: rank 1 failed")
    assert "no permission on this host" in texts[0]


def test_ranks_need_a_group(tmp_path):
    write(tmp_path, "0.parquet", range(20))
    with pytest.raises(ValueError, match="a source that is followed makes the ranks talk"):
        loader_of(tmp_path, rank=0, world_size=2)


WITH_IDS = Schema(sequences=growing.SCHEMA.sequences, context=("row",), time="at", passthrough=("text", "number"))


def shifted(batch):
    number = pc.add(batch["number"], 10**12)
    return batch.set_column(batch.schema.get_field_index("number"), "number", number)


def source_of_ids(folder, **columns):
    given = {"text": pl.format("row {}", pl.col("row")), "number": "row", **columns}
    return ParquetSource(folder, follow=Follow(**FAST, at_most=1), columns=given, map=shifted)


def read_ids(rank, world_size, folder):
    options = {"batch_size": 3, "num_threads": 1, "timeout_s": PATIENCE_S, "shuffle": True, "balance": Balance()}
    found = []
    with FreeScaleDataLoader(source_of_ids(folder), WITH_IDS, **options) as loader:
        for batch in loader:
            rows = rows_of(batch)
            assert batch.passthrough["text"] == [f"row {row}" for row in rows]
            assert batch.passthrough["number"].tolist() == [10**12 + row for row in rows]
            found += rows
    return found


def test_ids_that_are_passed_through_and_mapped_stay_with_their_rows(tmp_path):
    for file in range(3):
        write(tmp_path, f"{file}.parquet", range(20 * file, 20 * file + 17))
    answers = shared_world(2).run(read_ids, tmp_path)
    wanted = [row for file in range(3) for row in range(20 * file, 20 * file + 17)]
    assert sorted(row for rows in answers for row in rows) == wanted
