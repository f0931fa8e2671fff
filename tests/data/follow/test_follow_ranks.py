"""Folders that grow, followed by several ranks: files appear, jobs end and go on with other numbers of ranks.

`FREESCALE_RUNS` says how many random jobs there are.
"""

import os
from unittest import mock

import numpy as np
import polars as pl
import pytest
from growing import ENDLESS, FAST, add, loader_of, stage, take, write
from worlds import shared_world

from fsdata import Balance, Follow, PeerError
from fsdata.growing.growing_files import GrowingFiles

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
    add(tmp_path, *range(6))
    found = shared_world(2).run(sizes, tmp_path, balance)
    assert [of[:4] for of in found] == [[4] * 4, [4] * 4]
    assert sum(map(sum, found)) == 40 or balance is None


def grow(rank, world_size, folder):
    """Rank 0 writes while all read, until rank 1 leaves."""
    with loader_of(folder, Follow(**ENDLESS, at_most=2)) as loader:
        batches, rows = iter(loader), []
        for number in range(2, 9):
            if rank == 0:
                add(folder, number)
            rows += take(batches, 1)
        if rank == 0:
            with pytest.raises(PeerError, match="rank 1"):
                list(batches)
    return rows


def test_files_that_come_while_all_ranks_read(tmp_path):
    add(tmp_path, 0, 1)
    rows = [row for of_rank in shared_world(2).run(grow, tmp_path) for row in of_rank]
    assert len(rows) == len(set(rows)) == 2 * 7 * 4
    assert set(rows) <= set(range(90))


def raised(rank, world_size, folder):
    """The error of a loop, and how many batches came before it."""
    batches = []
    with loader_of(folder) as loader, pytest.raises((OSError, PeerError)) as caught:
        batches.extend(loader)
    return f"{type(caught.value).__name__}: {caught.value}", len(batches)


def test_all_ranks_hear_what_rank_0_found(tmp_path):
    write(tmp_path, "0.parquet", range(20))
    (tmp_path / "1.parquet").write_bytes(b"PAR1, and then nothing")
    texts = [text for text, _ in shared_world(3).run(raised, tmp_path)]
    assert texts[0].startswith("CorruptFileError")
    assert all(text.startswith("PeerError: rank 0 failed") and "1.parquet" in text for text in texts[1:]), texts


def cannot_open(rank, world_size, folder):
    extend = GrowingFiles.extend

    def broken(self, names, digests):
        if rank == 1:
            raise PermissionError("no permission on this host")
        return extend(self, names, digests)

    with mock.patch.object(GrowingFiles, "extend", broken):
        return raised(rank, world_size, folder)


def test_all_ranks_hear_that_one_cannot_open_a_file(tmp_path):
    write(tmp_path, "0.parquet", range(20))
    (heard, *seen), (own, *also_seen) = shared_world(2).run(cannot_open, tmp_path)
    assert own.startswith("PermissionError")
    assert heard.startswith("PeerError: rank 1 failed")
    assert "no permission on this host" in heard
    assert seen == also_seen == [0], "no rank gets a batch before all have the files"
