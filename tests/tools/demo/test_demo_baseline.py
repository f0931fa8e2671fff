"""The plain loader reads what is in the files."""

import numpy as np
import polars as pl
import pytest

from freescale_tools.demo.data import synthetic
from freescale_tools.demo.training.plain_loader import PlainLoader
from freescale_tools.write.synth import presets as synth


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return synth.demo_set(tmp_path_factory.mktemp("demo"), rows=300, row_group_rows=32, seed=5)


def rows_by_time(files):
    """Every sample of both sources under common names, in order of their time."""
    site = pl.read_parquet(files.site)
    partner = pl.read_parquet(files.partner).select(
        user_id=pl.col("uid").cast(pl.Int64),
        item_ids=pl.col("items").cast(pl.List(pl.Int64)),
        actions=pl.col("events").cast(pl.List(pl.Int64)),
        timestamps="times",
        country=pl.lit(0, pl.Int64),
        age_days=pl.col("age").cast(pl.Float32),
        hour=pl.lit(12.0, pl.Float32),
        request_ts="when",
    )
    both = pl.concat([site, partner]).sort("request_ts", maintain_order=True)
    return both.join(pl.read_parquet(files.users), on="user_id", how="left", maintain_order="left")


def test_batches_are_the_rows_of_both_sources_in_time_order(files):
    data = synthetic(files, batch_size=25, max_length=100)
    batches = list(PlainLoader(data, rank=0, world_size=1, workers=0))
    assert len(batches) == 12
    wanted = rows_by_time(files)
    for name in data.fields:
        lists = [row for batch in batches for row in batch.features[name].to_dense()]
        assert [row.tolist() for row in lists] == [row[-100:] for row in wanted[name].to_list()]
    for name in ("user_id", "country", "segment"):
        assert [v for batch in batches for v in batch.features[name].values().tolist()] == wanted[name].to_list()
    dense = np.concatenate([batch.dense.numpy() for batch in batches])
    np.testing.assert_array_equal(dense, wanted.select(data.dense).to_numpy().astype(np.float32))


def test_ranks_take_every_row_once(files):
    data = synthetic(files, batch_size=10)
    users = []
    for rank in range(3):
        for batch in PlainLoader(data, rank=rank, world_size=3, workers=0):
            users += batch.features["user_id"].values().tolist()
    assert sorted(users) == sorted(rows_by_time(files)["user_id"].to_list())
