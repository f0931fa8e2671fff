"""Lengths of lists from the levels of their pages are those that pyarrow has, whatever the lists hold."""

import itertools
import random
import re
from pathlib import Path
from typing import Any

import compact_thrift as thrift
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from footers import change_page
from hypothesis import given
from hypothesis import strategies as st

from freescale_tools.profile.measure import Columns, full
from freescale_tools.scan.columns import leaf
from freescale_tools.scan.files import open_files
from freescale_tools.scan.levels import Lengths, read_lengths
from freescale_tools.scan.rows import Rows, lengths_of
from fsdata.catalog.footers import column_ranges
from fsdata.pages.chunk import Damaged, LeftToArrow

CODECS = ["none", "zstd", "snappy", "gzip", "lz4"]
ITEMS = {
    "int64": pa.int64(),
    "bool": pa.bool_(),
    "float": pa.float32(),
    "text": pa.string(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "struct": pa.struct([("inner", pa.struct([("id", pa.int16())]))]),
}


def element(rng: np.random.Generator, kind: pa.DataType, nulls: float) -> Any:
    if rng.random() < nulls:
        return None
    if pa.types.is_struct(kind):
        return {field.name: element(rng, field.type, nulls) for field in kind}
    number = int(rng.integers(0, 100 if rng.random() < 0.5 else 2))
    if pa.types.is_boolean(kind):
        return number > 0
    return f"{number}" if pa.types.is_string(getattr(kind, "value_type", kind)) else number


def lists(rng: np.random.Generator, rows: int, kind: pa.DataType, nulls: float, shape: str) -> list[Any]:
    most = {"empty": 1, "short": 4, "long": 300, "one very long": 2}[shape]
    counts = rng.integers(0, most, rows)
    if shape == "one very long" and rows:
        counts[rows // 2] = 3000
    return [
        None if rng.random() < nulls else [element(rng, kind, nulls * (n % 3 == 0)) for _ in range(count)]
        for n, count in enumerate(counts.tolist())
    ]


def whole(parts: list[Lengths]) -> tuple[list[int], int, int]:
    rows = np.concatenate([part.of_row for part in parts]).tolist() if parts else []
    return rows, sum(part.null_rows for part in parts), sum(part.null_elements for part in parts)


def opened_bytes(path: Path, column: str = "items") -> tuple[Any, Any, bytes]:
    """(first row group, its lists, bytes of the file)."""
    (footer,) = open_files([str(path)]).footers
    return footer.metadata.row_group(0), leaf(footer, column), path.read_bytes()


def reads(raw: bytes, counts: list[int] | None = None) -> Any:
    """How `read_lengths` reads a file of these bytes; `counts`: of what was read."""

    def read(count: int, at: int) -> bytes:
        part = raw[at : at + count]
        if counts is not None:
            counts.append(len(part))
        return part

    return read


def from_levels(path: Path, column: str = "items") -> tuple[list[int], int, int]:
    """Of all row groups; pyarrow must not be needed."""
    (footer,) = open_files([str(path)]).footers
    place = leaf(footer, column)
    groups = [footer.metadata.row_group(group) for group in range(footer.metadata.num_row_groups)]
    read = reads(path.read_bytes())
    return whole([read_lengths(group, place.index, place.levels, read) for group in groups])


def write(path: Path, items: pa.Array, rng: random.Random, codec: str, version: str, page: int) -> Path:
    """With or without a dictionary, which may overflow."""
    field = pa.field("items", items.type, items.null_count > 0 or rng.random() < 0.5)
    before = pa.field("before", pa.int64())
    table = pa.table([pa.array(range(len(items)), pa.int64()), items], schema=pa.schema([before, field]))
    pq.write_table(table, path)
    names = [column.path for column in pq.ParquetFile(path).schema]
    pq.write_table(
        table, path,
        row_group_size=rng.choice([1, 7, 1000]) if len(items) < 50 else 150,
        compression=codec, data_page_version=version, data_page_size=page,
        use_dictionary=names[1:] if rng.random() < 0.5 else False,
        dictionary_pagesize_limit=rng.choice([64, 1 << 20]), write_batch_size=rng.choice([3, 64, 1024]),
        write_page_checksum=rng.random() < 0.5, store_schema=rng.random() < 0.8,
    )  # fmt: skip
    return path


@given(
    seed=st.integers(0, 1 << 30),
    rows=st.sampled_from([0, 1, 2, 40, 300]),
    kind=st.sampled_from(sorted(ITEMS)),
    required=st.booleans(),
    nulls=st.sampled_from([0.0, 0.05, 0.6]),
    codec=st.sampled_from(CODECS),
    version=st.sampled_from(["1.0", "2.0"]),
    page=st.sampled_from([16, 300, 1 << 20]),
    shape=st.sampled_from(["empty", "short", "long", "one very long"]),
    around=st.sampled_from(["list", "large", "in a struct"]),
)
def test_all_lists_of_all_kinds(tmp_path, seed, rows, kind, required, nulls, codec, version, page, shape, around):
    rng, item = np.random.default_rng(seed), ITEMS[kind]
    if required:
        nulls = 0.0
    inside = pa.field("element", item, not required)
    type_ = pa.large_list(inside) if around == "large" else pa.list_(inside)
    found = items = pa.array(lists(rng, rows, item, nulls, shape), type_)
    if around == "in a struct":
        mask = pa.array(rng.random(rows) < nulls)
        items = pa.StructArray.from_arrays([found], ["ids"], mask=mask)
        found = items.flatten()[0]
    path = write(tmp_path / "a.parquet", items, random.Random(seed), codec, version, page)
    assert from_levels(path, "items.ids" if around == "in a struct" else "items") == whole([lengths_of(found)])


@pytest.mark.parametrize(
    ("writer", "codec"), [("polars", "zstd"), ("polars", "lz4"), ("duckdb v1", "snappy"), ("duckdb v2", "none")]
)
def test_other_writers(tmp_path, codec, writer):
    rng = np.random.default_rng(len(codec))
    found = pa.array(lists(rng, 500, pa.int64(), 0.1, "long"), pa.list_(pa.int64()))
    table, path = pa.table({"items": found}), tmp_path / "a.parquet"
    if writer == "polars":
        codec = {"none": "uncompressed"}.get(codec, codec)
        pl.from_arrow(table).write_parquet(path, compression=codec, row_group_size=130, data_page_size=500)
    else:
        codec = {"none": "uncompressed", "lz4": "lz4_raw"}.get(codec, codec)
        with duckdb.connect() as base:
            base.register("made", table)
            how = f"format parquet, compression {codec}, parquet_version {writer[-2:]}, row_group_size 2048"
            base.execute(f"copy made to '{path}' ({how})")
    assert from_levels(path) == whole([lengths_of(found)])


LEFT = {
    "fixed size": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int64(), 2)),
    "brotli": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int64())),
    "few bytes for many values": pa.array([[0] * 5_000_000], pa.list_(pa.int64())),
}


