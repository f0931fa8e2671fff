"""The loader on several ranks: rows that drop out, loops that are left early, and ranks that leave alone."""

import polars as pl
import pytest
import torch
from patience import PATIENCE_S
from rank_loaders import ALL, COST, loader_on, rows_of, threads_left
from worlds import shared_world

from fsdata import Balance, ParquetSource, PeerError, rebalance


def read_uneven(rank, world_size, folder, options):
    # All rows of the second half drop out: the ranks' units differ, so does what is left of them.
    source = ParquetSource(str(folder / "own"), filter=(pl.col("row") < 22) | (pl.col("row") % 5 == 0))
    with loader_on(folder, sources=source, **options) as loader:
        sizes, rows = [], []
        for batch in loader:
            rows += rows_of(batch)
            sizes.append(batch.stats.samples)
            assert batch.stats.global_samples >= batch.stats.samples
        return sizes, rows, loader.dropped


@pytest.mark.parametrize("world_size", [2, 3])
def test_rows_that_drop_out(folder, world_size):
    world = shared_world(world_size)
    want = [row for row in range(40) if row < 22 or row % 5 == 0]

    drained = world.run(read_uneven, folder, {"balance": Balance(cost=COST)})
    assert sorted(row for _, rows, _ in drained for row in rows) == want
    assert all(dropped == 0 for _, _, dropped in drained)
    assert len({len(sizes) for sizes, _, _ in drained}) == 1

    empty = world.run(read_uneven, folder, {"uneven": "empty"})
    assert sorted(row for _, rows, _ in empty for row in rows) == want
    assert len({len(sizes) for sizes, _, _ in empty}) == 1
    assert any(0 in sizes for sizes, _, _ in empty)

    dropped = world.run(read_uneven, folder, {"uneven": "drop"})
    seen = [row for _, rows, _ in dropped for row in rows]
    assert len({len(sizes) for sizes, _, _ in dropped}) == 1
    assert len(set(seen)) == len(seen) < len(want)
    lost = sum(count for _, _, count in dropped)
    assert len(want) - len(seen) <= lost <= 40 - len(seen)
    assert all(size for sizes, _, _ in dropped for size in sizes)


def leave_early(rank, world_size, folder):
    with loader_on(folder, balance=Balance(cost=COST), shuffle=True) as loader:
        orders = []
        for steps in (2, 3, 100):
            seen = []
            for batch in loader:
                seen.append(rows_of(batch))
                if len(seen) == steps:
                    break
            orders.append(seen)
            loader.set_epoch(0)
    assert threads_left() == []
    return orders


def test_leaving_the_loop_early_and_starting_again(folder):
    for orders in shared_world(2).run(leave_early, folder):
        assert orders[0] == orders[2][:2]
        assert orders[1] == orders[2][:3]
        assert len(orders[2]) == 8


def two_iterators(rank, world_size, folder):
    with loader_on(folder, balance=Balance(cost=COST)) as loader:
        first, second = iter(loader), iter(loader)
        seen = [rows_of(next(second))]
        with pytest.raises(RuntimeError, match="another iter"):
            next(first)
        seen += [rows_of(batch) for batch in second]
    assert threads_left() == []
    batches = [{"n": torch.full((4,), rank)}] * 3
    with rebalance(batches, lengths=lambda batch: batch["n"], timeout_s=PATIENCE_S) as balanced:
        first = iter(balanced)
        next(first)
        second = iter(balanced)
        next(second)
        with pytest.raises(RuntimeError, match="another iter"):
            next(first)
        assert len(list(second)) == 2
    assert threads_left() == []
    return seen


def test_a_second_iterator_ends_the_first_on_all_ranks(folder):
    by_rank = shared_world(2).run(two_iterators, folder)
    assert sorted(row for rank in by_rank for step in rank for row in step) == ALL


def one_leaves(rank, world_size, folder):
    loader = loader_on(folder, balance=Balance(cost=COST, timeout_s=PATIENCE_S), prefetch=1)
    with loader:
        iterator = iter(loader)
        next(iterator)
        if rank == 1:
            loader.close()
            return "left"
        with pytest.raises(PeerError, match="rank 1") as caught:
            list(iterator)
    assert threads_left() == []
    return str(caught.value)


def test_a_rank_that_leaves_alone_is_named(folder):
    texts = shared_world(2).run(one_leaves, folder)
    assert texts[1] == "left"
    assert "left" in texts[0]
