"""A schema and its source, as a user writes them in a file."""

from pathlib import Path

import polars as pl

from fsdata import ParquetSource, Schema, Sequence

CODE = pl.col("country_code")
JOB = (
    Schema(
        sequences=(Sequence("uih", ("item",), max_length=5, keep="first"),),
        context=("row", "user_id", "country"),
        dense=("age",),
        labels=("bought",),
    ),
    ParquetSource(
        Path(__file__).parent / "own" / "*.parquet",
        columns={"country": pl.when(CODE > 20).then(CODE % 20).otherwise(CODE * 3)},
        defaults={"age": -1},
        nulls={"bought": "drop"},
        filter=(pl.col("row") % 5 != 2) & pl.col("user_id").is_in([0, 1, 2, 4, 5, 7]),
    ),
)
