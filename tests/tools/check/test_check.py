"""A dry run of sources against a schema: everything wrong is listed, exactly, and what is right passes."""

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tools_kit import answered, ran, refused, write

from freescale_tools.check.command import load
from freescale_tools.check.report import document
from freescale_tools.check.source_check import SourceCheck, check_forms
from freescale_tools.console.errors import UsageError
from freescale_tools.console.terminal import Terminal
from fsdata import AsOf, Follow, Join, ParquetSource, Schema, Sequence
from fsdata.compose.reading import open_source
from fsdata.errors import DataError

SCHEMA = Schema(
    sequences=(Sequence("uih", ("item", "action"), floats=("price",)),),
    context=("user",),
    dense=("age",),
    labels=("click",),
)
NAN = float("nan")


def columns(rows=12, **changes):
    """Good rows; `changes`: column -> {row: value}."""
    made = {
        "user": list(range(rows)),
        "item": [[n, n + 1][: n % 3] for n in range(rows)],
        "action": [[1, 2][: n % 3] for n in range(rows)],
        "price": [[0.5, 1.5][: n % 3] for n in range(rows)],
        "age": [float(n) for n in range(rows)],
        "click": [float(n % 2) for n in range(rows)],
    }
    for name, values in changes.items():
        for row, value in values.items():
            made[name][row] = value
    kinds = {"item": pa.list_(pa.int64()), "action": pa.list_(pa.int32()), "price": pa.list_(pa.float32())}
    return {name: pa.array(values, kinds.get(name)) for name, values in made.items()}


def written(path, rows=12, **changes):
    return write(path, columns(rows, **changes), group=4)


def find(*sources, schema=SCHEMA):
    checks = [SourceCheck(source, schema, index=index) for index, source in enumerate(sources)]
    findings = check_forms(checks, schema)
    with Terminal().progress("checking") as progress:
        for check in checks:
            findings += check.run(progress)
            check.close()
    return findings


def places(findings):
    """(kind, field, file, row group, rows) of each."""
    return [
        (one.kind, one.field, one.file, one.row_group, None if one.rows is None else one.rows.tolist())
        for one in findings
    ]


def test_all_faults_of_all_rows_are_listed_at_once(tmp_path):
    path = written(
        tmp_path / "a.parquet",
        user={1: None, 3: None, 9: None},
        item={2: [7], 5: [1, None, 3], 8: None},
        price={4: [NAN], 5: [1.0, 2.0, 3.0], 7: [NAN]},
        action={5: [1, 1, 1]},
        age={6: None, 7: float("inf")},
    )
    found = find(ParquetSource(path))
    assert sorted(places(found)) == [
        ("not finite", "age", "a.parquet", 1, [3]),
        ("not finite", "price", "a.parquet", 1, [0, 3]),
        ("null", "age", "a.parquet", 1, [2]),
        ("null", "item", "a.parquet", 2, [0]),
        ("null", "user", "a.parquet", 0, [1, 3]),
        ("null", "user", "a.parquet", 2, [1]),
        ("null element", "item", "a.parquet", 1, [1]),
        ("ragged", "uih", "a.parquet", 0, [2]),
    ]
    ragged = next(one for one in found if one.kind == "ragged")
    assert "item 1, action 2, price 2" in ragged.what
    answer = document([(one, None) for one in found], rows={}, schema="s")
    assert answer["counts"] == {"null": 5, "ragged": 1, "null element": 1, "not finite": 3}
    assert "Sequence of its own" in next(one["todo"] for one in answer["found"] if one["kind"] == "ragged")


def test_ids_that_are_passed_through(tmp_path):
    raw = pa.array([b"a", b"\xff", None, b"ok", b"\xfe"], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 5, raw.buffers(), raw.null_count)
    schema = Schema(context=("user",), passthrough=("id",))
    write(tmp_path / "a.parquet", {"user": pa.array(range(5)), "id": broken}, group=3)
    write(tmp_path / "b.parquet", {"user": pa.array(range(5)), "id": pa.array(range(5))})
    sources = [ParquetSource(str(tmp_path / name), nulls={"id": "drop"}) for name in ("b.parquet", "a.parquet")]
    assert places(find(sources[1], schema=schema)) == [
        ("not text", "id", "a.parquet", 0, [1]),
        ("not text", "id", "a.parquet", 1, [1]),
    ]
    mixed = find(*sources, schema=schema)[0]
    assert (mixed.kind, mixed.label, mixed.field) == ("mismatch", f"source 1 ({sources[1].label})", "id")
    assert "is text in source 1" in mixed.what


