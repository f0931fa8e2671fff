"""Sources: finding files, binding them to a schema, and everything that can be wrong with a file."""

import math
from pathlib import Path

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from parquet import column, lists, opened, read, read_all, write

from fsdata import Schema, Sequence
from fsdata.errors import DataError, SchemaError
from fsdata.sources import ParquetSource

USERS = Schema(context=("user",))


def users(folder: Path, name: str, *numbers: int, **options) -> Path:
    return write(folder / name, {"user": pa.array(numbers, pa.int64())}, **options)


def found(*args, **kwargs) -> list[int]:
    return [sample["user"][0] for sample in read(ParquetSource(*args, **kwargs), USERS)]


# Finding files


@pytest.fixture
def folder(tmp_path):
    users(tmp_path, "b.parquet", 2)
    users(tmp_path, "a.parquet", 1)
    users(tmp_path, "sub/c.parq", 3)
    users(tmp_path, "sub/deep/d.parquet", 4)
    users(tmp_path, "_temporary/e.parquet", 5)
    users(tmp_path, ".hidden.parquet", 6)
    users(tmp_path, "sub/README.md", 7)
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", [1, 2, 3, 4]),
        ("/*.parquet", [1, 2]),
        ("/?.parquet", [1, 2]),
        ("/[!a].parquet", [2]),
        ("/**/*.parquet", [1, 2, 4]),
        ("/s*/*.parq", [3]),
        ("/sub/**", [7, 3, 4]),
        ("/sub/README.md", [7]),
        ("/_temporary/*.parquet", [5]),
    ],
)
def test_folders_globs_and_files(folder, pattern, expected):
    assert found(str(folder) + pattern) == expected


def test_several_paths_keep_their_order(folder):
    assert found([folder / "sub", folder / "*.parquet"]) == [3, 4, 1, 2]


def test_a_file_whose_name_looks_like_a_glob(tmp_path):
    users(tmp_path, "a[1].parquet", 1)
    users(tmp_path, "a1.parquet", 2)
    assert found(tmp_path / "a[1].parquet") == [1]


@pytest.mark.parametrize("path", ["missing.parquet", "*.nothing", "none/*.parquet", "empty"])
def test_nothing_found_names_the_path(tmp_path, path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=path.replace("*", r"\*")):
        found(tmp_path / path)


def test_a_file_named_twice_is_an_error(folder):
    with pytest.raises(SchemaError, match=r"read twice: .*a\.parquet"):
        found([folder / "*.parquet", folder / "a.parquet"])


def test_relative_paths(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert found("*.parquet") == [1, 2]


def test_file_urls(folder):
    assert found(f"file://{folder}/*.parquet") == [1, 2]


@pytest.fixture
def memory(folder):
    system = fsspec.filesystem("memory")
    system.pipe({f"/bucket/{name}": (folder / name).read_bytes() for name in ("a.parquet", "b.parquet", "sub/c.parq")})
    yield system
    system.rm("/bucket", recursive=True)


def test_fsspec_urls(memory):
    assert found("memory://bucket/*.parquet") == [1, 2]
    assert found("memory://bucket") == [1, 2, 3]


def test_filesystem_objects(memory, folder):
    assert found("/bucket/*.parquet", filesystem=memory) == [1, 2]
    assert found("*.parquet", filesystem=pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())) == [1, 2]
    with pytest.raises(SchemaError, match="pyarrow or fsspec filesystem"):
        found("a", filesystem=3)


def test_unknown_url_schemes(tmp_path):
    with pytest.raises(SchemaError, match="nosuch://"):
        found("nosuch://bucket/a.parquet")


def test_no_permission_names_the_file(folder, monkeypatch):
    def refuse(self, path, *args, **kwargs):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(LocalFileSystem, "open", refuse)
    with pytest.raises(PermissionError, match=r"a\.parquet: no permission to read this file"):
        found(str(folder / "a.parquet"), filesystem=fsspec.filesystem("file"))


# Partitions


