"""Columns over lists that pyarrow decoded: null policies, nested lists, and copies into pooled memory."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.bind import Binding
from fsdata.decode.arrow import widen
from fsdata.decode.block import Block, Column, RowRefs
from fsdata.decode.nulls import Nulls, bad_values
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.row_layout import Layout
from fsdata.schema import Field


def list_column(array: pa.Array, binding: Binding, nulls: Nulls, counts: Column | None = None) -> Column:
    """A column over lists of int64, float32 or uint8, with defaults in place of elements that are null or not finite.

    counts: of nested lists, the number of ids of each event, for messages.

    Raises:
        DataError: a list or an element is null or not finite, and the policy is `error`.
    """
    items, start, length = widen.lists_of(array)
    values, null = widen.numbers_of(items)
    bad = bad_values(values, null)
    if bad is not None:
        place, row = widen.places(bad, start, length)
        if len(row):
            nulls.elements(binding, row, _elements(place, row, null, start, counts), length < 0)
            if binding.policy != "drop":
                filled = widen.fill_elements(array, binding.value or 0)  # type: ignore[arg-type]
                return list_column(filled, binding, nulls)
    nulls.lists(binding, length < 0)
    return Column.of(values, start=start, length=length, owners=(items,))


def nested_columns(
    counts: pa.Array, ids: pa.Array, binding: Binding, field: Field, nulls: Nulls
) -> tuple[Column, Column]:
    """(number of ids of every event, ids of the events that truncation keeps). See `list_column`.

    The counts are not truncated: `align` compares lengths first. Rows with null counts have no ids.

    Args:
        counts, ids: see `fsdata.decode.arrow.widen.nested_parts`. field: the field of the counts.
    """
    events = list_column(counts, replace(binding, value=0), nulls)
    found = list_column(ids, binding, nulls, events)
    assert events.values is not None
    begin, length = events.bounds
    number = np.maximum(length, 0)
    kept = number if field.max_length is None else np.minimum(number, field.max_length)
    first = begin + (number - kept if field.keep_last else 0)
    before = np.concatenate([[0], np.cumsum(events.values)])
    inside = np.where(nulls.drop, 0, before[first + kept] - before[first])
    return events, replace(found, start=found.bounds[0] + before[first] - before[begin], length=inside)


def packed(lists: dict[int, Column], layout: Layout, drop: np.ndarray, pool: Pool) -> dict[int, Column]:
    """Lists by slot, copied to pooled memory, so that Arrow decodes the next batch into memory that is in the cache.

    Only the part that truncation keeps is copied. `start` is where the whole list would begin, so that truncation can
    cut it again: it may be negative, and the values before the first one are never read.
    """
    fields = [layout.fields[slot] for slot in lists]
    kept, skipped, cut = [], [], []
    for field, column in zip(fields, lists.values(), strict=True):
        start, length = column.bounds
        whole = np.where(drop, 0, np.maximum(length, 0))
        stays = whole if field.max_length is None else np.minimum(whole, field.max_length)
        skip = whole - stays if field.keep_last else np.zeros_like(whole)
        kept.append(stays)
        skipped.append(skip)
        cut.append(replace(column, start=start + skip, length=stays))
    itemsize = np.array([field.itemsize for field in fields])
    sizes = (np.array([int(each.sum()) for each in kept]) * itemsize + 7) & ~7
    begins = np.cumsum(sizes) - sizes
    lease = pool.take(max(int(sizes.sum()), 1))
    memory = np.asarray(lease)
    RowRefs.of(Block.of(cut, len(drop))).spans().gather(itemsize, lease.address + begins)
    found = {}
    for number, (slot, column) in enumerate(lists.items()):
        values = memory[begins[number] : begins[number] + int(kept[number].sum()) * itemsize[number]]
        start = np.cumsum(kept[number]) - kept[number] - skipped[number]
        found[slot] = Column.of(values.view(fields[number].dtype), start=start, length=column.length)
    return found


def _elements(
    place: np.ndarray, row: np.ndarray, null: np.ndarray | None, start: np.ndarray, counts: Column | None
) -> Iterator[tuple[str, np.ndarray, str]]:
    """(kind, rows, description of the first one) of bad values at the positions `place`, in the lists of `row`.

    counts: number of ids of each event, if the lists are nested.
    """
    absent = np.zeros(len(place), bool) if null is None else null[place]
    for kind, these in (("null element", absent), ("not finite", ~absent)):
        rows = row[these]
        if len(rows):
            n, position = int(rows[0]), int(place[these][0] - start[rows[0]])
            if kind == "not finite":
                what = "NaN or infinite" + (f" at position {position} of the list" if position else "")
            elif counts is None:
                what = f"null at position {position} of the list"
            else:
                what = _of_event(position, _of_row(counts, n))
            yield kind, np.unique(rows), what


def _of_event(position: int, counts: np.ndarray) -> str:
    """Description of a null at a position among the ids of all events of a row. counts: number of ids of each event."""
    stops = np.cumsum(counts)
    event = int(np.searchsorted(stops, position, side="right"))
    return f"null at position {position - stops[event] + counts[event]} of the ids of event {event}"


def _of_row(column: Column, n: int) -> np.ndarray:
    assert column.values is not None
    start, length = column.bounds
    return column.values[start[n] : start[n] + length[n]]
