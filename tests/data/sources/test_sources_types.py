"""One type per key: under a hash and for `split`, over files, folders, sources and joined tables."""

import datetime as dt

import polars as pl
import pyarrow as pa
import pytest
from data_kit import DECODERS, USERS, fingerprint, found, lists, load, read, rows_of, write

from fsdata import DataError, ParquetSource, Schema, SchemaError, Sequence, cross

HASHED = {"user": pl.col("user").hash(seed=0) % 1000}
DAYS = [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]
IDS = [-7, 5]


def files(folder, *kinds, values=IDS):
    """A file of the same users in each of these types."""
    for number, kind in enumerate(kinds):
        text = pa.array(values).cast(pa.string())
        stored = text.dictionary_encode() if pa.types.is_dictionary(kind) else text.cast(kind)
        write(folder / f"{number}.parquet", {"user": stored})
    return folder


@pytest.mark.parametrize(
    ("columns", "kinds"),
    [
        (HASHED, (pa.int32(), pa.int64())),
        (HASHED, (pa.int64(), pa.string())),
        (HASHED, (pa.string(), pa.uint8())),
        ({"user": (pl.col("user") + 1).hash() % 1000}, (pa.int32(), pa.int64())),
        ({"user": pl.struct("user", "user2").hash() % 1000}, (pa.int32(), pa.int64())),
        ({"user": cross(pl.col("user").hash().reinterpret(signed=True), buckets=9)}, (pa.int32(), pa.int64())),
    ],
)
def test_a_hash_of_two_types_is_refused(tmp_path, columns, kinds):
    values = [7, 5]
    for number, kind in enumerate(kinds):
        write(tmp_path / f"{number}.parquet", {"user": pa.array(values).cast(kind), "user2": values})
    names = ["text" if kind == pa.string() else str(kind) for kind in kinds]
    message = rf"'user' is {names[1]} in some files and {names[0]} in the first: .*types=.'user': '.*\[1 of 2 files: 1"
    with pytest.raises(SchemaError, match=message):
        found(tmp_path, columns=columns)
    with pytest.raises(SchemaError, match="filter: " + message):
        found(tmp_path, columns={"user": "user2"}, filter=pl.col("user").hash() % 2 == 0)


def test_a_hash_in_lists_of_two_types_is_refused(tmp_path):
    write(tmp_path / "0.parquet", {"items": lists(pa.int32(), [1])})
    write(tmp_path / "1.parquet", {"items": lists(pa.int64(), [1])})
    one = pl.col("items").list.eval(pl.element().hash() % 9)
    columns = {"items": one}
    schema = Schema(sequences=(Sequence("items", ("items",)),))
    with pytest.raises(SchemaError, match="'items' is int64 in some files and int32 in the first"):
        read(ParquetSource(tmp_path, columns=columns), schema)
    declared = read(ParquetSource(tmp_path, columns=columns, types={"items": "int32"}), schema)
    alone = read(ParquetSource(tmp_path / "0.parquet", columns=columns), schema)
    assert declared == alone * 2
    cast = {"items": pl.col("items").list.eval(pl.element().cast(pl.Int32).hash() % 9)}
    assert read(ParquetSource(tmp_path, columns=cast), schema) == declared


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("declared", ["int32", "int64", "string"])
def test_a_declared_type_is_that_of_all_files(tmp_path, declared, decoder):
    kinds = (pa.int32(), pa.int64(), pa.string(), pa.dictionary(pa.int8(), pa.string()))
    mixed = files(tmp_path / "mixed", *kinds)
    one = files(tmp_path / "one", pa.type_for_alias(declared))
    types = {"user": declared}
    assert found(mixed, columns=HASHED, types=types, decoder=decoder) == found(one, columns=HASHED) * 4
    if declared != "string":
        assert found(mixed, types=types, decoder=decoder) == IDS * 4
    for keep in ((0, 0.5), (0.5, 1)):
        some = found(one, columns=HASHED, split="user", keep=keep)
        assert found(mixed, columns=HASHED, types=types, split="user", keep=keep) == some * 4
    chosen = pl.col("user") == pl.lit("5" if declared == "string" else 5)
    assert found(mixed, columns=HASHED, types=types, filter=chosen) == found(one, columns=HASHED, filter=chosen) * 4


def test_a_cast_under_the_hash_declares_the_type_too(tmp_path):
    mixed = files(tmp_path / "mixed", pa.int32(), pa.int64(), pa.string())
    columns = {"user": pl.col("user").cast(pl.Int64).hash(seed=0) % 1000}
    assert found(mixed, columns=columns) == found(files(tmp_path / "one", pa.int64()), columns=columns) * 3


def test_integers_of_all_widths_are_one_type_for_split(tmp_path):
    with pytest.raises(SchemaError, match="split: 'user' is text in some files and integer in the first"):
        found(files(tmp_path / "text", pa.int64(), pa.string()), columns=HASHED, split="user", keep=(0, 0.5))
    parts = [found(files(tmp_path / str(kind), kind), split="user", keep=(0, 0.5)) for kind in (pa.int8(), pa.int64())]
    assert parts[0] == parts[1]


