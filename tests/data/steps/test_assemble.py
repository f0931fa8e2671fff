"""A batch is what its rows say, field by field, in whatever memory; what KeyedJaggedTensors are told about is right."""

from itertools import chain
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchrec import KeyedJaggedTensor

from fsdata import Jagged, Schema, Sequence
from fsdata.batch.batch import Batch, StepStats
from fsdata.batch.host_memory import PageLocked, Reused
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.row_layout import Field, Layout, layout_of
from fsdata.decode.row_table import RowTable
from fsdata.steps.assemble import BatchMaker

FULL = Schema(
    sequences=(
        Sequence("uih", ("item", "action"), nested=("tags", "words"), floats=("price", "age"), id_labels=("next",)),
        Sequence("shop", ("shop_id",), floats=("rating",), labels=("bought",)),
    ),
    candidates=Sequence("candidates", ("candidate",)),
    context=("user", "country"),
    dense=("one", "two", "three"),
    labels=("click", "rank"),
    passthrough=("request", "text"),
)
LAYOUTS = {
    "all kinds": layout_of(FULL, frozenset({"click"}), texts=("text",), masks=("country",)),
    "references": layout_of(FULL, frozenset({"click"}), as_of=("uih",)),
    "context only": layout_of(Schema(context=("user",), labels=("click",))),
    "no keys": layout_of(Schema(dense=("one",), labels=("click",))),
}
DTYPES = {8: torch.int64, 4: torch.float32, 1: torch.uint8}
Values = dict[str, list[list[int]]]


def values_of(layout: Layout, rows: int, rng: np.random.Generator) -> Values:
    """Field -> for each sample its values; fields of one group have the same lengths."""
    lengths = {field.group: rng.integers(0, 4, rows).tolist() for field in layout.fields}
    found: Values = {}
    for field in layout.fields:
        length = [field.width] * rows if field.group is None else lengths[field.group]
        if field.kind == "nested_ids":
            length = [sum(each) for each in found[str(field.group)]]
        top = {"counts": 4, "mask": 2, "text": 128}.get(field.kind, 1000)
        found[field.name] = [rng.integers(0, top, each).tolist() for each in length]
    return found


def table_of(layout: Layout, values: Values) -> RowTable:
    """The values, stored from the last sample to the first."""
    arrays, address, length = [], [], []
    for field in layout.fields:
        lists = values[field.name]
        array = np.array(list(chain.from_iterable(lists[::-1])), field.dtype)
        count = np.array([len(each) for each in lists], np.int64)
        arrays.append(array)
        length.append(count)
        address.append(array.ctypes.data + field.itemsize * (len(array) - np.cumsum(count)))
    shape = len(layout.fields), len(values[layout.fields[0].name])
    of_all = (np.array(each, np.int64).reshape(shape) for each in (address, length))
    return RowTable(*of_all, layout.itemsize, tuple(arrays))


def made(layout: Layout, table: RowTable, memory: Any) -> Batch:
    rows = table.num_rows
    stats = StepStats(epoch=0, step=0, world_size=1, samples=rows, global_samples=rows)
    return BatchMaker(layout, memory).make(table, origin=np.arange(2 * rows).reshape(rows, 2), stats=stats)


def tensors_of(batch: Batch) -> dict[str, torch.Tensor]:
    """Every tensor of a batch."""
    found = {
        "dense": batch.dense,
        "origin": batch.origin,
        **{f"mask {name}": each for name, each in batch.mask.items()},
    }
    for name, kjt in {"features": batch.features, **batch.nested}.items():
        found |= {f"values of {name}": kjt.values(), f"lengths of {name}": kjt.lengths()}
    for name, each in {**batch.labels, **batch.jagged, **batch.passthrough}.items():
        if isinstance(each, Jagged):
            found |= {f"values of {name}": each.values, f"offsets of {name}": each.offsets}
        elif isinstance(each, torch.Tensor):
            found[name] = each
    return found


def flat(values: Values, *fields: Field) -> torch.Tensor:
    """All values of the fields, field after field; the definition of what a kernel copies."""
    every = [value for field in fields for sample in values[field.name] for value in sample]
    return torch.tensor(every, dtype=DTYPES[fields[0].itemsize] if fields else torch.int64)


