"""Arrow arrays of any accepted type -> int64, float32, lists of them, or bytes. Only columns that need it come here."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fsdata.catalog.arrow_types import is_list, is_text
from fsdata.errors import DataError
from fsdata.schema import Number

_FINAL_TYPE = {"id": pa.int64(), "time": pa.int64(), "passthrough": pa.int64(), "value": pa.float32()}
_MAX_INT64 = 2**63 - 1


def is_native(kind: pa.DataType, number: Number) -> bool:
    """Whether the kernels read a column of this type as it is."""
    item = kind.value_type if is_list(kind) else kind
    return item == _FINAL_TYPE[number]


def convert(array: pa.Array, number: Number) -> pa.Array:
    """The array as int64 or float32, or a list of them with the nulls, offsets and lengths it has.

    Times that are timestamps or dates become nanoseconds; ids that are keep the unit of the column. Text becomes lists
    of its bytes.

    Raises:
        RowError: a value outside int64, or bytes that are no text.
    """
    if is_native(array.type, number):
        return array
    array = unwrap(array)
    if is_text(array.type):
        return _bytes_of(array)
    if not is_list(array.type):
        return _scalars(array, number)
    values = _scalars(unwrap(array.values), number, array)
    return _with_values(array, values)


def _bytes_of(array: pa.Array) -> pa.Array:
    """Text as lists of uint8, of the same memory."""
    array = without_views(array)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        for row, text in enumerate(array.cast(pa.large_binary())):
            try:
                str(text.as_py() or b"", "utf-8")
            except UnicodeDecodeError as error:
                raise NotText(row, error.object) from error
        raise
    kind = pa.large_list if pa.types.is_large_string(array.type) else pa.list_
    validity, offsets, data = array.buffers()
    items = pa.Array.from_buffers(pa.uint8(), data.size if data else 0, [None, data])
    return pa.Array.from_buffers(
        kind(pa.uint8()), len(array), [validity, offsets], array.null_count, array.offset, children=[items]
    )


def without_views(array: pa.Array) -> pa.Array:
    """Text in the form that all of Arrow's functions take; other arrays as they are."""
    return array.cast(pa.large_string()) if pa.types.is_string_view(array.type) else array


def nested_parts(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(counts, ids) of lists of lists: how many ids every event has, int64, and the ids of all events in order.

    Both are one list per row, null where the row is. An event that is null is a null among the counts, and has no ids.
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
    """Text with `default` in place of nulls."""
    return without_views(unwrap(array)).fill_null(default)


def with_wide_offsets(array: pa.Array) -> pa.Array:
    """A list array with int64 offsets; others as they are."""
    return array.cast(pa.large_list(array.type.value_type)) if is_list(array.type) else array


def numbers_of(array: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    """The values of int64, float32 or uint8 without a copy, and where they are null (bool), None if nowhere."""
    values = _memory(array.buffers()[1], array.type.to_pandas_dtype())
    return values[array.offset : array.offset + len(array)], _nulls(array)


def lists_of(array: pa.Array) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """(the values of all lists; int64 [n], the first of each list; int64 [n], how many it has, -1 where it is null)."""
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


def bool_mask(array: pa.Array) -> np.ndarray:
    """Where a boolean array is true; nulls are not."""
    array = pc.fill_null(array, False)
    bits = np.unpackbits(np.frombuffer(array.buffers()[1], np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)] == 1


def _memory(buffer: pa.Buffer | None, kind: type) -> np.ndarray:
    """A buffer may end with some bytes more, or be none."""
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
    """The values behind extension types and dictionaries."""
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        else:
            return array


def _starts(lengths: pa.Array) -> np.ndarray:
    """int64 [n + 1]: the offsets of lists of these lengths; a null has none."""
    known = pc.fill_null(lengths, 0).cast(pa.int64())
    return np.concatenate([[0], np.cumsum(known.to_numpy())]).astype(np.int64)


def _with_values(array: pa.Array, values: pa.Array) -> pa.Array:
    """The list array with other child values."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        kind = pa.list_(values.type, kind.list_size)
    else:
        kind = pa.large_list(values.type) if pa.types.is_large_list(kind) else pa.list_(values.type)
    own = array.buffers()[: kind.num_buffers]
    return pa.Array.from_buffers(kind, len(array), own, array.null_count, array.offset, children=[values])


def _scalars(array: pa.Array, number: Number, lists: pa.Array | None = None) -> pa.Array:
    kind = array.type
    final = _FINAL_TYPE[number]
    if kind == final:
        return array
    if number == "value":
        return array.cast(final, safe=False)
    if number == "time" and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        try:
            return array.cast(pa.timestamp("ns", getattr(kind, "tz", None))).cast(final)
        except pa.ArrowInvalid as error:
            raise DataError(f"a time outside the years 1678 to 2261: {error}") from error
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return array.cast(pa.int32()).cast(final)
    if pa.types.is_uint64(kind):
        _check_uint64(array, lists)
    return array.cast(final)


def _check_uint64(array: pa.Array, lists: pa.Array | None) -> None:
    largest = pc.max(array).as_py()
    if largest is None or largest <= _MAX_INT64:
        return
    element = int(np.flatnonzero(bool_mask(pc.greater(array, pa.scalar(_MAX_INT64, pa.uint64()))))[0])
    row = element if lists is None else _row_of(lists, element)
    if row is not None:
        raise OutsideInt64(row, array[element].as_py())


class RowError(DataError):
    """A value that cannot be converted; `row` counts in the array."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


class OutsideInt64(RowError):
    """A uint64 beyond int64."""

    def __init__(self, row: int, value: Any) -> None:
        super().__init__(row, f"{value} is outside int64")


class NotText(RowError):
    """Bytes in a column of text that are not UTF-8."""

    def __init__(self, row: int, value: bytes) -> None:
        super().__init__(row, f"{value!r} is not valid UTF-8")


def _row_of(lists: pa.Array, element: int) -> int | None:
    """The list that holds an element of the child array, None if no list of this slice does."""
    if pa.types.is_fixed_size_list(lists.type):
        row = element // lists.type.list_size - lists.offset
        return row if 0 <= row < len(lists) else None
    kind = np.int64 if pa.types.is_large_list(lists.type) else np.int32
    offsets = np.frombuffer(lists.buffers()[1], kind)[lists.offset : lists.offset + len(lists) + 1]
    row = int(np.searchsorted(offsets, element, side="right")) - 1
    return row if 0 <= row < len(lists) else None
