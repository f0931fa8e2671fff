"""Whatever a file holds and however it was written: the batches are those that pyarrow's decoding makes.

Files of random columns, by three writers; loaders of random options. Columns that must be decoded from pages are, so
that no test passes because pyarrow has decoded all.
"""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsdata import Balance, FreeScaleDataLoader, ParquetSource, Polynomial, Schema, Sequence
from fsdata.errors import CorruptFileError, DataError

IDS = [
    pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.uint32(), pa.uint16(), pa.uint8(), pa.bool_(), pa.timestamp("ms"),
    pa.timestamp("us"), pa.timestamp("ns"),
]  # fmt: skip
VALUES = [pa.float32(), pa.float64(), pa.int64(), pa.int32(), pa.int16(), pa.uint32(), pa.uint8(), pa.bool_()]
LEFT = {pa.uint64(): "uint64", pa.date32(): "date32"}  # by pyarrow
CODECS = ["none", "zstd", "snappy", "gzip", "lz4"]
DEFAULTS = {"user": 7, "price": -1.5, "items": 3, "kinds": 4, "costs": 0.5}
ROLES = {"user": IDS, "at": [pa.int64()], "price": VALUES, "items": IDS, "kinds": IDS, "costs": VALUES}
LISTS = ("items", "kinds", "costs")


def schema(max_length: int | None = None, keep: str = "last") -> Schema:
    return Schema(
        sequences=[
            Sequence("uih", fields=("items",), floats=("costs",), max_length=max_length, keep=keep),  # type: ignore[arg-type]
            Sequence("seen", fields=("kinds",)),
        ],
        context=("user", "at"),
        dense=("price",),
    )


def numbers(rng: np.random.Generator, count: int, kind: pa.DataType) -> pa.Array:
    """Few different ones or many, ascending or not, all of one sign or at both ends."""
    if pa.types.is_floating(kind):
        found = np.round(rng.normal(size=count) * 1e6) if rng.random() < 0.5 else rng.integers(0, 9, count) / 4
        return pa.array(found.astype(np.float32), kind)
    if pa.types.is_boolean(kind):
        return pa.array(rng.random(count) < rng.choice([0.02, 0.5]))
    width = pa.int64() if pa.types.is_timestamp(kind) else pa.int32() if pa.types.is_date(kind) else kind
    most = np.iinfo(width.to_pandas_dtype())
    if kind == pa.uint64():
        least, stop = 0, 1 << 40
    else:
        least, stop = (int(most.min), int(most.max)) if rng.random() < 0.4 else (0, int(rng.choice([2, 100])))
    found = rng.integers(least, stop, count)
    return pa.array(np.sort(found) if rng.random() < 0.3 else found, width).cast(kind)


def with_nulls(rng: np.random.Generator, array: pa.Array) -> pa.Array:
    kept = rng.random(len(array)) > rng.choice([0.05, 0.6])
    if pa.types.is_list(array.type):
        offsets, values = array.offsets, array.values
        return pa.ListArray.from_arrays(offsets, values, mask=pa.array(~kept))
    return pa.array(array.to_numpy(zero_copy_only=False), array.type, mask=~kept)


def columns(rng: np.random.Generator, rows: int, *, nulls: bool, lengths: str) -> dict[str, pa.Array]:
    made = {}
    shapes = {
        "short": lambda: rng.integers(0, 4, rows),
        "long": lambda: rng.integers(0, 90, rows),
        "equal": lambda: np.full(rows, int(rng.integers(0, 60))),
        "one very long": lambda: np.where(np.arange(rows) == rows // 2, 5000, 0),
    }
    counts = {"uih": shapes[lengths](), "seen": shapes[lengths]()}
    for name, kinds in ROLES.items():
        kind = kinds[rng.integers(len(kinds))]
        if name in LISTS:
            offsets = np.concatenate([[0], np.cumsum(counts["seen" if name == "kinds" else "uih"])])
            array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), numbers(rng, int(offsets[-1]), kind))
        else:
            array = numbers(rng, rows, kind)
        made[name] = with_nulls(rng, array) if nulls and name != "at" and rng.random() < 0.7 else array
    return made


