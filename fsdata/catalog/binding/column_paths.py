"""Finds columns by name, or by a path through structs and lists of structs: `session.item_id`.

A path names one field inside a struct. In a list of structs it is the list of that field's values, so that the fields
are aligned lists, as a sequence needs them. A null struct gives a null field. A column whose name is the whole path has
precedence.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from fsdata.catalog.binding.arrow_types import is_list, leaf_count, leaves_of, plain
from fsdata.sources.expressions import list_of


def type_at(schema: pa.Schema, path: str) -> pa.DataType | None:
    """The type of a column; None if there is none of that name, or several."""
    names = names_at(schema, path)
    if names is None:
        return None
    return _type_inside(schema.field(names[0]).type, names[1:])


def names_at(schema: pa.Schema, path: str) -> tuple[str, ...] | None:
    """The path to a column as names, beginning with a column of the file; None as in `type_at`."""
    if len(schema.get_all_field_indices(path)) == 1:
        return (path,)
    for name, rest in _splits(path):
        if len(schema.get_all_field_indices(name)) == 1:
            inside = _names_inside(schema.field(name).type, rest)
            if inside is not None:
                return (name, *inside)
    return None


def leaf_at(schema: pa.Schema, names: Sequence[str]) -> int:
    """The number of the first leaf column at the path `names`, in a Parquet file of this schema.

    Parquet's own paths are ambiguous: they join names by dots, and names may have dots.
    """
    column = schema.get_field_index(names[0])
    leaf, kind = leaves_of(schema)[column].start, schema.field(column).type
    for name in names[1:]:
        before, kind = _field_in(kind, name)
        leaf += before
    return leaf


def leaves_at(schema: pa.Schema, paths: Iterable[Sequence[str]]) -> tuple[int, ...]:
    """The leaf columns of a Parquet file of this schema that pyarrow must read for the columns at `paths`, ascending.

    Args:
        paths: each as returned by `names_at`.
    """
    columns = leaves_of(schema)
    leaves: set[int] = set()
    for names in paths:
        column = schema.get_field_index(names[0])
        first, kind = columns[column].start, schema.field(column).type
        for name in names[1:]:
            # pyarrow reads an extension type only as a whole. A column of nulls has no struct here: other files do.
            if _is_extended(kind) or not pa.types.is_struct(_struct(kind)):
                break
            before, kind = _field_in(kind, name)
            first += before
        leaves.update(range(first, first + leaf_count(kind)))
    return tuple(sorted(leaves))


def array_at(batch: pa.RecordBatch, path: str) -> pa.Array:
    """The values of a column that the batch has."""
    names = names_at(batch.schema, path)
    assert names is not None, f"{path} is not in {batch.schema.names}"
    array = batch.column(names[0])
    for name in names[1:]:
        array = _field_of(array, name)
    return array


def paths_in(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """(path, type) of every field inside a column; of the column itself if it has no structs."""
    for inside in _leaves(kind):
        yield ".".join((name, *inside)), _type_inside(kind, inside)


def fields_near(schema: pa.Schema, path: str) -> str:
    """For a message: the fields of the struct to which the beginning of a path leads."""
    for name, _ in _splits(path):
        kind = type_at(schema, name)
        if kind is not None and pa.types.is_struct(_struct(kind)):
            return f": {name} has the fields {', '.join(field.name for field in _struct(kind))}"
    return ""


def _splits(path: str) -> Iterator[tuple[str, str]]:
    """(beginning, rest) of a path at every dot, the longest beginning first: names may have dots."""
    dot = path.rfind(".")
    while dot > 0:
        yield path[:dot], path[dot + 1 :]
        dot = path.rfind(".", 0, dot)


def _struct(kind: pa.DataType) -> pa.DataType:
    """The type of the innermost elements of lists; the type itself if it is no list."""
    inner = plain(kind)
    while is_list(inner):
        inner = plain(inner.value_type)
    return inner


def _field_in(kind: pa.DataType, name: str) -> tuple[int, pa.DataType]:
    """(number of leaf columns of a struct before a field, the type of the field)."""
    struct = _struct(kind)
    index = struct.get_field_index(name)
    return sum(leaf_count(struct.field(before).type) for before in range(index)), struct.field(index).type


def _is_extended(kind: pa.DataType) -> bool:
    """Whether it is an extension type, or lists of one."""
    while is_list(kind):
        kind = kind.value_type
    return isinstance(kind, pa.BaseExtensionType)


def _names_inside(kind: pa.DataType, path: str) -> tuple[str, ...] | None:
    struct = _struct(kind)
    if not pa.types.is_struct(struct):
        return None
    if len(struct.get_all_field_indices(path)) == 1:
        return (path,)
    for name, rest in _splits(path):
        if len(struct.get_all_field_indices(name)) == 1:
            inside = _names_inside(struct.field(name).type, rest)
            if inside is not None:
                return (name, *inside)
    return None


def _type_inside(kind: pa.DataType, names: tuple[str, ...]) -> pa.DataType:
    for name in names:
        kind = _with_struct_replaced(kind, _struct(kind).field(name).type)
    return kind


def _with_struct_replaced(kind: pa.DataType, field: pa.DataType) -> pa.DataType:
    inner = plain(kind)
    return list_of(inner, _with_struct_replaced(inner.value_type, field)) if is_list(inner) else field


def _leaves(kind: pa.DataType) -> Iterator[tuple[str, ...]]:
    struct = _struct(kind)
    if not pa.types.is_struct(struct):
        yield ()
        return
    for field in struct:
        for inside in _leaves(field.type):
            yield (field.name, *inside)


def _field_of(array: pa.Array, name: str) -> pa.Array:
    """A field of a struct array, or of the structs in an array of lists."""
    if isinstance(array.type, pa.BaseExtensionType):
        return _field_of(array.storage, name)
    if not is_list(array.type):
        return pc.struct_field(array, array.type.get_field_index(name))
    # `values` ignores a slice of the array: its elements fit the array's own offsets, and its offset is passed on.
    values = _field_of(array.values, name)
    own = 1 if pa.types.is_fixed_size_list(array.type) else 2  # validity bitmap, and offsets unless of fixed size
    return pa.Array.from_buffers(
        list_of(array.type, values.type), len(array), array.buffers()[:own], offset=array.offset, children=[values]
    )
