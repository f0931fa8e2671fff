"""Fields of every kind from a side table of several files and row groups, beside what plain Python finds."""

import numpy as np
import polars as pl
import pytest
from data_kit import read
from worlds import shared_world

from fsdata import Balance, Join, ParquetSource, Schema, Sequence

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


def samples(folder, **options):
    defaults = {"each": -1, "weight": -2, "kinds": -3, "score": -4, "age": -5, "height": -6, "segment": -7}
    side = ParquetSource(folder / "side", defaults=defaults)
    join = Join(side, on="user", fields=FIELDS, missing="mask")
    return read(ParquetSource(folder / "rows", join=[join]), SCHEMA, batch_size=32, num_threads=2, **options)


def expected(user):
    """The sample of a user: keys up to 60 have a match."""
    count, match = user % 4, user < USERS
    weights = [float(user) + n for n in range(count)]
    return {
        "user": user,
        "item": [user] * count,
        "segment": user * 3 if match else -7,
        "age": user / 4 if match else -5.0,
        "height": user / 8 if match else -6.0,
        "score": user / 2 if match else -4.0,
        "weight": weights if match else [-2.0] * count,
        "each": weights if match and user % 5 else [-1.0] * count,
        "kinds": [[int(x)] * n for n, x in enumerate(weights)] if match else [[]] * count,
        **{f"mask of {name}": match for name in FIELDS},
    }


def users_of(folder):
    return pl.read_parquet(folder / "rows" / "0.parquet")["user"].to_list()


def test_rows_are_those_of_plain_python(folder):
    assert samples(folder) == [expected(user) for user in users_of(folder)]


def balanced(rank, world_size, folder):
    return samples(folder, balance=Balance())


def test_ranks_that_exchange_samples_have_them(folder):
    found = [sample for of_rank in shared_world(2).run(balanced, folder) for sample in of_rank]
    assert all(sample == expected(sample["user"]) for sample in found)
    assert sorted(sample["user"] for sample in found) == sorted(users_of(folder))
