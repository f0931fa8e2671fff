"""Batches cut into parts: every sample has what it had, and the losses of the parts add up to that of the batch."""

from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import as_of_data
import histories
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from data_kit import as_python, load, parts_of, tensors
from hypothesis import given
from hypothesis import strategies as st
from rank_loaders import torchrec_is
from torchrec import KeyedJaggedTensor
from worlds import shared_world

from fsdata import (
    Balance,
    Batch,
    Jagged,
    Join,
    ParquetSource,
    Polynomial,
    Schema,
    Sequence,
    Split,
    StepStats,
    expand,
    global_mean,
    segment_mask,
)
from fsdata.batch.jagged_features import JaggedFeatures
from fsdata.views.parts import cut_points

COST = Polynomial(linear=3, quadratic=1, candidate=5)
SPLIT = Split(recent=1, segment=2, tokens=2)
ALONG = Schema(
    sequences=histories.SCHEMA.sequences,
    candidates=Sequence("candidates", ("candidate",), labels=("click",)),
    context=("row", "score"),
    dense=("age", "height"),
    labels=("bought", "rated"),
    passthrough=("number", "text"),
)
AS_OF = Schema(sequences=(as_of_data.UIH, as_of_data.POOL), context=("row", "user"), passthrough=("number",))


def sharing(schema: Schema) -> Schema:
    return replace(schema, sequences=tuple(replace(group, share="user") for group in schema.sequences))


