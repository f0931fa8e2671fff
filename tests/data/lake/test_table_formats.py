"""Delta and Iceberg tables: a loader reads what their own libraries read, version by version, or refuses."""

import datetime
import json
import sys
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_kit import USERS, column, fingerprint, found, loader_on, rows_of, write
from data_kit import read as read_samples

from fsdata import Join, ParquetSource, Schema, SchemaError, Sequence, StateError

deltalake = pytest.importorskip("deltalake")
sql = pytest.importorskip("pyiceberg.catalog.sql")
pytest.importorskip("sqlalchemy")
from pyiceberg.table import DataScan  # noqa: E402
from pyiceberg.transforms import IdentityTransform, MonthTransform  # noqa: E402
from pyiceberg.types import LongType  # noqa: E402

DAY, EPOCH = datetime.date(2024, 1, 1), datetime.date(1970, 1, 1)
SCHEMA = Schema(sequences=(Sequence("uih", ("item",)),), context=("user", "day"), passthrough=("name",))
NULLS = {"day": -1, "name": "null"}


def rows(first=0, count=12):
    numbers = range(first, first + count)
    return pa.table(
        {
            "user": pa.array(numbers),
            "day": pa.array([None if n % 5 == 4 else DAY + datetime.timedelta(n % 3) for n in numbers]),
            "name": pa.array([["a b/ü", "c=d", None, "%41?"][n % 4] for n in numbers], pa.string()),
            "item": pa.array([[n] * (n % 4) for n in numbers], pa.list_(pa.int64())),
        }
    )


class Delta:
    """Written, appended to, rows deleted by writing files anew; divided by day and name."""

    kind, name, gone = "delta", "version {} of a Delta table", "which does not exist, or no more, cannot be opened"

    def __init__(self, folder):
        self.path = str(folder / "a table")
        deltalake.write_deltalake(self.path, rows(), partition_by=["day", "name"])
        self.append(rows(12))
        self.table.delete("user = 8 or user = 15")
        self.versions = [0, 1, 2]

    table = property(lambda self: deltalake.DeltaTable(self.path))

    def append(self, more):
        deltalake.write_deltalake(self.path, more, mode="append")

    def arrow(self, version=None):
        return deltalake.DeltaTable(self.path, version=version).to_pyarrow_table()

    def remove_old_files(self):
        self.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


