"""Decides whether a polars expression gives one value per row from that row alone, by the tree that polars serializes.

Polars' own answer is no help: it declares `int_range(len())` and Python functions separable by row. So every operation
that is not in the list here is rejected. The walk also writes the expression in a form of our own, for fingerprints:
with the names in the list, whatever a later polars calls them, without options that are null or false, and with decoded
constants. A test has these forms. If a new version of polars fails it, the translation belongs here, so that saved
states keep their meaning.
"""

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import pyarrow as pa

from fsdata.errors import SchemaError

MAX_NODES = 10_000
MAX_DEPTH = 250


def _names(text: str) -> frozenset[str]:
    """Each line of `text`: a name space, a colon, and the names in it."""
    lines = [line.partition(":") for line in text.splitlines()]
    return frozenset(f"{space.strip()}.{name}".lstrip(".") for space, _, names in lines for name in names.split())


_SPACES = frozenset(
    ("Boolean", "StringExpr", "TemporalExpr", "ListExpr", "ArrayExpr", "StructExpr", "BinaryExpr", "Trigonometry")
) | {"Pow", "Bitwise", "Business", "Sql", "Sql.Binary", "Range"}
_OPERATORS = _names("""
    : Plus Minus Multiply Divide TrueDivide FloorDivide TruncDivide Modulus And Or Xor LogicalAnd LogicalOr
    : Eq EqValidity NotEq NotEqValidity Lt LtEq Gt GtEq
""")
_ELEMENTWISE = _names("""
    : Abs Negate Sign Floor Ceil Round RoundSF Truncate Clip Exp Log Log1p Erf Erfc Atan2 Hash FillNull Coalesce
    : MaxHorizontal MinHorizontal SumHorizontal MeanHorizontal Replace ReplaceStrict AsStruct Reinterpret
    Range: IntRanges
    Boolean: Not IsNull IsNotNull IsNan IsNotNan IsFinite IsInfinite IsBetween IsClose IsIn AllHorizontal AnyHorizontal
    Trigonometry: Sin Cos Tan Cot ArcSin ArcCos ArcTan Sinh Cosh Tanh ArcSinh ArcCosh ArcTanh Degrees Radians
    Pow: Generic Sqrt Cbrt
    Bitwise: CountOnes CountZeros LeadingOnes LeadingZeros TrailingOnes TrailingZeros
    StringExpr: Contains ContainsAny ConcatHorizontal CountMatches EndsWith EscapeRegex Extract ExtractAll ExtractGroups
    StringExpr: ExtractMany Find FindMany Format Head HexEncode HexDecode Base64Encode Base64Decode JsonDecode
    StringExpr: JsonPathMatch LenBytes LenChars Lowercase Normalize PadEnd PadStart Replace ReplaceMany Reverse Slice
    StringExpr: Split SplitExact SplitN StartsWith StripChars StripCharsEnd StripCharsStart StripPrefix StripSuffix
    StringExpr: Strptime Tail Titlecase ToDecimal ToInteger Uppercase ZFill
    BinaryExpr: Contains EndsWith StartsWith Size Slice Head Tail Get HexEncode HexDecode Base64Encode Base64Decode
    TemporalExpr: BaseUtcOffset CastTimeUnit Century Combine ConvertTimeZone DSTOffset Date Day DaysInMonth
    TemporalExpr: DatetimeFunction Duration Hour IsLeapYear IsoYear Microsecond Millennium Millisecond Minute Month
    TemporalExpr: MonthEnd MonthStart Nanosecond OffsetBy OrdinalDay Quarter Replace ReplaceTimeZone Round Second Time
    TemporalExpr: TimeStamp ToString TotalDays TotalHours TotalMicroseconds TotalMilliseconds TotalMinutes
    TemporalExpr: TotalNanoseconds TotalSeconds Truncate Week WeekDay Year
    Business: AddBusinessDay IsBusinessDay
    ListExpr: ArgMax ArgMin Concat Contains CountMatches Diff DropNulls Gather GatherEvery Get Join Length Max Mean
    ListExpr: Median Min Shift Slice Sort Std Sum ToArray ToStruct Var
    ArrayExpr: ArgMax ArgMin Contains CountMatches Dot Get Join Length Max Mean Median Min Shift Slice Sort Std Sum
    ArrayExpr: ToList ToStruct Var
    StructExpr: FieldByName JsonEncode RenameFields
    Sql: ToFloat Round IsIn
    Sql.Binary: Div Rem IntDiv Mul
""")
# Over the elements of a list these stay inside one row.
_IN_LISTS = _ELEMENTWISE | _names("""
    : ArgMax ArgMin CumCount CumMax CumMin CumProd CumSum Diff DropNans DropNulls NullCount Product Reverse Shift Unique
    Boolean: All Any
""")
_AGGREGATES = _names(": Min Max Sum Mean Median Count First Last NUnique Std Var")
_IN_LIST_NODES = {"Filter": ("input", "by"), "Sort": ("expr",), "Slice": ("input", "offset", "length")}
# Function -> number of arguments after the first that must be constants: polars takes a column there as one collection
# of all its rows.
_COLLECTIONS = {"Boolean.IsIn": 1, "Sql.IsIn": 1, "Replace": 2, "ReplaceStrict": 2} | {
    f"StringExpr.{name}": count
    for name, count in (("ContainsAny", 1), ("ReplaceMany", 2), ("ExtractMany", 1), ("FindMany", 1))
}


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of `check`.

    Attributes:
        form: the expression in a form that is the same for every version of polars.
        columns: every column that it reads, once.
        hashed: the columns whose types determine a hash: those under a `hash` without a `cast` between them.
    """

    form: str
    columns: tuple[str, ...]
    hashed: tuple[str, ...]


def check(document: str) -> Checked:
    """Check an expression that polars has serialized as JSON.

    Raises:
        SchemaError: an operation that is not in the list, or too many of them.
    """
    walk = _Walk()
    try:
        form = walk.node(json.loads(document), in_list=False)
        text = json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except SchemaError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise SchemaError(
            f"this version of polars serializes it in an unknown form ({error!r}): use an older version"
        ) from error
    return Checked(text, tuple(dict.fromkeys(walk.columns)), tuple(dict.fromkeys(walk.hashed)))


def with_nulls(document: str) -> str | None:
    """The expression, as JSON, changed so that the hash of a null is null; None if it has no hash.

    polars hashes a null to a number like any other id, which no null policy would detect. The hash of a struct is null
    if one of its values is null, as in `cross`.

    Raises:
        SchemaError: it is nested too deeply.
    """
    tree = json.loads(document)
    try:
        changed = _with_nulls(tree)
        return None if changed == tree else json.dumps(changed, ensure_ascii=False)
    except RecursionError:
        raise _too_deep() from None


def _with_nulls(node: Any) -> Any:
    if isinstance(node, list):
        return node if all(isinstance(item, int) for item in node) else [_with_nulls(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {name: _with_nulls(item) for name, item in node.items()}
    function = node.get("Function")
    if not isinstance(function, dict) or _name(function["function"])[0] != "Hash":
        return node
    first, *rest = [
        {"Function": {"input": [value], "function": {"Boolean": "IsNotNull"}}}
        for value in _hashed_values(function["input"][0])
    ]
    predicate = first
    for not_null in rest:
        predicate = {"BinaryExpr": {"left": predicate, "op": "And", "right": not_null}}
    return {"Ternary": {"predicate": predicate, "truthy": node, "falsy": {"Literal": {"Scalar": {"Null": "Null"}}}}}


def _hashed_values(node: Any) -> list[Any]:
    """The hashed values: those of a struct, or the single one."""
    while isinstance(node, dict) and "Alias" in node:
        node = node["Alias"][0]
    function = node.get("Function") if isinstance(node, dict) else None
    if function is None or function["function"] != "AsStruct":
        return [node]
    return [value for item in function["input"] for value in _hashed_values(item)]


def _too_deep() -> SchemaError:
    return SchemaError(f"it is nested more than {MAX_DEPTH} deep; for many values of one column use is_in or replace")


class _Walk:
    def __init__(self) -> None:
        self.columns: list[str] = []
        self.hashed: list[str] = []
        self._under_hash = False
        self._nodes = 0
        self._depth = 0

    def node(self, node: Any, *, in_list: bool) -> Any:
        """The form of one node."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise SchemaError(f"it has more than {MAX_NODES} parts")
        if self._depth == MAX_DEPTH:
            raise _too_deep()
        self._depth += 1
        if node == "Element" and in_list:
            form: Any = self._element()
        elif isinstance(node, dict) and len(node) == 1:
            ((kind, value),) = node.items()
            form = self._of_kind(kind, value, in_list)
        else:
            raise _refused(str(node))
        self._depth -= 1
        return form

    def _of_kind(self, kind: str, value: Any, in_list: bool) -> Any:
        if kind == "Column":
            return self._column(value, in_list)
        if kind == "Literal":
            return _constant(value, alone=True)
        if kind == "Alias":
            return self.node(value[0], in_list=in_list)
        if kind == "BinaryExpr" and value["op"] in _OPERATORS:
            return [value["op"], *self._all((value["left"], value["right"]), in_list)]
        if kind == "Ternary":
            return ["if", *self._all((value["predicate"], value["truthy"], value["falsy"]), in_list)]
        if kind == "Cast":
            return ["cast", self._below(value["expr"], in_list, False), _type(value["dtype"]), value["options"]]
        if kind == "Function":
            return self._function(value["input"], value["function"], in_list)
        if kind == "Eval":
            return self._eval(value, in_list)
        if in_list and kind == "Agg":
            return self._aggregate(value)
        if in_list and kind in _IN_LIST_NODES:
            operands = _IN_LIST_NODES[kind]
            rest = _options({name: option for name, option in value.items() if name not in operands})
            return [kind, *self._all([value[name] for name in operands], in_list), rest]
        if kind == "Selector":
            raise SchemaError("it names several columns at once: name each column, and give one output")
        raise _refused("a Python function" if kind == "AnonymousFunction" else _named(kind, value))

    def _below(self, node: Any, in_list: bool, hashed: bool) -> Any:
        """The form of one node, below a hash or below a cast."""
        before, self._under_hash = self._under_hash, hashed
        form = self.node(node, in_list=in_list)
        self._under_hash = before
        return form

    def _eval(self, value: Any, in_list: bool) -> Any:
        if "Cumulative" in value["variant"]:
            raise _refused("cumulative_eval")
        before, hashed = self._under_hash, self.hashed
        self.hashed = []  # the walk of the inner expression adds "" if it hashes the elements
        inner = self.node(value["evaluation"], in_list=True)
        self.hashed, self._under_hash = hashed, before or bool(self.hashed)
        outer = self.node(value["expr"], in_list=in_list)
        self._under_hash = before
        return ["each", outer, inner, _options(value["variant"])]

    def _all(self, nodes: Iterable[Any], in_list: bool) -> list[Any]:
        return [self.node(node, in_list=in_list) for node in nodes]

    def _column(self, name: Any, in_list: bool) -> Any:
        if in_list:
            if name != "":
                raise SchemaError(f"column {name!r} is used inside a list")
            return self._element()
        self.columns.append(name)
        if self._under_hash:
            self.hashed.append(name)
        return ["column", name]

    def _element(self) -> Any:
        if self._under_hash:
            self.hashed.append("")
        return ["element"]

    def _function(self, inputs: list[Any], function: Any, in_list: bool) -> Any:
        name, options = _name(function)
        if name not in (_IN_LISTS if in_list else _ELEMENTWISE):
            raise _refused(name)
        if name == "StringExpr.Strptime" and options[1].get("format") is None:
            raise SchemaError("it guesses the format of a time from the first rows of each batch: give format=")
        if name == "Unique" and options is not True:
            raise SchemaError("unique() gives an order that differs from run to run: give maintain_order=True")
        columns = any("Literal" not in node for node in inputs[1:])
        if name == "ListExpr.Slice" and columns and version("polars").startswith("1."):
            raise _refused("list.slice with numbers from columns (of polars 1, where these are null)")
        if name == "Hash" and isinstance(options, list) and len(set(options)) == 1:
            options = options[0]  # polars 1 serializes a single seed four times
        constants = _COLLECTIONS.get(name, 0)
        form = [name]
        for number, node in enumerate(inputs):
            if 0 < number <= constants:
                if not isinstance(node, dict) or "Literal" not in node:
                    raise _refused(f"{name} of a column's values")
                constant = _constant(node["Literal"], alone=False)
                if name == "Boolean.IsIn":  # a set of texts has a different order in every process
                    constant[-1].sort(key=lambda item: (item is None, item))
                form.append(constant)
            else:
                form.append(self._below(node, in_list, self._under_hash or name == "Hash"))
        return [*form, _options(options)]

    def _aggregate(self, value: Any) -> Any:
        ((name, operand),) = value.items()
        if name not in _AGGREGATES:
            raise _refused(f"Agg.{name}")
        rest: Any = None
        if isinstance(operand, list):
            operand, *rest = operand
        elif isinstance(operand, dict) and "input" in operand:
            rest = {key: option for key, option in operand.items() if key != "input"}
            operand = operand["input"]
        return [f"Agg.{name}", self.node(operand, in_list=True), _options(rest)]


