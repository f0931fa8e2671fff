"""Ids of texts that stay: values that no version of a library changes, and joins of text keys."""

import pyarrow as pa
import pytest
from data_kit import column, found, lists, read, write

from fsdata import ParquetSource, Schema, SchemaError, Sequence, text_key

NAMES = ["ann", "", "bob é", None, "ann"]
KEYS = [3749539209874520380, 4864305418079633200, 4412962000462253053, None, 3749539209874520380]
KIND = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize("kind", KIND, ids=str)
def test_ids_of_texts_stay_what_they_are(tmp_path, kind):
    """Tables on disk and trained rows of embeddings belong to these numbers."""
    path = write(tmp_path / "a.parquet", {"name": pa.array(NAMES, pa.string()).cast(kind)}, group=3)
    keys = [key for key in KEYS if key is not None]
    assert found(path, columns={"user": text_key("name")}, nulls={"user": "drop"}) == keys
    assert found(path, columns={"user": text_key("name", buckets=100)}, defaults={"user": -1}) == [88, 8, 61, -1, 88]


def test_in_lists(tmp_path):
    path = write(tmp_path / "a.parquet", {"names": lists(pa.string(), ["ann", None], None, [], ["bob é"])})
    source = ParquetSource(path, columns={"tag": text_key("names", buckets=100)}, defaults={"tag": 9})
    assert column(read(source, Schema(sequences=(Sequence("tags", ("tag",)),))), "tag") == [[88, 9], [], [], [61]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "text_key names one column, got 3"),
        (("name", 0), r"text_key\(buckets=...\) is an integer from 1 to 2\*\*63, got 0"),
        (("number",), r"text_key\('number'\) takes text, and the column is int64"),
    ],
)
def test_what_has_no_key(tmp_path, arguments, message):
    path = write(tmp_path / "a.parquet", {"name": ["a"], "number": [1]})
    name, *buckets = arguments
    with pytest.raises(SchemaError, match=message):
        found(path, columns={"user": text_key(name, **dict(zip(["buckets"], buckets, strict=False)))})