class Iceberg:
    kind, name, gone = (
        "iceberg",
        "snapshot {} of an Iceberg table",
        "it has no snapshot 99, or no more; existing snapshots: ",
    )

    def __init__(self, folder):
        self.catalog = sql.SqlCatalog("t", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
        self.catalog.create_namespace("ns")
        self.table = self.catalog.create_table("ns.t", schema=rows().schema)
        with self.table.update_spec() as spec:
            spec.add_field("day", IdentityTransform(), "of_day")
            spec.add_field("name", IdentityTransform(), "of_name")
        self.path = self.folder(self.table)
        self.append(rows())
        self.append(rows(12))
        self.table.delete("user = 8 or user = 15")
        made = [each.snapshot_id for each in self.table.snapshots()]
        self.versions = [made[0], made[1], made[-1]]

    @staticmethod
    def folder(table):
        return table.location().removeprefix("file://")

    def append(self, more):
        self.table.append(more)

    def arrow(self, version=None):
        return self.table.scan(snapshot_id=version).to_arrow()

    def remove_old_files(self):
        for task in self.table.scan(snapshot_id=self.versions[0]).plan_files():
            Path(task.file.file_path.removeprefix("file://")).unlink(missing_ok=True)


@pytest.fixture(params=[Delta, Iceberg])
def lake(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    if made.kind == "iceberg":
        made.catalog.engine.dispose()


@pytest.fixture
def iceberg(tmp_path):
    made = Iceberg(tmp_path)
    yield made
    made.catalog.engine.dispose()


def source(lake, version=None, **options):
    place = lake.path if version is None else f"{lake.path}@{version}"
    return ParquetSource(table=f"{lake.kind}:{place}", **{"defaults": NULLS, **options})


def read(given, schema=SCHEMA):
    """The rows as tuples, sorted."""
    names = (*schema.context, *schema.dense, *schema.passthrough)
    return sorted(tuple(sample[name] for name in names) for sample in read_samples(given, schema, batch_size=5))


def wanted(table):
    days = [-1 if day is None else (day - EPOCH).days for day in table["day"].to_pylist()]
    names = [name or "null" for name in table["name"].to_pylist()]
    return sorted(zip(table["user"].to_pylist(), days, names, strict=True))


def users(table, **options):
    return sorted(found(table=table, **options))


def test_every_version_is_what_its_library_reads(lake):
    for count, version in zip((12, 24, 22), lake.versions, strict=True):
        got = read(source(lake, version))
        assert got == wanted(lake.arrow(version))
        assert len(got) == count
    assert read(source(lake)) == wanted(lake.arrow())


@pytest.mark.parametrize(
    "condition",
    [pl.col("day") == DAY, pl.col("name").is_null() & (pl.col("user") > 3), pl.col("name") == "%41?"],
    ids=["day", "null name", "name"],
)
def test_filters_on_partitions_leave_files_unopened(lake, condition):
    given = source(lake, filter=condition)
    assert read(given) == wanted(pl.from_arrow(lake.arrow()).filter(condition).to_arrow())
    with loader_on(given, SCHEMA) as loader:
        (described,) = loader.describe()
    assert described["pruned_files"] > 0
    newest = lake.versions[-1]
    assert described["table"] == f"{lake.name.format(newest)}, which table='{lake.kind}:...@{newest}' opens"


def test_a_state_names_its_version(lake):
    before = lake.versions[-1]
    with loader_on(source(lake), SCHEMA, batch_size=4) as loader:
        first = rows_of(next(iter(loader)), "user")
        state = json.loads(json.dumps(loader.state_dict()))
    lake.append(rows(40, 2))
    text = f'source 0 table: saved "{lake.name.format(before)}, .*@{before}\' opens", now "{lake.name.format("[0-9]+")}'
    with loader_on(source(lake), SCHEMA, batch_size=4) as loader, pytest.raises(StateError, match=text):
        loader.load_state_dict(state)
    with loader_on(source(lake, before), SCHEMA, batch_size=4) as loader:
        loader.load_state_dict(state)
        rest = rows_of(loader, "user")
    assert sorted(first + rest) == sorted(lake.arrow(before)["user"].to_pylist())


def test_what_is_gone(lake, tmp_path):
    with pytest.raises(SchemaError, match=lake.gone):
        read(source(lake, 99))
    with pytest.raises(FileNotFoundError, match=r"no (Delta|Iceberg) table"):
        users(f"{lake.kind}:{tmp_path / 'nowhere'}")
    lake.remove_old_files()
    first = lake.versions[0]
    with pytest.raises(
        FileNotFoundError, match=rf"{lake.name.format(first)}.*: a file of it is gone: .*Vacuum or the exp"
    ):
        read(source(lake, first, on_error="skip"))


@pytest.mark.parametrize(("kind", "library"), [("delta", "deltalake"), ("iceberg", "pyiceberg.table")])
def test_a_missing_library_is_named(monkeypatch, tmp_path, kind, library):
    monkeypatch.setitem(sys.modules, library, None)
    message = rf"{kind}:.*: reading it needs {library.split('.')[0]}: pip install 'freescale\[{kind}\]'"
    with pytest.raises(ImportError, match=message):
        users(f"{kind}:{tmp_path}")


# Delta


def test_partitions_have_the_types_of_the_table(tmp_path):
    """Of every type, null, in an expression, under a policy, and as the time of a row."""
    at = [datetime.datetime(2024, 1, 1, 0, 0, 0, n) for n in range(2)]
    kinds = {
        "n": pa.array([None, 7, 7, 8], pa.int8()),
        "dec": pa.array([Decimal("1.50"), None, Decimal("0.25"), Decimal("0.25")], pa.decimal128(5, 2)),
        "f": pa.array([0.1, 0.1, None, 0.1]),
        "day": pa.array([DAY, DAY + datetime.timedelta(1), None, DAY]),
        "at": pa.array([at[0], at[1], at[1], at[0]], pa.timestamp("us")),
    }
    table = pa.table({"user": pa.array(range(4)), **kinds})
    deltalake.write_deltalake(str(tmp_path / "t"), table, partition_by=list(kinds))
    schema = Schema(context=("user", "n", "at", "ten"), dense=("dec", "f"))
    ten = {"ten": pl.col("day").dt.day() * 10}
    given = ParquetSource(
        table=f"delta:{tmp_path / 't'}", columns=ten, defaults={"n": -1, "dec": -1, "f": -1}, nulls={"ten": "drop"}
    )
    micro, tenth = 1704067200 * 10**6, float(np.float32(0.1))
    expected = [(0, -1, micro, 10, 1.5, tenth), (1, 7, micro + 1, 20, -1.0, tenth), (3, 8, micro, 10, 0.25, tenth)]
    assert read(given, schema) == expected
    early = ParquetSource(table=f"delta:{tmp_path / 't'}", filter=pl.col("at") < at[1])
    assert [user for (user,) in read(early, USERS)] == [0, 3]
    with pytest.raises(SchemaError, match="partition 'n' is null"):
        read(ParquetSource(table=f"delta:{tmp_path / 't'}"), Schema(context=("user", "n")))
    near = pa.array([1000 * micro + 500], pa.timestamp("ns"))  # between the two times of the table
    other = write(tmp_path / "other.parquet", {"user": [9], "at": near})
    for user in range(4):
        one = ParquetSource(table=f"delta:{tmp_path / 't'}", filter=pl.col("user") == user)
        order = read_samples([one, ParquetSource(other)], Schema(context=("user",), time="at"), mix="time")
        assert column(order, "user") == ([9, user] if user in (1, 2) else [user, 9])


def test_a_table_that_is_overwritten_restored_and_compacted(tmp_path):
    path = tmp_path / "plain"
    for mode, numbers in (("append", range(10)), ("append", range(10, 30)), ("overwrite", [7, 8])):
        deltalake.write_deltalake(str(path), pa.table({"user": pa.array(numbers)}), mode=mode)
    assert users(f"delta:{path}") == [7, 8]
    assert users(f"delta:{path}@1") == list(range(30))
    table = deltalake.DeltaTable(str(path))
    table.restore(1)
    table.optimize.compact()
    assert users(f"delta:{path}") == list(range(30))
    side = tmp_path / "side"
    deltalake.write_deltalake(str(side), pa.table({"user": pa.array(range(30)), "age": pa.array(range(0, 60, 2))}))
    join = Join(ParquetSource(table=f"delta:{side}@0"), on="user", fields=("age",))
    schema, given = Schema(context=("user", "age")), ParquetSource(table=f"delta:{path}", join=[join])
    assert read(given, schema) == [(n, 2 * n) for n in range(30)]
    assert "version 0" in fingerprint(given, schema)["source 0 join 0 table"]
    assert users(f"delta:{path}@0") == list(range(10))


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
    deltalake.write_deltalake(str(path), pa.table({"user": [1, 2, 3], "n": [7, 8, 9]}), partition_by=["n"])
    other.mkdir(parents=True)
    (path / "n=9 %41").mkdir()

    def move(action):
        if "add" not in action:
            return
        old, value = path / action["add"]["path"], action["add"]["partitionValues"]["n"]
        new = other / "y.parquet" if value == "8" else path / "n=9 %41" / f"{value}.parquet"
        action["add"]["path"] = "file://" + quote(str(new)) if value == "8" else quote(f"n=9 %41/{value}.parquet")
        old.rename(new)

    edited(path, move)
    assert read(ParquetSource(table=f"delta:{path}"), Schema(context=("user", "n"))) == [(1, 7), (2, 8), (3, 9)]


def deleted(action):
    if "add" in action:
        inline = {"storageType": "i", "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"}
        action["add"]["deletionVector"] = {**inline, "sizeInBytes": 40, "cardinality": 6}


def mapped(action):
    if "metaData" in action:
        schema = json.loads(action["metaData"]["schemaString"])
        schema["fields"][0]["metadata"] = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "c"}
        action["metaData"]["schemaString"] = json.dumps(schema)
        action["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}


@pytest.mark.parametrize(
    ("features", "change", "message"),
    [
        (["deletionVectors"], lambda action: None, None),  # the table may have some, and has none
        (["deletionVectors"], deleted, r"version 0 has deleted rows in its files \(deletion vectors\)"),
        (["columnMapping"], mapped, "version 0 maps columns by name"),
        (["typeWidening", "timestampNtz"], lambda action: None, "needs unsupported features: typeWidening"),
    ],
)
def test_features_of_delta_that_would_be_read_wrongly_are_refused(tmp_path, features, change, message):
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"user": [1, 2]}))

    def with_features(action):
        if "protocol" in action:
            both = {"readerFeatures": features, "writerFeatures": features}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **both}
        change(action)

    edited(tmp_path / "t", with_features)
    if message is None:
        assert users(f"delta:{tmp_path / 't'}") == [1, 2]
        return
    with pytest.raises(SchemaError, match=message):
        users(f"delta:{tmp_path / 't'}")


