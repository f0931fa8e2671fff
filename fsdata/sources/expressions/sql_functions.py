"""What the operators, types and functions of `sql` mean, in polars. Imported on first use of SQL.

All of them give one value per row from that row alone, and their meaning is fixed here, not by the SQL of a polars
version: `/` gives a float; `a % b` is in [0, b) for a positive b, also where a is negative, as bucket numbers must be;
AND, OR and NOT take booleans. No function may use an argument twice: nested calls would grow exponentially.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

from fsdata.errors import SchemaError
from fsdata.sources.expressions.sql import Tree, parse

TYPES: dict[str, Any] = {
    "TINYINT": pl.Int8, "SMALLINT": pl.Int16, "INT": pl.Int32, "INTEGER": pl.Int32, "BIGINT": pl.Int64,
    "REAL": pl.Float32, "FLOAT": pl.Float64, "DOUBLE": pl.Float64, "BOOLEAN": pl.Boolean,
    "VARCHAR": pl.String, "TEXT": pl.String, "STRING": pl.String, "DATE": pl.Date, "TIMESTAMP": pl.Datetime("us"),
}  # fmt: skip
_PARTS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "weekday", "epoch")


@dataclass(frozen=True, slots=True)
class Function:
    """`build` takes the arguments as expressions, those from position `plain` on as the constants they must be."""

    build: Callable[..., pl.Expr]
    least: int = 1
    most: int = 1
    plain: int = 99


def _boolean(value: pl.Expr) -> pl.Expr:
    return value.cast(pl.Boolean)


def _part(name: Any, value: pl.Expr) -> pl.Expr:
    if name not in _PARTS:
        raise SchemaError(f"DATE_PART and EXTRACT know {', '.join(_PARTS)}, not {name!r}")
    return value.dt.epoch("s") if name == "epoch" else getattr(value.dt, name)()


def _like(value: pl.Expr, pattern: str, flags: str) -> pl.Expr:
    parts = [{"%": ".*", "_": "."}.get(sign) or re.escape(sign) for sign in pattern]
    return value.str.contains(f"(?{flags})^{''.join(parts)}$")


def _text(*values: pl.Expr) -> list[pl.Expr]:
    return [value.cast(pl.String) for value in values]


OPERATORS: dict[str, Callable[..., pl.Expr]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b=None: -a if b is None else a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "%": lambda a, b: a % b,
    "||": lambda a, b: pl.concat_str(_text(a, b)),
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "AND": lambda a, b: _boolean(a) & _boolean(b),
    "OR": lambda a, b: _boolean(a) | _boolean(b),
    "NOT": lambda a: _boolean(a).not_(),
    "IS NULL": lambda a: a.is_null(),
    "IS TRUE": lambda a: _boolean(a).eq_missing(pl.lit(True)),
    "IS FALSE": lambda a: _boolean(a).eq_missing(pl.lit(False)),
    "BETWEEN": lambda a, low, high: a.is_between(low, high),
    "IF": lambda when, then, other: pl.when(_boolean(when)).then(then).otherwise(other),
}

FUNCTIONS: dict[str, Function] = {
    "ABS": Function(lambda a: a.abs()),
    "CEIL": Function(lambda a: a.ceil()),
    "FLOOR": Function(lambda a: a.floor()),
    "ROUND": Function(lambda a, digits=0: a.round(digits), most=2, plain=1),
    "SIGN": Function(lambda a: a.sign()),
    "SQRT": Function(lambda a: a.sqrt()),
    "EXP": Function(lambda a: a.exp()),
    "LN": Function(lambda a: a.log()),
    "LOG2": Function(lambda a: a.log(2)),
    "LOG10": Function(lambda a: a.log(10)),
    "LOG1P": Function(lambda a: a.log1p()),
    "POW": Function(lambda a, b: a.pow(b), 2, 2),
    "MOD": Function(OPERATORS["%"], 2, 2),
    "DIV": Function(lambda a, b: a // b, 2, 2),
    "COALESCE": Function(lambda *values: pl.coalesce(*values), 1, 99),
    "IFNULL": Function(lambda a, b: pl.coalesce(a, b), 2, 2),
    "IF": Function(OPERATORS["IF"], 3, 3),
    "GREATEST": Function(lambda *values: pl.max_horizontal(*values), 1, 99),
    "LEAST": Function(lambda *values: pl.min_horizontal(*values), 1, 99),
    "HASH": Function(lambda a, seed=0: a.hash(seed=seed), most=2, plain=1),
    "LOWER": Function(lambda a: a.str.to_lowercase()),
    "UPPER": Function(lambda a: a.str.to_uppercase()),
    "LENGTH": Function(lambda a: a.str.len_chars()),
    "LEFT": Function(lambda a, count: a.str.head(count), 2, 2),
    "RIGHT": Function(lambda a, count: a.str.tail(count), 2, 2),
    "SUBSTR": Function(lambda a, start, count=None: a.str.slice(start - 1, count), 2, 3, plain=1),
    "CONCAT": Function(lambda *values: pl.concat_str(_text(*values)), 1, 99),
    "STARTS_WITH": Function(lambda a, b: a.str.starts_with(b), 2, 2),
    "ENDS_WITH": Function(lambda a, b: a.str.ends_with(b), 2, 2),
    "REPLACE": Function(lambda a, old, new: a.str.replace_all(old, new, literal=True), 3, 3, plain=1),
    "REGEXP_LIKE": Function(lambda a, pattern: a.str.contains(pattern), 2, 2, plain=1),
    "TRIM": Function(lambda a: a.str.strip_chars()),
    "STRFTIME": Function(lambda a, pattern: a.dt.strftime(pattern), 2, 2, plain=1),
    "STRPTIME": Function(lambda a, pattern: a.str.to_datetime(pattern, time_unit="us"), 2, 2, plain=1),
    "DATE_PART": Function(lambda name, a: _part(name, a), 2, 2),
    "EXTRACT": Function(lambda a: a),  # only its own syntax reaches DATE_PART
    "ARRAY_LENGTH": Function(lambda a: a.list.len()),
    "ARRAY_SUM": Function(lambda a: a.list.sum()),
    "ARRAY_MEAN": Function(lambda a: a.list.mean()),
    "ARRAY_MIN": Function(lambda a: a.list.min()),
    "ARRAY_MAX": Function(lambda a: a.list.max()),
    "ARRAY_CONTAINS": Function(lambda a, value: a.list.contains(value), 2, 2),
    "ARRAY_GET": Function(lambda a, at: a.list.get(at - 1, null_on_oob=True), 2, 2, plain=1),
} | {part.upper(): Function(lambda a, part=part: _part(part, a)) for part in _PARTS if part != "epoch"}


def expression_of(text: str) -> tuple[Tree, pl.Expr]:
    """The tree that a text says, and the polars expression for it.

    Raises:
        SchemaError: see `fsdata.sources.expressions.sql.parse`, or arguments that do not fit a function.
    """
    tree = parse(text, FUNCTIONS, TYPES)
    return tree, _build(tree)


def _build(tree: Tree) -> pl.Expr:
    first = tree.args[0] if tree.args else None
    if tree.op == "column":
        return pl.col(str(first))
    if tree.op == "constant":
        return pl.lit(first)
    trees = [arg for arg in tree.args if isinstance(arg, Tree)]
    if tree.op in ("CAST", "TRY_CAST"):
        return _build(trees[0]).cast(TYPES[str(tree.args[1])], strict=tree.op == "CAST")
    if tree.op == "field":
        return _build(trees[0]).struct.field(str(tree.args[1]))
    if tree.op == "IN":
        return _build(trees[0]).is_in([each.args[0] for each in trees[1:]])
    if tree.op in ("LIKE", "ILIKE"):
        return _like(_build(trees[0]), str(trees[1].args[0]), "s" if tree.op == "LIKE" else "is")
    if tree.op in OPERATORS:
        return OPERATORS[tree.op](*(_build(each) for each in trees))
    return _call(tree.op, trees)


def _call(name: str, trees: list[Tree]) -> pl.Expr:
    function = FUNCTIONS[name]
    if not function.least <= len(trees) <= function.most:
        several = function.least if function.least == function.most else f"{function.least} to {function.most}"
        raise SchemaError(f"{name} takes {several} arguments, got {len(trees)}")
    args: list[Any] = []
    for number, tree in enumerate(trees):
        constant = tree.op == "constant"
        if number >= function.plain and not constant:
            raise SchemaError(f"argument {number + 1} of {name} is a constant")
        as_it_is = number >= function.plain or (name == "DATE_PART" and number == 0 and constant)
        args.append(tree.args[0] if as_it_is else _build(tree))
    try:
        return function.build(*args)
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"the arguments of {name} do not fit: {error}") from error
