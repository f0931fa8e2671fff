"""Ids that are passed through and functions of the user's own in sources that grow."""

import growing
import polars as pl
import pyarrow.compute as pc
import pytest
from patience import PATIENCE_S
from worlds import shared_world

from fsdata import Balance, Follow, FreeScaleDataLoader, ParquetSource, Schema, SchemaError

SCHEMA = Schema(sequences=growing.SCHEMA.sequences, context=("row",), time="at", passthrough=("text", "number"))


def shifted(batch):
    number = pc.add(batch["number"], 10**12)
    return batch.set_column(batch.schema.get_field_index("number"), "number", number)


def source(folder, **columns):
    given = {"text": pl.format("row {}", pl.col("row")), "number": "row", **columns}
    return ParquetSource(folder, follow=Follow(**growing.FAST, at_most=1), columns=given, map=shifted)


def read(rank, world_size, folder):
    balance = Balance(timeout_s=PATIENCE_S)
    options = {"batch_size": 3, "num_threads": 1, "timeout_s": PATIENCE_S, "shuffle": True, "balance": balance}
    found = []
    with FreeScaleDataLoader(source(folder), SCHEMA, **options) as loader:
        for batch in loader:
            rows = growing.rows_of(batch)
            assert batch.passthrough["text"] == [f"row {row}" for row in rows]
            assert batch.passthrough["number"].tolist() == [10**12 + row for row in rows]
            found += rows
    return found


@pytest.mark.parametrize("world_size", [1, 2])
def test_ids_stay_with_their_rows(tmp_path, world_size):
    for file in range(3):
        growing.write(tmp_path, f"{file}.parquet", range(20 * file, 20 * file + 17))
    answers = shared_world(world_size).run(read, tmp_path)
    wanted = [row for file in range(3) for row in range(20 * file, 20 * file + 17)]
    assert sorted(row for rows in answers for row in rows) == wanted


def test_later_files_of_another_kind(tmp_path):
    growing.write(tmp_path, "0.parquet", range(5))
    growing.write(tmp_path, "1.parquet", range(5, 10))
    frame = pl.read_parquet(tmp_path / "1.parquet").with_columns(pl.col("row").cast(pl.String).alias("keep"))
    frame.write_parquet(tmp_path / "1.parquet")
    pl.read_parquet(tmp_path / "0.parquet").with_columns(keep=pl.col("row")).write_parquet(tmp_path / "0.parquet")
    options = {"batch_size": 3, "num_threads": 1, "timeout_s": PATIENCE_S}
    with (
        FreeScaleDataLoader(source(tmp_path, text="keep"), SCHEMA, **options) as loader,
        pytest.raises(SchemaError, match="text: is large_string in some files and int64 in the first: one of both"),
    ):
        list(loader)
