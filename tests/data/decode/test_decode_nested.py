"""Lists of lists against a plain reference: what pyarrow's `to_pylist` gives, policies applied event by event."""

import ctypes

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet import opened, read, read_all, values, write

from fsdata import Schema, Sequence
from fsdata.decode.arrow.widen import nested_parts
from fsdata.decode.reused_buffers import Pool
from fsdata.errors import DataError, SchemaError
from fsdata.kernels import index
from fsdata.sources import ParquetSource

ITEMS = [pa.int64(), pa.int32(), pa.uint8(), pa.uint64(), pa.bool_()]
WRAPS = [pa.list_, pa.large_list]


def schema_of(max_length=None, keep="last"):
    uih = Sequence("uih", ("item",), nested=("tags", "shops"), max_length=max_length, keep=keep)
    return Schema(sequences=(uih,), context=("user",))


def random_lists(rng, counts, item, nulls):
    """Per row a list of events, or None; per event a list of ids, or None; among the ids None."""
    chance = rng.random

    def one():
        value = int(rng.integers(0, 99))
        return None if chance() < nulls / 4 else value % 2 == 1 if pa.types.is_boolean(item) else value

    def event():
        return None if chance() < nulls / 2 else [one() for _ in range(rng.integers(0, 4))]

    return [None if chance() < nulls else [event() for _ in range(count)] for count in counts]


def reference(rows, *, max_length, keep, policy, defaults):
    """The samples that survive: counts and ids of every nested field."""
    samples = []
    for row in rows:
        events = len(row["item"])
        start = max(events - max_length, 0) if max_length and keep == "last" else 0
        some = slice(start, start + (max_length or events))
        sample, dropped = {"user": [row["user"]], "item": row["item"][some]}, False
        for name in ("tags", "shops"):
            lists = row[name]
            known = lists is not None and None not in lists and not any(None in ids for ids in lists)
            dropped |= not known and policy[name] == "drop"
            lists = [[]] * events if lists is None else [[] if ids is None else ids for ids in lists]
            lists = lists[some]
            sample[name] = [len(ids) for ids in lists]
            sample[f"ids of {name}"] = [defaults[name] if one is None else int(one) for ids in lists for one in ids]
        if not dropped:
            samples.append(sample)
    return samples


@pytest.mark.parametrize("seed", range(12))
def test_random_files_read_as_pyarrow_reads_them(seed, tmp_path, monkeypatch):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 200))
    monkeypatch.setattr("fsdata.decode.arrow.record_batches.batch_rows", lambda *_: size)
    rows = int(rng.integers(1, 400))
    counts = rng.integers(0, 7, rows)
    policy = {name: str(rng.choice(["default", "drop"])) for name in ("tags", "shops")}
    columns = {"user": np.arange(rows), "item": [rng.integers(0, 9, count).tolist() for count in counts]}
    for name in ("tags", "shops"):
        item = rng.choice(ITEMS)
        nulls = 0 if rng.random() < 0.3 else 0.3 if policy[name] == "default" else 0.05
        kind = rng.choice(WRAPS)(rng.choice(WRAPS)(item))
        columns[name] = pa.array(random_lists(rng, counts, item, nulls), kind)
    path = write(tmp_path / "a.parquet", columns, group=int(rng.integers(1, 400)))
    max_length, keep = rng.choice([None, 1, 3]), str(rng.choice(["first", "last"]))
    schema = schema_of(max_length, keep)
    defaults = {"tags": 5, "shops": 7}
    source = ParquetSource(path, defaults=defaults, nulls=policy, filter=pl.col("user") % 5 != 1)
    handle, layout = opened(source, schema, pool=Pool() if seed % 2 else None)
    kept = [row for row in pq.read_table(path).to_pylist() if row["user"] % 5 != 1]
    expected = reference(kept, max_length=max_length, keep=keep, policy=policy, defaults=defaults)
    assert read_all(handle, layout) == expected
    group = handle.groups[0]
    start, stop = sorted(rng.integers(0, group.rows + 1, 2).tolist())
    part = handle.read(group, layout, start, stop)
    inside = [sample for sample in expected if start <= sample["user"][0] < stop]
    assert values(part.table, layout) == inside