@pytest.mark.parametrize("why", LEFT)
def test_what_is_left_to_pyarrow_has_the_same_lengths(tmp_path, why):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"items": LEFT[why]}), path, compression="brotli" if why == "brotli" else "zstd")
    group, place, raw = opened_bytes(path)
    if place.levels is not None:
        with pytest.raises(LeftToArrow):
            read_lengths(group, place.index, place.levels, reads(raw))
    (footer,) = open_files([str(path)]).footers
    with Rows(footer) as reading:
        found = reading.lengths(0, "items", place)
    assert whole([found]) == whole([lengths_of(LEFT[why])])


def test_a_page_index_and_a_long_header_do_no_harm(tmp_path):
    path = tmp_path / "a.parquet"
    found = pa.array([["x" * 200_000, None], None, ["y"]], pa.list_(pa.string()))
    pq.write_table(pa.table({"items": found}), path, write_page_index=True, compression="none")
    assert from_levels(path) == whole([lengths_of(found)])


class Many:
    """A file of several pages that `profile` reads; `found` is what it leaves out."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.rows = [[n] * (n % 40) for n in range(400)]
        made = pa.table({"items": pa.array(self.rows, pa.list_(pa.int64()))})
        pq.write_table(
            made, path, data_page_size=512, write_batch_size=64, use_dictionary=False, row_group_size=200, **options
        )
        group = pq.read_metadata(path).row_group(1)
        ((self.begin, self.end),) = column_ranges(group, [0])

    def damaged(self, at: int, new: bytes) -> Any:
        raw = self.path.read_bytes()
        self.path.write_bytes(raw[:at] + new + raw[at + len(new) :])
        return self.skipped()

    def skipped(self) -> Any:
        document = full(open_files([str(self.path)]), Columns(sequences=("items",)), paths=[])
        lost = sum(one["rows"] for one in document["skipped"])
        assert document["sequences"]["items"]["rows"] + lost == len(self.rows)
        return [(one["file"], one["row_group"], one["rows"], one["reason"]) for one in document["skipped"]]


@pytest.mark.parametrize(("codec", "version"), [*itertools.product(CODECS[:2], ("1.0", "2.0")), ("gzip", "2.0")])
def test_a_checksum_that_does_not_match_is_told_with_column_and_page(tmp_path, version, codec):
    file = Many(tmp_path / "a.parquet", compression=codec, data_page_version=version, write_page_checksum=True)
    assert file.skipped() == []
    ((name, group, rows, reason),) = file.damaged(file.end - 2, b"\x99\x99")
    assert (name, group, rows) == ("a.parquet", 1, 200)
    assert reason.startswith("column 'items', page ")
    assert reason.endswith("its bytes do not match the checksum in its header")
    assert "page 0:" not in reason


@pytest.mark.parametrize("codec", CODECS[1:])
def test_pages_that_cannot_be_unpacked_and_headers_that_cannot_be_are_told(tmp_path, codec):
    file = Many(tmp_path / "a.parquet", compression=codec)
    header = file.path.read_bytes()[file.begin :]
    begin = file.begin + thrift.read_struct(header, 0)[1]
    ((_, group, rows, reason),) = file.damaged(begin, b"\xff" * 60)
    assert (group, rows) == (1, 200)
    assert reason.startswith(f"column 'items', page 0: {codec.upper()}: ")
    ((*_, reason),) = file.damaged(file.begin, b"\x15\xff\xff\xff")
    assert reason == "column 'items', page 0: invalid header"


@pytest.mark.parametrize(
    ("inner", "field", "value", "reason"),
    [
        (5, 1, 4, "page 1: invalid header|page 1: missing, with 1 values"),
        (5, 1, 6, "page 0: invalid header"),
        (None, 2, 3, "page 0: [0-9]+ bytes instead of the 3 of its header"),
    ],
)
def test_headers_that_contradict_the_footer(tmp_path, inner, field, value, reason):
    """Of the first page of the only row group."""

    def edit(header: thrift.Struct) -> None:
        (header if inner is None else header[inner]).put(field, thrift.I32, value)

    path = tmp_path / "a.parquet"
    rows = pa.array([[1, 2], [], None, [3]], pa.list_(pa.int64()))
    pq.write_table(pa.table({"items": rows}), path, use_dictionary=False, compression="none")
    change_page(path, pq.read_metadata(path).row_group(0).column(0).data_page_offset, edit)
    document = full(open_files([str(path)]), Columns(sequences=("items",)), paths=[])
    found = document["skipped"][0]["reason"]
    assert re.fullmatch(f"column 'items', ({reason})", found), found


def test_random_damage_is_told_or_gives_some_lengths(tmp_path):
    """Nothing else: no other exception, no endless loop, no read beyond a page."""
    rng, told = random.Random(3), 0
    for number in range(5):
        codec, version = CODECS[number], "12"[number % 2] + ".0"
        items = pa.array([None if n % 9 == 0 else [n if n % 5 else None] * (n % 30) for n in range(200)])
        path = tmp_path / f"{number}.parquet"
        pq.write_table(
            pa.table({"items": items}), path, compression=codec, data_page_version=version, data_page_size=200,
            write_batch_size=40,
        )  # fmt: skip
        row_group, place, raw = opened_bytes(path)
        ((begin, end),) = column_ranges(row_group, [0])
        for _ in range(40):
            changed = bytearray(raw)
            for _ in range(rng.choice([1, 1, 2, 20])):
                changed[rng.randrange(begin, end)] = rng.choice([0, 255, rng.randrange(256)])
            try:
                found = read_lengths(row_group, place.index, place.levels, reads(bytes(changed)))
            except (Damaged, LeftToArrow):
                told += 1
            else:
                assert len(found.of_row) == 200
                assert found.of_row.min() >= 0
                assert 0 <= found.null_elements <= found.of_row.sum() <= row_group.column(0).num_values
    assert 30 < told < 190


@pytest.mark.parametrize(("version", "codec"), [("1.0", "none"), ("2.0", "none"), ("2.0", "zstd")])
def test_values_are_not_read_where_levels_are_not_compressed(tmp_path, version, codec):
    rng = np.random.default_rng(0)
    rows = pa.array([rng.integers(0, 1 << 60, 1000) for _ in range(500)], pa.list_(pa.int64()))
    pq.write_table(
        pa.table({"items": rows}), tmp_path / "a.parquet", data_page_version=version, compression=codec,
        use_dictionary=False,
    )  # fmt: skip
    group, place, raw = opened_bytes(tmp_path / "a.parquet")
    counts: list[int] = []
    found = read_lengths(group, place.index, place.levels, reads(raw, counts))
    assert whole([found]) == whole([lengths_of(rows)])
    assert sum(counts) < group.column(0).total_compressed_size / 20
    with pytest.raises(Damaged, match="the file ends too early"):
        read_lengths(group, place.index, place.levels, reads(raw[:60]))
