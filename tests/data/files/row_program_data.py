"""The values of a random program: drawn as plain Python, written into files, and the sources and loader on them."""

import random
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import data_kit as kit
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from row_programs import DICTIONARY, FOUND, POOLS, TIMES, Field, Program, Source

from fsdata import AsOf, FreeScaleDataLoader, Join, Lookup, ParquetSource, cross, text_key

BUCKETS, SEED = 1000, 3  # of hashes
USERS = range(-1, 9)  # -1 is a default, too: a key that is null is none of them
FREQUENT = (1, 4)
WORDS = ["a", "", "größer 𝕏", "b" * 40, "0"]
LENGTHS = {"short": [0, 1, 2, 5, 9], "long": [0, 33, 40, 64, 90]}  # lists of 32 and more on average stay in their pages
Value = Any


class Data:
    """rows: of every source, raw values by column. tables: side, extra and dimension tables, key -> raw values.
    history: user -> events."""

    def __init__(self, program: Program) -> None:
        self.program, self.draw = program, random.Random(f"data {program.seed}")
        self.rows = self._rows() if program.anchors is None else []
        self.tables = {
            "side": {user: self._side() for user in USERS if self.draw.random() < 0.8},
            "extra": {row["row"]: row.pop("extra") for of in self.rows for row in of if self.draw.random() < 0.9},
        }
        self.history = {user: self._events() for user in USERS if user % 4 != 3}
        ids = self.draw.sample(range(-3, 60), 40)
        for of in FOUND:
            self.tables[of] = {each: {to.name: self.value(to) for to in program.of(of)} for each in ids}

    def value(self, of: Field, kind: pa.DataType | None = None) -> Value:
        """One, or None; of floats, null may be one that is not finite."""
        draw, kind = self.draw, kind or of.kinds[0]
        if draw.random() < of.nulls:
            return draw.choice([None, nan, inf]) if pa.types.is_floating(kind) else None
        if of.is_text or of.form == "text_key":
            return draw.choice(WORDS)
        if pa.types.is_boolean(kind):
            return draw.random() < 0.5
        if pa.types.is_floating(kind):
            return draw.choice([0.0, -0.0, 1 / 3, 2.5, draw.gauss(0, 1e3), draw.randrange(-9, 9) / 8])
        if of.form != "column" or of.is_value or kind in TIMES or of.name in FOUND or draw.random() < 0.8:
            return draw.randrange(0, 60)
        if kind == DICTIONARY:
            return draw.choice([-(2**63), 2**63 - 1, 5])
        bits = kind.bit_width
        signed = str(kind).startswith("int")
        most = min(2 ** (bits - signed), 2**63) - 1
        return draw.choice([most, -most - 1 if signed else 0, draw.randint(0, most)])

    def elements(self, of: Field, kind: pa.DataType, count: int) -> list[Value]:
        """Of a list field: one for each event, or a list for each."""
        few = replace(of, nulls=of.nulls / 5 if count else 0)
        if of.role != "nested":
            return [self.value(few, kind) for _ in range(count)]
        return [
            None if self.draw.random() < few.nulls else [self.value(few, kind) for _ in range(self.draw.randrange(4))]
            for _ in range(count)
        ]

    def _lists(self, group: str, table: str, file: int = 0) -> dict[str, Any]:
        """The lists of one row, and under "extra" those that a Join brings."""
        program, draw = self.program, self.draw
        count, found, extra = draw.choice(LENGTHS[program.group(group).lengths]), {}, {}
        null = program.group(group).structs and all(each.nulls for each in program.along(group)) and draw.random() < 0.1
        for each in program.along(group):
            if each.table == table or (each.table, table) == ("extra", "rows"):
                lists = self.elements(each, each.kinds[file if each.table == "rows" else 0], count)
                alone = not program.group(group).structs and draw.random() < each.nulls / 2
                (found if each.table == table else extra)[each.name] = None if null or alone else lists
        return found | {"extra": extra}

    def _rows(self) -> list[list[dict[str, Any]]]:
        """`t` ascends in every source, and no two rows have the same."""
        draw, program, file, found = self.draw, self.program, 0, []
        for number, source in enumerate(program.sources):
            rows: list[dict[str, Any]] = []
            for groups in source.files:
                for _ in range(sum(groups)):
                    last = rows[-1]["t"] if rows else 0
                    row = {"row": 1000 * number + len(rows), "source": number, "file": file, "day": file % 3}
                    row |= {"t": last // 8 * 8 + 8 * draw.randint(1, 5) + number}
                    row |= {"chance": None if draw.random() < 0.1 else draw.randrange(100)}
                    user = None if draw.random() < self._null_users() else draw.choice(draw.choice([USERS, FREQUENT]))
                    row |= {"user": user, "at": draw.randrange(70)}
                    row |= {
                        each.name: self.value(each, each.kinds[file]) for each in program.of("rows") if stored(each)
                    }
                    extra = {}
                    for group in program.groups:
                        if group.table == "rows":
                            lists = self._lists(group.name, "rows", file)
                            extra |= lists.pop("extra")
                            row |= lists
                    rows.append(row | {"extra": extra})
                file += 1
            found.append(rows)
        return found

    def _null_users(self) -> float:
        """A null needs a policy only where the key is a field, too."""
        return next((each.nulls for each in self.program.of("rows") if each.name == "user"), 0.1)

    def _side(self) -> dict[str, Any]:
        of = self.program
        found = {each.name: self.value(each) for each in of.of("side") if each.group is None}
        for group in of.groups:
            if group.table == "side":
                found |= self._lists(group.name, "side")
        found.pop("extra", None)
        return found

    def _events(self) -> list[dict[str, Any]]:
        draw, program = self.draw, self.program
        lengths = "long" if any(group.lengths == "long" for group in program.groups) else "short"
        times = sorted(draw.randrange(60) for _ in range(draw.choice(LENGTHS[lengths])))
        names = [each for each in program.of("history") if each.form != "mask"]
        return [
            {each.name: self.value(replace(each, nulls=each.nulls / 4)) for each in names}
            | {"time": time, "known": time + draw.choice([0, 0, 3, 20])}
            | {"kind": draw.randrange(3), "organic": draw.random() < 0.5}
            for time in times
        ]

    def position(self, row: dict[str, Any]) -> int:
        """How many events of its user are before a row: those before its time, so that both agree on users."""
        return sum(event["time"] < row["at"] for event in self.history.get(row["user"], ()))

    # Files

    def write(self, folder: Path) -> None:
        file = 0
        for number, source in enumerate(self.program.sources):
            for groups in source.files if self.program.anchors is None else ():
                rows = [row for row in self.rows[number] if row["file"] == file]
                name = f"{file:02}/day={file % 3}" if self.has("day") else f"{file:02}"
                self._write(folder / f"rows-{number}" / name / "part.parquet", self.columns(rows, source, file), groups)
                file += 1
        for name, table in self.tables.items():
            fields = self.program.of(name)
            if fields:
                made = {"key": pa.array(list(table), pa.int64())}
                made |= {
                    each.name: array(
                        each,
                        [of.get(each.name) for of in table.values()],
                        0,
                        listed=bool(each.group) and name not in FOUND,
                    )
                    for each in fields
                }
                self._write(folder / f"{name}.parquet", made, (7, 40, 2000))
        if self.program.of("history"):
            users = list(self.history)
            self.draw.shuffle(users)
            made = {"user": pa.array(users, pa.int32())}
            fixed = {"time": pa.int64(), "known": pa.int64(), "kind": pa.int8(), "organic": pa.bool_()}
            for name, kind in fixed.items():
                made[name] = pa.array([[event[name] for event in self.history[user]] for user in users], pa.list_(kind))
            for each in self.program.of("history"):
                if each.form != "mask":
                    lists = [[event[each.name] for event in self.history[user]] for user in users]
                    made[each.name] = array(each, lists, 0)
            self._write(folder / "history.parquet", made, (2, 1, 20))

    def has(self, name: str) -> bool:
        return any(each.name == name for each in self.program.fields)

    def columns(self, rows: list[dict[str, Any]], source: Source, file: int) -> dict[str, pa.Array]:
        made: dict[str, pa.Array] = {
            "row": pa.array([row["row"] for row in rows], pa.int64()),
            "t": pa.array([row["t"] for row in rows], pa.int64()),
            "at": pa.array([row["at"] for row in rows], pa.int64()),
            "position": pa.array([self.position(row) for row in rows], pa.int32()),
            "chance": pa.array([row["chance"] for row in rows], pa.int64()),
        }
        if not self.has("user"):
            made["user"] = pa.array([row["user"] for row in rows], pa.int32())
        structs: dict[str, list[Field]] = {}
        for each in self.program.of("rows"):
            if each.form in ("cross", "folder") or file in each.missing:
                continue
            if each.group and self.program.group(each.group).structs:
                structs.setdefault(each.group, []).append(each)
            else:
                made[column_of(each, source)] = array(each, [row[each.name] for row in rows], file)
        for group, fields in structs.items():
            kind = pa.list_(pa.struct([(each.name, each.kinds[file]) for each in fields]))
            made[f"of_{group}"] = pa.array([_structs(row, fields) for row in rows], kind)
        return made

    def _write(self, path: Path, columns: dict[str, pa.Array], groups: tuple[int, ...]) -> None:
        """Row groups of these sizes, and of the last size as long as there are rows."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draw, table, at = self.draw, pa.table(columns), 0
        options: dict[str, Any] = {
            "compression": draw.choice(["none", "zstd", "snappy"]),
            "data_page_version": draw.choice(["1.0", "2.0"]),
            "data_page_size": draw.choice(
                [300, 300, 1 << 20]
            ),  # pyarrow 26 loses rows of booleans in pages of 64 bytes
            "write_batch_size": draw.choice([3, 64, 1024]),
            "use_dictionary": draw.random() < 0.5,
            "write_page_index": draw.random() < 0.5,
        }
        with pq.ParquetWriter(path, table.schema, write_page_checksum=True, **options) as writer:
            for size in groups:
                if at < table.num_rows:
                    writer.write_table(table.slice(at, size), row_group_size=size)
                at += size

    # Sources and loader

    def sources(self, folder: Path, decoder: str | None = "") -> list[ParquetSource]:
        """decoder: in place of those of the program."""
        if self.program.anchors is not None:
            return [self._anchors(folder)]
        return [
            ParquetSource(
                str(folder / f"rows-{number}"),
                columns=self._computed(source),
                defaults=defaults(self.program.of("rows")),
                nulls=policies(self.program.of("rows")),
                join=[*self._joins(folder), *self._as_ofs(folder), *self._lookups(folder)],
                filter=None if source.condition is None else expression(source.condition),
                map=changed if source.mapped else None,
                skip=source.skip,
                limit=source.limit,
                weight=source.weight,
                decoder=source.decoder if decoder == "" else decoder,  # type: ignore[arg-type]
            )
            for number, source in enumerate(self.program.sources)
        ]

    def loader(self, folder: Path, decoder: str | None = "", **options: Any) -> FreeScaleDataLoader:
        given = {name: value for name, value in self.program.loader.items() if name != "capped"} | options
        return kit.loader_on(self.sources(folder, decoder), self.program.schema, **given)

    def _computed(self, source: Source) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for each in self.program.of("rows"):
            column = column_of(each, source)
            in_list = each.group is not None
            if each.group and self.program.group(each.group).structs:
                made[each.name] = f"of_{each.group}.{each.name}"
            elif each.form == "doubled" and in_list:
                made[each.name] = pl.col(column).list.eval(pl.element() * 2 + 1)
            elif each.form == "doubled":
                made[each.name] = pl.col(column) * 2 + 1
            elif each.form == "text_key":
                made[each.name] = text_key(column, buckets=BUCKETS)
            elif each.form == "cross":
                made[each.name] = cross("chance", "row", buckets=BUCKETS, seed=SEED)
            elif column != each.name:
                made[each.name] = column
        return made

    def _joins(self, folder: Path) -> list[Join]:
        found = []
        for table, key in (("side", "user"), ("extra", "row")):
            fields = self.program.of(table)
            if fields:
                options: Any = {"columns": {key: "key"}, "defaults": defaults(fields), "nulls": policies(fields)}
                side, missing = ParquetSource(folder / f"{table}.parquet", **options), self.program.missing[table]
                found.append(Join(side, on=key, fields=[each.name for each in fields], missing=missing))  # type: ignore[arg-type]
        return found

    def _as_ofs(self, folder: Path) -> list[AsOf]:
        """One for every sequence that comes from the histories, on the same file."""
        found = []
        for group in self.program.groups:
            if group.table != "history":
                continue
            fields = [each for each in self.program.along(group.name) if each.table == "history"]
            stored = [each for each in fields if each.form != "mask"]
            of = group.as_of
            options: dict[str, Any] = {"at": of["at"], "time": "time"}
            options |= {name: of[name] for name in ("scan", "inclusive", "bucketed", "cap") if of.get(name)}
            options |= {"known_at": "known"} if of.get("known") else {}
            options |= {"where": pl.col("kind") == 1} if of.get("where") else {}
            if of.get("pools"):
                options["pools"] = {name: pl.col(column) == value for name, (column, value) in POOLS.items()}
                options["mask"] = next((each.name for each in fields if each.form == "mask"), None)
            table = ParquetSource(folder / "history.parquet", defaults=defaults(stored), nulls=policies(stored))
            found.append(AsOf(table, on="user", fields=[each.name for each in stored], **options))
        return found

    def _lookups(self, folder: Path) -> list[Lookup]:
        found = []
        for of in FOUND:
            fields = self.program.of(of)
            if fields:
                options: Any = {"columns": {of: "key"}, "defaults": defaults(fields), "nulls": policies(fields)}
                table = ParquetSource(folder / f"{of}.parquet", **options)
                default = {each.name: lookup_default(each) for each in fields}
                found.append(Lookup(table, on=of, fields=[each.name for each in fields], default=default))
        return found

    def _anchors(self, folder: Path) -> ParquetSource:
        columns: dict[str, Any] = {
            "candidate": "item",
            "hour": pl.col("time") // 7 % 24,
            "liked_it": pl.col("kind") == 0,
        }
        (as_of,), given = self._as_ofs(folder), dict(self.program.anchors or {})
        given["where"] = pl.col("kind") != 2 if given["where"] else None
        columns = {name: column for name, column in columns.items() if self.has(name)}
        return as_of.anchors(columns=columns, join=self._lookups(folder), **given)


def lookup_default(of: Field) -> float:
    """Of an id that the table does not have; not that of a null in the table."""
    return 0.75 if of.is_value else -7


def stored(of: Field) -> bool:
    """Whether it is a value of its row in the files."""
    return of.group is None and of.form not in ("cross", "folder", "key")


def column_of(of: Field, source: Source) -> str:
    renamed = of.name in source.renamed or of.form in ("doubled", "text_key")
    return f"stored_{of.name}" if renamed else of.name


def _structs(row: dict[str, Any], fields: list[Field]) -> list[dict[str, Any]] | None:
    if row[fields[0].name] is None:
        return None
    names = [each.name for each in fields]
    return [dict(zip(names, event, strict=True)) for event in zip(*(row[name] for name in names), strict=True)]


def array(of: Field, values: list[Any], file: int, *, listed: bool | None = None) -> pa.Array:
    """Values are numbers for times, too: those of the column's unit. listed: whether the column has lists."""
    kind = of.kinds[file if file < len(of.kinds) else 0]
    number = pa.int32() if kind == pa.date32() else pa.int64() if kind in TIMES else None
    if not (of.group is not None if listed is None else listed):
        if pa.types.is_dictionary(kind):
            return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
        return pa.array(values, number or kind).cast(kind)
    nested: Callable[[pa.DataType], pa.DataType] = pa.large_list if len(of.name) % 2 else pa.list_
    if of.role == "nested":
        return pa.array(values, nested(pa.list_(kind)))
    return pa.array(values, nested(number or kind)).cast(nested(kind))


def defaults(fields: list[Field]) -> dict[str, Any]:
    return {each.name: each.default for each in fields if each.default is not None}


def policies(fields: list[Field]) -> dict[str, Any]:
    return {each.name: each.policy for each in fields if each.policy is not None}


def expression(condition: tuple[Any, ...]) -> pl.Expr:
    if condition[0] in ("and", "or"):
        one, other = map(expression, condition[1:])
        return one & other if condition[0] == "and" else one | other
    name, operator, number = condition
    column = pl.col(name)
    if operator == "in":
        return column.is_in(list(number))
    return column >= number if operator == ">=" else column % number != 1


def changed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """For `ParquetSource(map=...)`: no country and no age every fifth row, and other numbers of actions."""
    rows = batch["row"].to_pylist()
    for name in ("country", "age"):
        if name in batch.schema.names:
            column = batch[name]
            values = [None if row % 5 == 0 else value for row, value in zip(rows, column.to_pylist(), strict=True)]
            made = pa.array(values, column.type)
            batch = batch.set_column(batch.schema.get_field_index(name), name, made)
    if "action" in batch.schema.names and pa.types.is_integer(batch["action"].type.value_type):
        lists = [
            None if of is None else [None if n is None else n // 2 for n in of] for of in batch["action"].to_pylist()
        ]
        made = pa.array(lists, batch["action"].type)
        batch = batch.set_column(batch.schema.get_field_index("action"), "action", made)
    return batch