def write(path: Path, made: dict[str, pa.Array], rng: np.random.Generator, codec: str, version: str, page: int) -> None:
    """By pyarrow, every column in an encoding that its type allows."""
    encodings = {}
    for name, array in made.items():
        kind = array.type.value_type if name in LISTS else array.type
        possible = ["PLAIN"]
        if pa.types.is_boolean(kind):
            possible.append("RLE")
        else:
            possible += ["", "BYTE_STREAM_SPLIT"] if pa.types.is_floating(kind) else ["", "DELTA_BINARY_PACKED"]
        encodings[f"{name}.list.element" if name in LISTS else name] = str(rng.choice(possible))
    fields = [pa.field(name, array.type, array.null_count > 0 or rng.random() < 0.5) for name, array in made.items()]
    table = pa.table(list(made.values()), schema=pa.schema(fields))
    pq.write_table(
        table,
        path,
        row_group_size=int(rng.choice([1, 37, 1000])) if table.num_rows < 100 else 150,
        compression=codec,
        use_dictionary=[name for name, encoding in encodings.items() if not encoding],
        column_encoding={name: encoding for name, encoding in encodings.items() if encoding},
        dictionary_pagesize_limit=int(rng.choice([64, 1 << 20])),
        data_page_version=version,
        data_page_size=page,
        write_batch_size=int(rng.choice([3, 64, 1024])),
        write_page_checksum=bool(rng.random() < 0.5),
    )


def batches(path: Path, decoder: str, wanted: Schema, source: dict[str, Any], options: dict[str, Any]) -> Any:
    """All batches, or the class of the error; and which column chunks were decoded from pages."""
    given_source = ParquetSource(path, decoder=decoder, **{"defaults": DEFAULTS, **source})  # type: ignore[arg-type]
    with FreeScaleDataLoader(given_source, wanted, rank=0, world_size=1, **{"batch_size": 16, **options}) as loader:
        try:
            found = list(loader)
        except DataError as error:
            found = str(error)
        except CorruptFileError:
            found = "corrupt"
        return found, loader.describe()[0]["decoder"]


def assert_same(path: Path, wanted: Schema | None = None, left: dict[str, Any] | None = None, **options: Any) -> int:
    """How many rows. left: field -> reasons for which pyarrow must decode it; others it must not. plain: another file
    of the same rows, for pyarrow."""
    source, plain = options.pop("source", {}), options.pop("plain", path)
    ours, decoder = batches(path, "pages", wanted or schema(), source, options)
    theirs, arrow = batches(plain, "pyarrow", wanted or schema(), source, options)
    assert arrow == {"name": "pyarrow"}
    assert decoder["name"] == "pages"
    if isinstance(theirs, str):
        assert ours == theirs
        return 0
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.features.keys() == other.features.keys()
        assert torch.equal(mine.features.values(), other.features.values())
        assert torch.equal(mine.features.lengths(), other.features.lengths())
        assert torch.equal(mine.dense, other.dense)
        assert torch.equal(mine.jagged["costs"].values, other.jagged["costs"].values)
        assert torch.equal(mine.jagged["costs"].offsets, other.jagged["costs"].offsets)
        assert torch.equal(mine.origin, other.origin)
    if left is not None and theirs:
        assert {name: list(reasons) for name, reasons in decoder["pyarrow"].items()} == left
        assert decoder["chunks"] > 0 or set(left) == set(ROLES)
    return sum(len(batch.dense) for batch in ours)


@given(
    seed=st.integers(0, 1 << 30),
    rows=st.sampled_from([0, 1, 2, 40, 300]),
    codec=st.sampled_from(CODECS),
    version=st.sampled_from(["1.0", "2.0"]),
    page=st.sampled_from([16, 300, 1 << 20]),
    nulls=st.booleans(),
    lengths=st.sampled_from(["short", "long", "equal", "one very long"]),
)
def test_every_encoding_of_every_type(tmp_path, seed, rows, codec, version, page, nulls, lengths):
    rng = np.random.default_rng(seed)
    path = tmp_path / "a.parquet"
    (tmp_path / "plain").mkdir(exist_ok=True)
    made = columns(rng, rows, nulls=nulls, lengths=lengths)
    write(path, made, rng, codec, version, page)
    # pyarrow writes pages of no values where pages are small, and does not read on after them.
    group = pq.read_metadata(path).row_group(0).num_rows if rows else 1
    pq.write_table(pa.table(made), tmp_path / "plain" / "a.parquet", row_group_size=group, use_dictionary=False)
    assert assert_same(path, left={}, plain=tmp_path / "plain" / "a.parquet") == rows