@pytest.mark.parametrize("columns", [{}, {"user": pl.col("shop").hash() % 1000}])
def test_a_folder_is_in_one_part_whatever_is_read_beside_it(tmp_path, columns):
    shops = ("01001", "01002", "11164", "2A001", "7")
    for number, shop in enumerate(shops):
        write(tmp_path / f"shop={shop}" / "p.parquet", {"user": [number]})
    some = [tmp_path / f"shop={shop}" for shop in shops if shop != "2A001"]
    options = {"columns": columns, "split": None if columns else "shop"}
    kept = {} if columns else {"keep": (0, 0.5)}
    whole, part = (found(paths, **options, **kept) for paths in ([tmp_path], some))
    if columns:
        assert whole[:3] + whole[4:] == part
    else:
        assert [user for user in whole if user != 3] == part
        assert 0 < len(whole) < 5


def test_keys_of_folders_are_numbers_where_nothing_hashes_them(tmp_path):
    for shop in (1, 2):
        write(tmp_path / f"shop={shop}" / "p.parquet", {"user": [10 * shop]})
    assert found(tmp_path, columns={"user": "shop"}) == [1, 2]
    assert found(tmp_path, filter=pl.col("shop") > 1) == [20]
    with pytest.raises(SchemaError, match="partition 'shop' is string"):
        found(tmp_path, columns={"user": "shop"}, split="shop", keep=(0, 0.5))
    shops = found(tmp_path, columns={"user": "shop"}, split="shop", types={"shop": "int64"}, keep=(0, 0.9))
    assert shops == [1, 2]
    write(tmp_path / "shop=x" / "p.parquet", {"user": [30]})
    with pytest.raises(
        SchemaError, match=r"the folder shop=x is not of the type that types={'shop': 'int64'} declares"
    ):
        found(tmp_path, types={"shop": "int64"})


def test_sources_of_one_loader_hash_one_type(tmp_path):
    numbers = write(tmp_path / "numbers.parquet", {"user": IDS})
    texts = write(tmp_path / "texts.parquet", {"name": [str(each) for each in IDS]})
    other = {"user": pl.col("name").hash(seed=0) % 1000}

    def users(*sources):
        return rows_of(load(list(sources), USERS)[0], "user")

    message = "user is a hash, and its column 'name' is text in source 1 .* and 'user' is int64 in source 0 .*types="
    with pytest.raises(SchemaError, match=message):
        users(ParquetSource(numbers, columns=HASHED), ParquetSource(texts, columns=other))
    one = users(ParquetSource(texts, columns=other))
    declared = ParquetSource(numbers, columns=HASHED, types={"user": "string"})
    assert users(declared, ParquetSource(texts, columns=other)) == one * 2
    text = write(tmp_path / "text.parquet", {"user": ["3"]})
    columns = {"user": pl.col("user").cast(pl.Int64)}
    halves = [ParquetSource(path, columns=columns, split="user", keep=(0, 0.5)) for path in (numbers, text)]
    with pytest.raises(SchemaError, match=r"split='user' is a hash, and its column 'user' is text .* is integer"):
        users(*halves)


def test_row_groups_are_not_left_out_by_the_order_of_another_type(tmp_path):
    path = write(tmp_path / "a.parquet", {"user": [9, 10, 11]}, group=1)
    columns = {"user": pl.col("user").cast(pl.Int64)}
    assert found(path, columns=columns, types={"user": "string"}, filter=pl.col("user") < "9") == [10, 11]
    same = found(path, types={"user": "int64"}, filter=pl.col("user") < 10)
    assert same == [9]
    path = write(tmp_path / "b.parquet", {"user": [0, 1, 2], "row": [0, 1, 2]}, group=1)
    assert found(path, columns={"user": "row"}, types={"user": "bool"}, filter=pl.col("user") == True) == [1, 2]  # noqa: E712


def test_states_know_declared_types_and_keys_of_folders_that_became_text(tmp_path):
    write(tmp_path / "shop=1" / "a.parquet", {"user": [1]})
    some = ({}, {"types": {"user": "int64"}}, {"types": {"user": "int32"}}, {"split": "shop"})
    arguments = {fingerprint(ParquetSource(tmp_path, **each), USERS)["source 0 arguments"] for each in some}
    assert len(arguments) == 4


def test_values_that_the_declared_type_does_not_have(tmp_path):
    path = write(tmp_path / "a.parquet", {"user": ["1", "x"]})
    with pytest.raises(
        DataError, match=r"a\.parquet, row group 0, .*types={'user': 'int64'}: a value cannot be cast.*x"
    ):
        found(path, types={"user": "int64"})
    write(path, {"user": pa.array([b"x"])})
    with pytest.raises(SchemaError, match=r"types={'user': 'timestamp\[us\]'}: the column is binary"):
        found(path, types={"user": "timestamp[us]"})


def test_a_type_of_a_column_that_is_not_there(tmp_path):
    write(tmp_path / "shop=1" / "a.parquet", {"user": [1]})
    with pytest.raises(SchemaError, match=r"types: no file and no folder has the column 'usr', whose type types="):
        found(tmp_path, types={"usr": "string", "shop": "string", "user": "int64"})
