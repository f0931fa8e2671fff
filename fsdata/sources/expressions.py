"""Expressions over a file's columns: checked when the source is made, evaluated batch by batch.

Polars is imported on first use, because importing it takes time that a source without expressions does not need.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fsdata.errors import DataError, SchemaError
from fsdata.sources.elementwise import check, with_nulls
from fsdata.sources.hash_split import TEXT, HashSplit, text_ids

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """An expression that gives one value (or list) per row from that row alone.

    Exactly one of `polars`, `cross` and `text_key` computes the result; a condition may consist of `split` alone.

    Attributes:
        polars: the checked polars expression.
        form: a text of the expression that is the same for every version of polars; for fingerprints.
        columns: the columns that it reads, each once.
        split: for a condition, a further condition that must hold.
        cross: the values to hash into one id, see `cross`.
        text_key: the number of buckets for hashed texts, see `text_key`; 0 without.
        listed: whether the result becomes a list of one value in every row.
        hashed: the columns whose types determine a hash, see `elementwise.Checked`.
        types: column -> the type to which it is cast first, see `ParquetSource(types=...)`.
    """

    polars: "pl.Expr | None"
    form: str
    columns: tuple[str, ...]
    split: HashSplit | None = None
    cross: "Cross | None" = None
    text_key: int = 0
    listed: bool = False
    hashed: tuple[str, ...] = ()
    types: Mapping[str, pa.DataType] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cross:
    """A hash of several values of a row."""

    values: "tuple[Expression, ...]"
    buckets: int
    seed: int


def cross(*values: "str | pl.Expr", buckets: int, seed: int = 0) -> Expression:
    """A column of ids in [0, buckets) for `ParquetSource(columns=...)`: one id for several values of a row together,
    such as a user and an artist.

    The id is xxhash64, with this seed, of the values as little-endian int64 one after another, modulo `buckets`; null
    where one of them is null.

    Args:
        values: names of columns of integers, or polars expressions that give integers.
        buckets: 1 to 2**63. seed: 0 to 2**64 - 1.

    Raises:
        SchemaError: no values, a number out of range, or an expression that cannot be used.
    """
    for name, number, least, most in (("buckets", buckets, 1, 2**63), ("seed", seed, 0, 2**64 - 1)):
        if type(number) is not int or not least <= number <= most:
            raise SchemaError(f"cross({name}=...) is an integer from {least} to {most}, got {number!r}")
    if not values:
        raise SchemaError("cross takes values: names of columns, or polars expressions")
    import polars as pl

    inputs = tuple(checked(pl.col(value) if isinstance(value, str) else value, "cross(...)") for value in values)
    columns = tuple(dict.fromkeys(name for value in inputs for name in value.columns))
    form = f"xxhash64 seed {seed} modulo {buckets} of {', '.join(value.form for value in inputs)}"
    hashed = tuple(dict.fromkeys(name for value in inputs for name in value.hashed))
    return Expression(None, form, columns, cross=Cross(inputs, buckets, seed), hashed=hashed)


def text_key(column: str, *, buckets: int = 2**63) -> Expression:
    """A column of ids in [0, buckets) for `ParquetSource(columns=...)`: a text as an id or as a key of joined tables.

    The id is splitmix64 of the FNV-1a hash of the text in UTF-8, modulo `buckets`: the same on every rank, in every run
    and with every version of every library, unlike the `hash` of polars. A list gives the ids of its elements. A null
    stays a null. Without `buckets` ids have 63 bits: among a billion texts, two share an id with a probability of 5 %.

    Args:
        column: a column of text, or of lists of text, or a path to one.

    Raises:
        SchemaError: `buckets` is out of range. When files are bound: the column is not text.
    """
    if not isinstance(column, str) or not column:
        raise SchemaError(f"text_key names one column, got {column!r}")
    if type(buckets) is not int or not 1 <= buckets <= 2**63:
        raise SchemaError(f"text_key(buckets=...) is an integer from 1 to 2**63, got {buckets!r}")
    return Expression(None, f"text key of {column} modulo {buckets}", (column,), text_key=buckets)


def checked(value: Any, where: str, *, condition: bool = False) -> Expression:
    """The expression, if it works row by row.

    Files are decoded in small batches, so the result of an expression over several rows (a mean, a shift, a rank) would
    depend on the ends of batches.

    condition: whether it selects rows; it is then evaluated exactly as by polars. In an expression for a field, the
        hash of a null becomes null, so that the null policy of the field applies.

    Raises:
        SchemaError: not a polars expression, or one with operations that are not allowed.
    """
    import polars as pl

    if isinstance(value, Expression):
        return value
    if not isinstance(value, pl.Expr):
        raise SchemaError(f"{where} takes a column name or a polars expression, got {value!r}")
    try:
        document = value.meta.serialize(format="json")
    except (pl.exceptions.PolarsError, ValueError, TypeError, ImportError) as error:
        raise SchemaError(
            f"{where}: polars cannot serialize the expression, so it cannot be checked: {error}"
        ) from error
    try:
        result = check(document)
        changed = None if condition else with_nulls(document)
    except SchemaError as error:
        raise SchemaError(f"{where}: this expression cannot be used: {error}") from error
    if not result.columns:
        raise SchemaError(f"{where} must read at least one column; for a constant use defaults")
    polars = value if changed is None else _read_back(changed, where)
    return Expression(polars, result.form, result.columns, hashed=result.hashed)


def _read_back(document: str, where: str) -> "pl.Expr":
    import polars as pl

    expression = pl.Expr.deserialize(io.StringIO(document), format="json")
    if json.loads(expression.meta.serialize(format="json")) != json.loads(document):
        # polars parses some float constants in JSON with a different last bit (seen in 1.33 and 2.1).
        raise SchemaError(
            f"{where}: this expression cannot be used: polars changes a constant of it while the hash of nulls is "
            "replaced by null. Take constants with fewer digits, or integers"
        )
    return expression


def checked_condition(value: Any, where: str) -> Expression:
    """`checked`, for a filter."""
    condition = checked(value, where, condition=True)
    if condition.cross is not None or condition.text_key:
        function = "cross" if condition.cross is not None else "text_key"
        raise SchemaError(f"{where} takes a condition, which is true or false, and {function}(...) gives ids")
    return condition


def with_split(condition: Expression | None, split: HashSplit | None) -> Expression | None:
    """The conjunction of both; None if there is neither."""
    if split is None:
        return condition
    both = condition or Expression(None, "", ())
    return replace(both, columns=tuple(dict.fromkeys((*both.columns, split.column))), split=split)


def conjuncts(condition: Expression) -> list[Expression]:
    """The conditions that must all be true: the operands of the `and`s at the top level, and the split."""
    if condition.split is not None:
        split = replace(condition, polars=None, form="", columns=(condition.split.column,))
        if condition.polars is None:
            return [split]
        columns = tuple(dict.fromkeys(condition.polars.meta.root_names()))
        return [*conjuncts(replace(condition, form="", columns=columns, split=None)), split]
    assert condition.polars is not None
    document = json.loads(condition.polars.meta.serialize(format="json"))
    root = document.get("BinaryExpr") if isinstance(document, dict) else None
    if root is None or root["op"] not in ("And", "LogicalAnd"):
        return [condition]
    sides = condition.polars.meta.pop()
    return [
        conjunct
        for side in sides
        for conjunct in conjuncts(
            replace(condition, polars=side, form="", columns=tuple(dict.fromkeys(side.meta.root_names())))
        )
    ]


def hashed(column: str, buckets: int, *, is_list: bool) -> Expression:
    """Ids in [0, buckets) from a column of texts, or of lists of texts."""
    import polars as pl

    one = (pl.element() if is_list else pl.col(column)).hash(seed=0) % buckets
    return checked(pl.col(column).list.eval(one) if is_list else one, f"hash of {column!r}")


def from_column(name: str) -> Expression:
    """The values of a column, after the cast to its declared type."""
    import polars as pl

    return Expression(pl.col(name), name, (name,))


def declared_type(column: str, name: Any) -> pa.DataType:
    """The Arrow type of `ParquetSource(types={column: name})`.

    Raises:
        SchemaError: not an Arrow type, or not one of numbers, text or times.
    """
    try:
        declared = pa.type_for_alias(name)
    except (ValueError, TypeError, AttributeError):  # AttributeError: pyarrow expects a str and calls its methods
        declared = None
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_floating, pa.types.is_boolean, pa.types.is_date)
    if declared is None or not (pa.types.is_timestamp(declared) or any(test(declared) for test in kinds)):
        raise SchemaError(
            f"types={{{column!r}: ...}} is the Arrow name of one type of numbers, text or times, such as 'string', "
            f"'int64' or 'timestamp[us]', got {name!r}"
        )
    return declared


def is_cast(kind: pa.DataType, declared: pa.DataType) -> bool:
    """Whether a column of the type `kind` is cast if the type `declared` is declared for it."""
    stored = _plain_type(kind)
    return bool(stored != _with_items(stored, declared))


def as_declared(column: str, array: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """The values of a column, or the elements of its lists, cast to this type.

    Raises:
        SchemaError: Arrow has no such cast. DataError: the type cannot represent a value.
    """
    array = _without_dictionaries(array)
    try:
        return array.cast(_with_items(array.type, kind))
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(f"types={{{column!r}: '{kind}'}}: the column is {array.type}: {error}") from error
    except pa.ArrowInvalid as error:
        raise DataError(f"types={{{column!r}: '{kind}'}}: a value cannot be cast from {array.type}: {error}") from error


def output_type(expression: Expression, schema: pa.Schema) -> pa.DataType:
    """The Arrow type of the expression's result, found by evaluating it on no rows.

    Raises:
        SchemaError: polars rejects it for these types; with the message of polars.
    """
    return _run(expression, _frame(schema.empty_table(), expression.types)).type


def evaluate(
    expressions: Sequence[Expression], types: Sequence[pa.DataType], rows: pa.Table | pa.RecordBatch
) -> list[pa.Array]:
    """One array per expression, each as long as `rows` and of the type in `types`, which `output_type` gave.

    Raises:
        SchemaError: polars rejects the expression.
        DataError: an expression gave another number of values than there are rows, or another type than without rows.
    """
    # The expressions of one source all have the same declared types.
    declared = {name: kind for expression in expressions for name, kind in expression.types.items()}
    frame = _frame(rows, declared)
    results = []
    for expression, expected in zip(expressions, types, strict=True):
        array = _run(expression, frame)
        name = f"the expression over {', '.join(expression.columns)}"
        if len(array) != rows.num_rows:
            raise DataError(f"{name} gave {len(array)} values for {rows.num_rows} rows; it must give one per row")
        if array.type != expected:
            raise DataError(
                f"{name} gave {array.type} where it gives {expected} without rows; the kernels were chosen for that "
                "type. Cast its result to the type that you want"
            )
        results.append(array)
    return results


def _frame(rows: pa.Table | pa.RecordBatch, types: Mapping[str, pa.DataType]) -> "pl.DataFrame":
    """The columns as a frame of polars, without dictionaries: polars hashes their codes, which differ from batch to
    batch and from rank to rank. types: column -> its declared type."""
    import polars as pl

    arrays = [
        as_declared(name, column, types[name]) if name in types else _without_dictionaries(column)
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    names = rows.schema.names
    frame = pl.from_arrow(pa.Table.from_arrays(arrays, names))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _run(expression: Expression, frame: "pl.DataFrame") -> pa.Array:
    import polars as pl

    if expression.listed:
        values = _run(replace(expression, listed=False), frame)  # lists of one: offsets 0, 1, 2, ...
        return pa.ListArray.from_arrays(np.arange(len(values) + 1, dtype=np.int32), values)
    if expression.split is not None:
        return _both(expression, frame)
    if expression.cross is not None:
        return _crossed(expression.cross, frame)
    if expression.text_key:
        (name,) = expression.columns
        return _text_keys(frame.get_column(name).to_arrow(), expression.text_key, name)
    assert expression.polars is not None
    try:
        column = frame.select(expression.polars.alias("")).to_arrow().column(0)
    except pl.exceptions.PolarsError as error:
        raise SchemaError(f"expression failed: {error}") from error
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _crossed(cross: Cross, frame: "pl.DataFrame") -> pa.Array:
    """int64, see `cross`."""
    from xxhash import xxh64_intdigest

    values = [_run(expression, frame) for expression in cross.values]
    for array, expression in zip(values, cross.values, strict=True):
        if not (pa.types.is_integer(array.type) or pa.types.is_boolean(array.type)):
            raise SchemaError(f"cross takes integers, and {', '.join(expression.columns)} gives {array.type}")
    null = np.logical_or.reduce([array.is_null().to_numpy(zero_copy_only=False) for array in values])
    numbers = [array.cast(pa.int64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False) for array in values]
    raw, size = np.stack(numbers, axis=1).astype("<i8").tobytes(), 8 * len(values)
    hashes = [xxh64_intdigest(raw[at : at + size], cross.seed) % cross.buckets for at in range(0, len(raw), size)]
    return pa.array(np.array(hashes, np.int64), mask=null)


def _text_keys(array: pa.Array, buckets: int, name: str) -> pa.Array:
    """int64, see `text_key`; for lists, the keys of their elements."""
    if _is_list(array.type):
        # `values` ignores a slice of the array, so the lists keep their offsets and validity, and `offset` the slice.
        keys = _text_keys(array.values, buckets, name)
        own = array.buffers()[: 1 if pa.types.is_fixed_size_list(array.type) else 2]
        kind = list_of(array.type, keys.type)
        return pa.Array.from_buffers(kind, len(array), own, offset=array.offset, children=[keys])
    if not any(test(array.type) for test in TEXT):
        raise SchemaError(
            f"text_key({name!r}) takes text, and the column is {array.type}: types={{{name!r}: 'string'}} makes it text"
        )
    return text_ids(array, buckets)


def _both(condition: Expression, frame: "pl.DataFrame") -> pa.Array:
    """bool: whether a condition and its split are both true."""
    assert condition.split is not None
    column = frame.get_column(condition.split.column).to_arrow()
    inside = pa.array(condition.split.holds(column))
    if condition.polars is None:
        return inside
    # Kleene: null and false is false, as in a filter of polars. Another type is an error of binding, which names it.
    rest = _run(replace(condition, split=None), frame)
    return pc.and_kleene(rest, inside) if pa.types.is_boolean(rest.type) else rest


def _without_dictionaries(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The array with its dictionaries decoded, also inside lists."""
    kind = _plain_type(array.type)
    return array if kind == array.type else array.cast(kind)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if not _is_list(kind):
        return kind
    item = _plain_type(kind.value_type)
    return kind if item == kind.value_type else list_of(kind, item)


def _with_items(kind: pa.DataType, item: pa.DataType) -> pa.DataType:
    """`item`, or for a list type the same lists with innermost elements of that type."""
    return list_of(kind, _with_items(kind.value_type, item)) if _is_list(kind) else item


def list_of(kind: pa.DataType, item: pa.DataType) -> pa.DataType:
    """A list type of the same kind with other elements."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size)
    return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
