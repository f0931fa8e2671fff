"""Polars expressions: what works row by row is let through, nothing else is, and each has a form of our own."""

import contextlib
import json
import warnings
from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pytest

from fsdata.errors import SchemaError
from fsdata.sources import elementwise, expressions
from fsdata.sources.elementwise import check

A, NAME, TIME, LIST = pl.col("a"), pl.col("name"), pl.col("t"), pl.col("l")
ROWS = pa.table(
    {
        "a": pa.array([5, 5, -1, None, 9, 0, 3, 3]),
        "b": pa.array([1, 2, 3, 4, None, 6, 7, 8]),
        "f": pa.array([0.5, 0.5, -2.0, None, 9.25, 0.0, float("nan"), 3.0]),
        "name": pa.array(["b", "b", "a b", None, "", "10", "{}", "b,a"]),
        "raw": pa.array([b"b", b"b", b"a b", None, b"", b"10", b"{}", b"b,a"]),
        "t": pa.array([0, 0, 90_061, None, -1, 1_600_000_000, 5, 5], pa.timestamp("us")),
        "l": pa.array([[2, 1], [2, 1], [], None, [3, None], [0], [7, 7, 8], [1]], pa.list_(pa.int64())),
        "s": pa.array([{"x": n} for n in (3, 3, 1, None, 2, 5, 4, 4)]),
    }
)
CONSTANTS = [(), (1,), ("b",), (1, 2), ([1, 2],), ([1], [2]), ("1h",), ({1: 2},), (pl.Int64,), (pl.col("b"),), ("%Y",)]


def calls() -> Iterator[pl.Expr]:
    """Every method of polars' expressions and name spaces, with arguments that it takes."""
    subjects = [
        A,
        pl.col("f"),
        (NAME, "str"),
        (pl.col("raw"), "bin"),
        (TIME, "dt"),
        (LIST, "list"),
        (pl.col("s"), "struct"),
    ]
    for subject in subjects:
        on = getattr(*subject) if isinstance(subject, tuple) else subject
        for name in sorted(dir(on)):
            method = getattr(on, name)
            if name.startswith("_") or not callable(method) or name in ("inspect", "pipe", "deserialize", "from_json"):
                continue
            for args in CONSTANTS:
                with contextlib.suppress(Exception):
                    made = method(*args)
                    if isinstance(made, pl.Expr):
                        yield made
                        yield made + A


def results(expression: pl.Expr, frame: pl.DataFrame) -> list[pl.DataFrame] | None:
    """What it gives for all rows, and row by row; None where polars rejects it."""
    try:
        whole = frame.select(expression.alias("x"))
        return [whole, *(frame[row : row + 1].select(expression.alias("x")) for row in range(frame.height))]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None


def test_whatever_is_let_through_gives_row_by_row_what_it_gives_at_once():
    frame = pl.from_arrow(ROWS)
    let_through = compared = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for expression in {str(each): each for each in calls()}.values():
            try:
                expressions.checked(expression, "here")
            except SchemaError:
                continue
            let_through += 1
            found = results(expression, frame)
            if found is not None:
                compared += 1
                assert found[0].equals(pl.concat(found[1:]), null_equal=True), str(expression)
    assert let_through > 150
    assert compared > 100


@pytest.mark.parametrize(
    "expression",
    [
        pl.int_range(pl.len()),
        pl.int_range(pl.len()) + A,
        A.map_batches(lambda series: series),
        A.map_elements(lambda value: value, return_dtype=pl.Int64),
        A + pl.lit(pl.Series([1, 2])),
        A.is_in(pl.col("b")),
        A.is_in(A.implode()),
        A.replace(pl.col("b"), 1),
        A - A.mean(),
        A.over("b"),
        A.cast(pl.Categorical),
        LIST.list.eval(pl.element().shuffle()),
        LIST.list.eval(pl.element().unique()),
        LIST.list.eval(pl.element().map_batches(lambda series: series)),
        LIST.list.eval(pl.element() + A),
        LIST.list.eval(pl.element().list.eval(pl.element().shuffle())),
        LIST.list.eval(pl.element().list.eval(pl.element() + A)),
        A.cumulative_eval(pl.element().sum()),
        pl.col("a", "b"),
        pl.all(),
        pl.col("^a.*$"),
        pl.lit(3),
        pl.len(),
        float("inf") > A,
    ],
    ids=lambda expression: str(expression)[:60],
)
def test_refused(expression):
    """Beside what `calls` tries."""
    with pytest.raises(SchemaError, match=r"^here"):
        expressions.checked(expression, "here")


