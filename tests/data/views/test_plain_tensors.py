"""Batches for models without TorchRec: tensors by name, padded lists, jagged tensors of torch."""

from dataclasses import replace
from typing import Any

import as_of_data
import histories
import polars as pl
import pytest
import torch
from data_kit import load, rows_in
from histories import SCHEMA as OF_HISTORIES
from rank_loaders import torchrec_is

from fsdata import ParquetSource, Schema, SchemaError, Sequence
from fsdata.batch.jagged_features import JaggedFeatures

LISTS = {"uih": ("item", "price", "watched", "weight", "next_item"), "recent": ("seen", "liked")}
LISTS["candidates"] = ("candidate", "click")


def batches_of(folder: Any, schema: Schema = OF_HISTORIES) -> list[Any]:
    return load(folder, schema, batch_size=9)[0]


def test_tensors_by_name(history_folder) -> None:
    """Every value is what its sample has; all fields but nested ones are there."""
    for batch in batches_of(history_folder):
        found = batch.to_dict()
        assert found.keys() == {"row", "bought", *(name for names in LISTS.values() for name in names)}
        assert torch.equal(found["bought"], batch.labels["bought"])
        for at, row in enumerate(found["row"].tolist()):
            sample = histories.expected(row)
            for name in found.keys() - {"row", "bought"}:
                assert found[name][at].tolist() == sample[name]


@pytest.mark.parametrize("length", [4, {"uih": 2, "recent": 1, "candidates": 6}], ids=["one", "each"])
def test_padded_lists(history_folder, length) -> None:
    kept = {"uih": "last", "recent": "first", "candidates": "last"}
    for batch in batches_of(history_folder):
        found, lists = batch.padded(length), batch.to_dict()
        for group, names in LISTS.items():
            wide = length if isinstance(length, int) else length[group]
            for name in names:
                mask = found[f"{group}_mask"]
                assert found[name].shape == mask.shape == (len(batch), wide)
                assert not found[name][~mask].any()
                for row, some, whole in zip(found[name], mask, lists[name], strict=True):
                    wanted = whole[-wide:] if kept[group] == "last" else whole[:wide]
                    assert torch.equal(row[some], wanted)
                    assert some[: len(wanted)].all()


def test_the_length_is_that_of_the_schema(history_folder) -> None:
    (first, *_) = batches_of(history_folder)
    with pytest.raises(ValueError, match=r"no length for 'candidates': pass max_length=N or \{'candidates': N\}"):
        first.padded()
    found = first.padded({"candidates": 2})
    assert (found["item"].shape[1], found["seen"].shape[1], found["click"].shape[1]) == (5, 3, 2)
    with pytest.raises(ValueError, match="max_length of 'uih' must be an integer of at least 1, got 0"):
        first.padded(0)
    with pytest.raises(ValueError, match="max_length names uhi, not a sequence"):
        first.padded({"uhi": 3, "candidates": 2})
    with pytest.raises(ValueError, match="has no schema"):
        replace(first, schema=None).to_dict()


def test_a_field_that_is_called_like_a_mask(history_folder) -> None:
    schema = Schema(context=("uih_mask",), sequences=(Sequence("uih", ("item",)),))
    batch, *_ = load(ParquetSource(history_folder, columns={"uih_mask": "row"}), schema)[0]
    with pytest.raises(SchemaError, match="'uih_mask' is a field and the name of the mask of 'uih'"):
        batch.padded(3)


def test_samples_without_an_event(history_folder) -> None:
    """A batch of which a sequence holds nothing."""
    schema = replace(OF_HISTORIES, candidates=None, labels=())
    source = ParquetSource(history_folder, filter=pl.col("row") % 4 == 0)
    for batch in load(source, schema, batch_size=3)[0]:
        found = batch.padded(2)
        assert not found["uih_mask"].any()
        assert found["item"].shape == (len(batch), 2)


@pytest.mark.parametrize("explode", [None, "candidates"])
def test_exploded_candidates_are_single(history_folder, explode) -> None:
    schema = replace(OF_HISTORIES, candidates=Sequence("candidates", ("candidate",), labels=("click",)))
    for batch in batches_of(history_folder, replace(schema, explode=explode)):
        found = batch.padded(3)
        assert ("candidates_mask" in found) == (explode is None)
        if explode:
            assert found["candidate"].shape == found["click"].shape == found["row"].shape
            rows = torch.div(found["candidate"], 1000, rounding_mode="floor")
            assert torch.equal(rows, found["row"])


def test_shared_sequences_are_expanded(tmp_path) -> None:
    as_of_data.Data.drawn(3).write(tmp_path)
    found = []
    groups = as_of_data.UIH, as_of_data.POOL
    for share in (None, "user"):
        schema = Schema(sequences=[replace(group, share=share) for group in groups], context=("row", "user"))
        found.append([batch.to_dict() for batch in load(as_of_data.source(tmp_path), schema)[0]])
    for plain, shared in zip(*found, strict=True):
        assert plain.keys() == shared.keys()
        for name in (name for group in groups for name in group.all_fields):
            assert rows_in(plain[name]) == rows_in(shared[name])


def test_without_torchrec(history_folder) -> None:
    """Features are jagged tensors of torch, with the same values."""
    keyed = batches_of(history_folder)
    with torchrec_is(None):
        plain = batches_of(history_folder)
    for batch, other in zip(plain, keyed, strict=True):
        moved = batch.to("cpu")
        for mine, whole in ((moved.features, other.features), (moved.nested["uih"], other.nested["uih"])):
            assert isinstance(mine, JaggedFeatures)
            assert list(mine) == whole.keys()
            for key in mine:
                assert torch.equal(mine[key].values(), whole[key].values())
                assert torch.equal(mine[key].offsets(), whole[key].offsets())
            assert len({mine[key].values().untyped_storage().data_ptr() for key in mine}) == 1, "one copy to a device"
        assert batch.to_dict().keys() == other.to_dict().keys()
        for name, value in batch.padded(4).items():
            assert torch.equal(value, other.padded(4)[name])