@given(
    seed=st.integers(0, 1 << 30),
    max_length=st.sampled_from([None, 1, 7, 100]),
    keep=st.sampled_from(["first", "last"]),
    shuffle=st.booleans(),
    balance=st.booleans(),
    policy=st.sampled_from(["default", "drop", "error"]),
    part=st.sampled_from([{}, {"skip": 40}, {"limit": 31}, {"skip": 17, "limit": 77}, {"filter": True}]),
)
def test_every_way_to_read(tmp_path, seed, max_length, keep, shuffle, balance, policy, part):
    rng = np.random.default_rng(seed)
    path = tmp_path / "a.parquet"
    made = columns(rng, 200, nulls=True, lengths=str(rng.choice(["short", "long", "one very long"])))
    write(path, made, rng, "zstd", "1.0", 200)
    if part == {"filter": True}:
        part = {"filter": pl.col("at") > int(np.median(made["at"].to_numpy()))}
    source = {**part, "nulls": dict.fromkeys(DEFAULTS, policy)}
    options = {"shuffle": shuffle, "seed": seed % 100} if shuffle else {}
    if balance:
        options["balance"] = Balance(cost=Polynomial(linear=1, quadratic=1))
    assert_same(path, schema(max_length, keep), source=source, left={}, **options)


@given(seed=st.integers(0, 1 << 30), codec=st.sampled_from(CODECS), writer=st.sampled_from(["polars", "duckdb"]))
def test_other_writers(tmp_path, seed, codec, writer):
    rng = np.random.default_rng(seed)
    path = tmp_path / "a.parquet"
    shape = str(rng.choice(["short", "long", "equal"]))
    table = pa.table(columns(rng, 300, nulls=rng.random() < 0.5, lengths=shape))
    if writer == "polars":
        codec = {"none": "uncompressed"}.get(codec, codec)
        pl.from_arrow(table).write_parquet(path, compression=codec, row_group_size=130, data_page_size=500)
    else:
        codec = {"none": "uncompressed", "lz4": "lz4_raw"}.get(codec, codec)
        with duckdb.connect() as base:
            base.register("made", table)
            version = "v2" if rng.random() < 0.5 else "v1"
            how = f"format parquet, compression {codec}, parquet_version {version}, row_group_size 2048"
            base.execute(f"copy made to '{path}' ({how})")
        if version == "v2" and batches(path, "pyarrow", schema(), {}, {})[0] == "corrupt":
            assert assert_same(path) == 0  # deltas of int32 in more than 32 bits, which pyarrow refuses
            return
    assert assert_same(path, left={}) == 300


@pytest.mark.parametrize("kind", LEFT, ids=str)
def test_types_that_are_left_to_pyarrow(tmp_path, kind):
    rng = np.random.default_rng(1)
    made = columns(rng, 60, nulls=False, lengths="short") | {"user": numbers(rng, 60, kind)}
    made["kinds"] = pa.ListArray.from_arrays(pa.array(range(61), pa.int32()), numbers(rng, 60, kind))
    pq.write_table(pa.table(made), tmp_path / "a.parquet")
    _, decoder = batches(tmp_path, "pages", schema(), {}, {})
    assert set(decoder["pyarrow"]) == {"user", "kinds"}
    assert all(LEFT[kind] in reason for reasons in decoder["pyarrow"].values() for reason in reasons)
    assert assert_same(tmp_path) == 60


def test_brotli_null_elements_and_numbers_that_are_not_finite_are_left_to_pyarrow(tmp_path):
    rng = np.random.default_rng(2)
    made = columns(rng, 60, nulls=False, lengths="equal")
    pq.write_table(pa.table(made), tmp_path / "a.parquet", compression="brotli")
    assert assert_same(tmp_path, left={name: ["compressed by BROTLI"] for name in sorted(ROLES)}) == 60
    made["kinds"] = pa.array([[1, None, n] for n in range(60)], pa.list_(pa.int32()))
    made["price"] = pa.array([np.nan if n == 50 else n for n in range(60)], pa.float64())
    pq.write_table(pa.table(made), tmp_path / "a.parquet")
    left = {"kinds": ["elements of lists that are null"], "price": ["numbers that are not finite"]}
    for policy, rows in (("default", 60), ("drop", 0), ("error", 0)):
        source = {"nulls": {"kinds": policy, "price": "default"}}
        assert assert_same(tmp_path, left=left, source=source) == rows


def test_a_dictionary_that_overflows_within_a_list(tmp_path):
    item = pa.array([list(range(n, n + 900)) for n in range(30)], pa.list_(pa.int64()))
    made = columns(np.random.default_rng(3), 30, nulls=False, lengths="short") | {"kinds": item}
    pq.write_table(pa.table(made), tmp_path / "a.parquet", dictionary_pagesize_limit=2000, data_page_size=700)
    assert {"PLAIN", "RLE_DICTIONARY"} <= set(pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(4).encodings)
    assert assert_same(tmp_path, left={}) == 30
    assert assert_same(tmp_path, left={}, shuffle=True, source={"skip": 3, "limit": 9}) == 9