def test_partitions_are_columns(tmp_path):
    for country in (7, 12):
        users(tmp_path, f"country={country}/day=monday/a.parquet", country * 100)
    schema = Schema(context=("user", "country", "weekday"), dense=("nation",))
    weekday = pl.col("day").replace_strict({"monday": 1}, return_dtype=pl.Int64)
    samples = read(ParquetSource(tmp_path, columns={"nation": "country", "weekday": weekday}), schema)
    assert column(samples, "country") == [[12], [7]]
    assert column(samples, "weekday") == [[1], [1]]
    assert column(samples, "dense") == [[12.0], [7.0]]


def test_a_text_partition_needs_an_expression(tmp_path):
    users(tmp_path, "country=de/a.parquet", 1)
    with pytest.raises(SchemaError, match=r"partition 'country' is string: text is never .*pl\.col\('country'\)\.hash"):
        read(ParquetSource(tmp_path), Schema(context=("user", "country")))


def test_a_null_partition_follows_the_policy(tmp_path):
    users(tmp_path, "country=1/a.parquet", 1)
    users(tmp_path, "country=__HIVE_DEFAULT_PARTITION__/a.parquet", 2)
    schema = Schema(context=("user", "country"))
    with pytest.raises(SchemaError, match="partition 'country' is null"):
        read(ParquetSource(tmp_path), schema)
    assert column(read(ParquetSource(tmp_path, defaults={"country": 9}), schema), "country") == [[1], [9]]
    assert column(read(ParquetSource(tmp_path, nulls={"country": "drop"}), schema), "user") == [[1]]


def test_the_files_own_column_wins_over_a_partition(tmp_path):
    users(tmp_path, "user=5/a.parquet", 1)
    assert found(tmp_path) == [1]


# Columns, expressions, filters


def test_renames_expressions_and_filters(tmp_path):
    path = write(
        tmp_path / "a.parquet",
        {
            "uid": pa.array([1, 2, 3, 4], pa.int32()),
            "city": pa.array(["a", "b", None, "a"]),
            "tags": lists(pa.string(), ["x"], ["y", "x"], [], ["z"]),
            "score": pa.array([0.5, 1.5, 2.5, math.nan]),
        },
        group=3,
    )
    schema = Schema(sequences=(Sequence("tags", ("tag",)),), context=("user", "city_id"), dense=("double",))
    codes = {"x": 10, "y": 20, "z": 30}
    source = ParquetSource(
        path,
        columns={
            "user": "uid",
            "city_id": pl.col("city").replace_strict({"a": 1, "b": 2}, return_dtype=pl.Int8),
            "tag": pl.col("tags").list.eval(pl.element().replace_strict(codes, return_dtype=pl.Int32)),
            "double": pl.col("score") * 2,
        },
        defaults={"city_id": 99},
        filter=(pl.col("uid") != 2) & pl.col("score").is_not_nan(),
    )
    handle, layout = opened(source, schema)
    assert handle.may_drop
    rows = handle.read(handle.groups[0], layout, 0, 3)
    assert rows.kept.tolist() == [0, 2]
    assert read_all(handle, layout) == [
        {"user": [1], "city_id": [1], "tag": [10], "dense": [1.0]},
        {"user": [3], "city_id": [99], "tag": [], "dense": [5.0]},
    ]


def test_rows_that_the_filter_leaves_out_may_break_any_rule(tmp_path):
    path = write(
        tmp_path / "a.parquet", {"user": pa.array([1, None, 2**63], pa.uint64()), "ok": pa.array([1, 0, None])}
    )
    assert found(path, filter=pl.col("ok") == 1) == [1]
    with pytest.raises(DataError, match="row 1: user is null"):
        found(path, filter=pl.col("user").fill_null(0) < 2**63)


def test_a_filter_that_keeps_nothing(tmp_path):
    path = users(tmp_path, "a.parquet", 1, 2)
    handle, layout = opened(ParquetSource(path, filter=pl.col("user") > 5), USERS)
    rows = handle.read(handle.groups[0], layout, 0, 2)
    assert rows.table.num_rows == 0
    assert rows.kept.tolist() == []


