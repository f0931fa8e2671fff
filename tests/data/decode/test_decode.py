"""Decoding against a plain reference: what pyarrow's `to_pylist` gives, with the policies applied row by row."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet import column, lists, opened, read, read_all, values, write

from fsdata import Schema, Sequence
from fsdata.decode.arrow.record_batches import batch_rows, wide_columns
from fsdata.errors import DataError
from fsdata.sources import ParquetSource

ID_TYPES = [pa.int64(), pa.int32(), pa.int16(), pa.uint8(), pa.uint64(), pa.bool_(), pa.timestamp("ms"), pa.date32()]
VALUE_TYPES = [pa.float32(), pa.float64(), pa.float16(), pa.int32(), pa.int64(), pa.bool_()]
SCHEMA = Schema(
    sequences=(
        Sequence("uih", ("item", "action"), floats=("price",), max_length=4),
        Sequence("searches", ("query",), max_length=3, keep="first"),
    ),
    candidates=Sequence("candidates", ("candidate",)),
    context=("user", "country"),
    dense=("age", "hour"),
    labels=("click", "bought"),
)
LISTS = {"uih": ("item", "action", "price"), "searches": ("query",), "candidates": ("candidate", "click")}
VALUES = {"price", "age", "hour", "click", "bought"}


def number(rng: np.random.Generator, kind: pa.DataType, nulls: float):
    if rng.random() < nulls:
        return None
    if pa.types.is_boolean(kind):
        return bool(rng.integers(2))
    if pa.types.is_floating(kind):
        return float(np.float16(rng.normal())) if rng.random() > nulls / 2 else math.nan
    return int(rng.integers(0, 100))


def random_columns(rng: np.random.Generator, rows: int, nulls: dict[str, float]) -> dict[str, pa.Array]:
    columns = {}
    for group in LISTS.values():
        counts = rng.integers(0, 7, rows)
        for name in group:
            kind = rng.choice(VALUE_TYPES if name in VALUES else ID_TYPES)
            data = [
                None
                if rng.random() < nulls[name]
                else [number(rng, kind, nulls[name] * (rng.random() < 0.2)) for _ in range(count)]
                for count in counts
            ]
            outer = pa.large_list(kind) if rng.random() < 0.3 else pa.list_(kind)
            array = pa.array(data, pa.list_(pa.int64()) if pa.types.is_temporal(kind) else outer)
            if pa.types.is_temporal(kind):
                child = array.values.cast(pa.int32()) if pa.types.is_date32(kind) else array.values
                array = pa.ListArray.from_arrays(array.offsets, child.cast(kind), mask=array.is_null())
            columns[name] = array
    for name in ("user", "country", "age", "hour", "bought"):
        kind = rng.choice(VALUE_TYPES if name in VALUES else ID_TYPES)
        data = [number(rng, kind, nulls[name]) for _ in range(rows)]
        if pa.types.is_temporal(kind):
            columns[name] = pa.array(data, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)
        else:
            columns[name] = pa.array(data, kind)
    return columns


def as_ints(array: pa.ChunkedArray) -> list:
    """`to_pylist`, with times and dates as the integers they are stored as."""
    kind = array.type
    if pa.types.is_list(kind) and pa.types.is_temporal(kind.value_type):
        return [
            None if row is None else as_ints(pa.chunked_array([pa.array(row, kind.value_type)]))
            for row in array.to_pylist()
        ]
    if pa.types.is_date32(kind):
        return array.cast(pa.int32()).to_pylist()
    return array.cast(pa.int64()).to_pylist() if pa.types.is_temporal(kind) else array.to_pylist()


def is_null(value) -> bool:
    return value is None or not math.isfinite(value)


def reference(table: pa.Table, schema: Schema, policy: dict[str, str], defaults: dict[str, float]) -> list[dict]:
    """The samples that survive, in plain Python; policies are `default` or `drop`."""
    data = {name: as_ints(table.column(name)) for name in table.column_names}
    limits = {group.name: (group.max_length, group.keep) for group in schema.groups}
    samples = []
    for row in range(table.num_rows):
        sample, dropped = {}, False
        for name in ("user", "country", "bought"):
            value = data[name][row]
            dropped |= is_null(value) and policy[name] == "drop"
            sample[name] = [defaults[name] if is_null(value) else value]
        sample["dense"] = []
        for name in ("age", "hour"):
            value = data[name][row]
            dropped |= is_null(value) and policy[name] == "drop"
            sample["dense"].append(defaults[name] if is_null(value) else value)
        for group, names in LISTS.items():
            length = max((len(data[name][row]) for name in names if data[name][row] is not None), default=0)
            limit, keep = limits[group]
            limit = length if limit is None else min(limit, length)
            for name in names:
                entries = data[name][row]
                dropped |= policy[name] == "drop" and (entries is None or any(map(is_null, entries)))
                entries = [None] * length if entries is None else entries
                entries = [defaults[name] if is_null(value) else value for value in entries]
                sample[name] = entries[:limit] if keep == "first" else entries[length - limit :]
        if not dropped:
            samples.append(sample)
    return samples


def rounded(samples: list[dict]) -> list[dict]:
    floats = VALUES | {"dense"}
    return [
        {k: [float(np.float32(x)) if k in floats else int(x) for x in v] for k, v in sample.items()}
        for sample in samples
    ]


def in_batches_of(monkeypatch, rows: int) -> None:
    monkeypatch.setattr("fsdata.decode.arrow.record_batches.batch_rows", lambda *_: rows)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 16))])
def test_random_files_read_as_pyarrow_reads_them(seed, tmp_path, monkeypatch):
    rng = np.random.default_rng(seed)
    in_batches_of(monkeypatch, int(rng.integers(1, 700)))
    names = list(SCHEMA.field_names)
    policy = {name: str(rng.choice(["default", "default", "drop"])) for name in names}
    share = {name: 0.0 if rng.random() < 0.5 else (0.3 if policy[name] == "default" else 0.05) for name in names}
    rows = int(rng.integers(1, 1400))
    path = write(tmp_path / "a.parquet", random_columns(rng, rows, share), group=int(rng.integers(1, 1400)))
    defaults = {name: float(rng.integers(0, 9)) if name in VALUES else int(rng.integers(0, 9)) for name in names}
    source, layout = opened(ParquetSource(path, defaults=defaults, nulls=policy), SCHEMA)
    expected = rounded(reference(pq.read_table(path), SCHEMA, policy, defaults))
    got = rounded(read_all(source, layout))
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert one == other


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))])
def test_a_slice_is_a_part_of_the_whole(seed, tmp_path, monkeypatch):
    rng = np.random.default_rng(100 + seed)
    in_batches_of(monkeypatch, 200)
    rows = 1300
    share = dict.fromkeys(SCHEMA.field_names, 0.02)
    path = write(tmp_path / "a.parquet", random_columns(rng, rows, share), group=rows)
    defaults = dict.fromkeys(SCHEMA.field_names, 1)
    source, layout = opened(ParquetSource(path, defaults=defaults, nulls={"item": "drop"}), SCHEMA)
    group = source.groups[0]
    whole = source.read(group, layout, 0, rows)
    everything = dict(zip(whole.kept.tolist(), values(whole.table, layout), strict=True))
    for _ in range(12):
        start, stop = sorted(rng.integers(0, rows + 1, 2).tolist())
        part = source.read(group, layout, start, stop)
        kept = np.arange(stop - start) if part.kept is None else part.kept
        assert kept.tolist() == [row - start for row in everything if start <= row < stop]
        assert values(part.table, layout) == [everything[row] for row in everything if start <= row < stop]


def test_threads_do_not_disturb_each_other(tmp_path, monkeypatch):
    in_batches_of(monkeypatch, 16)
    rng = np.random.default_rng(5)
    share = dict.fromkeys(SCHEMA.field_names, 0.01)
    table = pa.table(random_columns(rng, 480, share))
    for file in range(3):
        write(tmp_path / f"{file}.parquet", table.slice(160 * file, 160), group=40)
    source, layout = opened(ParquetSource(tmp_path, defaults=dict.fromkeys(SCHEMA.field_names, 1)), SCHEMA)
    alone = [values(source.read(group, layout, 0, group.rows).table, layout) for group in source.groups]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            together = list(pool.map(lambda group: source.read(group, layout, 0, group.rows), source.groups))
            assert [values(rows.table, layout) for rows in together] == alone


ITEMS = Schema(sequences=(Sequence("uih", ("item",)),), context=("user",))


def items(tmp_path, array, **options):
    path = write(tmp_path / "a.parquet", {"item": array, "user": pa.array(range(len(array)))})
    return column(read(ParquetSource(path, **options), ITEMS), "item")


def test_fixed_size_lists_and_slices_of_them(tmp_path):
    array = pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int32(), 2))
    assert items(tmp_path, array, defaults={"item": 7}) == [[1, 2], [], [3, 4], [5, 6]]


def test_fixed_size_lists_of_int64(tmp_path):
    array = pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))
    assert items(tmp_path, array) == [[1, 2], [3, 4]]


def test_dictionary_columns(tmp_path):
    schema = Schema(context=("user",), dense=("age",))
    path = write(
        tmp_path / "a.parquet",
        {
            "user": pa.array([5, 6, 5, None]).dictionary_encode(),
            "age": pa.array([0.5, None, 0.5, 2.0], pa.float64()).dictionary_encode(),
        },
    )
    samples = read(ParquetSource(path, defaults={"user": 1, "age": 3}), schema)
    assert column(samples, "user") == [[5], [6], [5], [1]]
    assert column(samples, "dense") == [[0.5], [3.0], [0.5], [2.0]]


def test_only_nulls_of_type_null(tmp_path):
    path = write(tmp_path / "a.parquet", {"user": pa.nulls(3), "age": pa.nulls(3)})
    samples = read(ParquetSource(path, defaults={"user": 1, "age": 3}), Schema(context=("user",), dense=("age",)))
    assert samples == [{"user": [1], "dense": [3.0]}] * 3


def test_uint64_beyond_int64_is_an_error_with_its_row(tmp_path):
    rows = [[1], [2, 2**63], [3]]
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, row 1: item: 9223372036854775808 is outside int64"):
        items(tmp_path, pa.array(rows, pa.list_(pa.uint64())))
    assert items(tmp_path, pa.array([[2**63 - 1]], pa.list_(pa.uint64()))) == [[2**63 - 1]]


def test_negative_ids_pass(tmp_path):
    assert items(tmp_path, lists(pa.int64(), [-1, -(2**63)], [])) == [[-1, -(2**63)], []]


RAGGED = Schema(
    sequences=(Sequence("uih", ("item", "action"), max_length=1),),
    candidates=Sequence("candidates", ("candidate",)),
    labels=("click",),
)


def ragged(tmp_path, **columns):
    base = {
        "item": lists(pa.int64(), [1], [2, 3], [4]),
        "action": lists(pa.int64(), [1], [2, 3], [4]),
        "candidate": lists(pa.int64(), [1], [2], [3]),
        "click": lists(pa.float32(), [1.0], [0.0], [1.0]),
    }
    return write(tmp_path / "a.parquet", base | columns, group=2)


def test_ragged_lists_name_the_row_and_the_lengths_even_where_truncation_would_hide_them(tmp_path):
    path = ragged(tmp_path, action=lists(pa.int64(), [1], [2, 3], [4, 5]))
    source, layout = opened(ParquetSource(path), RAGGED, index=4)
    with pytest.raises(DataError, match=r"source 4 .*a\.parquet, row group 1, row 0: .*'uih'.* item 1, action 2"):
        read_all(source, layout)


def test_list_labels_align_with_the_candidates(tmp_path):
    path = ragged(tmp_path, click=lists(pa.float32(), [1.0], [0.0, 1.0], [1.0]))
    with pytest.raises(DataError, match=r"row group 0, row 1: .*'candidates'.* candidate 1, click 2"):
        read(ParquetSource(path), RAGGED)


def test_a_ragged_row_that_another_policy_drops_does_no_harm(tmp_path):
    path = ragged(tmp_path, action=lists(pa.int64(), [1], None, [4]), item=lists(pa.int64(), [1], [2, None], [4]))
    samples = read(ParquetSource(path, defaults={"action": 0}, nulls={"item": "drop"}), RAGGED)
    assert column(samples, "item") == [[1], [4]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": pa.array([1, None, 3])}, r"row group 0, row 1: user is null\. .*defaults=.*'user'"),
        ({"age": pa.array([1.0, 2.0, None])}, r"row group 1, row 0: age is null"),
        ({"age": pa.array([1.0, math.nan, 3.0])}, r"row 1: age is NaN or infinite"),
        ({"age": pa.array([1.0, 2.0, math.inf])}, r"row group 1, row 0: age is NaN or infinite"),
        ({"age": pa.array([1.0, 1e300, 0.0])}, r"row 1: age is NaN or infinite"),
        ({"item": lists(pa.int64(), [1], None, [])}, r"row 1: item is null"),
        ({"item": lists(pa.int64(), [1], [2, None], [])}, r"row 1: item is null at position 1 of the list"),
        ({"price": lists(pa.float32(), [1.0], [0.0, math.nan], [])}, r"row 1: price is NaN .* at position 1 of the"),
        ({"bought": pa.array([1.0, math.nan, 3.0], pa.float32())}, r"row 1: bought is NaN or infinite"),
    ],
)
def test_nulls_and_nan_without_a_policy_are_errors_with_their_place(columns, message, tmp_path):
    schema = Schema(
        sequences=(Sequence("uih", ("item",), floats=("price",)),),
        context=("user",),
        dense=("age",),
        labels=("bought",),
    )
    base = {
        "user": pa.array([1, 2, 3]),
        "age": pa.array([1.0, 2.0, 3.0]),
        "item": lists(pa.int64(), [1], [2, 2], []),
        "price": lists(pa.float32(), [1.0], [2.0, 2.0], []),
        "bought": pa.array([1.0, 2.0, 3.0], pa.float32()),
    }
    path = write(tmp_path / "a.parquet", base | columns, group=2)
    with pytest.raises(DataError, match=message):
        read(ParquetSource(path), schema)


def test_a_missing_list_becomes_defaults_of_its_groups_length(tmp_path):
    schema = Schema(sequences=(Sequence("uih", ("item", "action"), floats=("price",)),), context=("user",))
    path = write(tmp_path / "a.parquet", {"item": lists(pa.int64(), [1, 2], [], [3]), "user": pa.array([1, 2, 3])})
    samples = read(ParquetSource(path, defaults={"action": 9, "price": 0.5}), schema)
    assert column(samples, "action") == [[9, 9], [], [9]]
    assert column(samples, "price") == [[0.5, 0.5], [], [0.5]]


def test_a_group_that_is_missing_is_empty(tmp_path):
    path = write(tmp_path / "a.parquet", {"user": pa.array([1, 2])})
    assert read(ParquetSource(path, defaults={"item": 0}), ITEMS) == [
        {"user": [1], "item": []},
        {"user": [2], "item": []},
    ]


@pytest.mark.parametrize("events", [200_000, pytest.param(2_000_000, marks=pytest.mark.long)])
def test_a_long_history_whole_and_truncated(tmp_path, events):
    big = pa.ListArray.from_arrays(
        pa.array([0, 1, events + 1, events + 2], pa.int32()), pa.array(np.arange(events + 2))
    )
    path = write(tmp_path / "a.parquet", {"item": big, "user": pa.array([1, 2, 3])})
    for limit, keep, first in [(None, "last", 1), (1000, "last", events - 999), (1000, "first", 1)]:
        schema = Schema(sequences=(Sequence("uih", ("item",), max_length=limit, keep=keep),), context=("user",))
        source, layout = opened(ParquetSource(path), schema)
        rows = source.read(source.groups[0], layout, 0, 3)
        item = layout.names.index("item")
        assert rows.table.length[item].tolist() == [1, limit or events, 1]
        history = values(rows.table.take(np.array([1])), layout)[0]["item"]
        assert history == list(range(first, first + (limit or events)))


def test_rows_outlive_the_source(tmp_path):
    path = write(
        tmp_path / "a.parquet",
        {"item": lists(pa.int32(), *[[n, n] for n in range(2000)]), "user": pa.array(range(2000))},
    )
    source, layout = opened(ParquetSource(path), ITEMS)
    rows = source.read(source.groups[0], layout, 0, 2000)
    source.close()
    del source
    pa.default_memory_pool().release_unused()
    assert column(values(rows.table, layout), "item") == [[n, n] for n in range(2000)]


def test_batches_are_sized_by_their_widest_column(tmp_path):
    def rows_for(columns: dict, read: list[str]) -> int:
        metadata = pq.read_metadata(write(tmp_path / "a.parquet", columns))
        return batch_rows(metadata.row_group(0), wide_columns(metadata, read))

    short = lists(pa.int64(), *[[1] * 40] * 100)
    long = lists(pa.int64(), *[[1] * 900] * 100)
    assert rows_for({"user": pa.array(range(100))}, ["user"]) == 8192
    assert rows_for({"short": short, "user": pa.array(range(100))}, ["short", "user"]) == 8192
    assert rows_for({"long": long}, ["long"]) == 512
    assert rows_for({"short": short, "long": long}, ["short"]) == 8192
    assert rows_for({"middle": lists(pa.int64(), *[[1] * 300] * 100)}, ["middle"]) == 1024
