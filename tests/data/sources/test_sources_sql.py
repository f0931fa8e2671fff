"""SQL in schema files: what it means, and that parsing it touches nothing and cannot be made to run away."""

import os
import socket

import pyarrow as pa
import pytest

from fsdata.errors import SchemaError
from fsdata.sources.expressions import expressions
from fsdata.sources.expressions.sql_functions import FUNCTIONS, expression_of

ROWS = pa.table(
    {
        "a": pa.array([7, -7, 0, None]),
        "b": pa.array([2, 2, None, 2]),
        "f": pa.array([1.5, -1.5, 2.0, None]),
        "name": pa.array(["Ann", "bob%", "", None]),
        "t": pa.array([0, 90_061, 1_600_000_000, None], pa.timestamp("s")),
        "l": pa.array([[3, 1], [], [2], None], pa.list_(pa.int64())),
        "s": pa.array([{"x": 1, "y z": 2}, {"x": 3, "y z": 4}, None, {"x": None, "y z": 1}]),
        'we"ird': pa.array([1, 2, 3, 4]),
    }
)


def values(sql):
    expression = expressions.parse(sql, "here")
    (array,) = expressions.evaluate([expression], [expressions.output_type(expression, ROWS.schema)], ROWS)
    return array.to_pylist()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a + b * 2", [11, -3, None, None]),
        ("(a + b) * 2", [18, -10, None, None]),
        ("a - -b", [9, -5, None, None]),
        ("a / b", [3.5, -3.5, None, None]),
        ("a % 5", [2, 3, 0, None]),
        ("MOD(a, 5) = a % 5", [True, True, True, None]),
        ("DIV(a, 2)", [3, -4, 0, None]),
        ("-a", [-7, 7, 0, None]),
        ("a = 7 OR b = 2 AND a = 0", [True, False, None, None]),
        ("NOT a = 7", [False, True, True, None]),
        ("a <> 7", [False, True, True, None]),
        ("a IS NULL", [False, False, False, True]),
        ("a IS NOT NULL", [True, True, True, False]),
        ("(a > 0) IS TRUE", [True, False, False, False]),
        ("(a > 0) IS NOT TRUE", [False, True, True, True]),
        ("a IN (7, -7)", [True, True, False, None]),
        ("name NOT IN ('Ann', 'x')", [False, True, True, None]),
        ("a BETWEEN 0 AND 7", [True, False, True, None]),
        ("a NOT BETWEEN 0 AND 7 AND TRUE", [False, True, False, None]),
        ("name LIKE 'A%'", [True, False, False, None]),
        ("name LIKE '_ob.'", [False, False, False, None]),
        ("name ILIKE 'a_N'", [True, False, False, None]),
        ("name NOT LIKE '%b%'", [True, False, True, None]),
        ("CASE WHEN a > 0 THEN 1 WHEN a > -9 THEN -1 ELSE 0 END", [1, -1, -1, 0]),
        ("CASE a WHEN 7 THEN 'x' END", ["x", None, None, None]),
        ("IF(a > 0, a, b)", [7, 2, None, 2]),
        ("CAST(f AS BIGINT)", [1, -1, 2, None]),
        ("f::INT", [1, -1, 2, None]),
        ("TRY_CAST(name AS BIGINT) IS NULL", [True] * 4),
        ("COALESCE(b, a, 1)", [2, 2, 0, 2]),
        ("GREATEST(a, b)", [7, 2, 0, 2]),
        ("ABS(a) + SIGN(a)", [8, 6, 0, None]),
        ("ROUND(f)", [2.0, -2.0, 2.0, None]),
        ("LENGTH(name)", [3, 4, 0, None]),
        ("SUBSTR(name, 2, 2)", ["nn", "ob", "", None]),
        ("LOWER(name) || '!'", ["ann!", "bob%!", "!", None]),
        ("REPLACE(name, 'n', '.')", ["A..", "bob%", "", None]),
        ("EXTRACT(hour FROM t)", [0, 1, 12, None]),
        ("DATE_PART('year', t) - YEAR(t)", [0, 0, 0, None]),
        ("DATE_PART('epoch', t)", [0, 90_061, 1_600_000_000, None]),
        ("ARRAY_LENGTH(l)", [2, 0, 1, None]),
        ("ARRAY_GET(l, 1)", [3, None, 2, None]),
        ("ARRAY_CONTAINS(l, 1)", [True, False, False, None]),
        ('s.x + s."y z"', [3, 7, None, None]),
        ('"we""ird" + 1', [2, 3, 4, 5]),
        ("'it''s' = name", [False, False, False, None]),
        ("1.5 * a", [10.5, -10.5, 0.0, None]),
        ("case when a>0 then 1e3 else .5 end", [1000.0, 0.5, 0.5, 0.5]),
    ],
    ids=str,
)
def test_what_sql_means(sql, expected):
    assert values(sql) == expected


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "EXTRACT"])
def test_every_function_is_known_to_work_row_by_row(name):
    constants = {"STRFTIME": "'%Y'", "STRPTIME": "'%Y'", "ROUND": "1", "HASH": "1"}
    function = FUNCTIONS[name]
    tail = [constants.get(name, "'x'" if name in ("REPLACE", "REGEXP_LIKE") else "1")] * (max(function.least, 2) - 1)
    args = ["'day'", "a"] if name == "DATE_PART" else ["a", *tail][: function.least]
    expressions.parse(f"{name}({', '.join(args)})", "here")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("", "the expression ends"),
        ("a >", "the expression ends where a column"),
        ("a b", "there is 'b' where the end of the expression"),
        ("a < b < 1", "there is '<'"),
        ("a; b", "at character 2: '; b'"),
        ("a -- comment", "at character 2"),
        ("a /* comment */", "not an SQL expression"),
        ("'open", "at character 1"),
        ("a IN (SELECT 1)", "there is 'SELECT' where a constant"),
        ("a IN (b)", "there is 'b' where a constant"),
        ("(SELECT 1)", "there is 'SELECT'"),
        ("EXISTS(SELECT 1)", "no function EXISTS; there are ABS, "),
        ("SUM(a)", "no function SUM"),
        ("ROW_NUMBER() OVER ()", "no function ROW_NUMBER"),
        ("CAST(a AS JSON)", "where a type"),
        ("SUBSTR(a)", "SUBSTR takes 2 to 3 arguments, got 1"),
        ("REPLACE(a, b, 'x')", "argument 2 of REPLACE is a constant"),
        ("EXTRACT(moon FROM t)", "not 'moon'"),
        ("STRPTIME(a, NULL)", "give format="),
        ("a IN (1, 'x')", "here: "),
        ("1 + 1", "must read at least one column"),
        ('"^a.*$"', "name each column"),
        ("99999999999999999999 + a", "64 bits"),
        ("1e999 + a", "double"),
        ("a AND 3.3.3", "not an SQL expression"),
    ],
)
def test_what_is_no_expression_of_the_language(sql, message):
    with pytest.raises(SchemaError, match=message) as caught:
        expressions.parse(sql, "here")
    assert str(caught.value).startswith("here")


