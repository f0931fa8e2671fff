"""Conversion of Arrow arrays of any accepted type to int64, float32, lists of them, or lists of bytes."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fsdata.catalog.binding.arrow_types import is_list, is_null, is_text
from fsdata.schema import Number

_FINAL_TYPE = {"id": pa.int64(), "time": pa.int64(), "passthrough": pa.int64(), "value": pa.float32()}
_MAX_INT64 = 2**63 - 1


def is_native(kind: pa.DataType, number: Number) -> bool:
    """Whether the kernels read a column of this type as it is."""
    item = kind.value_type if is_list(kind) else kind
    return item == _FINAL_TYPE[number]


Bad = Callable[[str, np.ndarray, str], None]
"""Called with the kind of a fault, int64 [k] its rows, and a description of the first one. Raises, or the values of
these rows are not used afterwards."""


def convert(array: pa.Array, number: Number, bad: Bad) -> pa.Array:
    """The array as int64 or float32, or as lists of them with the same nulls and lengths.

    Times that are timestamps or dates become nanoseconds; ids of these types keep the unit of the column. Text becomes
    lists of its bytes. bad: called for values outside int64, and for bytes that are not UTF-8.
    """
    if is_native(array.type, number):
        return array
    array = unwrap(array)
    if is_text(array.type):
        return _bytes_of(array, bad)
    if not is_list(array.type):
        return _scalars(array, number, bad)
    values = _scalars(unwrap(array.values), number, bad, array)
    return _with_values(array, values)


def nulls_as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of nulls, or of lists without values, cast to this type; others unchanged."""
    if not is_null(array.type):
        return array
    array = unwrap(array)
    return pa.nulls(len(array), kind) if pa.types.is_null(array.type) else array.cast(kind)


def _bytes_of(array: pa.Array, bad: Bad) -> pa.Array:
    """Text as lists of uint8 over the same memory."""
    array = without_views(array)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        texts = [text.as_py() or b"" for text in array.cast(pa.large_binary())]
        broken = np.flatnonzero([text != text.decode(errors="ignore").encode() for text in texts])
        if not len(broken):
            raise
        bad("not text", broken, f"{texts[broken[0]]!r} is not valid UTF-8")
    kind = pa.large_list if pa.types.is_large_string(array.type) else pa.list_
    validity, offsets, data = array.buffers()
    items = pa.Array.from_buffers(pa.uint8(), data.size if data else 0, [None, data])
    return pa.Array.from_buffers(
        kind(pa.uint8()), len(array), [validity, offsets], array.null_count, array.offset, children=[items]
    )


def without_views(array: pa.Array) -> pa.Array:
    """String views as large strings, which all of Arrow's functions accept; other arrays unchanged."""
    return array.cast(pa.large_string()) if pa.types.is_string_view(array.type) else array


