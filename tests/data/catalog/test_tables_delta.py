"""Delta tables: what a loader reads is what deltalake reads, version by version, and what would be wrong is refused."""

import datetime
import json
import sys
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import polars as pl
import pyarrow as pa
import pytest
from parquet import opened, values
from patience import PATIENCE_S
from worlds import shared_world

from fsdata import (
    Balance,
    FreeScaleDataLoader,
    Join,
    ParquetSource,
    Schema,
    SchemaError,
    Sequence,
    StateError,
    sources_from_toml,
)

deltalake = pytest.importorskip("deltalake")

SCHEMA = Schema(
    sequences=(Sequence("uih", ("item",)),),
    context=("user", "day", "n", "at"),
    dense=("dec", "f"),
    passthrough=("name",),
)
PARTITIONS = ["day", "name", "n", "dec", "f", "at"]
NULLS = {"day": -1, "n": -1, "dec": -1, "f": -1, "name": "null", "at": -1}
DAY = datetime.date(2024, 1, 1)


def rows(first=0, count=12):
    numbers = range(first, first + count)
    return pa.table(
        {
            "user": pa.array(numbers),
            "item": pa.array([[n] * (n % 4) for n in numbers], pa.list_(pa.int64())),
            "day": pa.array([None if n % 5 == 4 else DAY + datetime.timedelta(n % 3) for n in numbers]),
            "name": pa.array([["a b/ü", "c=d", None, "%41?"][n % 4] for n in numbers]),
            "n": pa.array([None if n % 6 == 5 else n % 2 for n in numbers], pa.int8()),
            "dec": pa.array([Decimal("1.50"), Decimal("0.25")] * (count // 2), pa.decimal128(5, 2)),
            "f": pa.array([0.1] * count),
            "at": pa.array([datetime.datetime(2024, 1, 1, 0, 0, 0, n % 2) for n in numbers], pa.timestamp("us")),
        }
    )


def write(path, table, **options):
    deltalake.write_deltalake(str(path), table, **options)


def source(table, **options):
    return ParquetSource(table=f"delta:{table}", **{"defaults": NULLS, **options})


def read(given, schema=SCHEMA, **options):
    """The rows as tuples, sorted."""
    found = []
    with FreeScaleDataLoader(given, schema, batch_size=5, **options) as loader:
        for batch in loader:
            columns = [batch.features[name].values().tolist() for name in schema.context]
            columns += [column.tolist() for column in batch.dense.T]
            columns += [list(column) for column in batch.passthrough.values()]
            found += zip(*columns, strict=True)
    return sorted(found)


def wanted(path, version=None):
    """The same from deltalake."""
    import numpy as np

    def number(value):
        if isinstance(value, datetime.datetime):
            return (value - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
        return (value - datetime.date(1970, 1, 1)).days if isinstance(value, datetime.date) else value

    found = []
    for row in deltalake.DeltaTable(str(path), version=version).to_pyarrow_table().to_pylist():
        row = {name: NULLS[name] if value is None else number(value) for name, value in row.items()}
        values = [row[name] for name in SCHEMA.context]
        found.append((*values, *(float(np.float32(row[name])) for name in SCHEMA.dense), row["name"]))
    return sorted(found)


@pytest.fixture
def plain(tmp_path):
    """Three versions of a table without partitions."""
    path = tmp_path / "plain"
    for first in (0, 10, 20):
        write(path, pa.table({"user": pa.array(range(first, first + 10))}), mode="append")
    return path


USERS = Schema(context=("user",))


def users(table, **options):
    return [user for (user,) in read(ParquetSource(table=f"delta:{table}", **options), USERS)]


@pytest.fixture
def partitioned(tmp_path):
    path = tmp_path / "a table"
    write(path, rows(), partition_by=PARTITIONS)
    write(path, rows(12), mode="append", partition_by=PARTITIONS)
    deltalake.DeltaTable(str(path)).delete("user % 7 = 1")
    return path


@pytest.mark.parametrize("version", [0, 1, 2, None])
def test_every_version_is_what_deltalake_reads(partitioned, version):
    got = read(source(partitioned if version is None else f"{partitioned}@{version}"))
    assert got == wanted(partitioned, version)
    assert len(got) == {0: 12, 1: 24}.get(version, 20)


def test_versions_of_a_table_without_partitions(plain):
    table = deltalake.DeltaTable(str(plain))
    assert users(plain) == list(range(30))
    assert users(f"{plain}@0") == list(range(10))
    table.delete("user >= 5 and user < 25")
    assert users(plain) == [*range(5), *range(25, 30)]
    write(plain, pa.table({"user": pa.array([7, 8])}), mode="overwrite")
    assert users(plain) == [7, 8]
    assert users(f"{plain}@2") == list(range(30))
    table = deltalake.DeltaTable(str(plain))
    table.restore(1)
    table.optimize.compact()
    assert users(plain) == list(range(20))


@pytest.mark.parametrize(
    "condition",
    [
        pl.col("day") == DAY,
        pl.col("name") == "%41?",
        pl.col("n").is_null(),
        (pl.col("dec") > 1) & (pl.col("user") % 2 == 0),
        pl.col("at") >= datetime.datetime(2024, 1, 1, 0, 0, 0, 1),
    ],
    ids=["day", "name", "null", "decimal", "time"],
)
def test_filters_on_partitions_leave_files_unopened(partitioned, condition):
    given = source(partitioned, filter=condition)
    frame = pl.from_arrow(deltalake.DeltaTable(str(partitioned)).to_pyarrow_table())
    kept = set(frame.filter(condition)["user"].to_list())
    assert read(given) == [row for row in wanted(partitioned) if row[0] in kept]
    with FreeScaleDataLoader(given, SCHEMA, batch_size=5) as loader:
        (described,) = loader.describe()
    assert described["pruned_files"] > 0
    assert described["table"] == "version 2 of a Delta table, which table='delta:...@2' opens"


def test_expressions_and_policies_over_partitions(partitioned):
    schema = Schema(context=("user", "month"), passthrough=("name",))
    columns = {"month": pl.col("day").dt.day() * 10}
    got = read(source(partitioned, columns=columns, defaults={}, nulls={"month": "drop", "name": "drop"}), schema)
    arrow = deltalake.DeltaTable(str(partitioned)).to_pyarrow_table().to_pylist()
    assert got == sorted(
        (row["user"], row["day"].day * 10, row["name"]) for row in arrow if row["day"] and row["name"] is not None
    )
    with pytest.raises(SchemaError, match="partition 'name' is null"):
        read(source(partitioned, columns=columns, defaults={}), schema)


def test_a_partition_is_the_time_of_a_row(partitioned):
    handle, layout = opened(source(partitioned, defaults={}), Schema(context=("user",), time="at"))
    for group in handle.groups:
        (early,) = {sample["user"][0] % 2 for sample in values(handle.read(group, layout, 0, group.rows).table, layout)}
        assert set(handle.read_times(group).tolist()) == {1704067200 * 10**9 + 1000 * early}
    handle.close()


def edited(path, change):
    """Rewrite every action of the table's first version."""
    (log,) = sorted((path / "_delta_log").glob("*0.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        change(action)
    log.write_text("\n".join(json.dumps(action) for action in actions))


def test_values_and_places_are_those_of_the_metadata(tmp_path):
    """Folders tell nothing: two values lie in one, names are encoded twice, a file lies elsewhere."""
    path, other = tmp_path / "t", tmp_path / "else where" / "n=5"
    write(path, pa.table({"user": [1, 2, 3], "n": [7, 8, 9]}), partition_by=["n"])
    other.mkdir(parents=True)
    (path / "n=9 %41").mkdir()

    def move(action):
        if "add" not in action:
            return
        old = path / action["add"]["path"]
        value = action["add"]["partitionValues"]["n"]
        if value != "8":
            new = path / "n=9 %41" / f"{value}.parquet"
            action["add"]["path"] = quote(f"n=9 %41/{value}.parquet")
        else:
            new = other / "y.parquet"
            action["add"]["path"] = "file://" + quote(str(new))
        old.rename(new)

    edited(path, move)
    schema = Schema(context=("user", "n"))
    assert read(ParquetSource(table=f"delta:{path}"), schema) == [(1, 7), (2, 8), (3, 9)]


def features(*names):
    def change(action):
        if "protocol" in action:
            both = {"readerFeatures": list(names), "writerFeatures": list(names)}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **both}

    return change


def test_deletion_vectors_are_refused(tmp_path):
    write(tmp_path / "t", pa.table({"user": [1, 2]}))
    edited(tmp_path / "t", features("deletionVectors"))
    assert users(tmp_path / "t") == [1, 2]  # the table may have some, and has none

    def deleted(action):
        if "add" in action:
            inline = {"storageType": "i", "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"}
            action["add"]["deletionVector"] = {**inline, "sizeInBytes": 40, "cardinality": 6}

    edited(tmp_path / "t", deleted)
    with pytest.raises(SchemaError, match=r"version 0 has deleted rows in its files \(deletion vectors\)"):
        users(tmp_path / "t")


def test_column_mapping_is_refused(tmp_path):
    write(tmp_path / "t", pa.table({"user": [1, 2]}))

    def mapped(action):
        features("columnMapping")(action)
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            schema["fields"][0]["metadata"] = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "c"}
            action["metaData"]["schemaString"] = json.dumps(schema)
            action["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}

    edited(tmp_path / "t", mapped)
    with pytest.raises(SchemaError, match="version 0 maps columns by name"):
        users(tmp_path / "t")


def test_unknown_features_are_refused(tmp_path):
    write(tmp_path / "t", pa.table({"user": [1, 2]}))
    edited(tmp_path / "t", features("typeWidening", "timestampNtz"))
    with pytest.raises(SchemaError, match="needs what is not known here: typeWidening"):
        users(tmp_path / "t")


def test_a_state_names_its_version(plain):
    with FreeScaleDataLoader(ParquetSource(table=f"delta:{plain}"), USERS, batch_size=4) as loader:
        first = next(iter(loader)).features["user"].values().tolist()
        state = json.loads(json.dumps(loader.state_dict()))
    write(plain, pa.table({"user": pa.array(range(30, 40))}), mode="append")
    with FreeScaleDataLoader(ParquetSource(table=f"delta:{plain}"), USERS, batch_size=4) as loader:
        with pytest.raises(StateError) as caught:
            loader.load_state_dict(state)
        assert "source 0 table: saved version 2 of a Delta table, which table='delta:...@2' opens" in str(caught.value)
        assert "now version 3 of a Delta table" in str(caught.value)
    with FreeScaleDataLoader(ParquetSource(table=f"delta:{plain}@2"), USERS, batch_size=4) as loader:
        loader.load_state_dict(state)
        rest = [user for batch in loader for user in batch.features["user"].values().tolist()]
    assert sorted(first + rest) == list(range(30))


def test_versions_that_are_gone(plain, tmp_path):
    with pytest.raises(SchemaError, match="version 9, which does not exist, or no more, cannot be opened"):
        users(f"{plain}@9")
    with pytest.raises(FileNotFoundError, match="no Delta table"):
        users(tmp_path / "nowhere")
    table = deltalake.DeltaTable(str(plain))
    table.delete("user < 5")
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert users(plain) == list(range(5, 30))
    with pytest.raises(FileNotFoundError, match=r"version 0 of a Delta table.*: a file of it is gone: .*Vacuum"):
        users(f"{plain}@0", on_error="skip")


def test_a_side_table_and_a_schema_file(plain, tmp_path):
    write(tmp_path / "side", pa.table({"user": pa.array(range(30)), "age": pa.array(range(0, 60, 2))}))
    join = Join(ParquetSource(table=f"delta:{tmp_path / 'side'}@0"), on="user", fields=("age",))
    schema = Schema(context=("user", "age"))
    given = ParquetSource(table=f"delta:{plain}", join=[join])
    assert read(given, schema) == [(n, 2 * n) for n in range(30)]
    with FreeScaleDataLoader(given, schema, batch_size=4) as loader:
        assert "version 0" in loader.state_dict()["fingerprint"]["source 0 join 0 table"]
    (tmp_path / "job.toml").write_text('[[sources]]\ntable = "delta:plain@1"\n')
    (of_file,) = sources_from_toml(tmp_path / "job.toml")
    assert of_file.table == f"delta:{tmp_path}/plain@1"
    assert read(of_file, USERS) == [(n,) for n in range(20)]


def on_ranks(rank, world_size, table):
    given = ParquetSource(table=f"delta:{table}")
    with FreeScaleDataLoader(
        given, USERS, batch_size=4, balance=Balance(timeout_s=PATIENCE_S), timeout_s=PATIENCE_S
    ) as loader:
        return [user for batch in loader for user in batch.features["user"].values().tolist()]


def test_on_two_ranks(plain):
    answers = shared_world(2).run(on_ranks, plain)
    assert sorted(user for users_read in answers for user in users_read) == list(range(30))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "hudi:x"}, "table is 'delta:PATH' or 'iceberg:PATH', with @VERSION if wanted, got 'hudi:x'"),
        ({"table": "delta:"}, "table is 'delta:PATH'"),
        ({"table": Path("x")}, "table is 'delta:PATH'"),
        ({"table": "delta:x", "paths": "y"}, "one of the three"),
        ({"table": "delta:x", "catalog": "y"}, "one of the three"),
        ({"table": "delta:x", "filesystem": object()}, "takes no filesystem"),
    ],
)
def test_arguments(options, message):
    with pytest.raises(SchemaError, match=message):
        ParquetSource(**options)


@pytest.mark.parametrize(("kind", "library"), [("delta", "deltalake"), ("iceberg", "pyiceberg.table")])
def test_a_missing_library_is_named(monkeypatch, plain, kind, library):
    monkeypatch.setitem(sys.modules, library, None)
    message = rf"{kind}:.*: reading it needs {library.split('.')[0]}: pip install 'freescale\[{kind}\]'"
    with pytest.raises(ImportError, match=message):
        read(ParquetSource(table=f"{kind}:{plain}"), USERS)
