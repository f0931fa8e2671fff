"""Passthrough columns of all types, their nulls and defaults, and what is refused."""

import polars as pl
import pyarrow as pa
import pytest
from data_kit import column, read, write

from fsdata import DataError, ParquetSource, Schema, SchemaError, Sequence

SCHEMA = Schema(passthrough=("id",))


def text(path, schema=SCHEMA, **options):
    return column(read(ParquetSource(path, **options), schema), "id")


@pytest.mark.parametrize(("kind", "as_bytes"), [(pa.string(), pa.binary()), (pa.large_string(), pa.large_binary())])
def test_bytes_that_are_no_text_name_their_row(tmp_path, kind, as_bytes):
    raw = pa.array([b"a", b"b", None, b"\xff\xfe", b"c"], as_bytes)
    broken = pa.Array.from_buffers(kind, len(raw), raw.buffers(), raw.null_count)
    path = write(tmp_path / "a.parquet", {"id": broken, "n": pa.array(range(5))})
    with pytest.raises(DataError, match=r"a.parquet, row group 0, row 3: id: b'\\xff\\xfe' is not valid UTF-8"):
        text(path, nulls={"id": "drop"})
    assert text(path, nulls={"id": "drop"}, filter=pl.col("n") != 3) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([b"a"]),
        pa.array([b"ab"], pa.binary(2)),
        pa.array([1.0]),
        pa.array([True]),
        pa.array([1], pa.timestamp("ns")),
        pa.array([["a"]]),
    ],
    ids=lambda array: str(array.type),
)
def test_other_types_are_refused(tmp_path, array):
    path = write(tmp_path / "a.parquet", {"id": array})
    with pytest.raises(SchemaError, match=r"column 'id' is .*passthrough takes integers|a list, where one value"):
        text(path)


def test_bytes_as_text_by_an_expression(tmp_path):
    path = write(tmp_path / "a.parquet", {"id": pa.array([b"\x01\xff", None], pa.binary(2))})
    assert text(path, columns={"id": pl.col("id").bin.encode("hex")}, nulls={"id": "drop"}) == ["01ff"]


def test_missing_columns_take_the_default(tmp_path):
    write(tmp_path / "a.parquet", {"id": pa.array(["x", "y"])})
    write(tmp_path / "b.parquet", {"other": pa.array([1, 2])})
    assert text(tmp_path, defaults={"id": "none"}) == ["x", "y", "none", "none"]
    assert text(tmp_path / "b.parquet", defaults={"id": ""}) == ["", ""]
    assert text(tmp_path / "b.parquet", defaults={"id": 7}) == [7, 7]
    with pytest.raises(SchemaError, match=r"column 'id' is missing.*defaults=\{'id'"):
        text(tmp_path)


def test_partitions(tmp_path):
    for folder in ("id=2024-01-01", "id=b c", "id=__HIVE_DEFAULT_PARTITION__"):
        write(tmp_path / folder / "a.parquet", {"n": pa.array([1])})
    assert text(tmp_path, nulls={"id": "drop"}) == ["2024-01-01", "b c"]
    assert text(tmp_path, defaults={"id": "?"}) == ["2024-01-01", "?", "b c"]
    with pytest.raises(SchemaError, match="partition 'id' is null"):
        text(tmp_path)


@pytest.mark.parametrize(
    ("files", "default", "message"),
    [
        ("ab", None, "id: is int64 in some files and string in the first"),
        ("ac", 3, r"column 'id' is string, and the default 3 is not"),
        ("bc", "x", "column 'id' is int64, and the default 'x' is not"),
        ("c", 0.5, r"the default 0.5 is not an integer"),
    ],
)
def test_text_and_integers_cannot_be_mixed(tmp_path, files, default, message):
    columns = {"a": {"id": pa.array(["x"])}, "b": {"id": pa.array([1])}, "c": {"other": pa.array([1])}}
    paths = [write(tmp_path / f"{name}.parquet", columns[name]) for name in files]
    with pytest.raises(SchemaError, match=message):
        text(paths, defaults={} if default is None else {"id": default})


def test_schemas():
    with pytest.raises(SchemaError, match="used twice: user"):
        Schema(context=("user",), passthrough=("user",))
    with pytest.raises(SchemaError, match="a passthrough field and a sequence are both called uih"):
        Schema(sequences=(Sequence("uih", ("item",)),), passthrough=("uih",))
    with pytest.raises(SchemaError, match=r"Schema\(passthrough=...\) takes a tuple of names"):
        Schema(passthrough="id")
    assert "passthrough" not in repr(Schema(context=("user",)))
    assert "passthrough=('id',)" in repr(SCHEMA)