def test_parsing_opens_no_file_and_no_connection(tmp_path):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    (tmp_path / "secret.csv").write_text("the first line\n1\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x.csv"
        for path in (pipe, tmp_path / "secret.csv", url):
            for function in ("read_csv", "read_parquet", "read_json", "read_ipc"):
                for sql in (f"a > (SELECT MAX(a) FROM {function}('{path}'))", f"{function}('{path}')"):
                    with pytest.raises(SchemaError) as caught:
                        expressions.parse(sql, "here")
                    assert "first line" not in str(caught.value)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    "sql",
    [
        "+".join(["a"] * 20_000),
        "(" * 3_000 + "a" + ")" * 3_000,
        "NOT " * 3_000 + "a",
        "ABS(" * 3_000 + "a" + ")" * 3_000,
        "CASE " * 25 + "a" + " WHEN 1 THEN 2 WHEN 2 THEN 3 END" * 25,
        "CASE " + "WHEN a = 1 THEN 2 " * 3_000 + "END",
        "a" + "::INT" * 3_000,
        "a IN (" + "1," * 20_000 + "1)",
        "9" * 50_000 + "a",
        "'" * 60_001,
        " " * 200_000,
    ],
    ids=lambda sql: sql[:12],
)
def test_size_and_depth_are_limited(sql):
    with pytest.raises(SchemaError):
        expression_of(sql)


def test_large_but_flat_is_fine():
    assert values(f"a IN ({', '.join(map(str, range(2_000)))})") == [True, False, True, None]
    assert values("(" * 25 + "a" + ")" * 25) == [7, -7, 0, None]


def test_what_fingerprints_see_does_not_depend_on_spelling():
    form = expressions.parse("CAST(a AS bigint) % 24 = 1 and name not like 'x%'", "here").form
    assert form == expressions.parse("""(a::BIGINT%24) == 1 AND NOT("name" LIKE 'x%')""", "here").form
    assert form == (
        'sql AND(=(%(CAST(column:"a", "BIGINT"), constant:24), constant:1), NOT(LIKE(column:"name", constant:"x%")))'
    )
    others = ["a = 1", "a = 1.0", "a = '1'", "a = TRUE", '"1" = a', "a <> 1", "a = -1", "a IS TRUE"]
    assert len({expressions.parse(sql, "here").form for sql in others}) == len(others)