def test_deep_and_large_expressions_are_refused():
    expression = A
    for _ in range(20_000):
        expression = expression + 1
    with pytest.raises(SchemaError, match="deep"):
        expressions.checked(expression, "here")
    flat = pl.coalesce(*(A + number for number in range(4_000)))
    with pytest.raises(SchemaError, match="more than 10000 parts"):
        expressions.checked(flat, "here")


def test_a_python_function_that_cannot_be_written_down_is_refused():
    lock = __import__("threading").Lock()
    with pytest.raises(SchemaError, match="here: "):
        expressions.checked(A.map_batches(lambda series: lock and series), "here")


def test_columns_are_those_that_are_read():
    expression = pl.when(A > 1).then(pl.col("b")).otherwise(A) + LIST.list.eval(pl.element() + 1).list.len()
    assert expressions.checked(expression, "here").columns == ("a", "b", "l")


FORMS = [
    (A + 1, '["Plus",["column","a"],["constant",{"Int":1}]]'),
    (A.hash(seed=3) % 10, '["Modulus",["Hash",["column","a"],3],["constant",{"Int":10}]]'),
    (A.alias("x").cast(pl.Float32), '["cast",["column","a"],"Float32","Strict"]'),
    (A.is_in([1, 2]), '["Boolean.IsIn",["column","a"],["constant","list","int64",[1,2]],{}]'),
    (NAME.is_in({"b", None, "a"}), '["Boolean.IsIn",["column","name"],["constant","list","text",["a","b",null]],{}]'),
    (NAME.is_in(["ä"]), '["Boolean.IsIn",["column","name"],["constant","list","text",["ä"]],{}]'),
    (
        NAME.replace_strict({"x": 1}, return_dtype=pl.Int8),
        '["ReplaceStrict",["column","name"],["constant","list","text",["x"]],["constant","list","int64",[1]],'
        '{"return_dtype":{"Literal":"Int8"}}]',
    ),
    (
        LIST.list.eval(pl.element().fill_null(0)),
        '["each",["column","l"],["FillNull",["element"],["constant",{"Int":0}],null],"List"]',
    ),
    (NAME.str.contains("x"), '["StringExpr.Contains",["column","name"],["constant",{"String":"x"}],{"strict":true}]'),
    (TIME.dt.hour(), '["TemporalExpr.Hour",["column","t"],null]'),
    (pl.col("s").struct.field("x"), '["StructExpr.FieldByName",["column","s"],"x"]'),
    (
        pl.when(A > 1.5).then(None).otherwise(A),
        '["if",["Gt",["column","a"],["constant",{"Float":1.5}]],["constant",{"Null":"Null"}],["column","a"]]',
    ),
]


@pytest.mark.parametrize(("expression", "form"), FORMS, ids=[form[:60] for _, form in FORMS])
def test_forms_stay_what_they_are(expression, form):
    """Saved states hold hashes of these. If a new polars fails this, translate in `elementwise`: do not change them."""
    assert expressions.checked(expression, "here").form == form


def test_the_seed_of_a_hash_is_read_alike_where_polars_1_writes_it_four_times():
    def form(seed):
        function = {"input": [{"Column": "a"}], "function": {"Hash": seed}}
        return check(json.dumps({"Function": function})).form

    assert form([3, 3, 3, 3]) == form(3)
    assert form([3, 3, 3, 4]) != form(3)


def test_polars_1_must_not_slice_lists_by_columns(monkeypatch):
    """It takes a null length as no length where it is alone, and gives null where other rows have a length."""
    monkeypatch.setattr(elementwise, "version", lambda package: "1.44.2")
    expressions.checked(LIST.list.slice(0, 2), "here")
    with pytest.raises(SchemaError, match=r"here: .*list\.slice with numbers from columns"):
        expressions.checked(LIST.list.slice(0, pl.col("b")), "here")


def test_what_a_newer_polars_may_write_is_read_alike_or_refused():
    document = json.loads(A.is_in([1]).meta.serialize(format="json"))
    form = check(json.dumps(document)).form
    options = document["Function"]["function"]["Boolean"]["IsIn"]
    options["something_new"] = False
    assert check(json.dumps(document)).form == form
    options["something_new"] = "on"
    assert check(json.dumps(document)).form != form
    for strange in ({"Column": "a", "Other": 1}, {"BinaryExpr": {"op": "Plus"}}, {"Cast": []}, {"Function": {}}, [], 7):
        with pytest.raises(SchemaError):
            check(json.dumps(strange))
