"""A null under a hash stays a null, so that the null policy of the field decides."""

import polars as pl
import pyarrow as pa
import pytest
from data_kit import DECODERS, column, found, lists, read, write

from fsdata import DataError, ParquetSource, Schema, SchemaError, Sequence, cross
from fsdata.sources import expressions

COUNTRY, ITEMS = pl.col("country"), pl.col("items")
ROWS = pl.DataFrame(
    {
        "country": ["DE", None, "fr", None, ""],
        "city": ["a", "b", None, None, ""],
        "items": [["x", None], None, [], [None], ["y"]],
        "deep": [[["x", None], None], None, [], [[]], [["y"]]],
    }
)
SCALARS = {
    "modulo": COUNTRY.hash(seed=3) % 1000,
    "of another function": COUNTRY.str.to_lowercase().hash() % 1000,
    "inside another function": (COUNTRY.hash() % 1000 + 1).clip(0, 500),
    "signed": COUNTRY.hash().reinterpret(signed=True),
    "twice": COUNTRY.hash().hash() % 1000,
    "made a number afterwards": (COUNTRY.hash() % 1000).fill_null(7),
    "as it was asked": pl.when(COUNTRY.is_null()).then(1000).otherwise(COUNTRY.hash() % 1000),
    "of a list": ITEMS.hash() % 1000,
}


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.parquet", ROWS.to_arrow())


@pytest.mark.parametrize("name", SCALARS)
def test_a_null_reaches_the_policy(path, name):
    """As by polars, but for rows whose hashed value is null."""
    expression = SCALARS[name]
    columns = {"user": expression}
    source = "items" if name == "of a list" else "country"
    null = (
        [] if name in ("made a number afterwards", "as it was asked") else ROWS[source].is_null().arg_true().to_list()
    )
    by_polars = ROWS.select(expression.cast(pl.Int64, strict=False)).to_series().to_list()
    if name == "made a number afterwards":
        by_polars = [7 if country is None else each for country, each in zip(ROWS["country"], by_polars, strict=True)]
    rest = [each for row, each in enumerate(by_polars) if row not in null]
    assert found(path, columns=columns, nulls={"user": "drop"}) == rest
    filled = [-1 if row in null else each for row, each in enumerate(by_polars)]
    assert found(path, columns=columns, defaults={"user": -1}) == filled
    if null:
        with pytest.raises(DataError, match=f"row {null[0]}: user is null"):
            found(path, columns=columns)


@pytest.mark.parametrize("values", [(COUNTRY, pl.col("city")), (COUNTRY, pl.struct("city", other="country"))])
def test_a_hash_of_several_values_is_null_where_one_is(path, values):
    expression = pl.struct(*values).hash() % 1000
    numbers = ROWS.select(expression).to_series().to_list()
    assert found(path, columns={"user": expression}, nulls={"user": "drop"}) == [numbers[0], numbers[4]]
    crossed = cross(*(pl.col(name).hash().reinterpret(signed=True) for name in ("country", "city")), buckets=1000)
    assert len(found(path, columns={"user": crossed}, nulls={"user": "drop"})) == 2


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_null_in_a_list_reaches_the_policy(path, decoder):
    columns = {"items": ITEMS.list.eval(pl.element().hash() % 1000)}
    schema = Schema(sequences=(Sequence("items", ("items",)),))

    def lists_of(**options):
        return column(read(ParquetSource(path, columns=columns, decoder=decoder, **options), schema), "items")

    x, y = (ROWS.select(pl.lit(each).hash() % 1000).item() for each in "xy")
    assert lists_of(defaults={"items": -1}) == [[x, -1], [], [], [-1], [y]]
    assert lists_of(nulls={"items": "drop"}) == [[], [y]]
    with pytest.raises(DataError, match="row 0: items is null at position 1 of the list"):
        lists_of()


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_null_in_lists_of_lists_reaches_the_policy(path, decoder):
    columns = {"deep": pl.col("deep").list.eval(pl.element().list.eval(pl.element().hash() % 1000)), "n": "one"}
    write(path, ROWS.with_columns(one=pl.col("deep").list.eval(pl.lit(1, dtype=pl.Int64))).to_arrow())
    schema = Schema(sequences=(Sequence("events", ("n",), nested=("deep",)),))
    with pytest.raises(DataError, match="row 0: deep is null"):
        read(ParquetSource(path, columns=columns, defaults={"n": 0}, decoder=decoder), schema)


def test_filters_choose_rows_as_polars_does(path):
    """With a null hashed to a number, as for everybody else who filters these files."""
    condition = COUNTRY.hash() % 2 == 0
    rows = pl.Series(range(5))
    write(path, ROWS.with_columns(user=rows).to_arrow())
    assert (
        found(path, filter=condition)
        == ROWS.select(rows.filter(ROWS.select(condition).to_series())).to_series().to_list()
    )


def test_what_is_hashed_is_the_same_expression_for_saved_states():
    given = COUNTRY.hash(seed=0) % 1000
    assert expressions.checked(given, "here").form == expressions.checked_condition(given, "here").form


def test_constants_that_polars_does_not_read_back_are_refused():
    """It changes the last bit of some floats in JSON, and with it the hash."""
    constant = 123456789.123456789
    assert expressions.checked((pl.col("a") * 0.5).hash(), "here")
    assert expressions.checked(pl.col("a") * constant, "here")
    with pytest.raises(SchemaError, match=r"here: .* polars changes a constant of it"):
        expressions.checked((pl.col("a") * constant).hash(), "here")


def test_an_element_that_is_null_in_a_list_of_one_type_only(tmp_path):
    """Columns of nulls hash to nulls, too."""
    path = write(tmp_path / "a.parquet", {"country": pa.nulls(2, pa.string()), "items": lists(pa.string(), [None], [])})
    columns = {"user": COUNTRY.hash() % 9}
    assert found(path, columns=columns, defaults={"user": 3}) == [3, 3]
