"""Ids that are passed through stay with their rows, and weigh nothing.

`test_together.py` and `test_loader_programs.py` have them in loaders of all kinds.
"""

from dataclasses import replace

import polars as pl
import pytest
import torch
from data_kit import load, same, write
from rank_loaders import COST, MARK, check_ids, loader_on, request_id
from sets import SCHEMA
from worlds import shared_world

from fscomm.loop.kjt_paths import walk
from fsdata import Balance, DataError, ParquetSource, Schema, SchemaError
from fsdata.batch.prefetch import pinned

PASSED = replace(SCHEMA, passthrough=("request_id", "number", "other"))


def test_ids_weigh_nothing(id_folder):
    options = {"balance": Balance("vbs", cost=COST, max_tokens=19), "shuffle": True}
    with loader_on(id_folder, schema=PASSED, **options) as one, loader_on(id_folder, **options) as other:
        for batch, plain in zip(one, other, strict=True):
            assert batch.stats == plain.stats
            assert torch.equal(batch.features.values(), plain.features.values())


def test_a_part_of_the_rows(id_folder):
    source = ParquetSource(str(id_folder / "own"), skip=9, limit=20)
    batches, _ = load(source, PASSED, batch_size=7, shuffle=True)
    assert sorted(row for batch in batches for row in check_ids(batch)) == list(range(9, 29))


def test_a_batch_moves_and_texts_stay(id_folder):
    with loader_on(id_folder, schema=PASSED) as loader:
        batch = next(iter(loader))
        assert {str(path) for path, _ in walk(batch)} == {"batch.features"}
    assert same(batch.to("cpu"), batch)
    moved = batch.to("meta")
    assert moved.passthrough["number"].device.type == "meta"
    assert moved.passthrough["request_id"] == batch.passthrough["request_id"]
    assert pinned({"ids": batch.passthrough["other"]}) == {"ids": batch.passthrough["other"]}


def test_a_batch_without_samples(id_folder):
    source = ParquetSource(str(id_folder / "own"), filter=pl.col("row") == 3)
    answers = shared_world(2).run(read_one, source)
    assert sorted(answers) == [([], []), ([request_id(3)], [MARK + 3])]


def read_one(rank, world_size, source):
    (batch,), _ = load(source, PASSED, uneven="empty")
    return batch.passthrough["request_id"], batch.passthrough["number"].tolist()


def test_sources_of_text_and_of_integers(id_folder):
    schema = Schema(context=("row",), passthrough=("id",))
    sources = [ParquetSource(str(id_folder / "own"), columns={"id": name}) for name in ("number", "other")]
    mixed = r"'id' is text in source 1 .* and an integer or null in all files in source 0"
    with pytest.raises(SchemaError, match=mixed):
        load(sources, schema)


def test_a_null_names_its_file_and_row(tmp_path):
    path = write(tmp_path / "a.parquet", {"row": [1, 2], "id": ["a", None]})
    with pytest.raises(DataError, match=r"a.parquet, row group 0, row 1: id is null"):
        load(path, Schema(context=("row",), passthrough=("id",)))
