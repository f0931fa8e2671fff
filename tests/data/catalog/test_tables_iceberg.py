"""Iceberg tables: what a loader reads is what pyiceberg reads, snapshot by snapshot; what would be wrong is refused."""

import datetime
import json
from types import SimpleNamespace

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fsdata import FreeScaleDataLoader, ParquetSource, Schema, SchemaError, Sequence, StateError
from fsdata.catalog.listing.tables import _identities

sql = pytest.importorskip("pyiceberg.catalog.sql")
pytest.importorskip("sqlalchemy")
DAY = datetime.date(2024, 1, 1)
SCHEMA = Schema(sequences=(Sequence("uih", ("item",)),), context=("user", "day"), passthrough=("name",))
USERS = Schema(context=("user",))
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


@pytest.fixture
def catalog(tmp_path):
    with_tables = sql.SqlCatalog(
        "tests", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    with_tables.create_namespace("ns")
    yield with_tables
    with_tables.engine.dispose()


@pytest.fixture
def table(catalog):
    """Written, appended to, rows deleted by writing files anew; divided by day and name."""
    from pyiceberg.transforms import IdentityTransform

    made = catalog.create_table("ns.t", schema=rows().schema)
    with made.update_spec() as spec:
        spec.add_field("day", IdentityTransform(), "of_day")
        spec.add_field("name", IdentityTransform(), "of_name")
    made.append(rows())
    made.append(rows(12))
    made.delete("user = 8 or user = 15")
    return made


def folder(table):
    return table.location().removeprefix("file://")


def source(place, **options):
    return ParquetSource(table=f"iceberg:{place}", **{"defaults": NULLS, **options})


def read(given, schema=SCHEMA):
    found = []
    with FreeScaleDataLoader(given, schema, batch_size=5) as loader:
        for batch in loader:
            columns = [batch.features[name].values().tolist() for name in schema.context]
            columns += [list(column) for column in batch.passthrough.values()]
            found += zip(*columns, strict=True)
    return sorted(found)


def wanted(table, snapshot=None):
    days = {None: -1}
    found = table.scan(snapshot_id=snapshot).to_arrow().to_pylist()
    days |= {row["day"]: (row["day"] - datetime.date(1970, 1, 1)).days for row in found if row["day"]}
    return sorted((row["user"], days[row["day"]], row["name"] or "null") for row in found)


def test_every_snapshot_is_what_pyiceberg_reads(table):
    for count, snapshot in zip((12, 24, 22), table.snapshots()[:2] + table.snapshots()[-1:], strict=True):
        got = read(source(f"{folder(table)}@{snapshot.snapshot_id}"))
        assert got == wanted(table, snapshot.snapshot_id)
        assert len(got) == count
    assert read(source(folder(table))) == wanted(table)
    assert read(source(table.metadata_location)) == wanted(table)
    table.overwrite(rows(50, 3))
    assert {user for user, _, _ in read(source(folder(table)))} == {50, 51, 52}


@pytest.mark.parametrize("condition", [pl.col("day") == DAY, pl.col("name").is_null() & (pl.col("user") > 3)], ids=str)
def test_filters_on_partitions_leave_files_unopened(table, condition):
    given = source(folder(table), filter=condition)
    kept = set(pl.from_arrow(table.scan().to_arrow()).filter(condition)["user"].to_list())
    assert read(given) == [row for row in wanted(table) if row[0] in kept]
    with FreeScaleDataLoader(given, SCHEMA, batch_size=5) as loader:
        (described,) = loader.describe()
    assert described["pruned_files"] > 0
    number = table.current_snapshot().snapshot_id
    assert described["table"] == f"snapshot {number} of an Iceberg table, which table='iceberg:...@{number}' opens"


def test_a_state_names_its_snapshot(table):
    before = table.current_snapshot().snapshot_id
    with FreeScaleDataLoader(source(folder(table)), SCHEMA, batch_size=4) as loader:
        first = next(iter(loader)).features["user"].values().tolist()
        state = json.loads(json.dumps(loader.state_dict()))
    table.append(rows(40, 2))
    after = table.current_snapshot().snapshot_id
    with (
        FreeScaleDataLoader(source(folder(table)), SCHEMA, batch_size=4) as loader,
        pytest.raises(StateError, match=f"saved snapshot {before} of .*@{before}' opens, now snapshot {after} of"),
    ):
        loader.load_state_dict(state)
    with FreeScaleDataLoader(source(f"{folder(table)}@{before}"), SCHEMA, batch_size=4) as loader:
        loader.load_state_dict(state)
        rest = [user for batch in loader for user in batch.features["user"].values().tolist()]
    assert sorted(first + rest) == [user for user, _, _ in wanted(table, before)]


def test_snapshots_and_files_that_are_gone(table, tmp_path, catalog):
    first = table.snapshots()[0].snapshot_id
    with pytest.raises(SchemaError, match=f"it has no snapshot 77, or no more; snapshots that are there: {first}, "):
        read(source(f"{folder(table)}@77"))
    with pytest.raises(FileNotFoundError, match="no Iceberg table: there is no folder metadata"):
        read(source(tmp_path))
    empty = catalog.create_table("ns.empty", schema=rows().schema)
    with pytest.raises(SchemaError, match="it has no snapshot; snapshots that are there: none"):
        read(source(folder(empty)))
    task = next(iter(table.scan(snapshot_id=first).plan_files()))
    (tmp_path / task.file.file_path.removeprefix(f"file://{tmp_path}/")).unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"snapshot {first} of .*: a file of it is gone: .*expiry of snapshots"
    ):
        read(source(f"{folder(table)}@{first}"))