def test_policies_and_filters_let_pass_what_the_loader_lets_pass(tmp_path):
    path = tmp_path / "a.parquet"
    written(path, user={1: None}, item={5: [1, None], 8: None}, age={6: None}, action={2: [1], 7: [9]})
    options = {"nulls": {"user": "drop"}, "defaults": {"item": 0, "age": 3.0}}
    assert places(find(ParquetSource(path, **options, filter=pl.col("age").fill_null(0) != 2.0))) == []
    assert places(find(ParquetSource(path, **options))) == [("ragged", "uih", "a.parquet", 0, [2])]
    written(path, item={5: [None, 2]}, action={5: [1]}, age={4: None})
    found = find(ParquetSource(path, nulls={"item": "drop"}))
    assert places(found) == [("null", "age", "a.parquet", 1, [0])], "row 5 is dropped before it is ragged"
    written(path, user={5: None, 6: None})
    found = find(ParquetSource(path, filter=pl.col("age") > 5))
    assert places(found) == [("null", "user", "a.parquet", 1, [2])], "rows are those of the row group"


def test_every_mismatch_is_listed_and_the_other_fields_still_checked(tmp_path):
    made = columns(age={3: None})
    del made["user"]
    made["price"] = pa.array(["free"] * 12)
    write(tmp_path / "a.parquet", made, group=4)
    found = find(ParquetSource(str(tmp_path)))
    assert [(one.kind, one.field) for one in found] == [("mismatch", "user"), ("mismatch", "price"), ("null", "age")]
    assert "'user' is missing" in found[0].what
    assert found[2].rows.tolist() == [3]
    written(tmp_path / "a.parquet", user={0: None})
    found = find(ParquetSource(str(tmp_path), filter=pl.col("nope") > 1))
    assert [(one.kind, one.field) for one in found] == [("mismatch", "filter")], "it is unknown which rows count"


@pytest.mark.parametrize("kind", ["text", "integers", "missing"])
def test_a_passthrough_field_that_some_files_lack_hides_no_other_fault(tmp_path, kind):
    write(tmp_path / "a.parquet", {"user": pa.array([1, None])})
    ids = {"text": pa.array(["a", "b"]), "integers": pa.array([1, 2])}
    write(tmp_path / "b.parquet", {"user": pa.array([None, 2])} | ({"id": ids[kind]} if kind in ids else {}))
    found = find(ParquetSource(str(tmp_path)), schema=Schema(context=("user",), passthrough=("id",)))
    nulls = [("null", "user", "a.parquet", 0, [1]), ("null", "user", "b.parquet", 0, [0])]
    assert places(found) == [("mismatch", "id", None, None, None), *nulls]


def test_damaged_files_and_row_groups_are_named(tmp_path):
    (tmp_path / "b.parquet").write_bytes(b"PAR1 cut")
    assert [one.kind for one in find(ParquetSource(str(tmp_path)))] == ["corrupt"]
    path = written(tmp_path / "a.parquet", user={9: None})
    content = bytearray(path.read_bytes())
    content[pq.read_metadata(path).row_group(1).column(0).dictionary_page_offset + 30] ^= 255
    path.write_bytes(content)
    cut, damaged = ("corrupt", None, "b.parquet", None, None), ("corrupt", None, "a.parquet", 1, None)
    null = ("null", "user", "a.parquet", 2, [1])
    assert places(find(ParquetSource(str(tmp_path)))) == [cut, damaged, null]
    del (made := columns())["age"]
    write(tmp_path / "c.parquet", made)  # now nothing opens, and the scan must find the same
    found = find(ParquetSource(str(tmp_path)))
    assert places(found) == [cut, ("mismatch", "age", None, None, None), damaged, null]
    assert "1 of 2 files: c.parquet" in found[1].what


def test_labels_must_have_one_form_in_all_sources(tmp_path):
    schema = Schema(candidates=Sequence("candidates", ("ad",)), labels=("click",))
    write(tmp_path / "a" / "a.parquet", {"ad": [[1, 2]], "click": [[0.0, 1.0]]})
    write(tmp_path / "b" / "b.parquet", {"ad": [[1, 2]], "click": [1.0]})
    found = find(*(ParquetSource(str(tmp_path / name)) for name in "ab"), schema=schema)
    assert [(one.kind, one.field, one.label[:8]) for one in found] == [("mismatch", "click", "source 1")]


def test_joins(tmp_path):
    schema = Schema(context=("user", "country"), dense=("age",))
    main = write(tmp_path / "main.parquet", {"user": [1, 2, None, 5, 9], "age": [1.0, 2.0, 3.0, None, 5.0]}, group=3)
    side = write(tmp_path / "side.parquet", {"user": [5, 1, 7, 0], "country": [50, 10, 70, 0]})

    def source(**options):
        return ParquetSource(
            main, defaults={"user": 0}, join=[Join(ParquetSource(side, **options), on="user", fields=["country"])]
        )

    null = ("null", "age", "main.parquet", 1, [0])
    lost = [("no match", "user", "main.parquet", 0, [1, 2]), ("no match", "user", "main.parquet", 1, [1])]
    assert sorted(places(find(source(), schema=schema))) == sorted([null, *lost])
    assert places(find(source(nulls={"country": "drop"}), schema=schema)) == [null]
    write(tmp_path / "side.parquet", {"user": [5, 1, 7, 5, None], "country": [None, 10, 70, 1, 2]})
    found = find(source(), schema=schema)
    assert {(one.kind, one.field) for one in found} >= {("key", "user"), ("null", "country"), ("no match", "user")}


