"""Columns decoded from pages are those that pyarrow decodes, in every encoding, and by our own decoder."""

import itertools

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fsdata import CorruptFileError, FreeScaleDataLoader, ParquetSource, Schema, SchemaError, Sequence
from fsdata.decode.pages.chunk import Damaged, Page
from fsdata.decode.pages.column import read_column
from fsdata.decode.pages.forms import Form
from fsdata.decode.reused_buffers import Pool
from fsdata.kernels import pages
from fsdata.kernels.pages import fetch, headers, runs

ROWS = 300
SCHEMA = Schema(
    sequences=[
        Sequence("uih", fields=("item", "small"), floats=("price",), max_length=90, keep="last"),
        Sequence("seen", fields=("times",)),
    ],
    context=("user", "flag"),
    dense=("age", "height"),
)


def columns(seed: int = 0) -> dict[str, pa.Array]:
    rng = np.random.default_rng(seed)
    counts = [0, 1, *rng.integers(0, 200, ROWS - 2).tolist()]
    total = sum(counts)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    times = pa.array([None if n % 50 == 7 else list(range(n, n + n % 5)) for n in range(ROWS)], pa.list_(pa.int64()))
    item = np.where(rng.random(total) < 0.5, rng.integers(0, 50, total), rng.integers(-(1 << 62), 1 << 62, total))
    return {
        "item": pa.ListArray.from_arrays(offsets, pa.array(item)),
        "small": pa.ListArray.from_arrays(offsets, pa.array(rng.integers(-128, 128, total), pa.int8())),
        "price": pa.ListArray.from_arrays(offsets, pa.array(rng.random(total), pa.float64())),
        "times": times,
        "user": pa.array(rng.integers(0, 1 << 32, ROWS), pa.uint32()),
        "flag": pa.array([None if n % 9 == 3 else n % 2 == 0 for n in range(ROWS)], pa.bool_()),
        "age": pa.array([None if n % 7 == 5 else n / 3 for n in range(ROWS)], pa.float32()),
        "height": pa.array(rng.integers(0, 300, ROWS), pa.int16()),
    }


DEFAULTS = {"flag": 3, "age": -1.5, "times": 0}


def batches(path, decoder, **options):
    source = ParquetSource(path, decoder=decoder, defaults=DEFAULTS, **options.pop("source", {}))
    with FreeScaleDataLoader(source, SCHEMA, batch_size=64, rank=0, world_size=1, **options) as loader:
        found = list(loader)
        return found, loader.describe()[0]["decoder"]


def assert_same(path, expected_left=(), **options):
    ours, decoder = batches(path, "pages", **options)
    theirs, _ = batches(path, "pyarrow", **options)
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine.features.values(), other.features.values())
        assert torch.equal(mine.features.lengths(), other.features.lengths())
        assert torch.equal(mine.dense, other.dense)
        assert torch.equal(mine.jagged["price"].values, other.jagged["price"].values)
        assert torch.equal(mine.origin, other.origin)
    assert set(decoder["pyarrow"]) == set(expected_left)
    assert decoder["chunks"] > 0


ENCODED = {
    "dictionaries": {},
    "dictionaries that overflow": {"dictionary_pagesize_limit": 1 << 10},
    "plain": {"use_dictionary": False},
    "deltas": {
        "use_dictionary": False,
        "column_encoding": dict.fromkeys(("item.list.element", "small.list.element", "user"), "DELTA_BINARY_PACKED"),
    },
    "byte streams": {
        "use_dictionary": False,
        "column_encoding": dict.fromkeys(("price.list.element", "age", "item.list.element"), "BYTE_STREAM_SPLIT"),
    },
}


@pytest.mark.parametrize(
    ("encoded", "version"),
    [
        *zip(ENCODED, itertools.cycle(["1.0", "2.0"]), strict=False),
        *(pytest.param(*case, marks=pytest.mark.long) for case in zip(ENCODED, itertools.cycle(["2.0", "1.0"]))),
    ],
)
def test_pages_hold_what_pyarrow_says(tmp_path, encoded, version):
    for number, codec in enumerate(["none", "zstd", "snappy", "gzip", "lz4"]):
        pq.write_table(
            pa.table(columns(number)),
            tmp_path / f"{codec}.parquet",
            compression=codec,
            data_page_version=version,
            data_page_size=2000,
            row_group_size=130,
            write_page_checksum=number % 2 == 0,
            **ENCODED[encoded],
        )
    assert_same(tmp_path)
    assert_same(tmp_path, shuffle=True, seed=3)


def test_other_writers(tmp_path):
    pl.from_arrow(pa.table(columns())).write_parquet(tmp_path / "polars.parquet", row_group_size=100)
    assert_same(tmp_path)


def test_filters_parts_of_row_groups_and_truncation(tmp_path):
    pq.write_table(pa.table(columns()), tmp_path / "a.parquet", row_group_size=170, data_page_size=500)
    assert_same(tmp_path, source={"filter": pl.col("height") > 100})
    assert_same(tmp_path, source={"skip": 41, "limit": 100})