def _name(function: Any) -> tuple[str, Any]:
    """The function's name with its name space, and its options."""
    name, options = "", function
    while isinstance(options, str) or (isinstance(options, dict) and len(options) == 1):
        if isinstance(options, str):
            return name + options, None
        ((part, options),) = options.items()
        name += part
        if name not in _SPACES:
            return name, options
        name += "."
    raise _refused(str(function))


def _named(kind: str, value: Any) -> str:
    return f"{kind}.{next(iter(value))}" if kind == "Agg" and isinstance(value, dict) else kind


def _refused(what: str) -> SchemaError:
    return SchemaError(
        f"it must give one value per row from that row alone, because files are decoded in batches; {what[:80]} is not "
        "in the list of operations that do so. Write the column into the files, or use another expression"
    )


def _options(options: Any) -> Any:
    """Options without those that are null or false: an option of a later polars that is off must not change a form."""
    if isinstance(options, dict):
        return {name: _options(value) for name, value in options.items() if value is not None and value is not False}
    if isinstance(options, list):
        return [_options(value) for value in options]
    return options


def _type(kind: Any) -> Any:
    text = json.dumps(kind)
    if not isinstance(kind, dict) or set(kind) != {"Literal"} or any(f'"{bad}"' in text for bad in _NO_TYPES):
        raise SchemaError("it makes a type that is not fixed: cast to numbers, texts, times or lists of them")
    return kind["Literal"]


