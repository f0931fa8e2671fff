"""Decoding against a plain reference in Python, with the policies applied row by row."""

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from data_kit import DECODERS, column, lists, read, write

from fsdata import ParquetSource, Schema, Sequence

ID_TYPES = [pa.int64(), pa.int32(), pa.int16(), pa.uint8(), pa.uint64(), pa.bool_(), pa.timestamp("ms"), pa.date32()]
VALUE_TYPES = [
    pa.float32(), pa.float64(), pa.float16(), pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64(), pa.bool_(),
]  # fmt: skip
NESTED_TYPES = [pa.int64(), pa.int32(), pa.uint8(), pa.uint64(), pa.bool_()]
KEY_TYPES = [pa.int8(), pa.int64(), pa.uint32(), pa.uint64()]
TEXT_TYPES = [
    pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
]  # fmt: skip
WORDS = ["a", "", "größer 𝕏", "b" * 300, "0"]
SCHEMA = Schema(
    sequences=(
        Sequence(
            "uih", ("item", "action"), floats=("price",), nested=("tags", "shops"), max_length=4, labels=("watched",),
            id_labels=("next",),
        ),
        Sequence("searches", ("query",), nested=("words",), max_length=3, keep="first"),
    ),
    candidates=Sequence("candidates", ("candidate",), nested=("cats",)),
    context=("row", "user", "country"),
    dense=("age", "hour"),
    labels=("click", "bought"),
    passthrough=("key", "text"),
)  # fmt: skip
GROUPS = {
    ("uih", 4, "last"): ("item", "action", "price", "tags", "shops", "watched", "next"),
    ("searches", 3, "first"): ("query", "words"),
    ("candidates", None, "last"): ("candidate", "click", "cats"),
}
SCALARS = ("user", "country", "bought", "age", "hour", "key", "text")
NESTED = {"tags", "shops", "words", "cats"}
VALUES = {"price", "age", "hour", "click", "bought", "watched"}
NAMES = [name for name in SCHEMA.field_names if name != "row"]


def random_columns(rng: np.random.Generator, rows: int, nulls: dict[str, float]) -> tuple[dict, dict[str, pa.Array]]:
    """The same columns as lists and as Arrow arrays."""
    made, arrays = {"row": list(range(rows))}, {"row": pa.array(range(rows))}

    def number(kind: pa.DataType, share: float):
        if rng.random() < share:
            return None
        if pa.types.is_boolean(kind):
            return bool(rng.integers(2))
        if pa.types.is_floating(kind):
            return float(np.float16(rng.normal())) if rng.random() > share / 2 else math.nan
        return int(rng.integers(0, 100))

    for names in GROUPS.values():
        counts = rng.integers(0, 7, rows)
        for name in names:
            kind = rng.choice(NESTED_TYPES if name in NESTED else VALUE_TYPES if name in VALUES else ID_TYPES)
            few = nulls[name] * (rng.random() < 0.2)

            def event(name=name, kind=kind, few=few):
                if name not in NESTED:
                    return number(kind, few)
                return None if rng.random() < few else [number(kind, few / 2) for _ in range(rng.integers(0, 4))]

            made[name] = [None if rng.random() < nulls[name] else [event() for _ in range(count)] for count in counts]
            for _ in range(1 + (name in NESTED)):
                kind = pa.large_list(kind) if rng.random() < 0.3 else pa.list_(kind)
            arrays[name] = pa.array(made[name], kind)
    for name in SCALARS:
        kind = rng.choice(VALUE_TYPES if name in VALUES else KEY_TYPES if name == "key" else ID_TYPES)
        made[name] = [number(kind, nulls[name]) for _ in range(rows)]
        if name == "text":
            kind = TEXT_TYPES[rng.integers(len(TEXT_TYPES))]
            made[name] = [None if one is None else WORDS[int(one) % len(WORDS)] for one in made[name]]
        arrays[name] = pa.array(made[name]).cast(kind) if name == "text" else pa.array(made[name], kind)
    return made, arrays


