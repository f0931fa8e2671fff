"""What a loader makes of a random program, by the pages of docs/ and the docstrings of sources and schema: lists and
dicts of plain Python, one row after another."""

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from row_program_data import BUCKETS, SEED, Data, lookup_default
from row_programs import FOUND, POOLS, TIMES, Field, Group, Program, Source
from xxhash import xxh64_intdigest

WORD = 2**64 - 1


class Refused(Exception):
    """A null that the policy "error" does not let pass."""


class Dropped(Exception):
    """A row that a filter or a policy leaves out."""


@dataclass(kw_only=True)
class Row:
    """A row that is read, and the samples that become of it. spans: sequence with `share` -> (history, begin, end)."""

    key: Any
    time: int
    samples: list[dict[str, Any]]
    tokens: int
    spans: dict[str, tuple[Any, int, int]] = field(default_factory=dict)


def rows_by_source(data: Data) -> tuple[list[list[Row]], bool]:
    """The rows of every source, in its order, up to the first that is an error; and whether there is one."""
    found: list[list[Row]] = []
    sources = [anchor_rows(data)] if data.program.anchors is not None else data.rows
    for source, raw in zip(data.program.sources, sources, strict=True):
        found.append([])
        for number, row in enumerate(raw):
            if number < source.skip or (source.limit is not None and number >= source.skip + source.limit):
                continue
            try:
                one = row_of(data, source, row)
            except Dropped:
                continue
            except Refused:
                return found, True
            if one.samples:
                found[-1].append(one)
    return found, False


def row_of(data: Data, source: Source, row: dict[str, Any]) -> Row:
    program = data.program
    if program.anchors is None and source.condition and holds(source.condition, row) is not True:
        raise Dropped
    raw: dict[str, Any] = {}
    rules: dict[str, tuple[str, Any]] = {}  # field -> what becomes of a null
    masks: dict[str, bool] = {}
    spans: dict[str, tuple[Any, int, int]] = {}
    for each in program.fields:
        rules[each.name] = (each.policy or ("error" if each.default is None else "default"), each.default)
        if each.table in ("rows", "event"):
            raw[each.name] = own_value(data, source, row, each)
    for table, key in (("side", "user"), ("extra", "row")):
        fields = program.of(table)
        match = data.tables[table].get(row[key]) if fields else None
        if match and any(each.policy == "drop" and has_null(match.get(each.name), each) for each in fields):
            match = None  # that row of the side table is left out
        for each in fields:
            raw[each.name] = None if match is None else match.get(each.name)
            if match is None and program.missing[table] is not None:
                rules[each.name] = without_match(program.missing[table], each)
            if program.missing[table] == "mask":
                masks[f"mask of {each.name}"] = match is not None
    for group in program.groups:
        if group.table == "history":
            events, spans[group.name] = history(data, group, row, rules)
            raw |= events
    check_nulls(program, raw, rules)
    sample: dict[str, Any] = {"row": row["row"]} if program.anchors is None else {}
    sample |= masks
    for each in program.fields:
        if each.group is None and each.table not in FOUND:
            sample[each.name] = number(each, filled(raw[each.name], rules[each.name][1]))
    for group in program.groups:
        sample |= lists_of(program, group, raw, rules, spans)
    for each in program.fields:
        if each.table in FOUND:
            ids = sample[each.table]
            sample[each.name] = [found(data, each, of) for of in ids] if each.group else found(data, each, ids)
    return made(program, row, sample, spans)


def made(program: Program, row: dict[str, Any], sample: dict[str, Any], spans: dict[str, Any]) -> Row:
    """Its samples: one, or one for every candidate."""
    samples = [sample]
    if program.explode:
        along = [each.name for each in program.along("candidates")]
        samples = [sample | {name: sample[name][at] for name in along} for at in range(len(sample[along[0]]))]
    tokens = sum(tokens_of(program, each) for each in samples)
    key = row["row"] if program.anchors is None else (row["user"], row["position"])
    shares = [group.name for group in program.groups if group.share]
    first = {group.name: sample[program.along(group.name)[0].name] for group in program.groups}
    spans = {name: spans.get(name, (key, 0, len(first[name]))) for name in shares}
    return Row(key=key, time=row["t"], samples=samples, tokens=tokens, spans=spans)