def test_expressions_that_fail_are_told_with_the_rows_that_they_were_given(tmp_path):
    codes = pa.array([f"{n}" if n != 6 else "six" for n in range(12)])
    write(tmp_path / "a.parquet", columns() | {"code": codes}, group=4)
    schema = Schema(context=("user", "code"))
    source = ParquetSource(tmp_path / "a.parquet", columns={"code": pl.col("code").cast(pl.Int64)})
    found = find(source, schema=schema)
    assert places(found) == [("expression", None, "a.parquet", 1, [0, 1, 2, 3])]
    assert "six" in found[0].what
    condition = pl.col("code").cast(pl.Int64) > 3
    assert places(find(ParquetSource(tmp_path / "a.parquet", filter=condition), schema=Schema(context=("user",)))) == [
        ("expression", None, "a.parquet", 1, [0, 1, 2, 3])
    ]


def test_times_that_no_nanoseconds_can_count(tmp_path):
    late = pa.array([0, 10**12, 5, None], pa.int64()).cast(pa.timestamp("s"))
    write(tmp_path / "a.parquet", {"user": pa.array(range(4)), "at": late})
    found = find(ParquetSource(tmp_path / "a.parquet"), schema=Schema(context=("user",), time="at"))
    assert places(found) == [("range", "at", "a.parquet", 0, [1]), ("null", "at", "a.parquet", 0, [3])]
    assert found[0].what.endswith("outside the years 1678 to 2261")


def test_what_map_gives_is_checked_as_a_loader_does(tmp_path):
    path = written(tmp_path / "a.parquet")
    schema = Schema(context=("user",))
    found = find(ParquetSource(path, map=lambda batch: batch.slice(1)), schema=schema)
    assert [(one.kind, one.row_group) for one in found] == [("data", 0), ("data", 1), ("data", 2)]
    assert "gave 3 rows for 4" in found[0].what

    def fails(batch):
        raise KeyError("boom")

    found = find(ParquetSource(path, map=fails), schema=schema)
    assert [(one.kind, one.row_group) for one in found] == [("data", 0), ("data", 1), ("data", 2)]
    assert found[0].what == "map raised KeyError: 'boom'"


def test_followed_folders_and_catalogs_are_read_as_they_are_now(tmp_path):
    path = written(tmp_path / "data" / "a.parquet", user={1: None})
    write(tmp_path / "side" / "a.parquet", {"user": list(range(12)), "country": [None, *range(11)]})
    schema, null = Schema(context=("user", "country")), ("null", "user", "a.parquet", 0, [1])
    join = Join(ParquetSource(tmp_path / "side", follow=Follow(every="1s")), on="user", fields=["country"], wait="1s")
    found = find(ParquetSource(tmp_path / "data", follow=Follow(every="1s"), join=join), schema=schema)
    lost = ("no match", "user", "a.parquet", 0, [1])
    assert places(found) == [("null", "country", "a.parquet", 0, [0]), null, lost]
    catalog = tmp_path / "catalog"
    ran("catalog", path, "--out", catalog)
    assert places(find(ParquetSource(catalog=catalog), schema=Schema(context=("user",)))) == [null]


def test_nobody_gets_the_tables_of_a_check(tmp_path):
    """A loader on the same host would take them for those that it makes itself, and miss what is wrong with them."""
    main = write(tmp_path / "main.parquet", {"user": [1], "at": [9]})
    table = {"user": [1, 1], "item": [[1], [2]], "ts": [[1], [2]]}
    write(tmp_path / "histories.parquet", table)
    join = AsOf(
        ParquetSource(tmp_path / "histories.parquet", on_error="skip"), on="user", at="at", time="ts", fields=("item",)
    )
    source = ParquetSource(main, join=join)
    schema = Schema(sequences=(Sequence("uih", ("item",)),))
    check = SourceCheck(source, schema, index=0)
    with pytest.raises(DataError, match="are in more than one row"):
        open_source(source, schema)
    check.close()


TOML = """
[schema]
context = ["user"]
dense = ["age"]
labels = ["click"]
[[schema.sequences]]
name = "uih"
fields = ["item", "action"]
"""


@pytest.fixture
def schema(tmp_path):
    (tmp_path / "schema.toml").write_text(TOML)
    return tmp_path / "schema.toml"


