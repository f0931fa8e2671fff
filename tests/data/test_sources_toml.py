"""Sources written in TOML."""

import pyarrow as pa
import pytest
from parquet import column, lists, read, write

from fsdata import Schema, Sequence
from fsdata.errors import SchemaError
from fsdata.sources import sources_from_toml

DOCUMENT = """
[schema]
context = ["user", "hour", "country"]
dense = ["age"]
labels = ["click"]

[[schema.sequences]]
name = "uih"
fields = ["item", "word"]

[[sources]]
paths = "data/*.parquet"
defaults = { hour = 0 }
nulls = { click = "drop" }
filter = "uid <> 2"
weight = 2.0
on_error = "skip"

[sources.columns]
user = "uid"
hour = { sql = "CAST(at / 3600 AS BIGINT) % 24" }
country = { hash = "country", buckets = 10 }
word = { hash = "words", buckets = 5, list = true }

[[sources.join]]
on = "user"
fields = ["age"]
paths = ["users.parquet"]
defaults = { age = -1 }
"""


def test_a_source_with_everything(tmp_path):
    (tmp_path / "job.toml").write_text(DOCUMENT)
    write(
        tmp_path / "data" / "a.parquet",
        {
            "uid": pa.array([1, 2, 3, 4]),
            "at": pa.array([7200, 0, None, 0]),
            "country": pa.array(["de", "fr", "de", "it"]),
            "click": pa.array([1.0, 1.0, 0.0, None]),
            "item": lists(pa.int64(), [1], [2], [3, 4], []),
            "words": lists(pa.string(), ["a"], ["b"], ["a", "c"], []),
        },
    )
    write(tmp_path / "users.parquet", {"user": pa.array([1]), "age": pa.array([33])})
    schema = Schema.from_toml(tmp_path / "job.toml")
    assert schema.sequences == (Sequence("uih", ("item", "word")),)
    (source,) = sources_from_toml(tmp_path / "job.toml")
    assert (source.weight, source.on_error) == (2.0, "skip")
    samples = read(source, schema)
    assert column(samples, "user") == [[1], [3]]
    assert column(samples, "hour") == [[2], [0]]
    assert column(samples, "dense") == [[33.0], [-1.0]]
    countries = column(samples, "country")
    assert countries[0] == countries[1]
    assert 0 <= countries[0][0] < 10
    words = column(samples, "word")
    assert words[0][0] == words[1][0]
    assert all(0 <= word < 5 for row in words for word in row)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[schema]", r"no \[\[sources\]\] table"),
        ("[[sources]", "not valid TOML"),
        ("[[sources]]\npath = 'a'", r"sources\[0\] has no option path; there are paths, columns"),
        ("[[sources]]\nweight = 1", r"sources\[0\] needs paths"),
        ("[[sources]]\npaths = 3", "paths are strings"),
        ("[[sources]]\npaths = 'a'\non_error = 'x'", r"sources\[0\]: on_error must be"),
        ("[[sources]]\npaths = 'a'\nfilter = 'a >'", r"sources\[0\]\.filter: not an SQL expression"),
        ("[[sources]]\npaths = 'a'\ncolumns = { a = { expr = 'x' } }", r"sources\[0\]\.columns\.a is a name"),
        ("[[sources]]\npaths = 'a'\ncolumns = { a = { hash = 'x', buckets = 0 } }", "positive integer, got 0"),
        ("[[sources]]\npaths = 'a'\n[[sources.join]]\npaths = 'b'", r"sources\[0\]\.join\[0\] needs on and fields"),
    ],
)
def test_documents_that_make_no_sense(tmp_path, text, message):
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(SchemaError, match=message):
        sources_from_toml(tmp_path / "job.toml")