@pytest.mark.parametrize(
    "expression",
    [
        pl.col("user").mean(),
        pl.col("user") - pl.col("user").mean(),
        pl.col("user").shift(),
        pl.col("user").cum_sum() + 1,
        pl.col("user").filter(pl.col("user") > 1),
        pl.col("user").over("user"),
        pl.when(pl.col("user") > 1).then(pl.col("user").max()).otherwise(0),
        pl.lit(3),
        pl.col("user", "other"),
        pl.all(),
        "user + 1 is no column",
        3,
    ],
    ids=str,
)
def test_expressions_that_need_other_rows_are_refused(tmp_path, expression):
    path = users(tmp_path, "a.parquet", 1, 2)
    with pytest.raises(SchemaError):
        found(path, columns={"user": expression})


def test_expressions_fail_before_training(tmp_path):
    path = write(tmp_path / "a.parquet", {"name": pa.array(["x"]), "n": pa.array([1])})
    schema = Schema(context=("a", "b", "c"))
    columns = {"a": pl.col("name").dt.year(), "b": pl.col("gone") + 1, "c": pl.col("n") / 2}
    with pytest.raises(SchemaError) as caught:
        ParquetSource(path, columns=columns, filter=pl.col("n") + 1).open(schema)
    message = str(caught.value)
    assert "a: expression failed" in message
    assert "b: the expression's column 'gone' is missing" in message
    assert "c: the expression's result is double: ids are integers" in message
    assert "filter: gives int64 where true or false is needed" in message


def test_an_expression_that_fails_on_data_names_the_rows(tmp_path):
    path = write(tmp_path / "a.parquet", {"name": pa.array(["1", "x"])})
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, row 0 or one of the 1 after it: expression failed"):
        found(path, columns={"user": pl.col("name").cast(pl.Int64)})


# Types


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array(["a"]), r"user: column 'user' is string: text is never .* columns=\{'user': pl\.col\('user'\)\.hash"),
        (pa.array([b"a"]), "text is never"),
        (pa.array(["a"]).dictionary_encode(), "text is never"),
        (pa.array([1.0]), "is double: ids are integers"),
        (lists(pa.int64(), [1]), "is list<.*>, a list, where one value per sample is needed"),
        (pa.array([{"a": 1}]), "struct.* cannot be read as int64"),
    ],
    ids=["string", "binary", "dictionary", "float", "list", "struct"],
)
def test_columns_that_cannot_be_ids(tmp_path, array, message):
    path = write(tmp_path / "a.parquet", {"user": array})
    with pytest.raises(SchemaError, match=message):
        found(path)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array([1]), "is int64, one value per sample, where a list is needed"),
        (lists(pa.float32(), [1.0]), "ids are integers"),
        (lists(pa.list_(pa.int64()), [[1]]), "cannot be read as int64"),
        (lists(pa.string(), ["a"]), r"pl\.col\('item'\)\.list\.eval\(pl\.element\(\)\.hash"),
    ],
    ids=["scalar", "floats", "nested", "strings"],
)
def test_columns_that_cannot_be_id_lists(tmp_path, array, message):
    path = write(tmp_path / "a.parquet", {"item": array})
    with pytest.raises(SchemaError, match=message):
        read(ParquetSource(path), Schema(sequences=(Sequence("uih", ("item",)),)))


def test_decimals_are_values_and_times_are_not(tmp_path):
    import decimal

    path = write(
        tmp_path / "a.parquet", {"price": pa.array([decimal.Decimal("1.25")]), "at": pa.array([0], pa.timestamp("s"))}
    )
    assert read(ParquetSource(path), Schema(dense=("price",))) == [{"dense": [1.25]}]
    with pytest.raises(SchemaError, match="turn it into a number with an expression"):
        read(ParquetSource(path), Schema(dense=("at",)))


def test_a_list_label_needs_candidates(tmp_path):
    path = write(tmp_path / "a.parquet", {"user": pa.array([1]), "click": lists(pa.float32(), [1.0])})
    with pytest.raises(SchemaError, match=r"a list label needs Schema\(candidates="):
        read(ParquetSource(path), Schema(context=("user",), labels=("click",)))


def test_labels_made_of_defaults_take_either_form(tmp_path):
    path = write(tmp_path / "a.parquet", {"c": lists(pa.int64(), [1, 2], [])})
    schema = Schema(candidates=Sequence("candidates", ("c",)), labels=("click",))
    handle, layout = opened(ParquetSource(path, defaults={"click": 1}), schema)
    assert handle.list_labels == frozenset()
    assert handle.default_labels == {"click"}
    assert column(read_all(handle, layout), "click") == [[1.0], [1.0]]
    from fsdata.layout import layout_of

    as_lists = layout_of(schema, frozenset({"click"}))
    assert column(read_all(handle, as_lists), "click") == [[1.0, 1.0], []]


