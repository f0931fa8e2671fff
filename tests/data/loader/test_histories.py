"""Labels and nested ids along a sequence: cut, shuffled, joined, balanced and resumed with its events."""

from functools import partial

import data_kit as kit
import histories
import pyarrow as pa
import pytest
import torch
from data_kit import as_python, column, rows_in, same, write
from histories import RECENT, SCHEMA
from torchrec import KeyedJaggedTensor

from fscomm.loop.kjt_paths import find, walk
from fsdata import (
    Jagged,
    Schema,
    SchemaError,
    Sequence,
    global_mean,
)

uih = partial(Sequence, "uih", ("item",))


def test_labels_are_of_two_types(history_folder, tmp_path):
    """Whatever the files hold, also decimals and lists of one size. `test_decode.py` has the other types."""
    batch, *_ = kit.load(history_folder, SCHEMA)[0]
    assert batch.features.keys() == ["row", "item", "seen", "candidate"]
    kinds = {name: (of.values if isinstance(of, Jagged) else of).dtype for name, of in batch.labels.items()}
    assert kinds == dict.fromkeys(kinds, torch.float32) | {"next_item": torch.int64}
    any_size, two = (pa.array([[0, 1], [1, 1]]).cast(pa.list_(pa.decimal128(21, 1), size)) for size in (-1, 2))
    path = write(tmp_path / "a.parquet", {"item": [[1, 2], [3, 4]], "any": any_size, "two": two})
    (batch,), _ = kit.load(path, Schema(sequences=(uih(labels=("any", "two")),)))
    assert [rows_in(batch.labels[name]) for name in ("any", "two")] == [[[0, 1], [1, 1]]] * 2


def test_what_is_no_label_along_a_sequence(tmp_path):
    path = write(tmp_path / "a.parquet", {"item": [[1]], "y": [[0.5]]})
    with pytest.raises(SchemaError, match=r"y: column 'y' is list<element: double>: ids are integers"):
        kit.load(path, Schema(sequences=(uih(id_labels=("y",)),)))
    with pytest.raises(SchemaError, match=r"labels along a sequence belong to Sequence\(labels=\.\.\.\)"):
        kit.load(path, Schema(sequences=(uih(),), labels=("y",)))


def test_saved_states_know_labels_along_a_sequence_and_no_others():
    plain = uih(floats=("price",), max_length=9)
    assert repr(plain) == "Sequence(name='uih', fields=('item',), floats=('price',), max_length=9, keep='last')"
    assert repr(RECENT).endswith("max_length=3, keep='first', labels=('liked',), nested=('shops',))")
    assert repr(uih(id_labels=("next_item",))).endswith("max_length=None, keep='last', id_labels=('next_item',))")
    assert repr(uih(share="user")).endswith("keep='last', share='user')")
    assert eval(repr(SCHEMA)) == SCHEMA


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Schema(context={"item", "row"}), r"takes a tuple of names, got \{'"),
        (lambda: Schema(sequences={uih()}), "which has no order"),
        (lambda: Schema(sequences=(uih(labels=("item",)),)), "used twice: item"),
        (lambda: Schema(sequences=(uih(labels=("y",)),), labels=("y",)), "used twice: y"),
        (lambda: Schema(sequences=(Sequence("uih", ("item", "tags"), nested=("tags",)),)), "used twice: tags"),
        (lambda: Schema(sequences=(uih(nested=("tags",)), Sequence("tags", ("tag",)))), "both called tags"),
        (lambda: Schema(sequences=(uih(nested=("candidates",)),)), "a nested field and a sequence are both called can"),
        (
            lambda: Schema(sequences=(uih(labels=("old",)), Sequence("old", ("first",)))),
            "a label of the sequence 'uih' and a sequence are both called 'old'",
        ),
        (
            lambda: Schema(sequences=(uih(id_labels=("candidates",)),), candidates=Sequence("candidates", ("shown",))),
            "both called 'candidates'.*divide by the wrong count",
        ),
        (lambda: Schema(sequences=(Sequence("samples", ("item",)),)), "counts the samples of a batch"),
        (lambda: Schema(sequences=(uih(nested=("samples",)),)), "counts the samples of a batch"),
        (lambda: Sequence("uih", labels=("watched",)), "'uih' has no fields"),
        (lambda: Sequence("uih", nested=("tags",)), "'uih' has no fields"),
        (lambda: uih(labels="watched"), r"labels=\.\.\.\) takes a tuple of names, got the string"),
    ],
)
def test_names_are_unique_and_labels_need_events(make, match):
    with pytest.raises(SchemaError, match=match):
        make()