# Iceberg


def test_deleted_rows_of_iceberg_are_refused(iceberg, monkeypatch):
    plan = DataScan.plan_files

    def with_deletes(scan):
        first, *rest = plan(scan)
        return [SimpleNamespace(file=first.file, delete_files={first.file}), *rest]

    def fails(scan):
        raise ValueError("PyIceberg does not yet support equality deletes")

    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    with pytest.raises(SchemaError, match=r"has deleted rows in 1 of its files.*rewrite_data_files"):
        read(source(iceberg))
    monkeypatch.setattr(DataScan, "plan_files", fails)
    with pytest.raises(SchemaError, match=r"cannot be planned .PyIceberg does not yet support equality deletes"):
        read(source(iceberg))


def test_columns_that_changed(iceberg):
    table, before = iceberg.table, iceberg.versions[-1]
    old = wanted(iceberg.arrow())
    with table.update_schema() as change:
        change.add_column("age", LongType())
    ages = Schema(context=("user", "age"))
    with pytest.raises(SchemaError, match="column 'age' is missing"):
        read(source(iceberg, defaults={}), ages)
    table.append(rows(90, 1).append_column("age", pa.array([33])))
    assert read(source(iceberg, defaults={"age": 7}), ages) == [(user, 7) for user, _, _ in old] + [(90, 33)]
    with table.update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("item")
    assert read(source(iceberg, defaults={}), USERS) == [(user,) for user, _, _ in old] + [(90,)]
    with table.update_schema() as change:
        change.add_column("item", LongType())
    with pytest.raises(SchemaError, match="its column 'item' is 'not there any more' in the table now"):
        read(source(iceberg, defaults={}), USERS)
    assert read(source(iceberg, before)) == old  # the schema of that time


