"""Turns Arrow arrays of ids and times, lists or scalars of any integer type, into numpy arrays."""

import numpy as np
import pyarrow as pa

from freescale_tools.scan.columns import type_of
from freescale_tools.scan.files import Leaf, UnusableColumn
from fsdata.catalog.arrow_types import is_list, plain
from fsdata.catalog.footers import Footer
from fsdata.decode.arrow import widen

_NO_BYTES = np.empty(0, np.uint8)


def check_ids(footer: Footer, column: str, _: Leaf) -> None:
    """Raise UnusableColumn unless the column holds integers or lists of integers."""
    if not pa.types.is_integer(_element(footer, column)):
        raise UnusableColumn(
            f"{column} is {type_of(footer.schema, column)}; collisions are counted on integer ids. Name the column of "
            "row numbers that the embedding table is looked up with, or write one (strings: hash them, for example "
            "with polars' pl.col(...).hash())"
        )


def check_time(footer: Footer, column: str, _: Leaf) -> None:
    """Raise UnusableColumn unless the column holds integers, timestamps or dates, or lists of them."""
    kind = _element(footer, column)
    if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        whole = type_of(footer.schema, column)
        raise UnusableColumn(f"{column} is {whole}; a time is an integer, a timestamp or a date")


def _element(footer: Footer, column: str) -> pa.DataType:
    whole = type_of(footer.schema, column)
    return plain(whole.value_type) if hasattr(whole, "value_type") else whole


def parts(array: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values int64 [V], offsets int64 [N + 1], valid uint8 [V], 0 at nulls) of N lists or scalars.

    `valid` is empty if there are no nulls.
    """
    array = widen.convert(_plain_list(array), "id")
    kind = array.type
    if not is_list(kind):
        offsets = np.arange(len(array) + 1)
        values = array
    elif pa.types.is_fixed_size_list(kind):
        # Null rows still have values in the buffer. Flattening leaves these out, so null rows get size 0.
        sizes = (
            np.where(_validity(array), kind.list_size, 0) if array.null_count else np.full(len(array), kind.list_size)
        )
        offsets, values = np.concatenate([[0], np.cumsum(sizes)]), array.flatten()
    else:
        width = np.int64 if pa.types.is_large_list(kind) else np.int32
        raw = np.frombuffer(array.buffers()[1], width)[array.offset : array.offset + len(array) + 1]
        offsets, values = raw.astype(np.int64), array.values
        if array.null_count:
            sizes = np.where(_validity(array), np.diff(offsets), 0)
            offsets, values = np.concatenate([[0], np.cumsum(sizes)]), array.flatten()
    return _int64(values), offsets, _validity(values).view(np.uint8) if values.null_count else _NO_BYTES


def _plain_list(array: pa.Array) -> pa.Array:
    """A list_view as a list."""
    kind = array.type
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return array.cast(pa.large_list(kind.value_type))
    return array


def last_time(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(time of each row, int64 [N]; whether it has one, bool [N]). Of a list, the last element counts."""
    array = widen.convert(_plain_list(array), "time")
    if not is_list(array.type):
        return _int64(array), _validity(array)
    values, offsets, valid = parts(array)
    last = np.maximum(offsets[1:] - 1, 0)
    known = np.diff(offsets) > 0
    if len(values) == 0:
        return np.zeros(len(array), np.int64), known
    if len(valid):
        known &= valid[last] == 1
    return values[np.minimum(last, len(values) - 1)], known


def _int64(values: pa.Array) -> np.ndarray:
    raw = np.frombuffer(values.buffers()[1] or b"", np.int64)
    return raw[values.offset : values.offset + len(values)]


def _validity(array: pa.Array) -> np.ndarray:
    """bool [N]."""
    return widen.bool_mask(array.is_valid())
