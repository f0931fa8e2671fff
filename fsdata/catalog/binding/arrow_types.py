"""Decides which Arrow types can serve a field, and explains why others cannot."""

from collections.abc import Collection

import pyarrow as pa

from fsdata.schema import Field, Number

_ENCRYPTED = b"freescale:encrypted"
_STRING = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_TEXT = (
    *_STRING,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


def is_list(arrow_type: pa.DataType) -> bool:
    return pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type) or pa.types.is_fixed_size_list(arrow_type)


def plain(arrow_type: pa.DataType) -> pa.DataType:
    """The type behind dictionary encoding and extension types."""
    if isinstance(arrow_type, pa.BaseExtensionType):
        return plain(arrow_type.storage_type)
    if pa.types.is_dictionary(arrow_type):
        return plain(arrow_type.value_type)
    return arrow_type


def item_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type of the innermost elements of lists; of other columns, the type of a value."""
    kind = plain(arrow_type)
    return item_type(kind.value_type) if is_list(kind) else kind


def is_null(arrow_type: pa.DataType) -> bool:
    """Whether a column has only nulls, or lists without a value, so that writers gave it no type."""
    return pa.types.is_null(item_type(arrow_type))


def with_items(arrow_type: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type of a column without a value, see `is_null`, completed by the type `other` of a column with values."""
    if not is_null(arrow_type):
        return arrow_type
    kind, other = plain(arrow_type), plain(other)
    if pa.types.is_null(kind):
        return other
    if not is_list(other):
        return arrow_type
    return pa.large_list(with_items(kind.value_type, other.value_type))


def type_for(field: Field, *, text: bool = False, listed: bool = False) -> pa.DataType:
    """The type of a column that serves the field without conversion. listed: make a list of a field that may be one."""
    item = pa.string() if text else pa.float32() if field.number == "value" else pa.int64()
    if field.shape == "nested":
        return pa.list_(pa.list_(item))
    return pa.list_(item) if field.shape == "list" or listed else item


def unit_of(number: Number, arrow_type: pa.DataType) -> str | None:
    """The unit of the integers that a column's values become; None if they do not become integers, or if the column has
    no value.

    Times are nanoseconds since 1970 if they are timestamps or dates, and ids keep the unit of their column.
    Timestamps with a time zone count from 1970 in UTC; the others are local times of a zone that the file does not
    have, so both must not be compared.
    """
    kind, types = item_type(arrow_type), pa.types
    # Floats are not compared as integers, and passthrough values are never compared.
    if number in ("value", "passthrough") or types.is_null(kind):
        return None
    if not types.is_temporal(kind):
        return "integers"
    zone = "UTC " if getattr(kind, "tz", None) else ""
    if number == "time":
        return f"{zone}timestamps in ns"
    if types.is_date(kind):
        return "dates in days" if types.is_date32(kind) else "dates in ms"
    what = "timestamps" if types.is_timestamp(kind) else "durations" if types.is_duration(kind) else "times of day"
    return f"{zone}{what} in {kind.unit}"


def is_text(arrow_type: pa.DataType) -> bool:
    return any(test(arrow_type) for test in _STRING)


def leaves_of(schema: pa.Schema) -> list[range]:
    """The leaf columns of every column of a file. They are in the order of the columns; their names are ambiguous: the
    leaf of a column `a.b` has the path of `b` in a struct `a`."""
    leaves, begin = [], 0
    for field in schema:
        leaves.append(range(begin, begin + leaf_count(field.type)))
        begin = leaves[-1].stop
    return leaves


def leaf_count(arrow_type: pa.DataType) -> int:
    """The number of leaf columns that a column of this type has in a Parquet file."""
    kind = plain(arrow_type)
    # Parquet stores only leaves of the tree of types; lists, structs and maps are levels of repetition and definition.
    if pa.types.is_map(kind):
        return leaf_count(kind.key_type) + leaf_count(kind.item_type)
    if pa.types.is_struct(kind):
        return sum(leaf_count(field.type) for field in kind)
    inside = is_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    return leaf_count(kind.value_type) if inside else 1