def tokens_of(program: Program, sample: dict[str, Any]) -> int:
    """Events of all sequences, candidates, ids of nested fields."""
    count = 0
    for group in program.groups:
        fields = program.along(group.name)
        one = sample[fields[0].name]
        count += len(one) if isinstance(one, list) else 1
        count += sum(len(ids) for each in fields if each.role == "nested" for ids in sample[each.name])
    return count


def own_value(data: Data, source: Source, row: dict[str, Any], each: Field) -> Any:
    """What the columns of its file have, after expressions and `map`, before null policies."""
    if each.form == "cross":
        return hash_of(row["chance"], row["row"])
    if row.get("file") in each.missing:
        return None
    value = row[each.name]
    if each.form == "doubled":
        value = doubled(value)
    elif each.form == "text_key":
        value = [text_key(of) for of in value] if isinstance(value, list) else text_key(value)
    if source.mapped:
        if each.name in ("country", "age") and row["row"] % 5 == 0:
            return None
        kind = each.kinds[row["file"]]
        integers = kind not in TIMES and not pa.types.is_boolean(kind)
        if each.name == "action" and value is not None and integers:
            return [None if of is None else of // 2 for of in value]
    return value


def without_match(missing: str | None, each: Field) -> tuple[str, Any]:
    if missing == "mask":
        return "default", 0 if each.default is None else each.default
    return ("drop", None) if missing == "drop" else ("default", each.default)


def check_nulls(program: Program, raw: dict[str, Any], rules: dict[str, tuple[str, Any]]) -> None:
    """Looks at whole lists, also where they are truncated."""
    for each in program.fields:
        if each.table in FOUND or each.table == "history":
            continue
        if has_null(raw[each.name], each):
            if rules[each.name][0] == "drop":
                raise Dropped
            if rules[each.name][0] == "error":
                raise Refused


def lists_of(
    program: Program, group: Group, raw: dict[str, Any], rules: dict[str, tuple[str, Any]], spans: dict[str, Any]
) -> dict[str, list[Any]]:
    """The lists of a sequence, truncated. A null list becomes defaults, as many as the others have elements."""
    fields = [each for each in program.along(group.name) if each.table not in FOUND]
    (count,) = {len(raw[each.name]) for each in fields if raw[each.name] is not None} or {0}
    begin, end = 0, count
    if group.max_length is not None:
        begin, end = (0, min(end, group.max_length)) if group.keep == "first" else (max(end - group.max_length, 0), end)
    if group.name in spans:
        of, first, _ = spans[group.name]
        spans[group.name] = of, first + begin, first + end
    made = {}
    for each in fields:
        default, entries = rules[each.name][1], raw[each.name]
        some = ([None] * count if entries is None else entries)[begin:end]
        if each.role == "nested":
            made[each.name] = [[number(each, filled(one, default)) for one in entry or ()] for entry in some]
        else:
            made[each.name] = [number(each, filled(one, default)) for one in some]
    return made


def history(
    data: Data, group: Group, row: dict[str, Any], rules: dict[str, tuple[str, Any]]
) -> tuple[dict[str, Any], tuple[Any, int, int]]:
    """(the lists of the events that a row sees, the stretch of its history that it sees)."""
    of, user = group.as_of, row["user"]
    fields = [each for each in data.program.along(group.name) if each.table == "history"]
    if user not in data.history:
        for each in fields:
            policy = each.policy or "default"
            if policy == "drop":
                raise Dropped
        return {each.name: [] for each in fields}, (None, 0, 0)
    events = [event for event in data.history[user] if not of.get("where") or event["kind"] == 1]
    limit = row["at"] + bool(of.get("inclusive")) if of["at"] == "at" else 0
    end = row["position"] if data.program.anchors is not None else data.position(row)
    if of["at"] == "at":
        end = sum(event["time"] < limit for event in events)
    begin = max(end - of["scan"], 0) if of.get("scan") else 0
    seen = [at for at in range(begin, end) if not of.get("known") or events[at]["known"] < limit]
    if of.get("pools"):
        caps = of["cap"] if isinstance(of["cap"], dict) else dict.fromkeys(POOLS, of["cap"])
        inside = {name: [at for at in seen if events[at][column] == value] for name, (column, value) in POOLS.items()}
        kept = [at for name, places in inside.items() for at in places[-(caps.get(name) or len(places) or 1) :]]
        bits = {at: sum((at in inside[name]) << bit for bit, name in enumerate(POOLS)) for at in seen}
        seen = sorted(set(kept))
        found = {e.name: [bits[at] if e.form == "mask" else events[at][e.name] for at in seen] for e in fields}
    else:
        found = {each.name: [events[at][each.name] for at in seen] for each in fields}
    return found, ((row.get("source"), user), begin, end)


def anchor_rows(data: Data) -> list[dict[str, Any]]:
    """Events of the histories as rows, in the order of users or of time."""
    given = data.program.anchors or {}
    item = next(each for each in data.program.fields if each.name == "item")
    rows = [
        {"user": user, "position": position, "t": event["time"], "row": 0, "hour": event["time"] // 7 % 24}
        | {"candidate": [filled(event["item"], item.default)], "liked_it": event["kind"] == 0}
        for user, events in sorted(data.history.items())
        for position, event in enumerate(events)
        if position >= given["min_history"] and not (given["where"] and event["kind"] == 2)
    ]
    return sorted(rows, key=lambda row: row["t"]) if given["order"] == "time" else rows


def found(data: Data, each: Field, of: int) -> float:
    """What a dimension table has for an id. A row of it that a policy drops is none."""
    table = data.tables[each.table]
    dropped = of not in table or any(
        is_null(table[of][other.name]) and other.policy == "drop" for other in data.program.of(each.table)
    )
    if dropped:
        return number(each, lookup_default(each))
    return number(each, filled(table[of][each.name], each.default))


def holds(condition: tuple[Any, ...], row: dict[str, Any]) -> bool | None:
    """As SQL has it: what is compared with a null is neither true nor false."""
    if condition[0] in ("and", "or"):
        both = [holds(of, row) for of in condition[1:]]
        decides = condition[0] == "or"
        return decides if decides in both else None if None in both else not decides
    name, operator, value = condition
    if row[name] is None:
        return None
    if operator == "in":
        return row[name] in value
    return row[name] >= value if operator == ">=" else row[name] % value != 1


def is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def has_null(value: Any, of: Field) -> bool:
    """Whether a value is null, or something in a list."""
    inside = [value] if of.group is None or value is None else [*value]
    inside += [one for entry in inside if isinstance(entry, list) for one in entry]
    return any(map(is_null, inside))


def filled(value: Any, default: Any) -> Any:
    return default if is_null(value) else value


def number(of: Field, value: Any) -> Any:
    """As a batch has it: int64, float32 or text."""
    if of.is_value:
        return struct.unpack("f", struct.pack("f", float(value)))[0]
    return value if isinstance(value, str) else int(value)


def doubled(value: Any) -> Any:
    if isinstance(value, list):
        return [doubled(of) for of in value]
    return None if value is None else value * 2 + 1


def text_key(text: str | None) -> int | None:
    """splitmix64 of the FNV-1a hash."""
    if text is None:
        return None
    state = 0xCBF29CE484222325
    for byte in text.encode():
        state = (state ^ byte) * 0x100000001B3 & WORD
    mixed = state + 0x9E3779B97F4A7C15 & WORD
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & WORD
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & WORD
    return (mixed ^ mixed >> 31) % BUCKETS


def hash_of(*values: int | None) -> int | None:
    """xxhash64 of the values as little-endian int64."""
    if None in values:
        return None
    return xxh64_intdigest(struct.pack(f"<{len(values)}q", *values), SEED) % BUCKETS


def in_order(data: Data, sources: list[list[Row]]) -> list[Row] | None:
    """All rows as one rank reads them without shuffling, where the pages say which comes next."""
    rows = [row for of in sources for row in of]
    if data.program.loader["mix"] == "time":
        return sorted(rows, key=lambda row: row.time)
    return rows if data.program.loader["mix"] == "sequential" or len(sources) == 1 else None


def held(group: str, rows: Iterable[Row]) -> tuple[int, int]:
    """(stretches, events) that a batch holds of a sequence: those of one history are merged where they overlap."""
    spans: dict[Any, list[tuple[int, int]]] = {}
    for row in rows:
        of, begin, end = row.spans[group]
        if end > begin:
            spans.setdefault(of, []).append((begin, end))
    stretches = events = 0
    for of_history in spans.values():
        last = -1
        for begin, end in sorted(of_history):
            stretches += begin >= last
            events += max(end - max(begin, last), 0)
            last = max(last, end)
    return stretches, events
