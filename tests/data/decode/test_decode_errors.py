"""Values that cannot be read as they are: errors with their place, and policies for nulls."""

import math

import polars as pl
import pyarrow as pa
import pytest
from data_kit import column, lists, read, write

from fsdata import DataError, ParquetSource, Schema, SchemaError, Sequence, text_key

SCHEMA = Schema(
    sequences=(
        Sequence("uih", ("item", "action"), floats=("price",), nested=("tags",), max_length=1, labels=("watched",)),
    ),
    candidates=Sequence("candidates", ("candidate",)),
    context=("user",),
    dense=("age",),
    labels=("bought", "click"),
    passthrough=("key", "text"),
)
TAGS = pa.list_(pa.list_(pa.int64()))
RIGHT = [[[1]], [[2], [3, 4]], [[]]]


def sample(folder, **columns):
    """Three rows in two row groups."""
    base = {
        "user": pa.array([1, 2, 3]),
        "age": pa.array([1.0, 2.0, 3.0]),
        "item": lists(pa.int64(), [1], [2, 3], [4]),
        "action": lists(pa.int64(), [1], [2, 3], [4]),
        "price": lists(pa.float32(), [1.0], [2.0, 2.0], [3.0]),
        "tags": pa.array(RIGHT, TAGS),
        "watched": lists(pa.float64(), [1.0], [2.0, 2.0], [3.0]),
        "candidate": lists(pa.int64(), [1], [2], [3]),
        "click": lists(pa.float32(), [1.0], [0.0], [1.0]),
        "bought": pa.array([1.0, 2.0, 3.0], pa.float32()),
        "key": pa.array([1, 2, 3]),
        "text": pa.array(["a", "b", "c"]),
    }
    return write(folder / "a.parquet", base | columns, group=2)


def tags(*rows):
    return {"tags": pa.array(rows, TAGS)}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": pa.array([1, None, 3])}, r"row group 0, row 1: user is null\. .*defaults=.*'user'"),
        ({"key": pa.array([1, None, 3])}, r"row 1: key is null"),
        (
            {"key": pa.array([1, 2**63, 3], pa.uint64())},
            rf"row 1: key: {2**63} is outside int64. .*: columns=\{{'key': pl.col\('key'\).reint",
        ),
        ({"text": pa.array(["a", None, "c"])}, r"row 1: text is null. Give .*nulls=\{'text': 'drop'\}"),
        ({"text": pa.array(["a", None, "c"]).dictionary_encode()}, r"row 1: text is null"),
        ({"age": pa.array([1.0, 2.0, None])}, r"row group 1, row 0: age is null"),
        ({"age": pa.array([1.0, math.nan, 3.0])}, r"row 1: age is NaN or infinite"),
        ({"age": pa.array([1.0, 2.0, -math.inf])}, r"row group 1, row 0: age is NaN or infinite"),
        ({"age": pa.array([1.0, 1e300, 0.0])}, r"row 1: age is NaN or infinite"),
        ({"bought": pa.array([1.0, math.nan, 3.0], pa.float32())}, r"row 1: bought is NaN or infinite"),
        ({"item": lists(pa.int64(), [1], None, [4])}, r"row 1: item is null"),
        ({"item": lists(pa.int64(), [1], [2, None], [4])}, r"row 1: item is null at position 1 of the list"),
        ({"price": lists(pa.float32(), [1.0], [0.0, math.nan], [3.0])}, r"row 1: price is NaN .* at position 1 of the"),
        (
            {"item": lists(pa.uint64(), [1], [2, 2**63], [4])},
            rf"row 1: item: {2**63} is .*\('item'\).list.eval\(pl.element\(\).rein",
        ),
        (
            {"watched": lists(pa.float64(), [1.0], [None, 0.0], [3.0])},
            r"row 1: watched is null at position 0 of the list",
        ),
        ({"watched": lists(pa.float64(), [1.0], None, [3.0])}, r"row 1: watched is null\. Give"),
        ({"watched": lists(pa.float64(), [1.0], [2.0], [3.0])}, r"row 1: the lists of 'uih' .* item 2, .*watched 1"),
        # Truncation would hide what is ragged.
        ({"action": lists(pa.int64(), [1], [2, 3], [4, 5])}, r"row group 1, row 0: .*'uih'.* item 1, action 2"),
        ({"click": lists(pa.float32(), [1.0], [0.0, 1.0], [1.0])}, r"row 1: .*'candidates'.* candidate 1, click 2"),
        (tags(RIGHT[0], [[2]], RIGHT[2]), r"row 1: the lists of 'uih' have different lengths: item 2, .*tags 1"),
        (tags(RIGHT[0], None, RIGHT[2]), r"row 1: tags is null\. Give"),
        (tags(RIGHT[0], [[2], None], RIGHT[2]), r"row 1: tags is null at position 1 of the list\. Give"),
        (tags(RIGHT[0], [[2], [3, 4, None]], [[]]), r"row 1: tags is null at position 2 of the ids of event 1\. Give"),
        (tags(RIGHT[0], [[], [None]], RIGHT[2]), r"row 1: tags is null at position 0 of the ids of event 1\. Give"),
        (
            {"tags": pa.array([[[1]], [[2], [2**63]], [[]]], pa.list_(pa.list_(pa.uint64())))},
            r"row 1: tags: 9.*outside",
        ),
    ],
)
def test_errors_name_their_place(columns, message, tmp_path):
    assert column(read(ParquetSource(sample(tmp_path)), SCHEMA), "tags") == [[[1]], [[3, 4]], [[]]]
    with pytest.raises(DataError, match=rf"source 0 .*a\.parquet, {'.*' * ('group' not in message)}{message}"):
        read(ParquetSource(sample(tmp_path, **columns)), SCHEMA)