def marked(schema: pa.Schema, leaves: Collection[int]) -> pa.Schema:
    """The schema with a mark on the columns of encrypted leaves, see `encrypted_columns`."""
    result = schema
    for index, own_leaves in enumerate(leaves_of(schema)):
        if not set(own_leaves).isdisjoint(leaves):
            field = schema.field(index)
            result = result.set(index, field.with_metadata({**(field.metadata or {}), _ENCRYPTED: b"yes"}))
    return result


def encrypted_columns(schema: pa.Schema) -> list[str]:
    """The columns of a schema from a footer that cannot be read without a key."""
    return [field.name for field in schema if field.metadata and _ENCRYPTED in field.metadata]


def objection(field: Field, arrow_type: pa.DataType) -> str | None:
    """The reason for which a column of this type cannot serve the field, and a remedy; None if it can."""
    outer = plain(arrow_type)
    item = plain(outer.value_type) if is_list(outer) else None
    if field.shape == "nested":
        if item is None or not is_list(item):
            return f"is {arrow_type}, where a list of lists is needed. One id per event belongs to Sequence(fields=...)"
        return _number_objection(field, plain(item.value_type), arrow_type)
    if item is not None:
        if field.shape == "scalar":
            hint = ""
            if field.kind == "label":
                hint = (
                    " (a list label needs Schema(candidates=...); labels along a sequence belong to "
                    "Sequence(labels=...))"
                )
            return f"is {arrow_type}, a list, where one value per sample is needed{hint}"
        if is_list(item) and field.number == "id":
            return f"is {arrow_type}, a list of lists: several ids per event belong to Sequence(nested=...)"
        return _number_objection(field, item, arrow_type)
    if field.shape == "list":
        hint = (
            " (columns={name: pl.concat_list(column)} makes lists of one; single values belong to Schema(context=...))"
        )
        return f"is {arrow_type}, one value per sample, where a list is needed{hint}"
    return _number_objection(field, outer, arrow_type)


def _number_objection(field: Field, item: pa.DataType, arrow_type: pa.DataType) -> str | None:
    types = pa.types
    if field.number == "passthrough":
        if types.is_integer(item) or is_text(item):
            return None
        return f"is {arrow_type}: passthrough takes integers and text. Make one of them with an expression"
    # A column of nulls serves every field: the null policy decides about its values.
    if types.is_null(item) or types.is_boolean(item) or types.is_integer(item):
        return None
    if field.number == "value" and (types.is_floating(item) or types.is_decimal(item)):
        return None
    if field.number != "value" and types.is_temporal(item) and not types.is_interval(item):
        if field.number == "time" and not (types.is_timestamp(item) or types.is_date(item)):
            return f"is {arrow_type}: time takes integers, timestamps and dates"
        return None
    if any(test(item) for test in _TEXT):
        return (
            f"is {arrow_type}: text is never turned into numbers silently. Give an expression, e.g. "
            f"columns={{{field.name!r}: {_text_example(field, arrow_type)}}}"
        )
    if field.number == "id" and types.is_floating(item):
        return (
            f"is {arrow_type}: ids are integers. Cast it explicitly with an expression if its values are whole numbers"
        )
    if field.number == "value" and types.is_temporal(item):
        return f"is {arrow_type}: turn it into a number with an expression (which unit, since when)"
    return f"is {arrow_type}, which cannot be read as {'float32' if field.number == 'value' else 'int64'}"


def _text_example(field: Field, arrow_type: pa.DataType) -> str:
    column = f"pl.col({field.name!r})"
    if field.number == "value":
        cast = "cast(pl.Float32)"
        return f"{column}.list.eval(pl.element().{cast})" if is_list(plain(arrow_type)) else f"{column}.{cast}"
    return f"fsdata.text_key({field.name!r}, buckets=2**20)"