def test_deleted_rows_are_refused(table, monkeypatch):
    from pyiceberg.table import DataScan

    plan = DataScan.plan_files

    def with_deletes(scan):
        first, *rest = plan(scan)
        return [SimpleNamespace(file=first.file, delete_files={first.file}), *rest]

    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    with pytest.raises(SchemaError, match=r"has deleted rows in 1 of its files.*rewrite_data_files"):
        read(source(folder(table)))

    def fails(scan):
        raise ValueError("PyIceberg does not yet support equality deletes")

    monkeypatch.setattr(DataScan, "plan_files", fails)
    with pytest.raises(SchemaError, match=r"cannot be planned .PyIceberg does not yet support equality deletes"):
        read(source(folder(table)))


def test_a_new_column_is_missing_in_older_files(table):
    with table.update_schema() as change:
        from pyiceberg.types import LongType

        change.add_column("age", LongType())
    ages = Schema(context=("user", "age"))
    with pytest.raises(SchemaError, match="column 'age' is missing"):
        read(source(folder(table), defaults={}), ages)
    table.append(rows(90, 1).append_column("age", pa.array([33])))
    got = read(source(folder(table), defaults={"age": 7}), ages)
    assert got == [(user, 7) for user, _, _ in wanted(table)[:-1]] + [(90, 33)]


def test_renamed_columns_are_refused(table):
    with table.update_schema() as change:
        change.rename_column("user", "person")
    with pytest.raises(SchemaError, match="its column 'user' is 'person' in the table now, and files are read by name"):
        read(ParquetSource(table=f"iceberg:{folder(table)}", defaults={"person": 0}), Schema(context=("person",)))
    with pytest.raises(SchemaError, match="is 'person' in the table now"):
        read(ParquetSource(table=f"iceberg:{folder(table)}", filter=pl.col("name") == "c=d"), Schema(context=("day",)))
    before = table.current_snapshot().snapshot_id
    assert read(source(f"{folder(table)}@{before}")) == wanted(table, before)  # the schema of that time


def test_a_name_used_again_is_refused(table):
    from pyiceberg.types import LongType

    with table.update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("item")
    assert read(source(folder(table), defaults={}), USERS) == [(user,) for user, _, _ in wanted(table)]
    with table.update_schema() as change:
        change.add_column("item", LongType())
    with pytest.raises(SchemaError, match="its column 'item' is 'not there any more' in the table now"):
        read(source(folder(table), defaults={}), USERS)


def test_files_without_field_ids(catalog, tmp_path):
    pq.write_table(rows(), tmp_path / "own.parquet")
    table = catalog.create_table("ns.added", schema=rows().schema)
    table.add_files([f"file://{tmp_path}/own.parquet"])
    assert read(source(folder(table))) == wanted(table)
    with table.update_schema() as change:
        from pyiceberg.types import LongType

        change.add_column("age", LongType())
    assert read(source(folder(table))) == wanted(table)
    with table.update_schema() as change:
        change.rename_column("user", "person")
    with pytest.raises(SchemaError, match="its column 'user' is 'person'"):
        read(source(folder(table), defaults={}), Schema(context=("day",)))


def test_partitions_of_columns_that_are_not_in_the_files(table):
    """As in tables that were moved from Hive."""
    want = wanted(table)
    for task in table.scan().plan_files():
        place = task.file.file_path.removeprefix("file://")
        pq.write_table(pq.ParquetFile(place).read().drop_columns(["day", "name"]), place)
    assert read(source(folder(table))) == want
    got = read(source(folder(table), filter=pl.col("day") == DAY))
    assert got == [row for row in want if row[1] == (DAY - datetime.date(1970, 1, 1)).days]


def test_transformed_columns_tell_nothing():
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import BucketTransform, IdentityTransform, VoidTransform

    transforms = (BucketTransform(2), IdentityTransform(), VoidTransform(), IdentityTransform())
    spec = PartitionSpec(
        *(
            PartitionField(source_id=n, field_id=1000 + n, transform=each, name=f"p{n}")
            for n, each in enumerate(transforms)
        )
    )
    file = SimpleNamespace(partition=[1, 19723, None, 5])
    columns = {0: "user", 1: "day", 2: "name"}  # the last one was dropped
    assert _identities(file, spec, columns, {"day": pa.date32()}) == {"day": pa.scalar(DAY)}


def test_metadata_files_of_one_number(table, tmp_path):
    newest = table.metadata_location.removeprefix("file://")
    copy = newest.replace(newest.rpartition("/")[2][5:], "-other.metadata.json")
    with open(newest) as one, open(copy, "w") as two:
        two.write(one.read())
    with pytest.raises(SchemaError, match=r"2 metadata files of number .*give the file itself"):
        read(source(folder(table)))
    assert read(source(newest)) == wanted(table)
    with open(f"{folder(table)}/metadata/version-hint.text", "w") as hint:
        hint.write("1")
    with pytest.raises(SchemaError, match="it has no snapshot"):
        read(source(folder(table)))
