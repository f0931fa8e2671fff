"""The balanced loader on several ranks: who shares it, and what they hear of each other."""

import polars as pl
import pytest
import torch
import torch.distributed as dist
from data_kit import rows_of
from global_batches import COST
from patience import PATIENCE_S
from rank_loaders import loader_on, threads_end
from test_loader_ranks import make_and_fail
from worlds import shared_world

from fsdata import Balance, MismatchError, ParquetSource, PeerError, rebalance

KEPT = (pl.col("row") < 22) | (pl.col("row") % 5 == 0)  # what is left differs between ranks

SOME = [row for row in range(40) if row < 22 or row % 5 == 0]


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


@pytest.mark.parametrize(
    ("one", "two", "item"),
    [
        ({"balance": Balance("vbs")}, {"balance": Balance()}, "vbs"),
        ({"balance": Balance()}, {}, "balance"),
    ],
)
def test_ranks_that_balance_otherwise_are_named_before_the_first_batch(folder, one, two, item):
    texts = shared_world(2).run(make_and_fail, folder, [one, two], [MismatchError] * 2)
    assert all("rank 0" in text and "rank 1" in text and item in text for text in texts), texts