def page(number: int, repetition: list[int], values: list[int]) -> Page:
    """A page of a list that is never null, as other writers than pyarrow make them: it may end within a row."""
    header = np.zeros(headers.COLUMNS, np.int64)
    header[[headers.KIND, headers.VALUES, headers.ENCODING]] = headers.DATA, len(values), headers.PLAIN
    header[headers.LEVELS] = headers.RLE
    runs_of = [b"".join(bytes([2, each]) for each in levels) for levels in (repetition, [1] * len(values))]
    content = b"".join(len(each).to_bytes(4, "little") + each for each in runs_of) + np.array(values).tobytes()
    raw = np.frombuffer(content, np.uint8)
    header[[headers.ADDRESS, headers.UNPACKED]] = raw.ctypes.data, len(raw)
    return Page(header, raw, number)


def test_rows_that_go_on_in_the_next_page():
    form = Form("INT64", True, 1, 0, fetch.SAME, np.int64)
    found = [page(0, [0, 1, 1], [1, 2, 3]), page(1, [1, 0], [4, 5]), page(2, [1, 0], [6, 7])]
    for stop, lengths in ((0, [3, 0, 0]), (1, [4, 1, 0]), (2, [4, 2, 1]), (3, [4, 2, 1])):
        column = read_column(found, form, 3, stop, Pool())
        assert column.length.tolist() == lengths
        assert column.values.tolist() == list(range(1, sum(lengths) + 1))
    with pytest.raises(Damaged, match="2 rows where the footer says 3"):
        read_column(found[:2], form, 3, 3, Pool())
    with pytest.raises(Damaged, match="levels that cannot be"):
        read_column(found[1:], form, 3, 3, Pool())


@pytest.mark.parametrize("width", [1, 3, 7, 8, 17, 31, 32])
@pytest.mark.parametrize("groups", [1, 2, 9, 40])
def test_no_word_is_read_beyond_a_page(width, groups):
    raw = np.zeros(2 + groups * width, np.uint8)
    raw[:2] = width, groups << 1 | 1
    tail = np.empty(runs.TAIL + 8, np.uint8)
    table = np.empty((2, runs.COLUMNS), np.int64)
    address, count = raw.ctypes.data, groups * 8
    code, written = runs.index_positions(raw, 0, len(raw), address, count, 1 << 32, tail, table, 0)
    assert code == pages.OK
    firsts = table[:written, runs.FIRST].tolist()
    for first, at, stop in zip(firsts, table[:written, runs.AT].tolist(), [*firsts[1:], count], strict=True):
        last = at + ((stop - first - 1) * width >> 3) + 8
        held = [(address, address + len(raw)), (tail.ctypes.data, tail.ctypes.data + len(tail))]
        assert any(begin <= at and last <= end for begin, end in held)


def test_what_is_left_to_pyarrow_is_named(tmp_path):
    made = columns()
    made["price"] = pa.array([[1.0, float("nan")][: n % 3] for n in range(ROWS)], pa.list_(pa.float64()))
    made["item"] = pa.array([[5, None][: n % 3] for n in range(ROWS)], pa.list_(pa.int64()))
    made["small"] = pa.array([[5, 6][: n % 3] for n in range(ROWS)], pa.list_(pa.int8()))
    pq.write_table(pa.table(made), tmp_path / "a.parquet", compression="brotli")
    pq.write_table(pa.table(made), tmp_path / "b.parquet")
    nulls = {"source": {"nulls": {"item": "drop", "price": "drop"}}}
    ours, decoder = batches(tmp_path, "pages", **nulls)
    theirs, of_arrow = batches(tmp_path, "pyarrow", **nulls)
    assert of_arrow == {"name": "pyarrow"}
    assert len(ours) == len(theirs) > 0
    assert all(torch.equal(a.features.values(), b.features.values()) for a, b in zip(ours, theirs, strict=True))
    assert decoder["pyarrow"]["item"] == {"compressed by BROTLI": 1, "elements of lists that are null": 1}
    assert decoder["pyarrow"]["price"]["numbers that are not finite"] == 1


def test_damage_is_named_with_column_and_page(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns()), path, use_dictionary=False, write_page_checksum=True, compression="none")
    chunk = pq.read_metadata(path).row_group(0).column(0)
    raw = bytearray(path.read_bytes())
    raw[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptFileError, match=r"a\.parquet, row group 0: .*column 'item', page 0: .*checksum"):
        batches(path, "pages")


def test_the_environment_chooses_the_decoder(tmp_path, monkeypatch):
    pq.write_table(pa.table(columns()), tmp_path / "a.parquet")
    monkeypatch.setenv("FSDATA_DECODER", "pyarrow")
    assert batches(tmp_path, None)[1] == {"name": "pyarrow"}
    assert batches(tmp_path, "pages")[1]["name"] == "pages"
    monkeypatch.setenv("FSDATA_DECODER", "arrow")
    with pytest.raises(SchemaError, match="FSDATA_DECODER must be pages or pyarrow, got 'arrow'"):
        batches(tmp_path, None)
    with pytest.raises(SchemaError, match="decoder must be"):
        ParquetSource(tmp_path, decoder="arrow")
