"""Finds all faults in the rows of a record batch, where the loader stops at the first.

The loader raises at the first row that contradicts the schema or the null policies. These functions check
every field of every row, under the same policies. Letters: N rows, M fields of a group.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fsdata.catalog.arrow_types import is_list
from fsdata.catalog.bind import Binding
from fsdata.decode.arrow.widen import NotText, OutsideInt64, convert, nested_parts, unwrap
from fsdata.errors import DataError

_MAX_INT64 = 2**63 - 1
_UNITS = (0, 3, 6, 9)  # decimal places: seconds to nanoseconds
_EARLIEST = 100_000_000  # seconds since 1970: smaller numbers count from no common epoch
_AHEAD_S = 86_400.0  # clocks of other time zones are not in the future


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault of one field.

    `rows`: int64, positions in the batch; `what`: the first of them, in words.
    """

    kind: str
    field: str
    rows: np.ndarray
    what: str


@dataclass(slots=True)
class Checked:
    """The result of checking N rows.

    Attributes:
        faults: found so far.
        dropped: bool [N], rows that a null policy leaves out.
        lengths: list field -> int64 [N], -1 for null lists.
        keys: join key -> (values int64 [N], whether null bool [N]).
        ascending: lists of times that have to be.
    """

    faults: list[Fault]
    dropped: np.ndarray
    lengths: dict[str, np.ndarray]
    keys: dict[str, tuple[np.ndarray, np.ndarray]]
    ascending: Collection[str] = ()


def check_fields(columns: Sequence[tuple[Binding, pa.Array]], rows: int, ascending: Collection[str] = ()) -> Checked:
    """Check each field by itself: nulls, null and non-finite elements, ids outside int64, times that fall."""
    checked = Checked([], np.zeros(rows, bool), {}, {}, ascending)
    for binding, array in columns:
        counts = None
        if binding.field.shape == "nested":
            counts, array = nested_parts(array)
        outside = _outside_int64(binding, array)
        if outside is not None:
            checked.faults.append(outside)
            continue
        try:
            converted = convert(array, binding.field.number)
        except OutsideInt64:
            raise AssertionError("ids outside int64 were looked for before") from None
        except NotText as error:
            what, bad_rows = f"{binding.field.name}: {error}", _not_text(array)
            checked.faults.append(Fault(kind="not text", field=binding.field.name, rows=bad_rows, what=what))
            continue
        except DataError as error:
            checked.faults.append(Fault(kind="range", field=binding.field.name, rows=np.arange(rows), what=str(error)))
            continue
        _check_field(binding, converted, checked, counts)
    return checked


def check_groups(checked: Checked, groups: Mapping[str, Sequence[str]]) -> Iterator[Fault]:
    """Faults of rows whose lists in one group differ in length. Null lists and dropped rows do not count."""
    for group, fields in groups.items():
        present = [name for name in fields if name in checked.lengths]
        if len(present) < 2:
            continue
        lengths = np.stack([checked.lengths[name] for name in present])  # [M, N]
        longest = lengths.max(axis=0)
        shortest = np.where(lengths < 0, longest, lengths).min(axis=0)
        rows = np.flatnonzero((shortest != longest) & ~checked.dropped)
        if len(rows):
            row = lengths[:, rows[0]]
            words = ", ".join(f"{name} {'null' if n < 0 else n}" for name, n in zip(present, row, strict=True))
            yield Fault(
                kind="ragged", field=group, rows=rows, what=f"lists of {group!r} have different lengths: {words}"
            )


