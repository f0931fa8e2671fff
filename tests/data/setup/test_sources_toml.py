"""Schemas and sources written in TOML: those that Python makes, or an error that says where."""

import re

import polars as pl
import pytest

from fsdata import (
    AsOf,
    Join,
    Lookup,
    ParquetSource,
    Retry,
    Schema,
    SchemaError,
    Sequence,
    Split,
    sources_from_toml,
    text_key,
)

DOCUMENT = """
[schema]
context = ["user", "row"]
dense = ["age"]
labels = ["click"]
time = "at"
passthrough = ["id"]
explode = "candidates"

[[schema.sequences]]
name = "uih"
fields = ["item", "word"]
floats = ["price"]
max_length = 5
keep = "first"
labels = ["watched"]
id_labels = ["next_item"]
share = "user"
split = { recent = 3, segment = 4, tokens = 2 }

[[schema.sequences]]
name = "seen"
fields = ["shown"]
nested = ["shops"]

[schema.candidates]
fields = ["candidate"]

[[sources]]
paths = "data/*.parquet"
types = { uid = "int64" }
defaults = { country = 0 }
nulls = { click = "drop" }
split = "uid"
keep = [0, 0.98]
salt = "x"
skip = 2
limit = 5
weight = 2.0
on_error = "skip"
retry = { tries = 2, max_s = 1.5 }

[sources.columns]
user = "uid"
country = { hash = "country", buckets = 10 }
word = { hash = "words", buckets = 5, list = true }
tag = { key = "names", buckets = 100 }

[[sources.join]]
on = "user"
fields = ["age"]
paths = ["users.parquet", "/data/more.parquet"]
defaults = { age = -1 }

[[sources.as_of]]
on = "user"
at = "position"
fields = ["item"]
bucketed = 2
paths = "histories"

[[sources.as_of]]
on = "user"
at = "position"
fields = ["shown"]
bucketed = 2
paths = "~/histories"

[[sources.lookup]]
on = "item"
fields = ["price"]
paths = "s3://bucket/items"

[[sources]]
table = "delta:plain@0"

[[sources]]
catalog = "lake.catalog"
"""


def test_what_a_file_says_is_what_python_makes(tmp_path):
    """Every option. Paths are relative to the file."""
    (tmp_path / "job.toml").write_text(DOCUMENT)
    here = str(tmp_path)
    labels = {"labels": ("watched",), "id_labels": ("next_item",), "floats": ("price",)}
    cut = {"max_length": 5, "keep": "first", "share": "user", "split": Split(recent=3, segment=4, tokens=2)}
    assert Schema.from_toml(tmp_path / "job.toml") == Schema(
        sequences=(Sequence("uih", ("item", "word"), **labels, **cut), Sequence("seen", ("shown",), nested=("shops",))),
        candidates=Sequence("candidates", ("candidate",)),
        context=("user", "row"),
        dense=("age",),
        labels=("click",),
        time="at",
        passthrough=("id",),
        explode="candidates",
    )
    columns = {
        "user": "uid",
        "country": pl.col("country").hash(seed=0) % 10,
        "word": pl.col("words").list.eval(pl.element().hash(seed=0) % 5),
        "tag": text_key("names", buckets=100),
    }
    users = ParquetSource([f"{here}/users.parquet", "/data/more.parquet"], defaults={"age": -1})
    of = {"on": "user", "at": "position", "bucketed": 2}
    expected = [
        ParquetSource(
            f"{here}/data/*.parquet", columns=columns, types={"uid": "int64"}, defaults={"country": 0},
            nulls={"click": "drop"}, split="uid", keep=[0, 0.98], salt="x", skip=2, limit=5, weight=2.0,
            on_error="skip", retry=Retry(tries=2, max_s=1.5),
            join=[
                Join(users, on="user", fields=("age",)),
                AsOf(ParquetSource(f"{here}/histories"), fields=("item",), **of),
                AsOf(ParquetSource("~/histories"), fields=("shown",), **of),
                Lookup(ParquetSource("s3://bucket/items"), on="item", fields=("price",)),
            ],
        ),
        ParquetSource(table=f"delta:{here}/plain@0"),
        ParquetSource(catalog=f"{here}/lake.catalog"),
    ]  # fmt: skip
    found, wanted = (re.sub(r"at 0x\w+", "", repr(of)) for of in (sources_from_toml(tmp_path / "job.toml"), expected))
    assert found == wanted


ONE = "[[sources]]\npaths = 'a'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[schema]", r"no \[\[sources\]\] table"),
        ("[[sources]", "not valid TOML"),
        ("[[sources]]\npath = 'a'", r"sources\[0\] has no option path; there are paths, catalog, table, columns"),
        ("[[sources]]\nweight = 1", r"sources\[0\] needs paths"),
        ("[[sources]]\npaths = 3", "paths are strings"),
        (ONE + "on_error = 'x'", r"sources\[0\]: on_error must be"),
        (ONE + "filter = 'a > 1'", r"sources\[0\]: filter is written in Python: make the schema"),
        (ONE + "columns = { a = { expr = 'x' } }", r"columns\.a has no option expr; there are hash,"),
        (ONE + "columns = { a = { hash = 'x', buckets = 0 } }", "positive integer, got 0"),
        (ONE + "[[sources.join]]\npaths = 'b'", r"sources\[0\]\.join\[0\] needs on and fields"),
        ('[[sources]]\npaths = "a\\u0000b"', r"sources\[0\]: paths='.*a\\x00b': no path contains such"),
        (ONE + "columns = 3", r"sources\[0\]: columns maps field names, got 3"),
        (ONE + "columns = { a = [1] }", r"sources\[0\]: columns=\{'a': ...\} takes a column name"),
        (ONE + "columns = { a = { sql = 'b + 1' } }", r"sources\[0\]\.columns\.a: an expression is written in Python"),
        (ONE + "columns = { a = { hash = 3, buckets = 2 } }", r"columns\.a: hash must be the name"),
        (ONE + "columns = { a = { hash = 'x', buckets = 2, list = 1 } }", "list must be true or"),
        (ONE + "[[sources.as_of]]\npaths = 'b'\nwhere = 'x'", r"as_of\[0\]: where is written in Py"),
        (ONE + "retry = { trys = 3 }", r"sources\[0\]\.retry has no option trys; there are tries, max_s"),
        (ONE + "retry = { tries = 0 }", r"sources\[0\]\.retry: Retry\(tries=...\) must be an integer"),
        (ONE + "retry = 3", r"sources\[0\]\.retry"),
        (ONE + "events = 'b'", r"sources\[0\]: events is written in Python"),
        (ONE + "join = 3", r"sources\[0\]\.join is a list of tables, got 3"),
        (ONE + "join = [3]", r"sources\[0\]\.join\[0\] is a table, got 3"),
        (
            ONE + "[[sources.join]]\npaths = 'b'\non = 'x'\nfields = 3",
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
        (
            "[schema]\nsequences = [{ name = 'a', fields = ['b'], split = { recent = 3 } }]",
            "split needs recent, segment and tokens",
        ),
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
