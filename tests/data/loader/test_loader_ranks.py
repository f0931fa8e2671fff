"""The loader on several ranks: who shares it, and what they hear of each other."""

import logging

import polars as pl
import pytest
import torch
import torch.distributed as dist
from data_kit import rows_of
from patience import PATIENCE_S
from rank_loaders import COST, loader_on, threads_end
from worlds import shared_world

from fsdata import Balance, MismatchError, ParquetSource, PeerError, rebalance

KEPT = (pl.col("row") < 22) | (pl.col("row") % 5 == 0)  # what is left differs between ranks
SOME = [row for row in range(40) if row < 22 or row % 5 == 0]


def make_and_fail(rank, world_size, folder, mine, kinds):
    options = dict(mine[rank])
    if "path" in options:
        options["sources"] = ParquetSource(str(folder / options.pop("path")))
    with pytest.raises(kinds[rank]) as caught:
        loader_on(folder, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("one", "two", "item"),
    [
        ({"seed": 1, "shuffle": True}, {"seed": 2, "shuffle": True}, "seed=2"),
        ({"batch_size": 4}, {"batch_size": 5}, "batch_size"),
        ({"balance": Balance("vbs")}, {"balance": Balance()}, "vbs"),
        ({"balance": Balance()}, {}, "balance"),
        ({"path": "own/part-0.parquet"}, {"path": "own/part-1.parquet"}, "source 0"),
    ],
)
def test_ranks_with_other_arguments_or_files_are_named_before_the_first_batch(folder, one, two, item):
    texts = shared_world(2).run(make_and_fail, folder, [one, two], [MismatchError] * 2)
    assert all("rank 0" in text and "rank 1" in text and item in text for text in texts), texts


def test_a_rank_that_misses_a_file_does_not_make_the_others_wait(folder):
    kinds = [PeerError, FileNotFoundError]
    texts = shared_world(2).run(make_and_fail, folder, [{"path": "own"}, {"path": "nowhere"}], kinds)
    assert "rank 1" in texts[0]
    assert "nowhere" in texts[0]


def too_long(rank, world_size, folder):
    with pytest.raises(Exception) as caught, loader_on(folder, max_tokens=9) as loader:
        list(loader)
    return type(caught.value).__name__, str(caught.value)


def test_a_sample_above_max_tokens_is_an_error_on_all_ranks(folder):
    found = dict(shared_world(2).run(too_long, folder))
    assert found.keys() <= {"ValueError", "PeerError"}
    assert "max_tokens=9 is below the next sample of rank" in found["ValueError"]
    assert "Raise max_tokens, or truncate with Sequence(max_length=...)" in found["ValueError"]
    assert "max_tokens=9 is below" in found.get("PeerError", "max_tokens=9 is below")


def data_parallel(rank, world_size, folder):
    """Ranks 0 and 2 share the data; rank 1 has all of it."""
    groups = [dist.new_group(members) for members in ([0, 2], [1])]
    mine = groups[rank % 2]
    source = ParquetSource(str(folder / "own"), filter=KEPT)
    with loader_on(folder, sources=source, balance=Balance(cost=COST), process_group=mine) as loader:
        rows = rows_of(loader)
    shared = [{"x": torch.arange(4) + 10 * rank}] * 3
    with rebalance(shared, lengths=lambda batch: batch["x"] + 1, process_group=mine, timeout_s=PATIENCE_S) as balanced:
        moved = sorted(value for batch in balanced for value in batch["x"].tolist())
    assert (moved == sorted(torch.cat([batch["x"] for batch in shared]).tolist())) == (rank == 1)
    with pytest.raises(ValueError, match="give process_group="):
        loader_on(folder, sources=source, rank=rank // 2, world_size=2)
    dist.destroy_process_group(mine)
    return rows


def test_a_group_of_the_ranks_that_share_the_data(folder):
    by_rank = shared_world(3).run(data_parallel, folder)
    assert sorted(by_rank[0] + by_rank[2]) == by_rank[1] == SOME


def ends_early(rank, world_size, folder, uneven):
    """What is logged of an epoch that ends when one rank has no row left, and what the loader counts."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("fsdata").addHandler(handler)
    try:
        source = ParquetSource(str(folder / "own"), filter=pl.col("row") < 3)
        with loader_on(folder, sources=source, uneven=uneven) as loader:
            seen = sum(len(batch) for batch in loader)
            return seen, loader.dropped, said
    finally:
        logging.getLogger("fsdata").removeHandler(handler)


@pytest.mark.parametrize("uneven", ["drop", "empty"])
def test_an_epoch_that_leaves_rows_unread_says_so(folder, uneven):
    answers = shared_world(2).run(ends_early, folder, uneven)
    for rank, (_, dropped, said) in enumerate(answers):
        unread = [each for each in said if "rows left out" in each]
        assert bool(unread) == (dropped > 0)
        assert all(f"rank {rank}: epoch 0 ends with up to {dropped} of this rank's" in each for each in unread)
    assert any(dropped for _, dropped, _ in answers) == (uneven == "drop")
    assert (sum(seen for seen, *_ in answers) == 3) == (uneven == "empty")


def leave_alone(rank, world_size, folder):
    """Rank 1 leaves; `test_loader_balance.py` has ranks that leave together."""
    with loader_on(folder, balance=Balance(cost=COST), shuffle=True, prefetch=1) as loader:
        batches = iter(loader)
        next(batches)
        if rank == 0:
            with pytest.raises(PeerError, match="rank 1 left"):
                list(batches)
    threads_end()


def test_a_rank_that_leaves_the_loop_alone_is_named(folder):
    shared_world(2).run(leave_alone, folder)
