"""Side tables on disk give what those in memory give."""

import itertools

import numpy as np
import polars as pl
import pytest
from data_kit import load, loader_on, rows_of, same
from worlds import shared_world

from fsdata import Balance, DataError, Join, ParquetSource, Schema, SchemaError, Sequence

SCHEMA = Schema(
    candidates=Sequence("candidates", ("item",), floats=("weight",), nested=("kinds",)),
    context=("user", "segment"),
    dense=("age", "height"),
    labels=("score", "each"),
)
FIELDS = ("segment", "age", "height", "weight", "kinds", "score", "each")
USERS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("stored")
    rng = np.random.default_rng(4)
    users = rng.permutation(USERS)
    rows = rng.integers(0, USERS + 20, 400)
    length = {user: user % 4 for user in range(USERS + 20)}
    (made / "rows").mkdir()
    (made / "side").mkdir()
    frame = pl.DataFrame({"user": rows, "item": [[int(user)] * length[user] for user in rows]})
    frame.write_parquet(made / "rows" / "0.parquet", row_group_size=50)
    lists = [[float(user) + n for n in range(length[user])] for user in users.tolist()]
    side = pl.DataFrame(
        {
            "user": users,
            "segment": users * 3,
            "age": users / 4,
            "height": users / 8,
            "weight": lists,
            "kinds": [[[int(x)] * n for n, x in enumerate(of)] for of in lists],
            "score": users / 2,
            "each": [None if user % 5 == 0 else of for user, of in zip(users.tolist(), lists, strict=True)],
        },
        schema_overrides={"kinds": pl.List(pl.List(pl.Int64))},
    )
    for number in range(3):
        side[number * 20 : number * 20 + 20].write_parquet(made / "side" / f"{number}.parquet", row_group_size=7)
    return made


def batches_of(folder, bucketed, **options):
    defaults = {"each": -1, "weight": -2, "kinds": -3, "score": -4, "age": -5, "height": -6, "segment": -7}
    side = ParquetSource(folder / "side", defaults=defaults)
    join = Join(side, on="user", fields=FIELDS, missing="mask", bucketed=bucketed)
    source = ParquetSource(folder / "rows", join=[join])
    return load(source, SCHEMA, **{"batch_size": 32, "num_threads": 2, **options})[0]


def alike(folder, **options):
    pairs = zip(batches_of(folder, 4, **options), batches_of(folder, None, **options), strict=True)
    return all(same(one, other) for one, other in pairs)


def test_rows_are_those_of_a_table_in_memory(folder):
    assert alike(folder)


def test_a_shuffled_window_goes_through_the_table_once(folder):
    shuffled = {"shuffle": True, "shuffle_window": 8, "batch_size": 400}
    users, expected = (rows_of(batches_of(folder, bucketed, **shuffled), "user") for bucketed in (4, None))
    assert sorted(users) == sorted(expected)
    assert users != expected
    segments = [user for user in users if user < USERS]
    places = [user * 4 // USERS for user in segments if user % 4]
    turns = sum(a != b for a, b in itertools.pairwise(places))
    assert turns <= 12
    assert sum(a != b for a, b in itertools.pairwise(expected)) > 100


def balanced(rank, world_size, folder):
    return alike(folder, balance=Balance())


def test_ranks_of_a_host_have_it_together(folder):
    assert shared_world(2).run(balanced, folder) == [True, True]


def test_two_rows_with_one_key_are_named(folder, tmp_path):
    pl.DataFrame({"user": [1, 2, 2], "score": [1.0, 2, 3]}).write_parquet(tmp_path / "a.parquet")
    schema = Schema(context=("user",), labels=("score",))
    join = Join(ParquetSource(tmp_path / "a.parquet"), on="user", fields=("score",), bucketed=2)
    with pytest.raises(DataError, match="stand in more than one row"):
        loader_on(ParquetSource(folder / "rows", join=[join]), schema)


@pytest.mark.parametrize("options", [{"bucketed": 0}, {"bucketed": True}, {"bucketed": "4"}])
def test_nonsense_is_named(folder, options):
    with pytest.raises(SchemaError, match="bucketed"):
        Join(ParquetSource(folder / "side"), on="user", fields=("score",), **options)