def is_null(value) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def reference(made: dict[str, list], policy: dict[str, str], defaults: dict[str, float]) -> list[dict]:
    """The samples that survive; policies are `default` or `drop`."""

    def filled(name: str, value):
        value = defaults[name] if is_null(value) else value
        return float(np.float32(value)) if name in VALUES else value

    samples = []
    for row in made["row"]:
        sample, dropped = {"row": row}, False
        for name in SCALARS:
            dropped |= is_null(made[name][row]) and policy[name] == "drop"
            sample[name] = filled(name, made[name][row])
        for (_, limit, keep), names in GROUPS.items():
            length = max((len(made[name][row]) for name in names if made[name][row] is not None), default=0)
            some = slice(limit) if keep == "first" else slice(0 if limit is None else max(length - limit, 0), None)
            for name in names:
                entries = made[name][row]
                inside = [one for entry in entries or () if name in NESTED for one in entry or ()]
                known = entries is not None and not any(map(is_null, [*entries, *inside]))
                dropped |= policy[name] == "drop" and not known
                entries = ([None] * length if entries is None else entries)[some]
                if name in NESTED:
                    sample[name] = [[filled(name, one) for one in entry or ()] for entry in entries]
                else:
                    sample[name] = [filled(name, one) for one in entries]
        if not dropped:
            samples.append(sample)
    return samples


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 40))])
def test_random_files_read_as_a_plain_reference_reads_them(seed, tmp_path, monkeypatch):
    """By both decoders, whole and in parts, with a filter and without."""
    rng = np.random.default_rng(seed)
    batch = int(rng.integers(1, 300))
    monkeypatch.setattr("fsdata.decode.arrow.record_batches.batch_rows", lambda *_: batch)
    policy = {name: str(rng.choice(["default", "default", "drop"])) for name in NAMES}
    share = {name: 0.0 if rng.random() < 0.5 else (0.3 if policy[name] == "default" else 0.05) for name in NAMES}
    rows = int(rng.integers(1, 600))
    made, arrays = random_columns(rng, rows, share)
    pages = {"data_page_size": 200, "write_batch_size": 8, "write_page_index": True} if seed % 3 else {}
    path = write(tmp_path / "a.parquet", arrays, group=int(rng.integers(rows // 3, rows)) + 1, **pages)
    defaults = {name: float(rng.integers(0, 9)) if name in VALUES else int(rng.integers(0, 9)) for name in NAMES}
    defaults["text"] = "none ∅"
    options = {"defaults": defaults, "nulls": policy, "filter": pl.col("row") % 5 != 1 if seed % 2 else None}
    expected = [one for one in reference(made, policy, defaults) if not seed % 2 or one["row"] % 5 != 1]
    for decoder in DECODERS:
        assert read(ParquetSource(path, decoder=decoder, **options), SCHEMA, batch_size=64) == expected
        for _ in range(4):
            skip, limit = int(rng.integers(0, rows)), int(rng.integers(1, rows + 1))
            part = ParquetSource(path, decoder=decoder, skip=skip, limit=limit, **options)
            inside = [one for one in expected if skip <= one["row"] < skip + limit]
            assert read(part, SCHEMA, batch_size=64) == inside


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int32(), 2)), [[1, 2], [], [3, 4], [5, 6]]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), [[1, 2], [3, 4]]),
        (lists(pa.int64(), [-1, -(2**63)], []), [[-1, -(2**63)], []]),
        (lists(pa.uint64(), [2**63 - 1]), [[2**63 - 1]]),
    ],
    ids=["fixed size", "fixed size, as they are", "negative", "the largest"],
)
def test_lists_of_ids(tmp_path, array, expected):
    path = write(tmp_path / "a.parquet", {"item": array})
    schema = Schema(sequences=(Sequence("uih", ("item",)),))
    assert column(read(ParquetSource(path, defaults={"item": 7}), schema), "item") == expected


def test_nested_ids_of_fixed_size(tmp_path):
    fixed = pa.array([[[1, 2], [3, 4], [5, 6]], [[7, 8]]], pa.list_(pa.list_(pa.int32(), 2)))
    path = write(tmp_path / "a.parquet", {"item": lists(pa.int64(), [1, 2, 3], [4]), "tags": fixed})
    samples = read(ParquetSource(path), Schema(sequences=(Sequence("uih", ("item",), nested=("tags",), max_length=2),)))
    assert column(samples, "tags") == [[[3, 4], [5, 6]], [[7, 8]]]


def test_dictionaries_and_columns_of_type_null(tmp_path):
    schema = Schema(context=("user",), dense=("age",))
    users, ages = pa.array([5, 6, 5, None]), pa.array([0.5, None, 0.5, 2.0], pa.float64())
    path = write(tmp_path / "a.parquet", {"user": users.dictionary_encode(), "age": ages.dictionary_encode()})
    samples = read(ParquetSource(path, defaults={"user": 1, "age": 3}), schema)
    assert column(samples, "user") == [5, 6, 5, 1]
    assert column(samples, "age") == [0.5, 3.0, 0.5, 2.0]
    path = write(tmp_path / "b.parquet", {"user": pa.nulls(3), "age": pa.nulls(3)})
    samples = read(ParquetSource(path, defaults={"user": 1, "age": 3}), schema)
    assert samples == [{"user": 1, "age": 3.0}] * 3


def test_missing_lists_have_the_length_of_their_group(tmp_path):
    uih = Sequence("uih", ("item", "action"), floats=("price",), nested=("tags",), labels=("watched",))
    schema = Schema(sequences=(uih, Sequence("seen", ("other",))))
    path = write(tmp_path / "a.parquet", {"item": lists(pa.int64(), [1, 2], [], [3])})
    defaults = {"action": 9, "price": 0.5, "other": 0, "tags": 1, "watched": 7}
    (one, two, three) = read(ParquetSource(path, defaults=defaults), schema)
    floats = {"price": [0.5, 0.5], "watched": [7.0, 7.0]}
    assert one == {"item": [1, 2], "action": [9, 9], "tags": [[], []], "other": [], **floats}
    assert (two["action"], three["action"]) == ([], [9])


def test_a_long_history_whole_and_truncated(tmp_path):
    events = 200_000
    big = pa.ListArray.from_arrays(
        pa.array([0, 1, events + 1, events + 2], pa.int32()), pa.array(np.arange(events + 2))
    )
    path = write(tmp_path / "a.parquet", {"item": big})
    for limit, keep, first in [(None, "last", 1), (1000, "last", events - 999), (1000, "first", 1)]:
        schema = Schema(sequences=(Sequence("uih", ("item",), max_length=limit, keep=keep),))
        history = column(read(ParquetSource(path), schema), "item")
        assert [len(row) for row in history] == [1, limit or events, 1]
        assert history[1] == list(range(first, first + (limit or events)))