def nested_parts(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(counts, ids) of lists of lists: the number of ids of every event, int64, and the ids of all events in order.

    Both have one list per row, null where the row is null. A null event is a null count, and has no ids.
    """
    array = unwrap(array)
    events = unwrap(array.flatten())
    counts = pc.list_value_length(events).cast(pa.int64())
    null = array.is_null() if array.null_count else None
    first = _starts(pc.list_value_length(array))
    start = _starts(counts)[first]
    make = pa.LargeListArray.from_arrays
    return make(pa.array(first), counts, mask=null), make(pa.array(start), events.flatten(), mask=null)


def fill_elements(array: pa.Array, default: float) -> pa.Array:
    """A list array whose null and non-finite elements are `default`."""
    values = pc.fill_null(array.values, pa.scalar(default, array.values.type))
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_finite(values), values, pa.scalar(default, values.type))
    return _with_values(array, values)


def fill_texts(array: pa.Array, default: str) -> pa.Array:
    """Text with nulls replaced by `default`."""
    return without_views(unwrap(array)).fill_null(default)


def with_wide_offsets(array: pa.Array) -> pa.Array:
    """A list array with int64 offsets; other arrays unchanged. A result of `map` may have either."""
    return array.cast(pa.large_list(array.type.value_type)) if is_list(array.type) else array


def numbers_of(array: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    """(values of int64, float32 or uint8, without a copy; bool, where they are null, None if none is)."""
    values = _memory(array.buffers()[1], array.type.to_pandas_dtype())
    return values[array.offset : array.offset + len(array)], _nulls(array)


def lists_of(array: pa.Array) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """(values of all lists; int64 [n], index of the first value of each list; int64 [n], length, -1 if null)."""
    values, kind, rows = array.values, array.type, len(array)
    if pa.types.is_fixed_size_list(kind):
        bounds = (array.offset + np.arange(rows + 1)) * kind.list_size
    else:
        width = np.int64 if pa.types.is_large_list(kind) else np.int32
        bounds = _memory(array.buffers()[1], width)[array.offset : array.offset + rows + 1].astype(np.int64)
    length = np.diff(bounds)
    null = _nulls(array)
    if null is not None:
        length[null] = -1
    return values, bounds[:-1], length


def places(some: np.ndarray, start: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int64 [k], indices of the values marked in `some`, bool [v], that belong to a list; int64 [k], their rows).

    start, length: see `lists_of`. Values of null lists, and of lists outside a slice, belong to none.
    """
    place = np.flatnonzero(some)
    row = np.searchsorted(start + np.maximum(length, 0), place, side="right")
    inside = row < len(start)
    inside[inside] = start[row[inside]] <= place[inside]
    return place[inside], row[inside]


def bool_mask(array: pa.Array) -> np.ndarray:
    """bool [n] of a boolean array; nulls are false."""
    array = pc.fill_null(array, False)
    bits = np.unpackbits(np.frombuffer(array.buffers()[1], np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)] == 1


def _memory(buffer: pa.Buffer | None, kind: type) -> np.ndarray:
    """The buffer as an array: it may be missing, or padded."""
    if buffer is None:
        return np.empty(0, kind)
    return np.frombuffer(buffer, kind, buffer.size // np.dtype(kind).itemsize)


def _nulls(array: pa.Array) -> np.ndarray | None:
    validity = array.buffers()[0]
    if array.null_count == 0 or validity is None:
        return None
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
    null: np.ndarray = bits[array.offset : array.offset + len(array)] == 0
    return null


def unwrap(array: pa.Array) -> pa.Array:
    """The array without extension types and dictionaries."""
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        else:
            return array


def _starts(lengths: pa.Array) -> np.ndarray:
    """int64 [n + 1]: offsets of lists of these lengths; null counts as 0."""
    known = pc.fill_null(lengths, 0).cast(pa.int64())
    return np.concatenate([[0], np.cumsum(known.to_numpy())]).astype(np.int64)


def _with_values(array: pa.Array, values: pa.Array) -> pa.Array:
    """The list array with other values."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        kind = pa.list_(values.type, kind.list_size)
    else:
        kind = pa.large_list(values.type) if pa.types.is_large_list(kind) else pa.list_(values.type)
    own = array.buffers()[: kind.num_buffers]
    return pa.Array.from_buffers(kind, len(array), own, array.null_count, array.offset, children=[values])


def _scalars(array: pa.Array, number: Number, bad: Bad, lists: pa.Array | None = None) -> pa.Array:
    kind = array.type
    final = _FINAL_TYPE[number]
    if kind == final:
        return array
    if number == "value":
        return array.cast(final, safe=False)
    if number == "time" and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        nanoseconds = pa.timestamp("ns", getattr(kind, "tz", None))
        try:
            return array.cast(nanoseconds).cast(final)
        except pa.ArrowInvalid:
            wrapped = array.cast(nanoseconds, safe=False)
            outside = pc.not_equal(wrapped.cast(kind, safe=False), array)
            _report(
                bad,
                outside,
                lists,
                lambda element: f"{array[element].value} of {kind} is outside the years 1678 to 2261",
            )
            return wrapped.cast(final)
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return array.cast(pa.int32()).cast(final)
    if pa.types.is_uint64(kind) and (pc.max(array).as_py() or 0) > _MAX_INT64:
        outside = pc.greater(array, pa.scalar(_MAX_INT64, pa.uint64()))
        _report(bad, outside, lists, lambda element: f"{array[element].as_py()} is outside int64")
        return array.cast(final, safe=False)
    return array.cast(final)


def _report(bad: Bad, outside: pa.Array, lists: pa.Array | None, what: Callable[[int], str]) -> None:
    """Call `bad` for the rows that have an element for which `outside` is true. lists: the lists of these elements."""
    elements = rows = np.flatnonzero(bool_mask(outside))
    if lists is not None:
        elements, rows = places(bool_mask(outside), *lists_of(lists)[1:])
    if len(rows):
        bad("range", np.unique(rows), what(int(elements[0])))
