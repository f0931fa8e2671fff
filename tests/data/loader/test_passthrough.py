"""Ids that are passed through stay with their rows: exploded, shared, in a part of the rows; and weigh nothing.

`test_loader_programs.py` has them in loaders of all other kinds.
"""

from dataclasses import replace

import as_of_data
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from patience import PATIENCE_S
from rank_loaders import COST, MARK, check_ids, loader_on, request_id
from sets import SCHEMA, same
from worlds import shared_world

from fscomm.loop.kjt_paths import walk
from fsdata import (
    Balance,
    DataError,
    FreeScaleDataLoader,
    ParquetSource,
    Schema,
    SchemaError,
    Sequence,
)
from fsdata.batch.prefetch import pinned

PASSED = replace(SCHEMA, passthrough=("request_id", "number", "other"))
EXPLODED = Schema(
    sequences=(Sequence("uih", ("item",), share="row"),),
    candidates=SCHEMA.candidates,
    context=("row",),
    passthrough=PASSED.passthrough,
    explode="candidates",
)


def read_exploded(rank, world_size, folder, balance):
    source = ParquetSource(folder / "own")
    with loader_on(folder, source, EXPLODED, balance=balance, uneven="empty") as loader:
        return [row for batch in loader for row in check_ids(batch)]


@pytest.mark.parametrize("balance", [None, Balance(cost=COST, max_tokens=90)])
def test_candidates_have_the_ids_of_their_request(id_folder, balance):
    answers = shared_world(2).run(read_exploded, id_folder, balance)
    wanted = []
    for path in sorted((id_folder / "own").glob("*.parquet")):
        for row in pq.read_table(path, columns=["row", "candidate"]).to_pylist():
            wanted += [row["row"]] * len(row["candidate"])
    assert sorted(row for rows in answers for row in rows) == wanted


def read_histories(rank, world_size, folder, share):
    uih = Sequence("uih", ("item",), floats=("price",), share="user" if share else None)
    pool = Sequence("pool", ("bought",), labels=("stars",), id_labels=("next",))
    schema = Schema(sequences=(uih, pool), context=("row", "user"), passthrough=("text", "at"))
    source = as_of_data.source(folder, columns={"text": pl.format("row {}", pl.col("row"))})
    found = {}
    with FreeScaleDataLoader(source, schema, batch_size=7, balance=Balance(), timeout_s=PATIENCE_S) as loader:
        for batch in loader:
            rows = batch.features["row"].values().tolist()
            assert batch.passthrough["text"] == [f"row {row}" for row in rows]
            found |= dict(zip(rows, batch.passthrough["at"].tolist(), strict=True))
    return found


@pytest.mark.parametrize("share", [False, True])
def test_beside_histories_stored_once(tmp_path, share):
    data = as_of_data.Data.drawn(5, requests=60)
    data.write(tmp_path)
    answers = shared_world(2).run(read_histories, tmp_path, share)
    assert {row: at for found in answers for row, at in found.items()} == {row: at for row, _, at in data.requests}


def test_ids_weigh_nothing(id_folder):
    options = {"balance": Balance("vbs", cost=COST, max_tokens=19), "shuffle": True}
    with loader_on(id_folder, schema=PASSED, **options) as one, loader_on(id_folder, **options) as other:
        for batch, plain in zip(one, other, strict=True):
            assert batch.stats == plain.stats
            assert torch.equal(batch.features.values(), plain.features.values())


def test_a_part_of_the_rows(id_folder):
    source = ParquetSource(str(id_folder / "own"), skip=9, limit=20)
    with FreeScaleDataLoader(source, PASSED, batch_size=7, shuffle=True) as loader:
        assert sorted(row for batch in loader for row in check_ids(batch)) == list(range(9, 29))


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
    with FreeScaleDataLoader(source, PASSED, batch_size=2, uneven="empty", timeout_s=PATIENCE_S) as loader:
        (batch,) = loader
        return batch.passthrough["request_id"], batch.passthrough["number"].tolist()


def test_sources_of_text_and_of_integers(id_folder):
    schema = Schema(context=("row",), passthrough=("id",))
    sources = [ParquetSource(str(id_folder / "own"), columns={"id": name}) for name in ("number", "other")]
    with pytest.raises(
        SchemaError, match=r"'id' is text in source 1 .* and an integer or null in all files in source 0"
    ):
        FreeScaleDataLoader(sources, schema, batch_size=4)


def test_a_null_names_its_file_and_row(tmp_path):
    pq.write_table(pa.table({"row": [1, 2], "id": ["a", None]}), tmp_path / "a.parquet")
    schema = Schema(context=("row",), passthrough=("id",))
    with (
        FreeScaleDataLoader(ParquetSource(tmp_path), schema, batch_size=4) as loader,
        pytest.raises(DataError, match=r"a.parquet, row group 0, row 1: id is null"),
    ):
        list(loader)
