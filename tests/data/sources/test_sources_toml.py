"""Sources written in TOML."""

import pyarrow as pa
import pytest
from data_kit import column, lists, read, write

from fsdata import Schema, SchemaError, Sequence, sources_from_toml

DOCUMENT = """
[schema]
context = ["user", "country"]
dense = ["age"]
labels = ["click"]

[[schema.sequences]]
name = "uih"
fields = ["item", "word"]

[[sources]]
paths = "data/*.parquet"
defaults = { country = 0 }
nulls = { click = "drop" }
weight = 2.0
on_error = "skip"

[sources.columns]
user = "uid"
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
    assert column(samples, "user") == [1, 2, 3]
    assert column(samples, "age") == [33.0, -1.0, -1.0]
    countries = column(samples, "country")
    assert countries[0] == countries[2] != countries[1]
    assert 0 <= countries[0] < 10
    words = column(samples, "word")
    assert words[0][0] == words[2][0]
    assert all(0 <= word < 5 for row in words for word in row)


AS_OF = """
[[sources]]
paths = "requests"
[[sources.as_of]]
paths = "histories"
on = "user"
at = "position"
fields = ["item"]
bucketed = 2"""


@pytest.mark.parametrize("given", ["kept", "/data/kept"])
def test_a_folder_is_relative_to_the_file(tmp_path, given):
    (tmp_path / "job.toml").write_text(f"{AS_OF}\nkept_in = '{given}'")
    (source,) = sources_from_toml(tmp_path / "job.toml")
    assert source.join[0].kept_in == str(tmp_path / given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[schema]", r"no \[\[sources\]\] table"),
        ("[[sources]", "not valid TOML"),
        ("[[sources]]\npath = 'a'", r"sources\[0\] has no option path; there are paths, catalog, table, columns"),
        ("[[sources]]\nweight = 1", r"sources\[0\] needs paths"),
        ("[[sources]]\npaths = 3", "paths are strings"),
        ("[[sources]]\npaths = 'a'\non_error = 'x'", r"sources\[0\]: on_error must be"),
        ("[[sources]]\npaths = 'a'\nfilter = 'a > 1'", r"sources\[0\]: filter is written in Python: make the schema"),
        (
            "[[sources]]\npaths = 'a'\ncolumns = { a = { expr = 'x' } }",
            r"columns\.a has no option expr; there are hash,",
        ),
        ("[[sources]]\npaths = 'a'\ncolumns = { a = { hash = 'x', buckets = 0 } }", "positive integer, got 0"),
        ("[[sources]]\npaths = 'a'\n[[sources.join]]\npaths = 'b'", r"sources\[0\]\.join\[0\] needs on and fields"),
        ('[[sources]]\npaths = "a\\u0000b"', r"sources\[0\]: paths='.*a\\x00b': no path contains such"),
        ("[[sources]]\npaths = 'a'\ncolumns = 3", r"sources\[0\]: columns maps field names, got 3"),
        ("[[sources]]\npaths = 'a'\ncolumns = { a = [1] }", r"sources\[0\]: columns=\{'a': ...\} takes a column name"),
        (
            "[[sources]]\npaths = 'a'\ncolumns = { a = { sql = 'b + 1' } }",
            r"sources\[0\]\.columns\.a: an expression is written in Python",
        ),
        ("[[sources]]\npaths = 'a'\ncolumns = { a = { hash = 3, buckets = 2 } }", r"columns\.a: hash must be the name"),
        ("[[sources]]\npaths = 'a'\ncolumns = { a = { hash = 'x', buckets = 2, list = 1 } }", "list must be true or"),
        (
            "[[sources]]\npaths = 'a'\n[[sources.as_of]]\npaths = 'b'\nwhere = 'x'",
            r"as_of\[0\]: where is written in Py",
        ),
        (f"{AS_OF}\nkept_in = 3", r"as_of\[0\]\.kept_in: paths are strings, got 3"),
        (
            "[[sources]]\npaths = 'a'\nretry = { trys = 3 }",
            r"sources\[0\]\.retry has no option trys; there are tries, max_s",
        ),
        (
            "[[sources]]\npaths = 'a'\nretry = { tries = 0 }",
            r"sources\[0\]\.retry: Retry\(tries=...\) must be an integer",
        ),
        ("[[sources]]\npaths = 'a'\nretry = 3", r"sources\[0\]\.retry"),
        ("[[sources]]\npaths = 'a'\nevents = 'b'", r"sources\[0\]: events is written in Python"),
        ("[[sources]]\npaths = 'a'\njoin = 3", r"sources\[0\]\.join is a list of tables, got 3"),
        ("[[sources]]\npaths = 'a'\njoin = [3]", r"sources\[0\]\.join\[0\] is a table, got 3"),
        (
            "[[sources]]\npaths = 'a'\n[[sources.join]]\npaths = 'b'\non = 'x'\nfields = 3",
            r"sources\[0\]\.join\[0\]: Join\(fields=...\) names at least one field of the schema, in order, got \(3,\)",
        ),
        ("a = " + "[" * 5000 + "]" * 5000, "not valid TOML: nested too deeply"),
    ],
)
def test_documents_that_make_no_sense(tmp_path, text, message):
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(SchemaError, match=message):
        sources_from_toml(tmp_path / "job.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema = 3", r"no \[schema\] table"),
        ("[shema]\n[[schema.sequences]]\nname = 'a'", r"a table shema would be ignored\. Did you mean schema\?"),
        ("[schema]\n[[source]]\npaths = 'a'", r"a table source would be ignored\. Did you mean sources\?"),
        ("[schema]\nnope = 3", "schema has no option nope; there are sequences, candidates"),
        ("[schema]\nsequences = [3]", r"schema.sequences\[0\] is a table, got 3"),
        ("[schema]\nsequences = [{}]", r"schema.sequences\[0\] needs a name"),
        (
            "[schema]\nsequences = [{ name = 'a', field = ['b'] }]",
            r"schema.sequences\[0\] has no option field; there are",
        ),
        (
            "[schema]\nsequences = [{ name = 'a', fields = 3 }]",
            r"sequences\[0\]: Sequence\('a', fields=...\) takes a tuple",
        ),
        ("[schema]\nsequences = [{ name = 'a', fields = ['b'], max_length = true }]", "max_length .*, got True"),
        ("[schema]\ncandidates = 3", "schema.candidates is a table, got 3"),
        ("[schema]\ncontext = 3", r"schema: Schema\(context=...\) takes a tuple of names, got 3"),
        ("[schema]\ndense = { a = 1 }", r"schema: Schema\(dense=...\) takes a tuple of names, got \{'a': 1\}"),
    ],
)
def test_schemas_that_make_no_sense(tmp_path, text, message):
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(SchemaError, match=rf"job\.toml: .*{message}"):
        Schema.from_toml(tmp_path / "job.toml")


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "job.toml").write_bytes(b"\xff\xfe[schema]")
    for parse in (Schema.from_toml, sources_from_toml):
        with pytest.raises(SchemaError, match=r"job\.toml: not valid TOML"):
            parse(tmp_path / "job.toml")