def expected(layout: Layout, values: Values, rows: int) -> dict[str, torch.Tensor]:
    """What `tensors_of` a batch of these rows are."""
    keys = layout.fields[: layout.num_keys]
    found = {
        "values of features": flat(values, *keys),
        "lengths of features": torch.tensor([len(s) for f in keys for s in values[f.name]], dtype=torch.int64),
        "dense": torch.empty((rows, 0)),
        "origin": torch.arange(2 * rows).view(rows, 2),
    }
    for name, (counts, ids) in layout.nested.items():
        found[f"lengths of {name}"] = flat(values, *layout.fields[counts])
        found[f"values of {name}"] = flat(values, *layout.fields[ids])
    for field in layout.fields[layout.num_keys :]:
        if field.kind == "dense":
            found["dense"] = flat(values, field).view(rows, field.width)
        elif field.kind == "mask":
            found["mask country"] = flat(values, field).bool()
        elif field.kind in ("floats", "label_list", "event_label"):
            lengths = [len(each) for each in values[field.name]]
            found[f"offsets of {field.name}"] = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int64)
            found[f"values of {field.name}"] = flat(values, field)
        elif field.kind in ("label", "passthrough"):
            found[field.name] = flat(values, field)
    return found


@pytest.mark.parametrize("name", LAYOUTS)
@given(rows=st.integers(0, 9), seed=st.integers(0, 1000), pinned=st.booleans(), strided=st.booleans())
def test_a_batch_is_what_its_rows_say(name: str, rows: int, seed: int, pinned: bool, strided: bool) -> None:
    layout = LAYOUTS[name]
    values = values_of(layout, rows, np.random.default_rng(seed))
    table = table_of(layout, values)
    if strided:
        table = RowTable(np.asfortranarray(table.address), table.length[:, :], table.itemsize, table.owners)
    memory = PageLocked(lambda count, dtype: torch.full((count,), 99, dtype=dtype)) if pinned else Reused(Pool())
    batch = made(layout, table, memory)
    found, wanted = tensors_of(batch), expected(layout, values, rows)
    assert found.keys() == wanted.keys()
    for each, tensor in wanted.items():
        assert found[each].dtype == tensor.dtype, each
        assert torch.equal(found[each], tensor), each
    assert list(batch.labels) == [f.name for f in layout.fields if f.kind in ("event_label", "label", "label_list")]
    texts = [bytes(each).decode() for each in values["text"]] if "text" in layout.texts else None
    assert batch.passthrough.get("text") == texts or texts is None


def test_fields_of_a_sequence_share_their_offsets() -> None:
    layout = LAYOUTS["all kinds"]
    batch = made(layout, table_of(layout, values_of(layout, 5, np.random.default_rng(0))), Reused(Pool()))
    labels: dict[str, Any] = batch.labels
    assert batch.jagged["price"].offsets is batch.jagged["age"].offsets is labels["next"].offsets
    assert batch.jagged["rating"].offsets is labels["bought"].offsets
    moved = batch.to("meta")
    assert moved.jagged["price"].offsets is moved.jagged["age"].offsets
    assert moved.jagged["price"].offsets is not moved.jagged["rating"].offsets


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("rows", [0, 1, 6])
def test_sizes_of_keys_are_those_that_torchrec_computes(name: str, rows: int) -> None:
    layout = LAYOUTS[name]
    batch = made(layout, table_of(layout, values_of(layout, rows, np.random.default_rng(rows))), Reused(Pool()))
    for kjt in (batch.features, *batch.nested.values()):
        again = KeyedJaggedTensor(kjt.keys(), kjt.values(), lengths=kjt.lengths(), stride=kjt.stride())
        assert kjt.length_per_key_or_none() == again.length_per_key()
        assert kjt.offset_per_key_or_none() == again.offset_per_key()


def test_keyed_jagged_tensors_work_on() -> None:
    layout = LAYOUTS["all kinds"]
    kjt = made(layout, table_of(layout, values_of(layout, 6, np.random.default_rng(1))), Reused(Pool())).features
    again = KeyedJaggedTensor(kjt.keys(), kjt.values(), lengths=kjt.lengths(), stride=kjt.stride())
    count = len(kjt.keys())
    order = list(range(count))[::-1]
    with mock.patch.object(torch.Tensor, "pin_memory", torch.Tensor.clone):
        pairs = [(kjt.pin_memory(), again), (kjt.to(torch.device("cpu")), again)]
    pairs += [(kjt.permute(order), again.permute(order))]
    pairs += list(zip(kjt.split([1, count - 1]), again.split([1, count - 1]), strict=True))
    for one, other in pairs:
        assert one.keys() == other.keys()
        assert torch.equal(one.values(), other.values())
        assert torch.equal(one.lengths(), other.lengths())
        assert one.length_per_key() == other.length_per_key()
        assert one.offset_per_key() == other.offset_per_key()
    for key in kjt.keys():  # noqa: SIM118 (no mapping)
        assert torch.equal(kjt[key].values(), again[key].values())
    with mock.patch.object(torch.Tensor, "record_stream") as recorded:
        kjt.record_stream(mock.Mock())
    assert recorded.call_count >= 2