@pytest.mark.parametrize("outer", [*WRAPS, lambda kind: pa.list_(kind, 2)], ids=["list", "large", "2"])
@pytest.mark.parametrize("inner", [*WRAPS, lambda kind: pa.list_(kind, 3)], ids=["list", "large", "3"])
def test_parts_of_arrays_at_any_offset(outer, inner):
    rng = np.random.default_rng(3)
    ids = lambda: [int(one) for one in rng.integers(0, 99, 3)]  # noqa: E731
    data = [None if row % 5 == 2 else [None if row == 3 else ids(), ids()] for row in range(20)]
    whole = pa.array(data, outer(inner(pa.int64())))
    for array in (whole, whole.slice(3, 11), whole.slice(20)):
        counts, flat = nested_parts(array)
        rows = array.to_pylist()
        assert counts.to_pylist() == [row and [ids and len(ids) for ids in row] for row in rows]
        assert flat.to_pylist() == [row and [one for ids in row for one in ids or ()] for row in rows]


def test_what_lies_below_a_null_is_no_value():
    """Arrow allows a null list to have elements."""
    inner = pa.ListArray.from_arrays([0, 2, 4, 5], [1, 2, 3, 4, 5], mask=pa.array([False, True, False]))
    outer = pa.ListArray.from_arrays([0, 1, 2, 3], inner, mask=pa.array([True, False, False]))
    counts, ids = nested_parts(outer)
    assert counts.to_pylist() == [None, [None], [1]]
    assert ids.to_pylist() == [None, [], [5]]


@pytest.mark.parametrize("keep_last", [0, 1])
@pytest.mark.parametrize("max_length", [-1, 0, 2, 100])
def test_ids_are_cut_with_their_events(max_length, keep_last):
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 4, events).tolist() for events in (0, 1, 2, 5, 9)]
    counts = np.array([count for row in rows for count in row], np.int64)
    sizes = np.array([len(row) for row in rows])
    before = np.cumsum(sizes) - sizes
    address = np.stack([counts.ctypes.data + 8 * before, 1000 * np.arange(5)])
    length = np.stack([sizes, [sum(row) for row in rows]])
    drop = np.zeros(5, np.uint8)
    field = np.zeros(1, index.NESTED)
    field[0] = (0, 1, max_length, keep_last)
    index.cut_nested(field, 1, 4, index.References(address, length, drop))
    assert address[1, 0] == 0
    for n, row in list(enumerate(rows))[1:]:
        kept = len(row) if max_length < 0 else min(max_length, len(row))
        start = len(row) - kept if keep_last else 0
        assert address[1, n] == 1000 * n + 8 * sum(row[:start])
        assert length[1, n] == sum(row[start : start + kept])
    assert length[0].tolist() == sizes.tolist()


def one_source(folder, tags, kind=None, **options):
    kind = kind or pa.list_(pa.list_(pa.int64()))
    shops = [[[]] * 3, [[]] * 2]
    made = {"user": [0, 1], "item": [[1, 2, 3], [4, 5]], "shops": pa.array(shops, pa.list_(pa.list_(pa.int64())))}
    if tags is not None:
        made["tags"] = pa.array(tags, kind)
    write(folder / "a.parquet", made)
    return [(each["tags"], each["ids of tags"]) for each in read(ParquetSource(folder, **options), schema_of(2))]


