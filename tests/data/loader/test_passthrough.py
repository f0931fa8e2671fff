"""Ids that are passed through stay with their rows: shuffled, balanced, carried, exploded, shared and resumed."""

import itertools
import json
from functools import partial

import as_of_data
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from patience import PATIENCE_S
from sets import SCHEMA, same, two_sources
from worlds import shared_world

from fscomm.loop.kjt_paths import walk
from fsdata import (
    Balance,
    DataError,
    FreeScaleDataLoader,
    ParquetSource,
    Polynomial,
    Schema,
    SchemaError,
    Sequence,
    StateError,
)
from fsdata.batch.prefetch import pinned

COST = Polynomial(linear=1, quadratic=1, candidate=1)
ALL = [*range(40), *range(100, 123)]
PASSED = Schema(
    sequences=SCHEMA.sequences,
    candidates=SCHEMA.candidates,
    context=SCHEMA.context,
    dense=SCHEMA.dense,
    labels=SCHEMA.labels,
    time=SCHEMA.time,
    passthrough=("request_id", "number", "other"),
)
EXPLODED = Schema(
    sequences=(Sequence("uih", ("item",), share="row"),),
    candidates=SCHEMA.candidates,
    context=("row",),
    passthrough=PASSED.passthrough,
    explode="candidates",
)
TEXT = "row é{} " + "x" * 40
MARK = 10**15


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of `sets`, in which the ids of every row follow from its number."""
    folder = tmp_path_factory.mktemp("sets")
    two_sources(folder)
    for path in sorted(folder.glob("*/*.parquet")):
        table, group = pq.read_table(path), pq.ParquetFile(path).metadata.row_group(0).num_rows
        rows = table["row"].to_pylist()
        table = table.append_column("request_id", pa.array(map(request_id, rows)).dictionary_encode())
        table = table.append_column("number", pa.array([MARK + row for row in rows]))
        table = table.append_column("other", pa.array([str(row) for row in rows], pa.large_string()))
        pq.write_table(table, path, row_group_size=group)
    return folder


def request_id(row):
    """Texts of many lengths; every fourth is empty."""
    return TEXT.format(row)[: (row % 4) * (row % 11) * 7]


def check(batch):
    """Whether every id stands beside its row; the rows."""
    rows = batch.features["row"].values()
    passed = batch.passthrough
    assert list(passed) == ["number", "request_id", "other"]
    assert passed["request_id"] == [request_id(row) for row in rows.tolist()]
    assert passed["other"] == [str(row) for row in rows.tolist()]
    assert passed["number"].dtype == torch.int64
    assert torch.equal(passed["number"], MARK + rows)
    assert len(batch) == len(rows)
    return rows.tolist()


def loader_on(folder, schema=PASSED, *, some=False, **options):
    condition = (pl.col("row") < 22) | (pl.col("row") % 5 == 0) if some else None
    sources = [
        ParquetSource(str(folder / "own"), filter=condition),
        ParquetSource(str(folder / "partner"), columns={"item": "items"}, defaults={"country": 77}),
    ]
    if schema is EXPLODED:
        sources = sources[:1]
    return FreeScaleDataLoader(sources, schema, **{"batch_size": 4, "timeout_s": PATIENCE_S, **options})


WAYS = {
    "plain": {},
    "shuffled": {"shuffle": True, "shuffle_window": 2, "seed": 3},
    "weighted": {"mix": "weighted", "shuffle": True},
    "time": {"mix": "time", "prefetch": 0},
    "rows drop out": {"some": True, "uneven": "empty"},
    "balanced": {"balance": Balance(cost=COST), "shuffle": True},
    "vbs": {"balance": Balance("vbs", cost=COST), "mix": "time"},
    "carried": {"balance": Balance("fbs+swap", cost=COST, max_tokens=19), "shuffle": True},
    "carried, rows drop out": {"balance": Balance("vbs", cost=COST, max_tokens=19), "some": True},
}


def read(rank, world_size, folder, options):
    """The rows of every batch, and the states before the first and after each; all of them go on bit for bit."""
    batches, rows = [], []
    with loader_on(folder, **options) as loader:
        states = [loader.state_dict()]
        for batch in loader:
            rows.append(check(batch))
            batches.append(batch)
            states.append(json.loads(json.dumps(loader.state_dict())))
        for at in (1, len(batches) // 2):
            loader.load_state_dict(states[at])
            rest = list(loader)
            assert len(rest) == len(batches) - at
            assert all(map(same, rest, batches[at:])), at
    return rows, states


def stats_of(rank, world_size, folder, options, schema):
    """All that is known of every batch but its ids."""
    with loader_on(folder, schema, **options) as loader:
        return [(batch.stats, batch.origin.tolist(), batch.features.values().tolist()) for batch in loader]


SOME = [("shuffled", 1), ("time", 2), ("rows drop out", 2), ("balanced", 3), ("carried, rows drop out", 2)]
REST = [case for case in itertools.product(WAYS, (1, 2, 3)) if case not in SOME]


@pytest.mark.parametrize(
    ("way", "world_size"), [*SOME, *(pytest.param(*case, marks=pytest.mark.long) for case in REST)]
)
def test_ids_stay_with_their_rows(folder, way, world_size):
    world = shared_world(world_size)
    answers = world.run(read, folder, WAYS[way])
    rows = sorted(row for of_rank, _ in answers for batch in of_rank for row in batch)
    assert rows == [row for row in ALL if "some" not in WAYS[way] or row < 22 or row % 5 == 0 or row > 99]
    with_ids = world.run(stats_of, folder, WAYS[way], PASSED)
    assert with_ids == world.run(stats_of, folder, WAYS[way], SCHEMA)  # they weigh nothing
    if "carried" in way:
        assert max(stats.carried for stats, _, _ in with_ids[0]) > 0


def rest_of(rank, world_size, folder, options, state):
    with loader_on(folder, **options) as loader:
        loader.load_state_dict(state)
        return [row for batch in loader for row in check(batch)]


RANKS = itertools.product(["shuffled", "balanced", "carried"], [(1, 2), (2, 3), (3, 1)])


@pytest.mark.parametrize(
    ("way", "before", "after"),
    [
        pytest.param(way, *ranks, marks=[] if (way, ranks) == ("carried", (2, 3)) else pytest.mark.long)
        for way, ranks in RANKS
    ],
)
def test_resume_on_other_ranks(folder, way, before, after):
    first = shared_world(before).run(read, folder, WAYS[way])
    rest = shared_world(after).run(rest_of, folder, WAYS[way], first[0][1][2])
    seen = [row for rows, _ in first for batch in rows[:2] for row in batch]
    assert sorted(seen + [row for rows in rest for row in rows]) == ALL


def read_exploded(rank, world_size, folder, balance):
    with loader_on(folder, EXPLODED, balance=balance, uneven="empty") as loader:
        return [row for batch in loader for row in check(batch)]


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("balance", [None, Balance(cost=COST), Balance(cost=COST, max_tokens=90)])
def test_candidates_have_the_ids_of_their_request(folder, world_size, balance):
    answers = shared_world(world_size).run(read_exploded, folder, balance)
    wanted = []
    for path in sorted((folder / "own").glob("*.parquet")):
        for row in pq.read_table(path, columns=["row", "candidate"]).to_pylist():
            wanted += [row["row"]] * len(row["candidate"])
    assert sorted(row for rows in answers for row in rows) == wanted


def read_histories(rank, world_size, folder, share):
    uih = Sequence("uih", ("item",), floats=("price",), share="user" if share else None)
    pool = Sequence("pool", ("bought",), labels=("stars",), id_labels=("next",))
    schema = Schema(sequences=(uih, pool), context=("row", "user"), passthrough=("text", "at"))
    source = as_of_data.source(folder, columns={"text": pl.format("row {}", pl.col("row"))})
    balance = Balance(timeout_s=PATIENCE_S)
    found = {}
    with FreeScaleDataLoader(source, schema, batch_size=7, balance=balance, timeout_s=PATIENCE_S) as loader:
        for batch in loader:
            rows = batch.features["row"].values().tolist()
            assert batch.passthrough["text"] == [f"row {row}" for row in rows]
            found |= dict(zip(rows, batch.passthrough["at"].tolist(), strict=True))
    return found


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("share", [False, True])
def test_beside_histories_stored_once(tmp_path, world_size, share):
    data = as_of_data.Data.drawn(5, requests=60)
    data.write(tmp_path)
    answers = shared_world(world_size).run(read_histories, tmp_path, share)
    assert {row: at for found in answers for row, at in found.items()} == {row: at for row, _, at in data.requests}


def test_a_part_of_the_rows(folder):
    source = ParquetSource(str(folder / "own"), skip=9, limit=20)
    with FreeScaleDataLoader(source, PASSED, batch_size=7, shuffle=True) as loader:
        assert sorted(row for batch in loader for row in check(batch)) == list(range(9, 29))


def test_a_batch_moves_and_texts_stay(folder):
    with loader_on(folder) as loader:
        batch = next(iter(loader))
        assert {str(path) for path, _ in walk(batch)} == {"batch.features"}
    assert same(batch.to("cpu"), batch)
    moved = batch.to("meta")
    assert moved.passthrough["number"].device.type == "meta"
    assert moved.passthrough["request_id"] == batch.passthrough["request_id"]

    class Pinned:
        def __init__(self, value):
            self.value = value

    seen = batch._map(Pinned)
    assert isinstance(seen.passthrough["number"], Pinned)
    assert pinned({"ids": batch.passthrough["other"]}) == {"ids": batch.passthrough["other"]}


def test_a_batch_without_samples(folder):
    source = ParquetSource(str(folder / "own"), filter=pl.col("row") == 3)
    answers = shared_world(2).run(partial(read_one, source=source))
    assert sorted(answers) == [([], []), ([request_id(3)], [MARK + 3])]


def read_one(rank, world_size, source):
    with FreeScaleDataLoader(source, PASSED, batch_size=2, uneven="empty", timeout_s=PATIENCE_S) as loader:
        (batch,) = loader
        return batch.passthrough["request_id"], batch.passthrough["number"].tolist()


def test_cost_models_see_no_texts(folder):
    seen = []

    class Seen:
        def __call__(self, lengths):
            seen.append(set(lengths))
            return lengths["uih"]

        def __repr__(self):
            return "Seen()"

    with loader_on(folder, balance=Balance("vbs", cost=Seen(), max_tokens=40)) as loader:
        for batch in loader:
            assert set(batch.stats.global_items) == {"uih", "candidates"}
    assert seen
    assert all(names == {"uih", "candidates"} for names in seen)


def test_sources_of_text_and_of_integers(folder, tmp_path):
    schema = Schema(context=("row",), passthrough=("id",))
    sources = [ParquetSource(str(folder / "own"), columns={"id": name}) for name in ("number", "other")]
    with pytest.raises(SchemaError, match=r"'id' is text in source 1 .* and an integer in source 0"):
        FreeScaleDataLoader(sources, schema, batch_size=4)


def test_states_of_other_ids_are_refused(folder):
    plain, passed = Schema(context=("row",)), Schema(context=("row",), passthrough=("number",))
    source = ParquetSource(str(folder / "own"))
    with (
        FreeScaleDataLoader(source, plain, batch_size=4) as one,
        FreeScaleDataLoader(source, passed, batch_size=4) as two,
        pytest.raises(StateError, match=r"now .*passthrough=\('number',\)"),
    ):
        two.load_state_dict(one.state_dict())


def test_a_null_names_its_file_and_row(folder, tmp_path):
    pq.write_table(pa.table({"row": [1, 2], "id": ["a", None]}), tmp_path / "a.parquet")
    schema = Schema(context=("row",), passthrough=("id",))
    with (
        FreeScaleDataLoader(ParquetSource(tmp_path), schema, batch_size=4) as loader,
        pytest.raises(DataError, match=r"a.parquet, row group 0, row 1: id is null"),
    ):
        list(loader)
