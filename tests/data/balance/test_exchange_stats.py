"""What a loader says of its exchanges."""

import polars as pl
import pytest
from data_kit import load
from test_loader_stats import SCHEMA
from worlds import shared_world

from fsdata import Balance


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stats")
    pl.DataFrame({"row": range(60)}).write_parquet(folder / "a.parquet", row_group_size=10)
    return folder


def balanced(rank, size, folder):
    batches, loader = load(folder, SCHEMA, batch_size=5, balance=Balance())
    return len(batches), loader.stats()


def test_exchanges_are_counted(folder):
    for batches, found in shared_world(2).run(balanced, folder):
        assert found["batches"] == batches == 6
        assert found["seconds"]["exchange"] > 0
