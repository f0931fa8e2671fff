"""Batches of the user's own on ranks that balance."""

import polars as pl
import pytest
from global_batches import COST
from patience import PATIENCE_S
from rank_loaders import ALL, loader_on
from test_adapt import own
from worlds import shared_world

from fsdata import Balance, ParquetSource, PeerError, rebalance


def fails_on_rank_1(rank, world_size, folder, step, dropping):
    """Kind of error, its text, how many notes it has, steps seen; of a loader whose `adapt` fails on rank 1."""

    def adapt(batch):
        if rank == 1 and batch.stats.step == step:
            raise ValueError("this cannot be adapted")
        return own(batch)

    options = {"adapt": adapt, "batch_size": 8}
    if dropping:
        options["sources"] = ParquetSource(str(folder / "own"), filter=pl.col("row") % 7 != 3)
    else:
        options["balance"] = Balance(cost=COST)
    seen = []
    with loader_on(folder, **options) as loader:
        try:
            for batch in loader:
                seen.append(batch.stats.step)
        except (ValueError, PeerError) as error:
            return type(error).__name__, str(error), len(getattr(error, "__notes__", ())), seen
    return "", "", 0, seen


@pytest.mark.parametrize(("dropping", "last"), [(False, 3), (True, 2)])
def test_other_ranks_hear_of_an_error(folder, dropping, last):
    """But for one in the last step: telling it would wait for ranks that never come, and add a note that says so."""
    world = shared_world(2)
    of_rank_0, of_rank_1 = world.run(fails_on_rank_1, folder, 1, dropping)
    told = "rank 1 failed at step 2 of epoch 0: ValueError: this cannot be adapted "
    told += "(adapt=... failed with the batch of step 1 of epoch 0 on rank 1)"
    assert of_rank_0 == ("PeerError", told, 0, [0, 1])
    assert of_rank_1 == ("ValueError", "this cannot be adapted", 1, [0])
    of_rank_0, of_rank_1 = world.run(fails_on_rank_1, folder, last, dropping)
    assert of_rank_0 == ("", "", 0, [*range(last + 1)])
    assert of_rank_1 == ("ValueError", "this cannot be adapted", 1, [*range(last)])


def around(rank, world_size, folder):
    """Rows of every step of `rebalance` around a loader with `adapt`."""

    def parts(batch):
        return {"row": batch.features["row"].values(), "history": batch.features["item"].lengths()}

    with (
        loader_on(folder, rank=rank, world_size=world_size, adapt=parts) as inner,
        rebalance(inner, lengths=lambda batch: batch["history"], timeout_s=PATIENCE_S) as loader,
    ):
        return [row for batch in loader for row in batch["row"].tolist()]


def test_rebalance_goes_behind_adapt(folder):
    assert sorted(row for rows in shared_world(2).run(around, folder) for row in rows) == ALL
