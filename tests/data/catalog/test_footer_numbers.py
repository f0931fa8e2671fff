"""Footers in which one number is wrong: a CorruptFileError or the same rows, never anything else."""

import contextlib

import compact_thrift as thrift
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from data_kit import column, lists, load, read, write
from footers import change, chunk, footer_of, with_footer

from fsdata import CorruptFileError, ParquetSource, Schema, SchemaError, Sequence
from fsdata.catalog.footers import check_footer, parse_footer, raw_footer
from fsdata.catalog.listing.file_list import FileRef
from fsdata.kernels import footer as kernel

SCHEMA = Schema(sequences=[Sequence("uih", fields=("items",))], context=("user",), dense=("price",))
ROWS, GROUP = 60, 20


def sample(path, **options):
    rng = np.random.default_rng(0)
    columns = {
        "user": pa.array(range(ROWS)),
        "items": lists(pa.int64(), *(rng.integers(0, 99, n).tolist() for n in rng.integers(0, 9, ROWS))),
        "price": pa.array(rng.random(ROWS), pa.float32()),
        "name": pa.array([f"u{n % 7}" for n in range(ROWS)]),
    }
    return write(path, columns, group=GROUP, **options)


USER, ITEMS, PRICE, NAME = range(4)
WRONG = {
    "repetition levels": (lambda f: chunk(f, 1, ITEMS)[16][2].values.append(1), "group 1, leaf column 1: a histogram"),
    "definition levels": (lambda f: chunk(f, 0, NAME)[16][3].values.append(1), "3 definition levels for 2"),
    "levels of the schema": (lambda f: f[2].values[6].put(3, thrift.I32, 77), "2 definition levels for 1"),
    "bytes of numbers": (lambda f: chunk(f, 0, USER)[16].put(1, thrift.I64, 5), "byte arrays in a column"),
    "short least value": (lambda f: chunk(f, 2, USER)[12].put(6, thrift.BINARY, b"abc"), "3 bytes for a type of 8"),
    "empty greatest value": (lambda f: chunk(f, 2, PRICE)[12].put(1, thrift.BINARY, b""), "0 bytes for a type of 4"),
    "type": (lambda f: chunk(f, 0, USER).put(1, thrift.I32, 1), "physical type 1, in the schema 2"),
    "unknown type": (lambda f: chunk(f, 0, USER).put(1, thrift.I32, 77), "physical type 77"),
    "missing column": (lambda f: f[4].values[1][1].values.pop(), "row group 1: 3 column chunks for 4 columns"),
    "negative nulls": (lambda f: chunk(f, 0, USER)[12].put(3, thrift.I64, -1), "-1 nulls"),
    "values": (lambda f: chunk(f, 0, USER).put(5, thrift.I64, 21), "21 values for 20 rows"),
    "few values of a list": (lambda f: chunk(f, 0, ITEMS).put(5, thrift.I64, 19), "19 values for 20 rows"),
    "group rows": (lambda f: f[4].values[1].put(3, thrift.I64, 2**62), "group 1, leaf column 0: 20 values for 4611"),
    "negative rows": (lambda f: f[4].values[1].put(3, thrift.I64, -20), "row group 1: -20 rows"),
    "rows of the file": (lambda f: f.put(3, thrift.I64, 61), "61 rows in all, 60 in the row groups"),
    "place": (lambda f: chunk(f, 2, NAME).put(9, thrift.I64, 2**40), "outside the bytes before the footer"),
    "size": (lambda f: chunk(f, 2, NAME).put(7, thrift.I64, 2**62), "outside the bytes before the footer"),
    "another column's place": (lambda f: chunk(f, 0, USER).put(9, thrift.I64, chunk(f, 1, USER)[9]), "overlap"),
    "codec": (lambda f: chunk(f, 0, USER).put(4, thrift.I32, 0), r"not compressed, and \d+ bytes become "),
    "unknown codec": (lambda f: chunk(f, 0, USER).put(4, thrift.I32, 8), "compressed by the unknown codec 8"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_footer_that_contradicts_itself_is_refused_or_skipped(tmp_path, edit, message):
    change(sample(tmp_path / "b.parquet", use_dictionary=False), edit)
    with pytest.raises(CorruptFileError, match=rf"b\.parquet: the footer contradicts itself: .*{message}"):
        read(ParquetSource(tmp_path), SCHEMA)
    empty = pq.read_table(sample(tmp_path / "a.parquet")).slice(0, 0)
    write(tmp_path / "c.parquet", empty)
    batches, loader = load(ParquetSource(tmp_path, on_error="skip"), SCHEMA)
    assert sum(map(len, batches)) == ROWS
    assert [entry.file for entry in loader.skipped] == ["b.parquet"]


def parsed(path, schemas):
    file = FileRef.from_path(pafs.LocalFileSystem(), str(path))
    raw, size = raw_footer(file)
    return parse_footer(check_footer(raw, size, file), file, schemas)


def test_nulls_that_polars_1_counted_several_times_are_not_known(tmp_path):
    path = sample(tmp_path / "a.parquet")
    right = read(ParquetSource(path), SCHEMA)
    change(path, lambda f: chunk(f, 0, USER)[12].put(3, thrift.I64, 21))
    assert read(ParquetSource(path), SCHEMA) == right
    assert parsed(path, {}).chunks[:, USER, kernel.NULLS].tolist() == [-1, 0, 0]


@pytest.mark.parametrize(
    "wrong", [lambda n: n + 1, lambda n: -n - 1, lambda _: 2**62], ids=["more", "negative", "huge"]
)
def test_any_other_number_of_a_footer_changes_no_row(tmp_path, wrong):
    good = sample(tmp_path / "good.parquet").read_bytes()
    path, right = tmp_path / "bad.parquet", read(ParquetSource(tmp_path / "good.parquet"), SCHEMA)
    # The schema says what the bytes mean; one row group is enough.
    numbers = enumerate(where for where, _, _ in thrift.numbers(footer_of(good)))
    some = [(number, where) for number, where in numbers if not where.startswith((".2.", ".4.1.", ".4.2."))]
    assert len(some) > 50
    for number, where in some[{1: 0, -1: 1}.get(wrong(0), 2) :: 3]:
        footer = footer_of(good)
        _, holder, key = list(thrift.numbers(footer))[number]
        holder[key] = wrong(holder[key])
        path.write_bytes(with_footer(good, footer))
        with contextlib.suppress(CorruptFileError, SchemaError):
            assert read(ParquetSource(path), SCHEMA) == right, where


SHAPES = {
    "nested": {"s": [{"a": [1, 2], "b": None}, None, {"a": [], "b": {"c": [[1], None]}}], "t": [[["x"]], None, []]},
    "many columns": {f"c{n}": [n, None, 1.5] for n in range(40)},
    "no rows": {"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())},
}


@pytest.mark.parametrize("columns", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("index", [False, True], ids=["", "with index"])
def test_chunks_are_read_as_by_the_plain_parser(tmp_path, columns, index):
    raw = write(tmp_path / "a.parquet", columns, group=2, write_page_index=index).read_bytes()
    footer = footer_of(raw)
    size = len(thrift.write_struct(footer))
    report = np.zeros(5, np.int64)
    body = np.frombuffer(raw, np.uint8)[-8 - size : -8]
    found, described, rows = kernel.read_chunks(body, len(raw) - size - 8, report)
    chunks = [one[3] for group in footer[4].values for one in group[1].values]
    expected = [
        [min(one[9], one.get(11) or one[9]), one[7], one.get(12, {}).get(3, -1), one[6], one[5]] for one in chunks
    ]
    assert report[0] == kernel.OK
    assert found[:, : kernel.LEAST].tolist() == expected
    inside = raw[-8 - size :]
    for one, (least, greatest) in zip(chunks, found[:, [kernel.LEAST, kernel.GREATEST]].tolist(), strict=True):
        for at, number in ((least, 6), (greatest, 5)):
            value = one.get(12, {}).get(number)
            assert (at < 0) == (value is None)
            assert value is None or inside[at : at + len(value)] == value
    places = [[one.get(4, 0), one.get(5, 0)] for group in footer[4].values for one in group[1].values]
    assert found[:, [kernel.INDEX_AT, kernel.INDEX_BYTES]].tolist() == places
    assert any(size for _, size in places) == (index and rows.sum() > 0)
    assert rows.tolist() == [group[3] for group in footer[4].values]
    begin, end, unordered, first, last = described.tolist()
    by_key = b"".join(thrift.write_struct(pair) for pair in footer[5].values) if footer.get(5) else b""
    assert raw[-8 - size :][first:last].endswith(by_key)
    assert bool(by_key) == (b"ARROW:schema" in raw[-8 - size :][first:last])
    assert not unordered
    elements = b"".join(thrift.write_struct(element) for element in footer[2].values)
    assert inside[begin:end].endswith(elements)
    assert end - begin - len(elements) in (1, 2)  # how many


def test_files_share_a_schema_only_where_their_footers_say_the_same(tmp_path):
    column = {"a": pa.array([[1], None])}
    named = pa.schema([pa.field("a", pa.list_(pa.int64()))], metadata={"k": "v"})
    tables = {
        "a": pa.table(column),
        "b": pa.table(column),
        "c": pa.table(column).cast(pa.schema([pa.field("a", pa.large_list(pa.int64()))])),  # a note of Arrow's alone
        "d": pa.table(column).cast(named),
        "e": pa.table({"a": pa.array([[1.0], None])}),
    }
    for name, table in tables.items():
        write(tmp_path / f"{name}.parquet", table)
    schemas = {}
    footers = [parsed(tmp_path / f"{name}.parquet", schemas) for name in tables]
    for footer, name in zip(footers, tables, strict=True):
        whole = pq.read_schema(tmp_path / f"{name}.parquet")
        assert footer.schema.equals(whole.remove_metadata(), check_metadata=True)
    assert footers[0].schema is footers[1].schema
    assert len({id(footer.schema) for footer in footers}) == 4  # Arrow's own note of "d" has its metadata


def test_chunks_may_lie_in_any_order(tmp_path):
    def swap(footer):
        groups = footer[4].values
        one, other = groups[0][1].values, groups[2][1].values
        one[USER], other[USER] = other[USER], one[USER]

    path = change(sample(tmp_path / "a.parquet"), swap)
    users = column(read(ParquetSource(path), SCHEMA), "user")
    assert users == [*range(40, 60), *range(20, 40), *range(20)]
