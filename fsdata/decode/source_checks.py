"""Checks a source against its schema and its joined tables, and lists the fields that its own rows need (pure)."""

from functools import partial

from fsdata.catalog.binding.bind import column_type
from fsdata.catalog.binding.column_paths import type_at
from fsdata.catalog.binding.key_types import HashedTypes, between, folder_columns, hashed_types
from fsdata.decode.attached import Attached
from fsdata.decode.readers.row_reader import RowReader
from fsdata.errors import SchemaError
from fsdata.schema import Field, Schema, fields_of
from fsdata.sources.source import ParquetSource


def hashed_types_of(files: RowReader) -> HashedTypes:
    """The types of hashed columns; `bind` has checked that all files agree."""
    return hashed_types(files.source, partial(column_type, files.kinds[0]))


def check_hashed_keys(files: RowReader, side: Attached, label: str) -> None:
    """Check that a key which both tables hash has one type in both. Raises SchemaError."""
    catalog = side.catalog
    schema = catalog.schemas[int(catalog.schema_of[0])]
    folders = folder_columns(side.source, [folder.partitions for folder in catalog.files.folders])
    types = hashed_types(side.source, lambda name: folders.get(name) or type_at(schema, name))
    for use, here, there in between(hashed_types_of(files), types):
        if use == side.join.on:
            raise SchemaError(
                f"{label}: the key {use!r} is a hash, and its column {here} in the rows and {there} in "
                f"{side.source.label}: a hash tells types apart, so that no key would match. Declare one type with "
                "types={...} in both sources"
            )


def wanted_fields(source: ParquetSource, schema: Schema, label: str) -> list[Field]:
    """The fields that rows of the main table need: those that no joined table has, join keys, and times.

    Raises:
        SchemaError: joins that contradict the schema.
    """
    joined = _check_joins(source, schema, label)
    wanted = [field for field in fields_of(schema) if field.name not in joined]
    keys = (join.on for join in source.join if not join.finds_values)
    wanted += [Field(key, "join_key") for key in dict.fromkeys(keys)]
    wanted += [] if schema.time is None else [Field(schema.time, "time")]
    times = (join.row_time for join in source.join if join.row_time is not None)
    return wanted + [Field(name, "row_time") for name in dict.fromkeys(times)]


def _check_joins(source: ParquetSource, schema: Schema, label: str) -> set[str]:
    """The fields of joined tables, checked against the schema."""
    known = set(schema.field_names)
    joined: set[str] = set()
    shared: set[str] = set()
    for join in source.join:
        made_of_events = source.events is not None and join.finds_values  # fields that only make up rows
        unknown = [name for name in join.fields if name not in known and not made_of_events]
        kind = type(join).__name__
        if unknown:
            raise SchemaError(f"{label}: {kind} brings fields that the schema does not have: {', '.join(unknown)}")
        passed = [name for name in join.fields if name in schema.passthrough]
        if passed:
            raise SchemaError(
                f"{label}: {kind} brings {', '.join(passed)}, and passthrough fields are columns of the rows themselves"
            )
        join.check(source, schema, label)
        shared |= {group.name for group in schema.groups if join.stores(group)}
        joined |= known.intersection(join.fields)
    for group in schema.groups:
        if group.share is not None and group.name not in shared and schema.explode is None:
            raise SchemaError(
                f"{label}: Sequence({group.name!r}, share={group.share!r}) needs histories that are stored once: bring "
                f"its fields by AsOf(on={group.share!r})"
            )
    both = sorted(joined & (set(source.columns) | set(source.defaults) | set(source.nulls)))
    if both:
        raise SchemaError(
            f"{label}: {', '.join(both)} come from a side table: their columns, defaults and nulls belong to the "
            "ParquetSource inside the Join or AsOf"
        )
    keys = {name for join in source.join for name in (join.on, join.row_time)}
    for option in ("columns", "defaults", "nulls"):
        allowed = known | keys | {schema.time} if option == "columns" else known
        unknown = sorted(set(getattr(source, option)) - allowed)
        if unknown:
            raise SchemaError(
                f"{label}: {option} names {', '.join(unknown)}, not a field of the schema that can have them; fields: "
                f"{', '.join(schema.field_names)}"
            )
    return joined