def test_the_command(tmp_path, schema):
    write(tmp_path / "data" / "a.parquet", columns(40, user=dict.fromkeys(range(40))), group=1)
    shown = ran("check", tmp_path / "data", "--schema", schema, status=1).stdout
    for text in ("null: 40", "20 more places"):
        assert text in shown
    answer = answered("check", tmp_path / "data", "--schema", schema, status=1)
    assert (answer["counts"], len(answer["found"])) == ({"null": 40}, 40)
    assert answer["found"][1] | {"source": ""} == {
        "kind": "null", "source": "", "file": "a.parquet", "row_group": 1, "field": "user", "column": "user",
        "count": 1, "rows": [0],
        "what": "user is null",
        "todo": "ParquetSource(defaults={'user': ...}), nulls={'user': 'drop'}, or repair the rows",
    }  # fmt: skip
    written(tmp_path / "data" / "a.parquet")
    assert "12 rows of 1 source(s) fit the schema" in ran("check", tmp_path / "data", "--schema", schema).stdout


def test_it_says_whose_rows_were_not_read(tmp_path):
    """A loader begins with joined tables: with one that is of no use, it reads no row."""
    written(tmp_path / "data" / "a.parquet", user={1: None})
    (tmp_path / "side.parquet").write_bytes(b"no Parquet")
    (tmp_path / "job.py").write_text(
        "from fsdata import *\n"
        f"side = Join(ParquetSource({str(tmp_path / 'side.parquet')!r}), on='user', fields=['country'])\n"
        f"both = Schema(context=('user', 'country')), [ParquetSource({str(tmp_path / 'data')!r}, join=[side])]\n"
    )
    job = ("check", "--schema", f"{tmp_path / 'job.py'}:both")
    assert "no row was read. Mend what is listed" in " ".join(ran(*job, status=1).stdout.split())
    answer = answered(*job, status=1)
    assert (answer["counts"], answer["rows"], answer["sources"][0]["rows"]) == ({"corrupt": 1}, 0, None)


def test_times_of_rows_have_no_default(tmp_path):
    write(tmp_path / "a.parquet", {"user": pa.array([1, None]), "at": pa.array([None, 1], pa.timestamp("us"))})
    (tmp_path / "schema.toml").write_text("[schema]\ncontext = ['user']\ntime = 'at'\n")
    found = answered("check", tmp_path / "a.parquet", "--schema", tmp_path / "schema.toml", status=1)["found"]
    todo = {one["field"]: one["todo"] for one in found}
    assert todo["at"].startswith("leave such rows out with filter=")
    assert "defaults={'user'" in todo["user"]


def test_sources_of_the_schema_file(tmp_path, schema):
    written(tmp_path / "data" / "a.parquet", user={1: None})
    written(tmp_path / "other" / "a.parquet", user={1: None, 2: None}, age={0: None})
    schema.write_text(TOML + '[[sources]]\npaths = "data"\nnulls = { user = "drop" }\n')
    ran("check", "--schema", schema)
    assert answered("check", tmp_path / "other", "--schema", schema, status=1)["counts"] == {"null": 1}


def test_a_schema_in_a_module(tmp_path):
    (tmp_path / "job.py").write_text(
        "import fsdata\nschema = fsdata.Schema(context=('user',))\n"
        "both = schema, [fsdata.ParquetSource('here'), fsdata.ParquetSource('there')]\nnumber = 3\n"
        "histories = fsdata.AsOf(fsdata.ParquetSource('here'), on='user', at='position', fields=('item',))\n"
        "events = schema, histories.anchors()\n"
    )
    (tmp_path / "bad.py").write_text("1 / 0")
    schema, (source,) = load(f"{tmp_path / 'job.py'}:schema", ["x"])
    assert (schema.context, source.path_list) == (("user",), ("x",))
    assert [one.path_list for one in load(f"{tmp_path / 'job.py'}:both", [])[1]] == [("here",), ("there",)]
    for name, paths, message in (
        ("job.py:schema", [], "describes no sources"),
        ("job.py:both", ["x"], "describes 2 sources"),
        ("job.py:number", ["x"], "is 3"),
        ("job.py:none", ["x"], "has no 'none'"),
        ("job.py:events", ["x"], "events of histories: leave PATHS out"),
        ("job.py", [], r"as in .*job.py:schema"),
        ("bad.py:schema", ["x"], "ZeroDivisionError"),
    ):
        with pytest.raises(UsageError, match=message):
            load(str(tmp_path / name), paths)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not toml", "not valid TOML"),
        ("x = 1", "no [schema] table"),
        (None, "No such file"),
        (TOML, "no such file or folder"),
    ],
)
def test_bad_schema_files_and_missing_files_are_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "schema.toml").write_text(text)
    assert message in refused("check", tmp_path / "none", "--schema", tmp_path / "schema.toml")