_NO_TYPES = ("Categorical", "Enum", "Object", "Unknown")  # codes of categories depend on earlier batches


def _constant(value: Any, *, alone: bool) -> Any:
    """A constant. alone: it is an operand for every row, so polars would pair a Series of values with the rows."""
    ((kind, inner),) = value.items()
    if kind == "Series" or (kind == "Scalar" and isinstance(inner, dict) and set(inner) & {"List", "Array"}):
        values = _decoded(inner if kind == "Series" else next(iter(inner.values())))
        if kind == "Series" and alone and len(values) != 1:
            raise SchemaError(f"a Series of {len(values)} values is no constant: polars would pair them with the rows")
        return ["constant", "list", _type_name(values.type), [_plain(_python(value)) for value in values]]
    if kind not in ("Dyn", "Scalar") or (isinstance(inner, dict) and None in inner.values()):
        raise SchemaError(
            "a constant is a finite number, a text, a time or a list of them; to test others, use is_nan, is_infinite"
        )
    return ["constant", inner]


def _decoded(stream: Any) -> pa.ChunkedArray:
    return pa.ipc.open_stream(io.BytesIO(bytes(stream))).read_all().column(0)


def _python(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except ValueError:  # a time with nanoseconds, which Python's times cannot represent, or a list of them
        return value.value if pa.types.is_temporal(value.type) else [_python(item) for item in value.values]


def _type_name(kind: pa.DataType) -> str:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return "text" if text else str(kind)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | str) else repr(value)