def test_the_whole_mismatch_in_one_message(tmp_path):
    write(tmp_path / "a.parquet", {"user": pa.array([1]), "item": pa.array([1]), "age": pa.array(["x"])})
    write(tmp_path / "b.parquet", {"user": pa.array([1]), "age": pa.array([1.0])})
    schema = Schema(sequences=(Sequence("uih", ("item", "action")),), context=("user",), dense=("age",))
    with pytest.raises(SchemaError) as caught:
        ParquetSource(tmp_path).open(schema, index=2)
    message = str(caught.value)
    assert f"source 2 ({tmp_path}) cannot be read as this schema:" in message
    assert (
        "item: column 'item' is int64, one value per sample, where a list is needed [1 of 2 files: a.parquet]"
        in message
    )
    assert (
        "item: column 'item' is missing; give columns={'item': ...} or defaults={'item': ...} [1 of 2 files: b.par"
        in message
    )
    assert (
        "action: column 'action' is missing; give columns={'action': ...} or defaults={'action': ...} [all files]"
        in message
    )
    assert "age: column 'age' is string" in message
    assert "[1 of 2 files: a.parquet]" in message
    assert "columns of a.parquet: user: int64, item: int64, age: string" in message


def test_drift_that_widening_mends(tmp_path):
    write(tmp_path / "a.parquet", {"user": pa.array([1], pa.int8()), "item": lists(pa.int32(), [1])})
    write(
        tmp_path / "b.parquet", {"item": pa.array([[2]], pa.large_list(pa.uint64())), "user": pa.array([2], pa.int64())}
    )
    write(tmp_path / "c.parquet", {"item": lists(pa.int64(), [3, 4])})
    schema = Schema(sequences=(Sequence("uih", ("item",)),), context=("user",))
    samples = read(ParquetSource(tmp_path, defaults={"user": 0}), schema)
    assert samples == [{"user": [1], "item": [1]}, {"user": [2], "item": [2]}, {"user": [0], "item": [3, 4]}]


def test_drift_that_widening_cannot_mend(tmp_path):
    for name, unit, label in [("a", "ms", pa.array([1.0])), ("b", "us", lists(pa.float32(), [1.0]))]:
        write(
            tmp_path / f"{name}.parquet",
            {"at": pa.array([1], pa.timestamp(unit)), "click": label, "c": lists(pa.int64(), [1])},
        )
    schema = Schema(candidates=Sequence("candidates", ("c",)), context=("at",), labels=("click",))
    with pytest.raises(SchemaError) as caught:
        ParquetSource(tmp_path).open(schema)
    assert "at: is timestamp[us] in some files and timestamp[ms] in the first: units would be mixed" in str(
        caught.value
    )
    assert "click: is list<element: float> in some files and double in the first" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "default", "message"),
    [("user", 0.5, "not an integer"), ("age", 1e39, "too large for float32")],
)
def test_defaults_that_do_not_fit(tmp_path, field, default, message):
    path = users(tmp_path, "a.parquet", 1)
    with pytest.raises(SchemaError, match=message):
        ParquetSource(path, defaults={"age": 0} | {field: default}).open(Schema(context=("user",), dense=("age",)))


# Time


def test_times_are_nanoseconds_or_integers(tmp_path):
    schema = Schema(context=("user",), time="at")
    cases = [
        (pa.array([1, 2], pa.timestamp("ms")), [1_000_000, 2_000_000], "ns"),
        (pa.array([1, 2], pa.timestamp("us", "UTC")), [1000, 2000], "ns"),
        (pa.array([0, 1], pa.date32()), [0, 86_400_000_000_000], "ns"),
        (pa.array([5, 6], pa.int32()), [5, 6], "integer"),
    ]
    for number, (array, expected, unit) in enumerate(cases):
        path = write(tmp_path / f"{number}.parquet", {"user": pa.array([1, 2]), "at": array})
        handle, _ = opened(ParquetSource(path), schema)
        assert handle.has_time
        assert handle.time_unit == unit
        assert handle.read_times(handle.groups[0]).tolist() == expected


