"""Labels and nested ids along a sequence: cut, shuffled, joined, balanced and resumed with its events."""

import histories
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from histories import RECENT, ROWS, SCHEMA, UIH, expected, loader_on, samples_of
from sets import same
from worlds import shared_world

from fsdata import (
    Balance,
    DataError,
    Join,
    ParquetSource,
    Polynomial,
    Schema,
    SchemaError,
    Sequence,
    global_mean,
    sources_from_toml,
)

COST = Polynomial(linear=1, quadratic=1)


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_event_keeps_its_labels(history_folder, shuffle):
    with loader_on(history_folder, shuffle=shuffle, shuffle_window=2) as loader:
        batches = list(loader)
    samples = [sample for batch in batches for sample in samples_of(batch)]
    assert samples == [expected(sample["row"]) for sample in samples]
    assert sorted(sample["row"] for sample in samples) == [*range(ROWS)]
    for batch in batches:
        assert batch.features.keys() == ["row", "item", "seen", "candidate"]
        assert batch.labels["next_item"].values.dtype == torch.int64
        floats = [batch.labels[name].values.dtype for name in ("watched", "weight", "liked", "click")]
        assert floats == [torch.float32] * 4
        assert batch.labels["bought"].dtype == torch.float32


NUMBERS = (pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64(), pa.bool_())
FLOATS = (pa.float16(), pa.float32(), pa.float64(), pa.decimal128(21, 1))


@pytest.mark.parametrize("kind", [*NUMBERS, *FLOATS], ids=str)
@pytest.mark.parametrize("wrap", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)], ids=["list", "large", "2"])
def test_any_numeric_type(tmp_path, kind, wrap):
    made = pa.array([[0, 1], [1, 1]]).cast(wrap(kind)) if kind != pa.float16() else None
    if made is None:
        made = pa.array([np.float16([0, 1]), np.float16([1, 1])], wrap(kind))
    pq.write_table(pa.table({"item": [[1, 2], [3, 4]], "y": made}), tmp_path / "a.parquet")
    roles = [("labels", torch.float32)] + ([("id_labels", torch.int64)] if kind in NUMBERS else [])
    for role, dtype in roles:
        schema = Schema(sequences=(Sequence("uih", ("item",), **{role: ("y",)}),))
        with loader_on(tmp_path, schema) as loader:
            (batch,) = loader
        assert batch.labels["y"].values.dtype == dtype
        assert [row.tolist() for row in batch.labels["y"]] == [[0, 1], [1, 1]]


def test_floats_are_no_id_labels(tmp_path):
    pq.write_table(pa.table({"item": [[1]], "y": [[0.5]]}), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match=r"y: column 'y' is list<element: double>: ids are integers"):
        loader_on(tmp_path, Schema(sequences=(Sequence("uih", ("item",), id_labels=("y",)),)))
    with pytest.raises(SchemaError, match=r"labels along a sequence belong to Sequence\(labels=\.\.\.\)"):
        loader_on(tmp_path, Schema(sequences=(Sequence("uih", ("item",)),), labels=("y",)))


def balanced(rank, world_size, folder, options):
    """(rows of all batches, the sums that global_mean gives) of one rank; every batch is compared."""
    read, sums = [], []
    with loader_on(folder, **options) as loader:
        for batch in loader:
            samples = samples_of(batch)
            assert samples == [expected(sample["row"]) for sample in samples]
            read.append([sample["row"] for sample in samples])
            weighted = batch.labels["watched"].values.double() * batch.labels["weight"].values
            sums.append([global_mean(weighted, batch, over=over).item() for over in ("watched", "uih")])
            assert batch.stats.global_items["liked"] == batch.stats.global_items["recent"]
    return read, sums


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("method", ["fbs+swap", "vbs", "repair"])
def test_balancing_moves_labels_with_their_events(history_folder, world_size, method):
    options = {"balance": Balance(method, cost=COST), "shuffle": True, "shuffle_window": 2}
    by_rank = shared_world(world_size).run(balanced, history_folder, options)
    assert sorted(row for read, _ in by_rank for step in read for row in step) == [*range(ROWS)]
    for step in range(len(by_rank[0][0])):
        rows = [row for read, _ in by_rank for row in read[step]]
        watched = np.concatenate([expected(row)["watched"] for row in rows])
        weight = np.concatenate([expected(row)["weight"] for row in rows])
        mean = (watched * weight).sum() / max(len(watched), 1)
        for over in (0, 1):
            averaged = sum(sums[step][over] for _, sums in by_rank) / world_size
            assert averaged == pytest.approx(mean, rel=1e-12)


def resumed(rank, world_size, folder, options):
    states, batches = [], []
    with loader_on(folder, **options) as loader:
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
    for at in (0, 2):
        with loader_on(folder, **options) as again:
            again.load_state_dict(states[at])
            rest = list(again)
        assert len(rest) == len(batches) - at - 1
        assert all(map(same, rest, batches[at + 1 :]))
    return states


def test_resumed_batches_are_the_same_to_the_bit(history_folder):
    options = {"balance": Balance(cost=COST), "shuffle": True, "shuffle_window": 2}
    one, two = shared_world(2).run(resumed, history_folder, options)
    assert one == two
    resumed(0, 1, history_folder, {"shuffle": True})


