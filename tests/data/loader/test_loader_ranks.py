"""Which ranks share a loader, and what they hear when one of them was given other things or fails to read."""

from pathlib import Path

import polars as pl
import pytest
import torch.distributed as dist
from patience import PATIENCE_S
from rank_loaders import ALL, COST, loader_on, rows_of
from sets import SCHEMA, write
from worlds import shared_world

from fsdata import Balance, CorruptFileError, FreeScaleDataLoader, MismatchError, ParquetSource, PeerError
from fsranks.rank_context import resolve


def make_and_fail(rank, world_size, folder, mine, kind):
    with pytest.raises(kind) as caught:
        loader_on(folder, **mine[rank]).close()
    return str(caught.value)


@pytest.mark.parametrize(
    ("one", "two", "item"),
    [
        ({"seed": 1, "shuffle": True}, {"seed": 2, "shuffle": True}, "seed=2"),
        ({"batch_size": 4}, {"batch_size": 5}, "batch_size"),
        ({"balance": Balance()}, {}, "balance"),
        ({"balance": Balance("vbs")}, {"balance": Balance()}, "vbs"),
        ({"mix": "time"}, {"mix": "weighted"}, "mix"),
    ],
)
def test_ranks_with_other_arguments_are_named_before_the_first_batch(folder, one, two, item):
    texts = shared_world(2).run(make_and_fail, folder, [one, two], MismatchError)
    assert all("rank 0" in text and "rank 1" in text and item in text for text in texts), texts


def test_ranks_with_other_files_are_named(folder, tmp_path):
    write(tmp_path / "a", 20)
    write(tmp_path / "b", 20, group=5)
    mine = [{"sources": ParquetSource(str(tmp_path / name))} for name in "ab"]
    texts = shared_world(2).run(make_and_fail, folder, mine, MismatchError)
    assert all("source 0" in text for text in texts), texts


def fail_on_one(rank, world_size, folder):
    path = folder / ("own" if rank == 0 else "nowhere")
    kind = PeerError if rank == 0 else FileNotFoundError
    with pytest.raises(kind) as caught:
        loader_on(folder, sources=ParquetSource(str(path)))
    return str(caught.value)


def test_a_rank_that_misses_a_file_does_not_make_the_others_wait(folder):
    texts = shared_world(2).run(fail_on_one, folder)
    assert "rank 1" in texts[0]
    assert "nowhere" in texts[0]


def corrupt_on_one(rank, world_size, path):
    source = ParquetSource(str(path))
    loader = FreeScaleDataLoader(source, SCHEMA, batch_size=4, balance=Balance(cost=COST, timeout_s=PATIENCE_S))
    seen = []
    with loader, pytest.raises((PeerError, CorruptFileError), match="row group") as caught:
        seen.extend(batch.stats.global_samples for batch in loader)
    return type(caught.value).__name__, str(caught.value), sum(seen)


def test_an_error_in_reading_reaches_all_ranks(tmp_path):
    import pyarrow.parquet as pq

    write(tmp_path / "set", 40, group=10)
    path = Path(tmp_path / "set" / "part-0.parquet")
    context = pq.read_metadata(path).row_group(3).column(0)
    with path.open("r+b") as file:
        file.seek(context.dictionary_page_offset or context.data_page_offset)
        file.write(b"\xff" * 30)
    (kind_0, text_0, seen_0), (kind_1, text_1, seen_1) = shared_world(2).run(corrupt_on_one, path)
    assert (kind_0, kind_1) == ("PeerError", "CorruptFileError")
    assert "rank 1" in text_0
    assert "part-0.parquet" in text_0
    assert "part-0.parquet" in text_1
    assert seen_0 == seen_1 > 0


def data_parallel(rank, world_size, folder):
    """Ranks 0 and 2 share the data; rank 1 has all of it."""
    groups = [dist.new_group(members) for members in ([0, 2], [1])]
    mine = groups[rank % 2]
    source = ParquetSource(str(folder / "own"), filter=(pl.col("row") < 22) | (pl.col("row") % 5 == 0))
    read = []
    for options in ({"process_group": mine}, {"balance": Balance(cost=COST), "process_group": mine}):
        with loader_on(folder, sources=source, **options) as loader:
            read.append([rows_of(batch) for batch in loader])
    with pytest.raises(ValueError, match="give process_group="):
        loader_on(folder, sources=source, rank=rank // 2, world_size=2)
    with pytest.raises(ValueError, match="are two groups"):
        loader_on(folder, process_group=mine, balance=Balance(process_group=dist.group.WORLD))
    dist.destroy_process_group(mine)
    return read


def test_a_group_of_the_ranks_that_share_the_data(folder):
    by_rank = shared_world(3).run(data_parallel, folder)
    want = [row for row in range(40) if row < 22 or row % 5 == 0]
    balanced = [row for rank in (0, 2) for batch in by_rank[rank][1] for row in batch]
    dropped = [row for rank in (0, 2) for batch in by_rank[rank][0] for row in batch]
    assert sorted(balanced) == want
    assert [[row for batch in read for row in batch] for read in by_rank[1]] == [want, want]
    assert set(dropped) <= set(want)
    assert len(dropped) == len(set(dropped)) > 0


def explicit_ranks(rank, world_size, folder):
    with loader_on(folder, rank=rank, world_size=world_size) as loader:
        rows = [row for batch in loader for row in rows_of(batch)]
    return rows, resolve().rank


def test_explicit_ranks_that_are_those_of_the_group(folder):
    (one, rank_0), (two, rank_1) = shared_world(2).run(explicit_ranks, folder)
    assert sorted(one + two) == ALL
    assert (rank_0, rank_1) == (0, 1)