def test_policies_for_nulls(tmp_path):
    made = sample(tmp_path, **tags([[1]], [[2], [None, 3]], None))
    samples = read(ParquetSource(made, defaults={"tags": 9}), SCHEMA)
    assert column(samples, "tags") == [[[1]], [[9, 3]], [[]]]
    assert column(read(ParquetSource(made, nulls={"tags": "drop"}), SCHEMA), "user") == [1]
    # A ragged row that the policy of another field drops does no harm.
    made = sample(tmp_path, action=lists(pa.int64(), [1], [2], [4]), item=lists(pa.int64(), [1], [2, None], [4]))
    assert column(read(ParquetSource(made, nulls={"item": "drop"}), SCHEMA), "item") == [[1], [4]]


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        (pa.list_(pa.int64()), [[1], [2, 3], [4]], r"where a list of lists is needed\. One id per event belongs to"),
        (pa.list_(pa.list_(pa.float32())), RIGHT, "ids are integers"),
        (pa.list_(TAGS), [[], [], []], "which cannot be read as int64"),
        (
            pa.list_(pa.list_(pa.string())),
            [[["a"]], [["b"], []], [[]]],
            r"columns=\{'tags': fsdata\.text_key\('tags', buckets=2\*\*20\)\}",
        ),
    ],
    ids=["list", "floats", "three levels", "text"],
)
def test_types_that_are_no_nested_ids(tmp_path, kind, rows, message):
    with pytest.raises(SchemaError, match=message):
        read(ParquetSource(sample(tmp_path, tags=pa.array(rows, kind))), SCHEMA)


def test_an_expression_makes_nested_ids_of_text(tmp_path):
    words = pa.array([[["a"]], [["b"], ["c", "d"]], [[]]], pa.list_(pa.list_(pa.string())))
    hashed = pl.col("tags").list.eval(pl.element().list.eval(pl.element().hash(seed=1) % 2**20))
    for made in (hashed, text_key("tags", buckets=2**20)):
        samples = read(ParquetSource(sample(tmp_path, tags=words), columns={"tags": made}), SCHEMA)
        tags = column(samples, "tags")
        assert [list(map(len, each)) for each in tags] == [[1], [2], [0]]
        assert all(0 <= one < 2**20 for each in tags for event in each for one in event)