def test_saved_states_know_labels_along_a_sequence_and_no_others():
    plain = Sequence("uih", ("item",), floats=("price",), max_length=9)
    assert repr(plain) == "Sequence(name='uih', fields=('item',), floats=('price',), max_length=9, keep='last')"
    assert repr(RECENT).endswith("max_length=3, keep='first', labels=('liked',), nested=('shops',))")
    labelled = Sequence("uih", ("item",), id_labels=("next_item",))
    assert repr(labelled).endswith("max_length=None, keep='last', id_labels=('next_item',))")
    assert eval(repr(SCHEMA)) == SCHEMA


@pytest.mark.parametrize("side_has", ["everything", "labels", "events"])
def test_side_tables_bring_events_or_their_labels(tmp_path, side_has):
    names = {"everything": UIH.all_fields, "labels": UIH.labels + UIH.id_labels, "events": UIH.fields + UIH.floats}
    joined = names[side_has]
    rows = range(20)
    kept = tuple(name for name in histories.values(0) if name not in joined and name != "row")
    pq.write_table(histories.table_of(rows, without=joined), tmp_path / "main.parquet", row_group_size=6)
    (tmp_path / "side").mkdir()
    found = range(19) if side_has == "everything" else rows
    pq.write_table(histories.table_of(found, without=kept), tmp_path / "side" / "a.parquet")
    side = ParquetSource(str(tmp_path / "side"), defaults=dict.fromkeys(joined, 0))
    source = ParquetSource(str(tmp_path / "main.parquet"), join=[Join(side, on="row", fields=joined)])
    with loader_on(tmp_path, sources=source, shuffle=True) as loader:
        samples = sorted((sample for batch in loader for sample in samples_of(batch)), key=lambda sample: sample["row"])
    assert samples[: len(found)] == [expected(row) for row in found]
    if side_has == "everything":  # a key without a match: an empty history
        assert samples[19] == expected(19) | {name: [] for name in joined}


def one_row(folder, labels, **options):
    made = {"item": pa.array([[1, 2, 3], [4, 5]]), "watched": pa.array(labels, pa.list_(pa.float64()))}
    pq.write_table(pa.table(made), folder / "a.parquet")
    schema = Schema(sequences=(Sequence("uih", ("item",), max_length=2, labels=("watched",)),))
    with loader_on(folder, schema, sources=ParquetSource(str(folder), **options)) as loader:
        return [row.tolist() for batch in loader for row in batch.labels["watched"]]


def test_labels_of_another_length_are_an_error_even_where_they_would_be_cut(tmp_path):
    with pytest.raises(DataError, match=r"row 1: the lists of 'uih' have different lengths: item 2, watched 3"):
        one_row(tmp_path, [[1, 2, 3], [1, 2, 3]])


def test_nulls_follow_the_policy_of_the_label(tmp_path):
    with pytest.raises(DataError, match=r"row 0: watched is null at position 1 of the list"):
        one_row(tmp_path, [[1, None, 3], [1, 2]])
    with pytest.raises(DataError, match=r"row 1: watched is null\. Give"):
        one_row(tmp_path, [[1, 2, 3], None])
    nulls = [[1, float("nan"), None], None]
    assert one_row(tmp_path, nulls, defaults={"watched": 7}) == [[7, 7], [7, 7]]
    assert one_row(tmp_path, [[1, 2, 3], None], nulls={"watched": "drop"}) == [[2, 3]]
    assert one_row(tmp_path, [[1, 2, 3], [4, 5]]) == [[2, 3], [4, 5]]


def test_a_source_without_labels_takes_their_default(history_folder, tmp_path):
    pq.write_table(histories.table_of(range(6), without=("watched",)), tmp_path / "a.parquet")
    sources = [ParquetSource(str(tmp_path), defaults={"watched": 0.5}), ParquetSource(str(history_folder))]
    with loader_on(history_folder, sources=sources) as loader:
        samples = [sample for batch in loader for sample in samples_of(batch)]
    assert all(sample["watched"] == [0.5] * len(sample["item"]) for sample in samples[:6])
    assert samples[6:] == [expected(row) for row in range(ROWS)]


def test_names_are_unique_and_labels_need_events():
    with pytest.raises(SchemaError, match="used twice: item"):
        Schema(sequences=(Sequence("uih", ("item",), labels=("item",)),))
    with pytest.raises(SchemaError, match="used twice: click"):
        Schema(sequences=(Sequence("uih", ("item",), labels=("click",)),), labels=("click",))
    with pytest.raises(SchemaError, match="'uih' has no fields"):
        Sequence("uih", labels=("watched",))
    with pytest.raises(SchemaError, match=r"labels=\.\.\.\) takes a tuple of names, got the string 'watched'"):
        Sequence("uih", ("item",), labels="watched")


def test_schema_files(history_folder, tmp_path):
    (tmp_path / "job.toml").write_text(
        """
        [schema]
        context = ["row"]
        [[schema.sequences]]
        name = "uih"
        fields = ["item"]
        max_length = 5
        labels = ["watched"]
        id_labels = ["next_item"]
        [[sources]]
        paths = "."
        """
    )
    schema = Schema.from_toml(tmp_path / "job.toml")
    assert schema.sequences == (
        Sequence("uih", ("item",), max_length=5, labels=("watched",), id_labels=("next_item",)),
    )
    (source,) = sources_from_toml(tmp_path / "job.toml")
    assert source.path_list == (str(tmp_path / "."),)
