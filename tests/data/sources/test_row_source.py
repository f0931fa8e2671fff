"""Rows of another format than Parquet: a `RowSource` gives what files with the same rows give."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from data_kit import assert_same, fingerprint, load, loader_on, read, write

from fsdata import CorruptFileError, ParquetSource, RowSource, Schema, SchemaError, StateError
from fsdata import Sequence as Events

sys.path.append(str(Path(__file__).parents[3] / "examples"))
import arrow_ipc

SCHEMA = Schema(
    context=("user",),
    sequences=(Events("uih", fields=("item", "action"), floats=("dwell",), max_length=4),),
    dense=("age",),
    labels=("click",),
    passthrough=("name",),
)
GROUP = 17


def table_of(rows: int) -> pa.Table:
    lengths = [row * 7 % 11 for row in range(rows)]
    return pa.table(
        {
            "user": pa.array([row if row % 13 else None for row in range(rows)], pa.int32()),
            "item": pa.array([None if row % 29 == 3 else list(range(row, row + n)) for row, n in enumerate(lengths)]),
            "action": pa.array(
                [None if row % 29 == 3 else [1] * n for row, n in enumerate(lengths)], pa.list_(pa.int8())
            ),
            "dwell": pa.array([None if row % 29 == 3 else [0.5] * n for row, n in enumerate(lengths)]),
            "years": pa.array([None if row % 5 == 0 else float(row) for row in range(rows)]),
            "click": pa.array([row % 2 for row in range(rows)], pa.float32()),
            "name": pa.array([f"row {row}" for row in range(rows)]),
        }
    )


class Rows(RowSource):
    """Rows in memory, in units like the row groups of the file; `broken` units cannot be read."""

    def __init__(self, table: pa.Table, broken: Sequence[int] = (), *, name: str = "rows") -> None:
        self.table, self.broken, self.name = table.combine_chunks(), broken, name

    @property
    def label(self) -> str:
        return self.name

    @property
    def identity(self) -> str:
        return str(self.table.num_rows)

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    @property
    def rows(self) -> list[int]:
        return [min(GROUP, self.table.num_rows - first) for first in range(0, self.table.num_rows, GROUP)]

    def read(self, unit: int, start: int, stop: int, names: Sequence[str]) -> pa.RecordBatch:
        if unit in self.broken:
            raise OSError("the disk is worn")
        (batch,) = self.table.select(list(names)).slice(unit * GROUP + start, stop - start).to_batches()
        return batch


@pytest.fixture
def both(tmp_path: Path) -> Any:
    """options -> (a source of a Parquet file, one of the same rows as a `RowSource`)."""
    table = table_of(200)
    path = write(tmp_path / "rows.parquet", table, group=GROUP)

    def made(**options: Any) -> tuple[ParquetSource, ParquetSource]:
        given = {
            "columns": {"age": pl.col("years") / 2},
            "defaults": {"user": -1, "age": 0.25},
        } | options
        return ParquetSource(path, **given), ParquetSource(rows=Rows(table), **given)

    return made


NO_LISTS = dict.fromkeys(("item", "action", "dwell"), "drop")
FILLED = {"user": -1, "age": 0, "item": 5, "action": 6, "dwell": 1.5}
PROGRAMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "in order": ({"nulls": NO_LISTS}, {}),
    "shuffled": ({"defaults": FILLED}, {"shuffle": True}),
    "filtered": ({"filter": pl.col("user") % 3 == 1, "nulls": NO_LISTS}, {"shuffle": True, "shuffle_window": 2}),
    "a part": ({"nulls": NO_LISTS, "skip": 20, "limit": 100}, {"drop_last": True}),
    "mapped": ({"nulls": NO_LISTS, "map": lambda batch: batch}, {"num_threads": 2}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_are_those_of_files_with_the_same_rows(both: Any, name: str) -> None:
    of_source, of_loader = PROGRAMS[name]
    files, rows = both(**of_source)
    with loader_on(rows, SCHEMA, **of_loader) as loader:
        batches = iter(loader)
        first = [next(batches) for _ in range(2)]
        state = loader.state_dict()
        rest = list(batches)
    expected = load(files, SCHEMA, **of_loader)[0]
    assert len(expected) > 3
    assert_same([*first, *rest], expected)
    with loader_on(rows, SCHEMA, **of_loader) as resumed:
        resumed.load_state_dict(state)
        assert_same(resumed, rest)


def test_damage_is_that_of_a_unit(both: Any) -> None:
    given = {"columns": {"age": "years"}, "defaults": {"user": 0, "age": 0}, "nulls": NO_LISTS}
    broken = Rows(table_of(200), broken=[2])
    with pytest.raises(CorruptFileError, match=r"source 0 \(rows\), rows, row group 2: cannot be decoded: the disk is"):
        load(ParquetSource(rows=broken, **given), SCHEMA)
    batches, loader = load(ParquetSource(rows=broken, on_error="skip", **given), SCHEMA)
    rows = [row for row in range(200) if row // GROUP != 2 and row % 29 != 3]
    assert [name for batch in batches for name in batch.passthrough["name"]] == [f"row {row}" for row in rows]
    assert [(each.file, each.row_group, each.rows) for each in loader.skipped] == [("rows", 2, GROUP)]
    (described,) = loader.describe()
    assert (described["row_groups"], described["rows"], described["skipped"]) == (12, 200, 1)


class Wrong(Rows):
    what = ""

    def read(self, unit: int, start: int, stop: int, names: Sequence[str]) -> pa.RecordBatch:
        if self.what == "rows":
            return super().read(unit, start, stop - 1, names)
        batch = super().read(unit, start, stop, names)
        return batch.set_column(0, batch.schema.names[0], batch.column(0).cast(pa.int64()))


@pytest.mark.parametrize(
    ("what", "message"),
    [("rows", "16 rows where rows 0 to 17 were asked for"), ("types", "column 'user' is int64, and the schema says")],
)
def test_what_a_source_gives_is_checked(what: str, message: str) -> None:
    rows = Wrong(table_of(40))
    rows.what = what
    with pytest.raises(CorruptFileError, match=message):
        load(ParquetSource(rows=rows, defaults={"user": 0}), Schema(context=("user",)))


def test_a_state_is_that_of_the_same_rows() -> None:
    schema = Schema(labels=("click",))
    one, same, other = (ParquetSource(rows=Rows(table_of(rows))) for rows in (40, 40, 57))
    assert fingerprint(one, schema) == fingerprint(same, schema) != fingerprint(other, schema)
    with loader_on(one, schema) as loader:
        state = loader.state_dict()
    with loader_on(other, schema) as loader, pytest.raises(StateError, match="files: saved '1 files, 40 rows"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": "x.arrow"}, "rows takes a RowSource, got 'x.arrow'"),
        ({"rows": Rows(table_of(1)), "paths": "x.parquet"}, "takes no paths, catalog, table or events"),
    ],
)
def test_options_that_contradict(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        ParquetSource(**options)


def test_columns_that_are_not_there() -> None:
    with pytest.raises(SchemaError, match="country"):
        load(ParquetSource(rows=Rows(table_of(3))), Schema(context=("country",)))


def test_arrow_ipc_files(tmp_path: Path) -> None:
    table = arrow_ipc.write_samples(tmp_path, rows=300, batch_rows=40)
    path = write(tmp_path / "rows.parquet", table, group=50)
    schema = Schema(context=("user",), sequences=(Events("uih", fields=("item",), max_length=9),), labels=("click",))
    source = ParquetSource(rows=arrow_ipc.ArrowIpc(str(tmp_path / "*.arrow")))
    assert read(source, schema, num_threads=2) == read(path, schema)
    assert len(source.rows.rows) == 8
    with pytest.raises(FileNotFoundError, match="no file matches"):
        arrow_ipc.ArrowIpc(str(tmp_path / "*.feather"))
    with pa.ipc.new_file(tmp_path / "2.arrow", pa.schema([("user", pa.int8())])):
        pass
    with pytest.raises(SchemaError, match=r"2\.arrow has other columns"):
        arrow_ipc.ArrowIpc(str(tmp_path / "*.arrow"))