@pytest.mark.parametrize("with_ids", [True, False])
def test_renamed_columns_are_refused(iceberg, tmp_path, with_ids):
    table = iceberg.table
    if not with_ids:
        write(tmp_path / "own.parquet", rows())
        table = iceberg.catalog.create_table("ns.added", schema=rows().schema)
        table.add_files([f"file://{tmp_path}/own.parquet"])
        with table.update_schema() as change:
            change.add_column("age", LongType())
    given = f"iceberg:{iceberg.folder(table)}"
    assert read(ParquetSource(table=given, defaults=NULLS)) == wanted(table.scan().to_arrow())
    with table.update_schema() as change:
        change.rename_column("user", "person")
    message = "its column 'user' is 'person' in the table now, and files are read by name"
    with pytest.raises(SchemaError, match=message):
        read(ParquetSource(table=given, defaults={"person": 0}), Schema(context=("person",)))
    with pytest.raises(SchemaError, match=message):
        read(ParquetSource(table=given, filter=pl.col("name") == "c=d"), Schema(context=("day",)))


def test_partitions_of_columns_that_are_not_in_the_files(iceberg):
    """As in tables that were moved from Hive."""
    want = wanted(iceberg.arrow())
    for task in iceberg.table.scan().plan_files():
        place = task.file.file_path.removeprefix("file://")
        pq.write_table(pq.ParquetFile(place).read().drop_columns(["day", "name"]), place)
    assert read(source(iceberg)) == want
    got = read(source(iceberg, filter=pl.col("day") == DAY))
    assert got == [row for row in want if row[1] == (DAY - EPOCH).days]


def test_transformed_columns_tell_nothing(iceberg, tmp_path):
    table = iceberg.catalog.create_table("ns.months", schema=rows().schema)
    with table.update_spec() as spec:
        spec.add_field("day", MonthTransform(), "month")
    write(tmp_path / "own.parquet", rows())
    table.add_files([f"file://{tmp_path}/own.parquet"])
    given = ParquetSource(table=f"iceberg:{iceberg.folder(table)}", defaults=NULLS, filter=pl.col("day") == DAY)
    assert read(given) == wanted(rows().filter(pa.compute.equal(rows()["day"], DAY)))


def test_which_metadata_file_is_the_newest(iceberg):
    newest = Path(iceberg.table.metadata_location.removeprefix("file://"))
    old = wanted(iceberg.arrow())
    assert read(source(SimpleNamespace(kind="iceberg", path=newest))) == old
    newest.with_name(newest.name[:5] + "-other.metadata.json").write_bytes(newest.read_bytes())
    with pytest.raises(SchemaError, match=r"2 metadata files of number .*give the file itself"):
        read(source(iceberg))
    assert read(source(SimpleNamespace(kind="iceberg", path=newest))) == old
    newest.with_name("version-hint.text").write_text("0")
    with pytest.raises(SchemaError, match="it has no snapshot; existing snapshots: none"):
        read(source(iceberg))
