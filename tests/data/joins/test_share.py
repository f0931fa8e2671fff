"""Samples that share a history: what they expand to is what they have without sharing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from as_of_data import POOL, UIH, Data, source
from data_kit import as_python, column, load, loader_on, read, rows_of, write
from hypothesis import given
from hypothesis import strategies as st
from worlds import shared_world

from fsdata import AsOf, Balance, Jagged, ParquetSource, Schema, SchemaError, Sequence, expand
from fsdata.batch.merged_windows import merge_windows


def shared(group: Sequence, **options: Any) -> Sequence:
    given = {name: getattr(group, name) for name in ("fields", "floats", "keep", "labels", "id_labels", "max_length")}
    return Sequence(group.name, share="user", **{**given, **options})


SHARED = Schema(sequences=(shared(UIH), shared(POOL)), context=("row", "user"))
FIELDS = {"item": "uih", "price": "uih", "bought": "pool", "stars": "pool", "next": "pool"}


def along(batch: Any, field: str) -> Jagged:
    return batch.jagged[field] if field == "price" else batch.labels[field]


def check_rows(batch: Any) -> None:
    """All fields of a sequence have the same lengths, and only the first rows have events."""
    for field, group in FIELDS.items():
        if group in batch.shared:
            lengths = batch.features[field].lengths() if field in ("item", "bought") else along(batch, field).lengths
            rows = batch.shared[group].rows
            assert len(lengths) == len(batch)
            assert (lengths[:rows] > 0).all()
            assert (lengths[rows:] == 0).all()
            starts = (lengths.cumsum(0) - lengths)[batch.shared[group].row] + batch.shared[group].start
            has = batch.shared[group].length > 0
            assert torch.equal(starts[has], batch.shared[group].offset[has])


def count_events(rank: int, size: int, folder: Path, method: str) -> tuple[int, list[float]]:
    """Events that the batches of this rank hold, and the straggler share of each step."""
    batches, _ = load(source(folder), SHARED, batch_size=60, balance=Balance(method))
    events = sum(len(batch.features["item"].values()) for batch in batches)
    return events, [batch.stats.straggler_after for batch in batches]


def set_of_sequences(rank: int, size: int) -> list[str]:
    return list({group.name for group in SHARED.sequences})


def test_balancing_leaves_samples_of_one_history_together(tmp_path: Path) -> None:
    first, second = shared_world(2).run(set_of_sequences)
    assert first != second  # ranks have hash seeds of their own: no plan may depend on the order of a set
    data = Data.drawn(11, requests=360, users=90)
    data.write(tmp_path, files=2, group=30)
    together, apart = (shared_world(2).run(count_events, tmp_path, method) for method in ("fbs+swap", "fbs"))
    assert sum(events for events, _ in together) < 0.9 * sum(events for events, _ in apart)
    assert max(share for _, stragglers in together for share in stragglers) < 0.01


@given(spans=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 6)), max_size=12))
def test_windows_are_merged_where_they_overlap(spans: list[tuple[int, int, int]]) -> None:
    table, begin, length = np.array(spans, np.int64).reshape(-1, 3).T
    found = merge_windows(table, begin, length)
    cover = {n: {(of, at) for at in range(start, start + size)} for n, (of, start, size) in enumerate(spans) if size}
    merged: list[tuple[set[int], set[tuple[int, int]]]] = []  # (samples, events)
    for n, events in cover.items():
        touching = [each for each in merged if each[1] & events]
        merged = [each for each in merged if each not in touching]
        merged.append((({n}).union(*(s for s, _ in touching)), events.union(*(e for _, e in touching))))
    merged.sort(key=lambda each: min(each[0]))
    assert found.size.tolist() == [len(events) for _, events in merged]
    starts = np.cumsum(found.size) - found.size
    for row, (members, events) in enumerate(merged):
        assert spans[found.first[row]][:2] == min(events)
        for n in members:
            assert found.row[n] == row
            assert found.start[n] == spans[n][1] - min(events)[1]
            assert found.offset[n] == starts[row] + found.start[n]
    assert found.length.tolist() == length.tolist()
    assert not found.offset[length == 0].any()


def batch_of(tmp_path: Path) -> Any:
    Data.drawn(4, requests=60, users=3).write(tmp_path)
    return load(source(tmp_path), SHARED, batch_size=60)[0][0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_an_event_is_the_sum_over_its_samples(tmp_path: Path, dtype: torch.dtype) -> None:
    batch = batch_of(tmp_path)
    where, events = batch.shared["uih"], len(batch.features["item"].values())
    assert events < where.total
    random = torch.Generator().manual_seed(0)
    values = torch.randn(events, 3, generator=random).to(dtype).requires_grad_()
    weights = torch.randn(where.total, 3, generator=random).to(dtype)
    out = expand(values, where)
    index = torch.cat([torch.arange(at, at + n) for at, n in zip(where.offset, where.length, strict=True)])
    assert torch.equal(out, values[index])
    out.backward(weights)
    expected = torch.zeros(events, 3, dtype=dtype)
    for row, weight in zip(index.tolist(), weights, strict=True):
        expected[row] += weight
    assert torch.equal(values.grad, expected)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    where = batch_of(tmp_path).shared["uih"]
    with pytest.raises(ValueError, match="the events come first"):
        expand(torch.empty(0, 3), where)
    with pytest.raises(ValueError, match="move one of them"):
        expand(torch.empty(5, device="meta"), where)


def test_only_histories_that_are_stored_once_are_shared(tmp_path: Path) -> None:
    Data.drawn(0).write(tmp_path)
    other = Schema(sequences=(shared(UIH), Sequence("seen", ("seen",), share="user")), context=("row", "user"))
    join = AsOf(ParquetSource(str(tmp_path / "histories")), on="user", at="at", time="time", fields=("item", "price"))
    with pytest.raises(SchemaError, match=r"Sequence\('seen', share='user'\) needs histories that are stored once"):
        loader_on(ParquetSource(str(tmp_path / "requests"), join=join), other)
    with pytest.raises(SchemaError, match="share names one key"):
        Sequence("uih", ("item",), share=("user",))  # type: ignore[arg-type]


@pytest.mark.parametrize("decoder", ["pyarrow", "pages"])
def test_rows_with_the_same_default_in_one_field_do_not_share_the_others(tmp_path: Path, decoder: str) -> None:
    columns = {"item": [None, None, [7, 8]], "cat": [[1], [2], [3, 4]], "cand": [[10, 11], [12], [13]], "r": [0, 1, 2]}
    write(tmp_path / "rows.parquet", columns)
    schema = Schema(
        sequences=[Sequence("uih", fields=("item", "cat"), share="r")],
        candidates=Sequence("candidates", fields=("cand",)),
        explode="candidates",
        context=("r",),
    )
    source = ParquetSource(tmp_path, defaults={"item": 99}, decoder=decoder)
    samples = read(source, schema, batch_size=4)
    assert column(samples, "item") == [[99], [99], [99], [7, 8]]
    assert column(samples, "cat") == [[1], [1], [2], [3, 4]]


def test_max_length_changes_within_an_epoch_of_shared_histories(tmp_path: Path) -> None:
    Data.drawn(3, requests=60).write(tmp_path)
    longer = Schema(sequences=(shared(UIH, max_length=6), shared(POOL, max_length=1)), context=("row", "user"))
    options = {"batch_size": 7, "shuffle": True}
    with loader_on(source(tmp_path), SHARED, **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rows = [row for batch in batches for row in rows_of(batch)]
    with loader_on(source(tmp_path), longer, **options) as loader:
        loader.load_state_dict(state, changed="max_length")
        found = list(loader)
        every = {sample["row"]: sample for batch in loader for sample in as_python(batch)}
    assert [row for batch in found for row in rows_of(batch)] == rows
    assert [sample for batch in found for sample in as_python(batch)] == [every[row] for row in rows]
