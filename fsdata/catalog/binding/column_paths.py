"""Columns by name, or by a path through structs and lists of structs: `session.item_id`.

A path names one field inside a struct. Of a list of structs it is the list of that field: aligned lists, as a sequence
needs them. A null struct is a null field. A column whose own name is the whole path comes first.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from fsdata.catalog.binding.arrow_types import is_list, leaf_count, leaves_of, plain
from fsdata.sources.expressions import list_of


def type_at(schema: pa.Schema, path: str) -> pa.DataType | None:
    """The type of a column; None where there is none of that name, or several."""
    names = names_at(schema, path)
    if names is None:
        return None
    return _type_inside(schema.field(names[0]).type, names[1:])


def names_at(schema: pa.Schema, path: str) -> tuple[str, ...] | None:
    """The names that lead to a column, that of a column of the file first; None as of `type_at`."""
    if len(schema.get_all_field_indices(path)) == 1:
        return (path,)
    for name, rest in _splits(path):
        if len(schema.get_all_field_indices(name)) == 1:
            inside = _names_inside(schema.field(name).type, rest)
            if inside is not None:
                return (name, *inside)
    return None


def leaf_at(schema: pa.Schema, names: Sequence[str]) -> int:
    """The number of the first leaf column of a Parquet file of this schema to which `names` lead.

    Paths of leaf columns cannot say it: they join names, which can have dots themselves, by dots.
    """
    at = schema.get_field_index(names[0])
    leaf, kind = leaves_of(schema)[at].start, schema.field(at).type
    for name in names[1:]:
        before, kind = _field_in(kind, name)
        leaf += before
    return leaf


def leaves_at(schema: pa.Schema, paths: Iterable[Sequence[str]]) -> tuple[int, ...]:
    """The leaf columns of a Parquet file of this schema that pyarrow reads to get what `paths` lead to, ascending.

    They are those of a whole extension type, of which pyarrow reads no part, and of a whole column that has no structs:
    one of nulls may have them in other files.

    Args:
        paths: each as `names_at` gives it.
    """
    columns = leaves_of(schema)
    found: set[int] = set()
    for names in paths:
        at = schema.get_field_index(names[0])
        first, kind = columns[at].start, schema.field(at).type
        for name in names[1:]:
            if _is_extended(kind) or not pa.types.is_struct(_struct(kind)):
                break
            before, kind = _field_in(kind, name)
            first += before
        found.update(range(first, first + leaf_count(kind)))
    return tuple(sorted(found))


def array_at(batch: pa.RecordBatch, path: str) -> pa.Array:
    """The values of a column that is there."""
    names = names_at(batch.schema, path)
    assert names is not None, f"{path} is not in {batch.schema.names}"
    array = batch.column(names[0])
    for name in names[1:]:
        array = _field_of(array, name)
    return array


def paths_in(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """(path, type) of every field that a column holds; the column itself where it has no structs."""
    for inside in _leaves(kind):
        yield ".".join((name, *inside)), _type_inside(kind, inside)


def fields_near(schema: pa.Schema, path: str) -> str:
    """For a message: which fields the struct has that the beginning of a path leads to."""
    for name, _ in _splits(path):
        kind = type_at(schema, name)
        if kind is not None and pa.types.is_struct(_struct(kind)):
            return f": {name} has the fields {', '.join(field.name for field in _struct(kind))}"
    return ""


def _splits(path: str) -> Iterator[tuple[str, str]]:
    """(beginning, rest) of a path at every dot, the longest beginning first: names can have dots themselves."""
    at = path.rfind(".")
    while at > 0:
        yield path[:at], path[at + 1 :]
        at = path.rfind(".", 0, at)


def _struct(kind: pa.DataType) -> pa.DataType:
    """What the lists of a type hold, if it is one of lists."""
    inner = plain(kind)
    while is_list(inner):
        inner = plain(inner.value_type)
    return inner


def _field_in(kind: pa.DataType, name: str) -> tuple[int, pa.DataType]:
    """(how many leaf columns of a struct stand before a field, the type of the field)."""
    struct = _struct(kind)
    at = struct.get_field_index(name)
    return sum(leaf_count(struct.field(before).type) for before in range(at)), struct.field(at).type


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
    """The field of a struct, or of those in lists."""
    if isinstance(array.type, pa.BaseExtensionType):
        return _field_of(array.storage, name)
    if not is_list(array.type):
        return pc.struct_field(array, array.type.get_field_index(name))
    # The elements are those of the whole array, whichever rows it shows, so its own buffers say where each list begins.
    values = _field_of(array.values, name)
    own = 1 if pa.types.is_fixed_size_list(array.type) else 2
    return pa.Array.from_buffers(
        list_of(array.type, values.type), len(array), array.buffers()[:own], offset=array.offset, children=[values]
    )
