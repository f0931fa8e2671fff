"""Random programs: which fields, tables, files, sources and options of a loader come together, drawn from one number.

`program(seed)` is a description: printed, it says everything that was drawn. `row_program_data` draws the values and
writes the files, `row_program_oracle` says in plain Python what a loader makes of them.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from fsdata import Balance, Schema, Sequence

INTS = (
    pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.bool_(),
)  # fmt: skip
TIMES = (pa.timestamp("ms"), pa.timestamp("us"), pa.date32())
VALUES = (pa.float32(), pa.float64(), pa.int8(), pa.int32(), pa.uint16(), pa.bool_())
TEXTS = (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))
DICTIONARY = pa.dictionary(pa.int16(), pa.int64())
GROUPS = {
    "uih": {
        "item": "ids", "action": "ids", "price": "floats", "watched": "labels", "next": "id_labels", "tags": "nested",
    },
    "recent": {"seen": "ids", "score": "floats", "done": "labels", "shops": "nested"},
    "candidates": {
        "candidate": "ids", "slot": "ids", "bid": "floats", "chosen": "id_labels", "liked": "labels", "cats": "nested",
        "click": "label",
    },
}  # fmt: skip
FIRST = ("item", "seen", "candidate")
SCALARS = {
    "country": "context", "hour": "context", "age": "dense", "weight": "dense", "bought": "label",
    "number": "passthrough", "request": "passthrough",
}  # fmt: skip
SIDE = {"segment": "context", "income": "dense", "rating": "label"}
FOUND = {
    "item": {"artist": "ids", "cost": "floats", "album": "id_labels", "rank": "labels"},
    "candidate": {"maker": "ids", "fee": "floats"},
    "country": {"region": "context"},
}
"""Of every id that is looked up: what a dimension table has for it."""
POOLS = {"played": ("kind", 1), "liked": ("kind", 0), "organic": ("organic", 1)}
NUMBERS = ("context", "ids", "id_labels", "nested", "passthrough")


@dataclass(frozen=True, kw_only=True)
class Field:
    """kinds: the type in every file. table: rows, side (a Join by user), extra (a Join by row), history (an AsOf),
    event (of anchors), or the id that a Lookup finds it for. form: how its column becomes the field. nulls: share of
    values. missing: files that do not have the column."""

    name: str
    role: str
    kinds: tuple[pa.DataType, ...]
    table: str = "rows"
    group: str | None = None
    policy: str | None = None
    default: Any = None
    nulls: float = 0.0
    form: str = "column"
    missing: tuple[int, ...] = ()

    @property
    def is_value(self) -> bool:
        return self.role not in NUMBERS

    @property
    def is_text(self) -> bool:
        """Of passthrough fields; other text is hashed."""
        return self.name == "request"


@dataclass(frozen=True, kw_only=True)
class Group:
    """lengths: of its lists. structs: whether they are stored as one list of structs. as_of: options of an AsOf."""

    name: str
    table: str = "rows"
    max_length: int | None = None
    keep: str = "last"
    share: str | None = None
    lengths: str = "short"
    structs: bool = False
    as_of: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Source:
    """files: rows of every row group of every file. condition: `(column, operator, number)` or "and", "or" of two."""

    files: tuple[tuple[int, ...], ...]
    condition: tuple[Any, ...] | None = None
    skip: int = 0
    limit: int | None = None
    mapped: bool = False
    decoder: str | None = None
    weight: float | None = None
    renamed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Program:
    seed: int
    fields: tuple[Field, ...]
    groups: tuple[Group, ...]
    sources: tuple[Source, ...]
    loader: dict[str, Any]
    missing: dict[str, str | None] = field(default_factory=dict)  # of the joins with side and extra
    anchors: dict[str, Any] | None = None
    explode: bool = False
    by_time: bool = False
    resume: tuple[float, ...] = (0.5,)

    def of(self, table: str) -> list[Field]:
        return [each for each in self.fields if each.table == table]

    def group(self, name: str) -> Group:
        return next(each for each in self.groups if each.name == name)

    def along(self, group: str) -> list[Field]:
        return [each for each in self.fields if each.group == group]

    @property
    def may_drop(self) -> bool:
        """Whether rows drop out while they are read, or the ranks pass different numbers of rows in a step."""
        drops = any(each.policy == "drop" for each in self.fields if each.table not in FOUND)
        drops |= "drop" in self.missing.values() or any(each.condition for each in self.sources)
        return drops or self.explode

    @property
    def schema(self) -> Schema:
        def names(role: str, group: str | None = None) -> tuple[str, ...]:
            return tuple(each.name for each in self.fields if (each.role, each.group) == (role, group))

        def sequence(group: Group) -> Sequence:
            roles = {role: names(role, group.name) for role in ("floats", "labels", "id_labels", "nested")}
            options: Any = {"max_length": group.max_length, "keep": group.keep, "share": group.share}
            return Sequence(group.name, names("ids", group.name), **roles, **options)

        of = {group.name: sequence(group) for group in self.groups}
        return Schema(
            sequences=tuple(of[name] for name in of if name != "candidates"),
            candidates=of.get("candidates"),
            context=("row", *names("context")) if self.anchors is None else names("context"),
            dense=names("dense"),
            labels=names("label") + names("label", "candidates"),
            passthrough=names("passthrough"),
            explode="candidates" if self.explode else None,
            time="t" if self.by_time else None,
        )


def program(seed: int, ranks: int = 1) -> Program:
    """ranks: with several, more programs balance."""
    draw = random.Random(f"{seed} {ranks}")
    return _Drawn(draw).program(seed, ranks)


class _Drawn:
    """What is drawn, in the order in which one choice allows another."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def maybe(self, share: float) -> bool:
        return self.draw.random() < share

    def some(self, names: Any, share: float) -> list[str]:
        return [name for name in names if self.maybe(share)]

    def program(self, seed: int, ranks: int) -> Program:
        draw = self.draw
        anchors = self.maybe(0.1)
        size = 1 if anchors else draw.choice([1, 1, 2, 3])
        by_time = not anchors and self.maybe(0.25)
        large = not anchors and self.maybe(0.04)
        self.files = [self.row_groups(large) for _ in range(size if large else size + draw.randrange(3))]
        explode = self.maybe(0.3)
        groups = self.groups(explode, anchors, large)
        fields = self.event_fields(groups) if anchors else self.scalars()
        for group in groups:
            fields += self.along(group, explode)
        fields += self.looked_up(fields)
        sources = self.sources(size, fields, anchors)
        missing = {table: draw.choice([None, None, "mask", "drop", "default"]) for table in ("side", "extra")}
        missing = {table: how for table, how in missing.items() if any(each.table == table for each in fields)}
        fields = [self.sure(each, missing.get(each.table), sources) for each in fields]
        if ranks == 1 and not anchors and self.maybe(0.06):
            fields, missing = self.refused(fields), dict.fromkeys(missing)
        return Program(
            seed=seed,
            fields=tuple(fields),
            groups=tuple(groups),
            sources=sources,
            loader=self.loader(seed, ranks, size, by_time),
            missing=missing,
            anchors=self.anchors() if anchors else None,
            explode=explode,
            by_time=by_time,
            resume=tuple(draw.choice([0.0, 1.0, *(draw.random() for _ in range(4))]) for _ in range(2)),
        )

    def row_groups(self, large: bool) -> tuple[int, ...]:
        draw = self.draw
        if large:
            return (draw.randrange(300, 500),)
        most = draw.choice([1, 2, 9, 30])
        return tuple(draw.randint(1, most) for _ in range(draw.randrange(9)))

    # Fields

    def kinds(self, family: tuple[pa.DataType, ...]) -> tuple[pa.DataType, ...]:
        if self.maybe(0.5):
            return (self.draw.choice(family),) * len(self.files)
        return tuple(self.draw.choice(family) for _ in self.files)

    def field(self, name: str, role: str, *, table: str = "rows", group: str | None = None) -> Field:
        """With a policy, and nulls where the policy allows them."""
        draw = self.draw
        kinds = self.kinds(VALUES if role not in NUMBERS else INTS[:-1] if role == "passthrough" else INTS)
        if role in ("context", "ids") and self.maybe(0.15):
            kinds = (draw.choice(TIMES),) * len(self.files)
        found = Field(name=name, role=role, kinds=kinds, table=table, group=group)
        if self.maybe(0.5):
            found = self.with_default(found)
        if found.default is not None and self.maybe(0.6):
            found = replace(found, nulls=draw.choice([0.1, 0.4]), policy=draw.choice([None, "default"]))
        elif self.maybe(0.3):
            found = replace(found, policy="drop", nulls=draw.choice([0.0, 0.03, 0.06]))
        return found

    def with_default(self, of: Field) -> Field:
        if of.is_text:
            return replace(of, default="none ∅")
        return replace(of, default=self.draw.choice([0.5, -1.25, 0]) if of.is_value else self.draw.choice([-1, 0, 77]))

    def scalars(self) -> list[Field]:
        """Fields with one value per row; those of the rows may be renamed, computed, or missing in some files."""
        found = [self.field(name, SCALARS[name]) for name in self.some(SCALARS, 0.5)]
        found += [self.field(name, SIDE[name], table="side") for name in self.some(SIDE, 0.4)]
        if self.maybe(0.4):
            found.append(self.field("user", "context"))
        for at, each in enumerate(found):
            if each.table != "rows":
                continue
            if each.name == "request":
                text = replace(each, kinds=self.kinds(TEXTS))
                each = self.with_default(text) if each.default is not None else text
            elif each.name == "user":
                each = replace(each, kinds=self.kinds(INTS[:3]), form="key")
            else:
                each = self.formed(each)
            if each.default is not None and each.form == "column" and each.policy != "drop" and self.maybe(0.25):
                each = replace(each, missing=tuple(file for file in range(len(self.files)) if self.maybe(0.5)))
            found[at] = each
        if self.maybe(0.2):
            pair = replace(self.field("pair", "context"), kinds=(pa.int64(),) * len(self.files), form="cross")
            found.append(pair if pair.policy == "drop" else self.with_default(pair))
        if self.maybe(0.2):
            day = Field(name="day", role="context", kinds=(pa.int64(),) * len(self.files), form="folder")
            found.append(day)
        return found

    def formed(self, each: Field) -> Field:
        form = self.draw.choice(["column", "column", "renamed", "doubled", "text_key", "dictionary"])
        same = (pa.float64() if each.is_value else self.draw.choice(INTS[:2]),) * len(self.files)
        if form == "doubled" and each.role in ("context", "dense", "ids", "floats"):
            return replace(each, form=form, kinds=same)
        if form == "text_key" and each.role in ("context", "ids"):
            text = self.draw.choice(TEXTS) if each.role == "context" else pa.string()
            return replace(each, form=form, kinds=(text,) * len(self.files))
        if form == "dictionary" and each.role == "context":
            return replace(each, kinds=(DICTIONARY,) * len(self.files))
        return replace(each, form="renamed" if form == "renamed" else "column")

    def groups(self, explode: bool, anchors: bool, large: bool) -> list[Group]:
        draw = self.draw
        names = [*self.some(["uih"], 1.0 if anchors else 0.9), *self.some(["recent"], 0.4 * (not anchors))]
        names += ["candidates"] if explode or self.maybe(0.4) else []
        found = []
        at = draw.choice(["at", "at", "position"])
        for name in names or ["uih"]:
            table = "rows" if name == "candidates" else draw.choice(["rows", "rows", "history", "history", "side"])
            table = "history" if anchors and name == "uih" else "event" if anchors else "rows" if large else table
            group = Group(
                name=name,
                table=table,
                max_length=None if explode and name == "candidates" else draw.choice([None, 1, 4, 35]),
                keep=draw.choice(["first", "last"]),
                lengths="short"
                if table == "event" or name == "candidates"
                else draw.choice(["short", "short", "long"]),
                structs=table == "rows" and self.maybe(0.15),
            )
            group = replace(group, lengths="long") if large and name != "candidates" else group
            if table == "history":
                group = replace(group, as_of=self.as_of("position" if anchors else at))
                if group.as_of.get("pools"):
                    group = replace(group, keep="last")
            shares = table == "history" and not group.as_of.get("pools")
            if name != "candidates" and (shares or explode) and not group.as_of.get("pools") and self.maybe(0.5):
                group = replace(group, share="user")
            found.append(group)
        return found

    def as_of(self, at: str) -> dict[str, Any]:
        draw = self.draw
        of: dict[str, Any] = {"at": at}
        if at == "at":
            of["inclusive"] = self.maybe(0.3)
        if self.maybe(0.4):
            cap = draw.choice([None, 1, 3, {"liked": 2}])
            return of | {"pools": True, "cap": cap, "scan": draw.choice([None, None, 5]), "mask": self.maybe(0.5)}
        if at == "at" and self.maybe(0.4):
            return of | {"known": self.maybe(0.6), "where": self.maybe(0.5)}
        return of | {"scan": draw.choice([None, None, 5]), "bucketed": draw.choice([None, None, None, 3])}

    def along(self, group: Group, explode: bool) -> list[Field]:
        """The fields of a sequence or of the candidates."""
        names = [name for name in GROUPS[group.name] if name in FIRST or self.maybe(0.5)]
        if group.table == "event":
            names = ["candidate"]
        found = []
        for name in names:
            role = GROUPS[group.name][name]
            if role == "nested" and (
                group.table == "history" or group.structs or (explode and group.name == "candidates")
            ):
                continue
            each = self.field(name, role, table=group.table, group=group.name)
            if role not in ("context", "ids"):
                each = replace(each, kinds=tuple(k if k not in TIMES else pa.int64() for k in each.kinds))
            if group.table == "history":  # a policy is of users without a history there
                each = replace(each, policy=each.policy if each.default is None else None)
                each = replace(each, nulls=each.nulls if each.default is not None else 0.0)
            elif group.table == "rows" and not group.structs and role in ("ids", "floats"):
                each = self.formed(each)
            found.append(each)
        if group.table == "rows" and not group.structs:
            found = [self.missing_or_joined(each, first=not number) for number, each in enumerate(found)]
        if group.as_of.get("mask"):
            name = f"pools_{group.name}"
            found.append(
                Field(name=name, role="ids", kinds=found[0].kinds, table="history", group=group.name, form="mask")
            )
        return found

    def missing_or_joined(self, each: Field, *, first: bool) -> Field:
        if each.default is not None and each.form == "column" and each.policy != "drop" and self.maybe(0.2):
            return replace(each, missing=tuple(file for file in range(len(self.files)) if self.maybe(0.4)))
        if not first and each.role != "label" and each.form == "column" and self.maybe(0.1):
            return replace(each, table="extra")
        return each

    def looked_up(self, fields: list[Field]) -> list[Field]:
        found = []
        for of in fields:
            plain = of.kinds[0] not in TIMES and not of.is_text and not of.missing
            if of.name in FOUND and plain and of.form != "text_key" and self.maybe(0.5):
                names = [name for name in FOUND[of.name] if self.maybe(0.6)]
                for name in names:
                    each = self.field(name, FOUND[of.name][name], table=of.name, group=of.group)
                    kinds = tuple(kind if kind not in TIMES else pa.int64() for kind in each.kinds)
                    found.append(replace(self.with_default(each), kinds=kinds))
        return found

    def event_fields(self, groups: list[Group]) -> list[Field]:
        names = {"user": "context", "position": "context", **dict.fromkeys(self.some(["hour"], 0.5), "context")}
        names |= dict.fromkeys(self.some(["liked_it"], 0.5), "label")
        kinds = (pa.int64(),) * len(self.files)
        return [Field(name=name, role=role, kinds=kinds, table="event") for name, role in names.items()]

    def sure(self, each: Field, missing: str | None, sources: tuple[Source, ...]) -> Field:
        """With a default where a null without one would be an error."""
        joined = each.table in ("side", "extra") and (
            missing == "default" or (missing is None and each.policy != "drop")
        )
        mapped = each.name in ("country", "age") and sources[0].mapped and each.policy != "drop"
        return self.with_default(each) if joined or mapped else each

    def refused(self, fields: list[Field]) -> list[Field]:
        """Nulls of one field are an error; no row with one is dropped for another reason."""
        fields = [self.with_default(replace(each, policy=None)) if each.policy == "drop" else each for each in fields]
        fields = [self.with_default(each) if each.table in ("side", "extra") else each for each in fields]
        some = [each for each in fields if each.table == "rows" and each.form in ("column", "renamed", "doubled")]
        if not some:
            return fields
        one = self.draw.choice(some)
        null = replace(one, policy="error", nulls=0.2, missing=())
        return [null if each is one else each for each in fields]

    # Sources and the loader

    def sources(self, size: int, fields: list[Field], anchors: bool) -> tuple[Source, ...]:
        draw = self.draw
        found = []
        ends = (
            [*sorted(draw.sample(range(1, len(self.files)), size - 1)), len(self.files)]
            if size > 1
            else [len(self.files)]
        )
        renamed = [each.name for each in fields if each.form == "renamed"]
        mapped = not anchors and self.maybe(0.2)
        for begin, end in zip([0, *ends], ends, strict=False):
            files = tuple(self.files[begin:end])
            if not sum(map(sum, files)):
                files = ((3, 1), *files[1:])
                self.files[begin] = files[0]
            rows = sum(map(sum, files))
            source = Source(
                files=files,
                condition=self.condition(fields) if self.maybe(0.35) else None,
                decoder=draw.choice([None, "pages", "pyarrow"]),
                weight=draw.choice([0.5, 1.0, 3.0]),
                renamed=tuple(name for name in renamed if self.maybe(0.6)),
                mapped=mapped,
            )
            if not anchors and self.maybe(0.15):
                skip = draw.randrange(rows)
                source = replace(source, skip=skip, limit=draw.choice([None, draw.randint(1, rows)]))
            found.append(source)
        return tuple(found)

    def condition(self, fields: list[Field]) -> tuple[Any, ...]:
        draw = self.draw
        simple = [("chance", "%", 3), ("chance", ">=", draw.randrange(100)), ("chance", "in", (1, 2, 3, 5, 8, 50))]
        simple += [("row", ">=", draw.randrange(30)), ("row", "%", draw.choice([2, 5]))]
        simple += [("day", ">=", draw.randrange(3))] * any(each.name == "day" for each in fields)
        one, other = draw.choice(simple), draw.choice(simple)
        return draw.choice([one, ("and", one, other), ("or", one, other)])

    def loader(self, seed: int, ranks: int, size: int, by_time: bool) -> dict[str, Any]:
        draw = self.draw
        options: dict[str, Any] = {
            "batch_size": draw.choice([1, 2, 3, 5, 8, 20, 20]),
            "shuffle": self.maybe(0.45),
            "shuffle_window": draw.choice([1, 2, 3, 4, 0.3]),
            "seed": seed,
            "mix": draw.choice(["sequential", "weighted", "time"] if by_time else ["sequential", "weighted"]),
            "num_threads": draw.choice([1, 2, 3]),
            "prefetch": draw.choice([0, 2]),
            "uneven": draw.choice(["empty", "empty", "drop"]),
            "drop_last": self.maybe(0.15),
            "memory": draw.choice([None, None, "10kB"]),
        }
        capped = self.maybe(0.25)
        options["drop_last"] &= not capped
        if self.maybe(0.6 if ranks > 1 else 0.2):
            method = draw.choice(["fbs", "fbs+swap", "vbs", "vbs-contiguous", "repair"])
            options["balance"] = Balance(method)
            options["capped"] = capped and method == "vbs"
        else:
            options["capped"] = capped  # the number follows from the samples
        return options

    def anchors(self) -> dict[str, Any]:
        draw = self.draw
        found: dict[str, Any] = {"min_history": draw.choice([0, 0, 2]), "order": draw.choice(["user", "time"])}
        return found | {"where": self.maybe(0.6)}
