"""What the loader wants from a source, field by field, and which Arrow types can serve it.

Letters: none; this module only looks at schemas and types.
"""

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from fsdata.schema import Schema

Number = Literal["id", "value", "time"]
Shape = Literal["scalar", "list", "either"]

_TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


@dataclass(frozen=True, slots=True)
class Want:
    """One field of a sample, or a column that only reading needs (time, join keys).

    `id` fields become int64 and take no floats; `value` fields become float32; `time` becomes int64, nanoseconds if
    the column is a timestamp or date. `either` is a label: a list where the column is one.
    """

    field: str
    number: Number
    shape: Shape
    role: str


def wants_of(schema: Schema) -> tuple[Want, ...]:
    """Every field of the schema once, without `time`."""
    wants = [Want(name, "id", "scalar", "context") for name in schema.context]
    for group in schema.groups:
        wants += [Want(name, "id", "list", f"ids of {group.name!r}") for name in group.fields]
        wants += [Want(name, "value", "list", f"floats of {group.name!r}") for name in group.floats]
    wants += [Want(name, "value", "scalar", "dense") for name in schema.dense]
    shape: Shape = "scalar" if schema.candidates is None else "either"
    wants += [Want(name, "value", shape, "label") for name in schema.labels]
    return tuple(wants)


def time_want(field: str) -> Want:
    return Want(field, "time", "scalar", "time")


def key_want(field: str) -> Want:
    return Want(field, "id", "scalar", "join key")


def is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def plain(kind: pa.DataType) -> pa.DataType:
    """The type behind dictionary encoding and extension types."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    return kind


def objection(want: Want, kind: pa.DataType) -> str | None:
    """Why a column of this type cannot serve the want, and what to do; None if it can."""
    outer = plain(kind)
    if is_list(outer):
        if want.shape == "scalar":
            hint = " (a list label needs Schema(candidates=...))" if want.role == "label" else ""
            return f"is {kind}, a list, where one value per sample is needed{hint}"
        return _number_objection(want, plain(outer.value_type), kind)
    if want.shape == "list":
        return f"is {kind}, one value per sample, where a list is needed"
    return _number_objection(want, outer, kind)


def _number_objection(want: Want, item: pa.DataType, kind: pa.DataType) -> str | None:
    types = pa.types
    if types.is_null(item) or types.is_boolean(item) or types.is_integer(item):
        return None
    if want.number == "value" and (types.is_floating(item) or types.is_decimal(item)):
        return None
    if want.number != "value" and types.is_temporal(item) and not types.is_interval(item):
        if want.number == "time" and not (types.is_timestamp(item) or types.is_date(item)):
            return f"is {kind}: time takes integers, timestamps and dates"
        return None
    if any(test(item) for test in _TEXT):
        return (
            f"is {kind}: text is never turned into numbers silently. Give an expression, e.g. "
            f"columns={{{want.field!r}: {_text_example(want, kind)}}}"
        )
    if want.number == "id" and types.is_floating(item):
        return f"is {kind}: ids are integers. Cast it explicitly with an expression if its values are whole numbers"
    if want.number == "value" and types.is_temporal(item):
        return f"is {kind}: turn it into a number with an expression (which unit, since when)"
    return f"is {kind}, which cannot be read as {'float32' if want.number == 'value' else 'int64'}"


def _text_example(want: Want, kind: pa.DataType) -> str:
    column = f"pl.col({want.field!r})"
    if want.number == "value":
        cast = "cast(pl.Float32)"
        return f"{column}.list.eval(pl.element().{cast})" if is_list(plain(kind)) else f"{column}.{cast}"
    hashed = "hash(seed=1) % 2**20"
    if is_list(plain(kind)):
        return f"{column}.list.eval(pl.element().{hashed})"
    return f"{column}.{hashed}"