@pytest.mark.parametrize(("name", "other"), [("old", "a sequence"), ("samples", "the samples of a batch")])
def test_a_list_label_named_like_what_else_is_counted_is_refused(tmp_path, name, other):
    """The same label as one number per sample is right: nothing else of a sample is counted by its name then."""
    table = {"item": [[1, 2], [3]], "shown": [[1, 2], [3]]}
    scalar = write(tmp_path / "scalar.parquet", {**table, name: [1.0, 0.0]})
    listed = write(tmp_path / "list.parquet", {**table, name: [[1.0, 0.0], [1.0]]})
    schema = Schema(
        sequences=(Sequence("old", ("item",)),), candidates=Sequence("candidates", ("shown",)), labels=(name,)
    )
    (batch,), _ = kit.load(scalar, schema)
    assert global_mean(torch.tensor([1.0, 3.0]), batch, over=name) == 2.0
    with pytest.raises(SchemaError, match=f"a label whose column is a list .* and {other} are both called '{name}'"):
        kit.load(listed, schema)


def test_nested_ids_of_a_batch_without_events(tmp_path):
    (batch,), _ = kit.load(write(tmp_path / "a.parquet", histories.table_of(range(0, 8, 4))), SCHEMA)
    assert batch.nested["uih"].stride() == 0
    assert batch.nested["uih"].keys() == ["categories", "tags"]
    assert column(as_python(batch), "categories") == [[], []]


def test_a_batch_moves_as_a_whole_and_a_lookahead_finds_them(history_folder):
    batch, *_ = kit.load(history_folder, SCHEMA, batch_size=9)[0]
    assert same(batch.to("cpu"), batch)
    moved = batch.to("meta")
    assert {moved.nested[name].values().device.type for name in ("uih", "recent")} == {"meta"}
    assert {str(path) for path, _ in walk(batch)} == {"batch.features", "batch.nested['uih']", "batch.nested['recent']"}
    assert str(find(batch, batch.nested["recent"])[0]) == "batch.nested['recent']"


def test_keyed_jagged_tensors_are_those_that_torchrec_makes(history_folder):
    """The sizes and offsets by key with which they are made, and what follows from them."""
    batch, *_ = kit.load(history_folder, SCHEMA, batch_size=9)[0]
    for kjt in (batch.features, *batch.nested.values()):
        again = KeyedJaggedTensor(kjt.keys(), kjt.values(), lengths=kjt.lengths(), stride=kjt.stride())
        assert kjt.length_per_key_or_none() == again.length_per_key()
        assert kjt.offset_per_key_or_none() == again.offset_per_key()
        keys = list(range(len(kjt.keys())))
        pairs = [(kjt.permute(keys[::-1]), again.permute(keys[::-1]))]
        pairs += list(zip(kjt.split([1, len(keys) - 1]), again.split([1, len(keys) - 1]), strict=True))
        for one, other in pairs:
            assert one.keys() == other.keys()
            assert torch.equal(one.values(), other.values())
            assert torch.equal(one.lengths(), other.lengths())


def test_fields_of_a_sequence_share_their_offsets(history_folder):
    batch, *_ = kit.load(history_folder, SCHEMA, batch_size=9)[0]
    for each in (batch, batch.to("meta")):
        assert each.jagged["price"].offsets is each.labels["next_item"].offsets is each.labels["watched"].offsets
        assert each.jagged["price"].offsets is not each.labels["liked"].offsets