def test_a_null_time_is_an_error_unless_filtered(tmp_path):
    schema = Schema(context=("user",), time="at")
    path = write(tmp_path / "a.parquet", {"user": pa.array(range(4)), "at": pa.array([None, 3, None, 9])})
    handle, _ = opened(ParquetSource(path), schema)
    with pytest.raises(DataError, match=r"a\.parquet, row group 0, row 0: at is null"):
        handle.read_times(handle.groups[0])
    handle, layout = opened(ParquetSource(path, filter=pl.col("at").is_not_null()), schema)
    assert handle.read_times(handle.groups[0]).tolist() == [0, 3, 3, 9]
    assert column(read_all(handle, layout), "user") == [[1], [3]]


# Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"defaults": {"user": "x"}}, "must be a number"),
        ({"defaults": {"user": math.nan}}, "must be finite"),
        ({"defaults": {"user": True}}, "must be a number"),
        ({"nulls": {"user": "keep"}}, "must be one of error, default, drop, got 'keep'"),
        ({"nulls": {"user": "default"}}, "needs the value"),
        ({"weight": 0}, "positive"),
        ({"on_error": "ignore"}, "'raise' or 'skip', got 'ignore'"),
        ({"columns": ["user"]}, "maps field names"),
        ({"join": ["x"]}, "takes Join objects"),
        ({"filter": "user > 3"}, "polars expression"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(SchemaError, match=message):
        ParquetSource("a.parquet", **options)


def test_no_paths():
    with pytest.raises(SchemaError, match="one or more paths"):
        ParquetSource([])


def test_options_for_fields_that_do_not_exist(tmp_path):
    path = users(tmp_path, "a.parquet", 1)
    with pytest.raises(SchemaError, match="defaults names contry"):
        found(path, defaults={"contry": 1})


# Fingerprints


def test_fingerprints_know_content_and_arguments_but_not_places(tmp_path):
    for place in ("here", "there"):
        users(tmp_path, f"{place}/a.parquet", 1, 2)
        users(tmp_path, f"{place}/b.parquet", 3)
    users(tmp_path, "other/a.parquet", 1, 3)
    users(tmp_path, "other/b.parquet", 3)

    def fingerprint(place, **options):
        return ParquetSource(tmp_path / place, **options).open(USERS).fingerprint

    plain = fingerprint("here")
    assert fingerprint("there") == plain
    assert fingerprint("other")["footers"] != plain["footers"]
    assert fingerprint("here/a.parquet")["files"] != plain["files"]
    changed = [
        fingerprint("here", **options)["arguments"]
        for options in (
            {"columns": {"user": pl.col("user") + 1}},
            {"columns": {"user": pl.col("user") + 2}},
            {"filter": pl.col("user") > 1},
            {"defaults": {"user": 1}},
            {"defaults": {"user": 2}},
            {"on_error": "skip"},
            {"weight": 2.0},
        )
    ]
    assert len({plain["arguments"], *changed}) == 8
    assert fingerprint("here", columns={"user": pl.col("user") + 1})["arguments"] == changed[0]


@pytest.mark.full
def test_reading_needs_no_pandas(tmp_path):
    import subprocess
    import sys

    path = write(tmp_path / "a.parquet", {"user": pa.array([1, None], pa.int32())})
    code = (
        "import sys; from fsdata import Schema, ParquetSource; from fsdata.layout import layout_of\n"
        f"s = Schema(context=('user',)); o = ParquetSource({str(path)!r}, defaults={{'user': 0}}).open(s)\n"
        "o.read(o.groups[0], layout_of(s), 0, 2); print('pandas' in sys.modules, 'polars' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_row_groups_without_rows_are_left_out(tmp_path):
    schema = pa.schema([("user", pa.int64())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for numbers in ([1], [], [2, 3], []):
            writer.write_table(pa.table({"user": pa.array(numbers, pa.int64())}))
    users(tmp_path, "b.parquet")
    handle, layout = opened(ParquetSource(tmp_path), USERS)
    assert [(group.file, group.index, group.rows) for group in handle.groups] == [(0, 0, 1), (0, 2, 2)]
    assert column(read_all(handle, layout), "user") == [[1], [2], [3]]
