"""Which levels the lists of a column have. Pure: schemas in, levels out."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.catalog.roles import plain

_SIZED = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view, pa.types.is_large_list_view)
_LISTS = (*_SIZED, pa.types.is_fixed_size_list)


@dataclass(frozen=True, slots=True)
class ListLevels:
    """Of definition: `top` of an element that is not null, `empty` of a list without elements; lower ones are null."""

    top: int
    empty: int


def list_levels(schema: pq.ParquetSchema, arrow: pa.Schema, leaf: int) -> ListLevels | None:
    """Of a leaf column inside one list; None if it is in none or in several, or in a list of fixed size or a map, of
    which pyarrow checks more than the lengths.

    Args:
        schema, arrow: of one file.
    """
    leaves = [each for field in arrow for each in _leaves(field, 0, ())]
    column = schema.column(leaf)
    if len(leaves) != len(schema) or column.max_definition_level > 255:
        return None
    top, lists = leaves[leaf]
    if (top, len(lists)) != (column.max_definition_level, column.max_repetition_level) or len(lists) != 1:
        return None
    return None if lists[0] is None else ListLevels(top, lists[0])


def _leaves(field: pa.Field, top: int, lists: tuple[int | None, ...]) -> Iterator[tuple[int, tuple[int | None, ...]]]:
    """(level of definition, that of an empty list for every list around it, None where others count) of every leaf.

    top, lists: of what is around the field.
    """
    kind = plain(field.type)
    top += field.nullable
    if pa.types.is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        inner, lists, top = [kind.key_field, kind.item_field], (*lists, None), top + 1
    elif any(test(kind) for test in _LISTS):
        sized = any(test(kind) for test in _SIZED)
        inner, lists, top = [kind.value_field], (*lists, top if sized else None), top + 1
    else:
        yield top, lists
        return
    for child in inner:
        yield from _leaves(child, top, lists)