GOOD = [[[1], [2, 3], []], [[], [4]]]


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([GOOD[0], GOOD[1][:1]], r"row 1: the lists of 'uih' have different lengths: item 2, tags 1, shops 2"),
        ([GOOD[0], None], r"row 1: tags is null\. Give"),
        ([[[1], None, []], GOOD[1]], r"row 0: tags is null at position 1 of the list\. Give"),
        ([GOOD[0], [[], [4, 5, None]]], r"row 1: tags is null at position 2 of the ids of event 1\. Give"),
        ([[[1], [], [None]], GOOD[1]], r"row 0: tags is null at position 0 of the ids of event 2\. Give"),
    ],
    ids=["ragged", "null", "null event", "null id", "null id after an empty event"],
)
def test_what_does_not_fit_is_an_error_with_its_place(tmp_path, tags, message):
    with pytest.raises(DataError, match=message):
        one_source(tmp_path, tags)


def test_null_policies(tmp_path):
    assert one_source(tmp_path, GOOD) == [([2, 0], [2, 3]), ([0, 1], [4])]
    broken = [[[1], [None, 3], None], None]
    assert one_source(tmp_path, broken, defaults={"tags": 9}) == [([2, 0], [9, 3]), ([0, 0], [])]
    assert one_source(tmp_path, [broken[0], GOOD[1]], nulls={"tags": "drop"}) == [([0, 1], [4])]
    assert one_source(tmp_path, None, defaults={"tags": 9}) == [([0, 0], []), ([0, 0], [])]


def test_ids_outside_int64_name_their_row(tmp_path):
    kind = pa.list_(pa.list_(pa.uint64()))
    with pytest.raises(DataError, match=rf"row 1: tags: {2**63} is outside int64"):
        one_source(tmp_path, [GOOD[0], [[], [2**63]]], kind)


def test_dictionaries_and_fixed_sizes(tmp_path):
    kind = pa.list_(pa.list_(pa.int32(), 2))
    fixed = [[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10]]]
    assert one_source(tmp_path, fixed, kind) == [([2, 2], [3, 4, 5, 6]), ([2, 2], [7, 8, 9, 10])]


def test_an_expression_makes_ids_of_text(tmp_path):
    kind = pa.list_(pa.list_(pa.string()))
    words = [[["a"], ["b", "c"], []], [[], ["d"]]]
    with pytest.raises(SchemaError, match=r"columns=\{'tags': pl\.col\('tags'\)\.list\.eval\(pl\.element\(\)\.list"):
        one_source(tmp_path, words, kind)
    hashed = pl.col("tags").list.eval(pl.element().list.eval(pl.element().hash(seed=1) % 2**20))
    ((first, ids), (second, _)) = one_source(tmp_path, words, kind, columns={"tags": hashed})
    assert (first, second) == ([2, 0], [0, 1])
    assert all(0 <= one < 2**20 for one in ids)


@pytest.mark.parametrize(
    ("kind", "tags", "message"),
    [
        (pa.list_(pa.int64()), [[1, 2, 3], [4, 5]], r"where a list of lists is needed\. One id per event belongs to"),
        (pa.list_(pa.list_(pa.float32())), GOOD, "ids are integers"),
        (pa.list_(pa.list_(pa.list_(pa.int64()))), [[], []], "which cannot be read as int64"),
    ],
    ids=["list", "floats", "three levels"],
)
def test_types_that_do_not_fit(tmp_path, kind, tags, message):
    with pytest.raises(SchemaError, match=message):
        one_source(tmp_path, tags, kind)


def test_a_list_of_lists_is_no_field(tmp_path):
    write(tmp_path / "a.parquet", {"item": pa.array(GOOD, pa.list_(pa.list_(pa.int64())))})
    with pytest.raises(SchemaError, match=r"several ids per event belong to Sequence\(nested=\.\.\.\)"):
        read(ParquetSource(tmp_path), Schema(sequences=(Sequence("uih", ("item",)),)))


def test_addresses_are_aligned(tmp_path):
    write(tmp_path / "a.parquet", {"user": [0], "item": [[1]], "tags": [[[2**40]]], "shops": [[[]]]})
    handle, layout = opened(ParquetSource(tmp_path), schema_of())
    table = handle.read(handle.groups[0], layout, 0, 1).table
    address = int(table.address[layout.slots["ids of tags"], 0])
    assert address % 8 == 0
    assert ctypes.c_int64.from_address(address).value == 2**40