def _check_field(binding: Binding, array: pa.Array, checked: Checked, counts: pa.Array | None) -> None:
    """`counts`: of a nested field, whose ids are `array`: how many ids every event has."""
    field, kind = binding.field.name, binding.field.kind
    null = ~_mask(array.is_valid())
    if kind == "join_key":
        checked.keys[field] = np.asarray(pc.fill_null(array, 0)), null
        return
    if kind == "time":
        _note(checked, "null", field, null, "is null: rows without a time cannot be merged")
        return
    if kind == "row_time":
        _note(checked, "null", field, null, "is null: nothing is known as of no time")
        return
    bad = [("null", null, "is null")]
    if is_list(array.type):
        lengths, row_of, elements = _elements(array)
        absent = _any(row_of, ~_mask(elements.is_valid()), len(array))
        if counts is not None:
            lengths, event_of, per_event = _elements(counts)
            absent |= _any(event_of, ~_mask(per_event.is_valid()), len(array))
        checked.lengths[field] = lengths
        if kind == "event_times":
            _check_times(field, row_of, np.asarray(pc.fill_null(elements, 0)), checked)
        bad.append(("null element", absent, "holds a null"))
        if binding.field.number == "value":
            bad.append(("not finite", _any(row_of, _not_finite(elements), len(array)), "holds NaN or infinity"))
    elif binding.field.number == "value":
        bad.append(("not finite", _not_finite(array), "is NaN or infinite"))
    for fault, where, what in bad:
        if binding.policy == "error":
            _note(checked, fault, field, where, what)
        elif binding.policy == "drop":
            checked.dropped |= where


def _check_times(field: str, row_of: np.ndarray, times: np.ndarray, checked: Checked) -> None:
    """row_of: int64 [E], the list of each of the times, int64 [E]."""
    falls = np.flatnonzero((times[1:] < times[:-1]) & (row_of[1:] == row_of[:-1])) + 1
    rows = len(checked.dropped)
    if field in checked.ascending:
        _note(checked, "unsorted", field, _any(row_of, falls, rows), "is not ascending")
    now = time.time()
    units = [10**exponent for exponent in _UNITS if 10**exponent * _EARLIEST < np.median(times)] if len(times) else []
    if units:
        late = np.flatnonzero(times > (now + _AHEAD_S) * max(units))
        _note(checked, "future", field, _any(row_of, late, rows), "holds a time in the future")


def _elements(array: pa.Array) -> tuple[np.ndarray, np.ndarray, pa.Array]:
    """Lengths of lists, int64 [N], -1 for a null; the list that each element belongs to; the elements."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), -1).cast(pa.int64()))
    return lengths, np.repeat(np.arange(len(array)), np.maximum(lengths, 0)), array.flatten()


def _note(checked: Checked, kind: str, field: str, where: np.ndarray, what: str) -> None:
    rows = np.flatnonzero(where)
    if len(rows):
        checked.faults.append(Fault(kind=kind, field=field, rows=rows, what=f"{field} {what}"))


def _outside_int64(binding: Binding, array: pa.Array) -> Fault | None:
    if binding.field.number == "value":
        return None
    outer = unwrap(array)
    inner = unwrap(outer.flatten()) if is_list(outer.type) else outer
    if not pa.types.is_uint64(inner.type):
        return None
    large = _mask(pc.fill_null(pc.greater(inner, pa.scalar(_MAX_INT64, pa.uint64())), False))
    if not large.any():
        return None
    rows = np.flatnonzero(large)
    value = inner[int(rows[0])].as_py()
    if outer is not inner:
        lengths = np.asarray(pc.fill_null(pc.list_value_length(outer), 0).cast(pa.int64()))
        rows = np.unique(np.repeat(np.arange(len(outer)), lengths)[rows])
    return Fault(
        kind="range", field=binding.field.name, rows=rows, what=f"{binding.field.name}: {value} is outside int64"
    )


def _not_text(array: pa.Array) -> np.ndarray:
    """int64: rows of text whose bytes are not UTF-8."""
    values = [value.as_py() or b"" for value in unwrap(array).cast(pa.large_binary())]
    return np.flatnonzero([value != value.decode(errors="ignore").encode() for value in values])


def _not_finite(values: pa.Array) -> np.ndarray:
    """True for NaN and infinity. Nulls are a fault of their own."""
    return ~_mask(pc.fill_null(pc.is_finite(values), True))


def _any(row_of: np.ndarray, bad: np.ndarray, rows: int) -> np.ndarray:
    found = np.zeros(rows, bool)
    found[row_of[bad]] = True
    return found


def _mask(array: pa.Array) -> np.ndarray:
    return np.asarray(array.cast(pa.uint8())).astype(bool)