SCHEMAS = {
    "rows": ALONG,
    "candidates": replace(ALONG, explode="candidates"),
    "candidates that share": sharing(replace(ALONG, explode="candidates", context=("row", "score", "user"))),
    "histories": AS_OF,
    "histories that are shared": sharing(AS_OF),
    "one key": Schema(context=("row",)),
    "no key": Schema(dense=("age",)),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Histories in rows with something of every kind, a side table of every third row, and histories of users."""
    folder = tmp_path_factory.mktemp("parts")
    table, rows = histories.table_of(range(histories.ROWS)), np.arange(histories.ROWS)
    own = {"age": rows / 4, "height": rows / 8, "number": rows + 10**12, "user": rows % 7}
    own |= {"text": [f"é{'x' * (row % 4)}{row}" for row in rows], "rated": [[row / 2] * (row % 3) for row in rows]}
    for name, column in own.items():
        table = table.append_column(name, pa.array(column))
    side = pa.table({"row": rows[::3], "score": rows[::3] * 2})
    for name, content in (("rows", table), ("side", side)):
        (folder / name).mkdir()
        pq.write_table(content, folder / name / "0.parquet", row_group_size=6)
    as_of_data.Data.drawn(5, requests=45, users=4).write(folder)
    return folder


def source_of(folder: Path, kind: str) -> ParquetSource:
    if kind.startswith("histories"):
        return replace(as_of_data.source(folder), columns={"number": "at"})
    score = Join(ParquetSource(folder / "side", defaults={"score": -1}), on="row", fields=("score",), missing="mask")
    return ParquetSource(folder / "rows", join=[score] if "score" in SCHEMAS[kind].context else [])


@cache
def batches_of(folder: Path, kind: str, batch_size: int, split: bool, torchrec: bool) -> list[Batch]:
    """With the cost model of a `Balance` where `split` is."""
    schema = SCHEMAS[kind]
    if split:
        schema = replace(schema, sequences=tuple(replace(group, split=SPLIT) for group in schema.sequences))
    balance = Balance(cost=COST) if split else None
    with nullcontext() if torchrec else torchrec_is(None):
        return load(source_of(folder, kind), schema, shuffle=True, batch_size=batch_size, balance=balance)[0]


def samples_of(batch: Batch) -> list[dict[str, Any]]:
    """Every sample in plain Python, with its place and its segments."""
    fields = {"origin": batch.origin.tolist()}
    fields |= {f"split {name}": split.events.tolist() for name, split in batch.split.items()}
    samples = zip(as_python(batch), *fields.values(), strict=True)
    return [sample | dict(zip(fields, more, strict=True)) for sample, *more in samples]


def check_part(part: Batch, whole: Batch, first: int) -> None:
    """What holds beside the values."""
    own, of_whole, rows = (tensors(part), tensors(whole), slice(first, first + len(part)))
    assert own.keys() == of_whole.keys()
    made = {name for name in own if name.endswith(("lengths", "offsets"))}
    for name, each in {"features": whole.features, **whole.nested}.items():
        made |= {f"{name} values"} if len(each.keys()) > 1 else set()
    for name, value in own.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == of_whole[name].dtype
            if len(value) and name not in made and not whole.shared:
                assert value.untyped_storage().data_ptr() == of_whole[name].untyped_storage().data_ptr(), name
    for each in (part.features, *part.nested.values()):
        if not isinstance(each, JaggedFeatures):
            assert each.length_per_key() == [len(of.values()) for of in parts_of(each).values()]
    listed = [name for name, value in (part.labels | part.jagged).items() if isinstance(value, Jagged)]
    shares = [{id((batch.labels | batch.jagged)[name].offsets) for name in listed} for batch in (part, whole)]
    assert len(shares[0]) == len(shares[1])
    for name, where in part.shared.items():
        places = zip(where.offset.tolist(), where.length.tolist(), strict=True)
        events = {place + n for place, length in places for n in range(length)}
        assert where.held == len(events), "a part holds no event that none of its samples sees"
        assert where.total == int(where.length.sum())
        lengths = whole.shared[name].length.split([first, len(part), len(whole) - rows.stop])
        before, mine, _ = (int(each.sum()) for each in lengths)
        field = next(group.fields[0] for group in whole.schema.groups if group.name == name)
        held = part.features[field].offsets().diff()
        assert held.bool().tolist() == [number < where.rows for number in range(len(part))]
        of_all = expand(ids_of(whole, field), whole.shared[name])
        assert torch.equal(expand(ids_of(part, field), where), of_all[before : before + mine])
    for name, split in part.split.items():
        mask, of_all = segment_mask(part, name), segment_mask(whole, name)[rows]
        longest = mask.shape[1]
        assert torch.equal(mask, of_all[:, :longest, :longest])
        assert not of_all[:, longest:].any()
        assert (split.total_events, split.total_segments) == (int(split.events.sum()), int(split.segments.sum()))
    assert part.stats == replace(whole.stats, samples=len(part))
    assert (part.schema, part.cost) == (whole.schema, whole.cost)


def ids_of(batch: Batch, field: str) -> torch.Tensor:
    return batch.features[field].values()


def cost_of(sample: dict[str, Any], batch: Batch) -> int:
    """In plain Python, as `Batch.parts` says it."""

    def size(name: str) -> int:
        return len(sample[name]) if isinstance(sample[name], list) else 1

    groups = batch.schema.groups
    if batch.cost is not None and groups:
        lengths = {each.name: size(each.fields[0]) for each in groups}
        seen = sum(3 * n + n * n for name, n in lengths.items() if name != "candidates")
        return seen + 5 * lengths.get("candidates", 0)
    nested = [ids for group in groups for name in group.nested for ids in sample[name]]
    ids = [*batch.schema.context, *(name for group in groups for name in group.fields + group.floats)]
    return 1 + sum(map(size, ids)) + sum(map(len, nested))


@pytest.mark.parametrize("torchrec", [True, False], ids=["torchrec", "plain"])
@pytest.mark.parametrize("kind", SCHEMAS)
@given(batch_size=st.sampled_from([1, 4, 13, 45]), split=st.booleans(), number=st.integers(2, 7), at=st.integers(0, 50))
def test_parts_hold_the_samples(
    files: Path, kind: str, torchrec: bool, batch_size: int, split: bool, number: int, at: int
) -> None:
    batches = batches_of(files, kind, batch_size, split, torchrec)
    whole = batches[at % len(batches)]
    assert whole.cost == (COST if split else None)
    samples = samples_of(whole)
    costs = np.array([cost_of(sample, whole) for sample in samples], np.int64)
    if not costs.any():  # all say 0, as where nothing has a length: then tokens count
        costs = np.array([cost_of(sample, replace(whole, cost=None)) for sample in samples], np.int64)
    parts, cuts = whole.parts(number), cut_points(costs, number)
    assert [len(part) for part in parts] == np.diff(cuts).tolist()
    for part, (first, stop) in zip(parts, pairwise(cuts), strict=True):
        assert samples_of(part) == samples[first:stop]
        check_part(part, whole, first)
        again = part.to("cpu").parts(2)
        assert [sample for half in again for sample in samples_of(half)] == samples[first:stop]


@given(costs=st.lists(st.sampled_from([0, 1, 2, 7, 2**57]), max_size=12), number=st.integers(1, 8))
def test_a_cut_is_at_the_nearest_boundary(costs: list[int], number: int) -> None:
    before = [sum(costs[:sample]) for sample in range(len(costs) + 1)]
    found = cut_points(np.array(costs, np.int64), number)
    assert (found[0], found[-1], len(found)) == (0, len(costs), number + 1)
    assert found == sorted(found)
    for i, cut in enumerate(found):
        wanted = Fraction(i * sum(costs), number)
        assert abs(before[cut] - wanted) == min(abs(each - wanted) for each in before)


def test_a_part_without_samples_is_a_batch(files: Path) -> None:
    for kind, torchrec in product(SCHEMAS, (True, False)):
        whole = batches_of(files, kind, 4, True, torchrec)[0]
        empty = min(whole.parts(len(whole) + 1), key=len)
        assert (len(empty), empty.loss_weight) == (0, 0)
        assert [len(part) for part in empty.parts(3)] == [0, 0, 0]
        assert all(not len(value) for value in empty.to_dict().values())
        assert global_mean(torch.zeros(0), empty).item() == 0


def losses_of(batch: Batch, table: torch.Tensor) -> dict[str, torch.Tensor]:
    """One loss per sample, per candidate and per event, of a model in float64 whose samples do not see each other."""
    features = batch.features
    lengths = features["item"].lengths() if "uih" not in batch.shared else batch.shared["uih"].length
    vectors = table[features["item"].values() % len(table)]
    price = batch.jagged["price"].values.double()
    if "uih" in batch.shared:
        vectors, price = expand(vectors, batch.shared["uih"]), expand(price, batch.shared["uih"])
    index = torch.arange(len(batch)).repeat_interleave(lengths)
    user = torch.zeros(len(batch), table.shape[1], dtype=torch.float64).index_add(0, index, vectors)
    found = {"samples": user.tanh().sum(1), "uih": (vectors * user[index]).sum(1).tanh() * price}
    if "bought" in batch.labels:
        found["bought"] = (user[:, 0] - batch.labels["bought"].double()) ** 2
    if isinstance(batch.labels.get("click"), Jagged):
        click = batch.labels["click"]
        index = torch.arange(len(batch)).repeat_interleave(click.lengths)
        found["click"] = (user[index, 1] - click.values.double()) ** 2
        found["watched"] = (vectors[:, 0] - batch.labels["watched"].values.double()) ** 2
    return found


def gradients(rank: int, world_size: int, folder: Path) -> set[str]:
    """Compares those of parts with those of whole batches; what was averaged over."""
    table = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    over: set[str] = set()
    for kind in ("rows", "candidates that share", "histories that are shared"):
        balance = Balance("vbs", cost=COST)
        batches, _ = load(source_of(folder, kind), SCHEMAS[kind], batch_size=9, balance=balance)
        assert any(len(batch) not in (0, len(batch) // 4 * 4) for batch in batches)
        for whole in batches:
            for name in losses_of(whole, table):
                (wanted,) = torch.autograd.grad(global_mean(losses_of(whole, table)[name], whole, name), table)
                table.grad = None
                for part in whole.parts(4):
                    global_mean(losses_of(part, table)[name], part, name).backward()
                torch.testing.assert_close(table.grad, wanted, rtol=1e-12, atol=1e-14)
                over |= {name} if wanted.any() else set()
            weighted = [
                part.loss_weight * losses_of(part, table)["samples"].mean() for part in whole.parts(4) if len(part)
            ]
            mean = global_mean(losses_of(whole, table)["samples"], whole)
            torch.testing.assert_close(sum(weighted, torch.zeros(())), mean, rtol=1e-12, atol=1e-14)
    return over


@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_of_parts_add_up_to_those_of_the_batch(files: Path, ranks: int) -> None:
    for over in shared_world(2).run(gradients, files) if ranks == 2 else [gradients(0, 1, files)]:
        assert over == {"samples", "uih", "bought", "click", "watched"}


def handmade(**changes: Any) -> Batch:
    """Three samples, without a schema; weights of ids and values with further dimensions."""
    lengths = torch.tensor([1, 2, 0, 2, 1, 3], dtype=torch.int32)
    features = KeyedJaggedTensor(["a", "b"], torch.arange(9), torch.arange(9) / 2, lengths)
    fields = {
        "features": features,
        "dense": torch.zeros(3, 0),
        "labels": {"y": torch.arange(3.0)},
        "jagged": {"z": Jagged(torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 3, 6]))},
        "origin": torch.zeros(3, 2, dtype=torch.int64),
        "stats": StepStats(epoch=0, step=0, world_size=1, samples=3, global_samples=3),
    }
    return Batch(**fields | changes)


def test_batches_that_no_loader_made() -> None:
    batch = handmade()
    assert [len(part) for part in batch.parts(2)] == [2, 1]  # tokens: 1 + 1 + 2 + 1, 1 + 2 + 1 + 2, 1 + 0 + 3 + 3
    first, second = batch.parts(2)
    for part, lists in (
        (first, {"a": [[0], [1, 2]], "b": [[3, 4], [5]]}),
        (second, {"a": [[]], "b": [[6, 7, 8]]}),
    ):
        found = {key: [row.tolist() for row in of.to_dense()] for key, of in parts_of(part.features).items()}
        assert found == lists
    assert first.features.weights().tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    assert first.features.lengths().dtype == torch.int32
    assert torch.equal(second.jagged["z"].values, batch.jagged["z"].values[3:])
    assert second.jagged["z"].offsets.tolist() == [0, 3]


def test_one_part_is_the_batch() -> None:
    batch = handmade()
    (only,) = batch.parts(1)
    assert only is batch
    for number in (0, -1, 2.0, True, "2"):
        with pytest.raises(ValueError, match="parts\\(number\\) must be an integer of at least 1"):
            batch.parts(number)


KEYS_OF_THEIR_OWN = KeyedJaggedTensor(
    ["a", "b"], torch.arange(3), lengths=torch.tensor([1, 1, 1]), stride_per_key_per_rank=[[1], [2]]
)
NESTED = KeyedJaggedTensor(["n"], torch.arange(3), lengths=torch.tensor([1, 1, 1]))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"features": KEYS_OF_THEIR_OWN}, "cannot cut batch.features, whose keys have a batch size each"),
        ({"features": {"a": torch.arange(3)}}, "cannot cut batch.features, a dict"),
        ({"mask": {"m": torch.zeros(2, dtype=torch.bool)}}, r"batch.mask\['m'\] has 2 rows, and the batch 3 samples"),
        ({"labels": {"y": torch.zeros(6)}}, r"batch.labels\['y'\] has 6 rows"),
        ({"passthrough": {"p": ["x"]}}, r"batch.passthrough\['p'\] has 1 rows"),
        (
            {"nested": {"s": NESTED}},
            r"has none, because it does not come from a FreeScaleDataLoader: pass Batch\(schema=",
        ),
        (
            {"nested": {"s": NESTED}, "schema": Schema(sequences=[Sequence("s", ("b",), nested=("n",))])},
            r"batch.nested\['s'\] has 3 rows, and the batch 6 events of 's'",
        ),
        (
            {"nested": {"s": NESTED}, "schema": Schema(sequences=[Sequence("s", ("c",))])},
            "cannot find the lengths of the sequence 's'",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        handmade(**changes).parts(2)
