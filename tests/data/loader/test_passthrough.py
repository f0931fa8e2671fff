"""Ids that are passed through: texts stay on the host. `test_together.py` and `test_loader_programs.py` have them in
loaders of all kinds, `test_decode.py` of all types."""

from dataclasses import replace

import pytest
import torch
from data_kit import load, same
from rank_loaders import loader_on
from sets import SCHEMA

from fscomm.loop.kjt_paths import walk
from fsdata import ParquetSource, Schema, SchemaError
from fsdata.batch.prefetch import pinned

PASSED = replace(SCHEMA, passthrough=("request_id", "number", "other"))


def test_a_batch_moves_and_texts_stay(id_folder):
    with loader_on(id_folder, schema=PASSED) as loader:
        batch = next(iter(loader))
        assert {str(path) for path, _ in walk(batch)} == {"batch.features"}
    assert same(batch.to("cpu"), batch)
    assert batch.passthrough["number"].dtype == torch.int64
    moved = batch.to("meta")
    assert moved.passthrough["number"].device.type == "meta"
    assert moved.passthrough["request_id"] == batch.passthrough["request_id"]
    assert pinned({"ids": batch.passthrough["other"]}) == {"ids": batch.passthrough["other"]}


def test_sources_of_text_and_of_integers(id_folder):
    schema = Schema(context=("row",), passthrough=("id",))
    sources = [ParquetSource(str(id_folder / "own"), columns={"id": name}) for name in ("number", "other")]
    mixed = r"'id' is text in source 1 .* and an integer or null in all files in source 0"
    with pytest.raises(SchemaError, match=mixed):
        load(sources, schema)
