"""`skip` with balancing: from the sizes in the footers, or by reading (rows carried over, rows that drop out)."""

from dataclasses import replace

import polars as pl
import pytest
from rank_loaders import loader_on, skips_as_islice, sources_of
from worlds import shared_world

from fsdata import Balance


def on_ranks(rank, world_size, folder, balance, drop):
    sources = sources_of(folder)
    if drop:
        sources = [replace(source, filter=pl.col("row") % 3 > 0) for source in sources]
    skips_as_islice(lambda: loader_on(folder, sources, shuffle=True, balance=balance), 1, 2)
    with loader_on(folder, sources, balance=balance) as loader:
        return loader.skip(100)


@pytest.mark.parametrize("balance", [Balance(), Balance(max_tokens=60)], ids=["balance", "max_tokens"])
@pytest.mark.parametrize("drop", [False, True], ids=["whole", "filtered"])
def test_ranks_skip_the_same_balanced_steps(folder, balance, drop):
    found = shared_world(2).run(on_ranks, folder, balance, drop)
    assert found[0] == found[1] > 4


def test_one_rank_with_max_tokens_reads_what_it_skips(folder):
    for before, steps in ((1, 4), (0, 100)):
        skips_as_islice(lambda: loader_on(folder, balance=Balance(max_tokens=40)), before, steps)
