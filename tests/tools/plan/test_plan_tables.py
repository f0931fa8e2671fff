"""Tables as a TOML file names them, and what the profiled files say of them: lengths, and how often rows are used."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_examples import table, write_profile
from tools_kit import write

from freescale_tools.console.errors import UsageError
from freescale_tools.plan.tables import Table, column_ids, read_tables, with_lengths, with_uses
from freescale_tools.scan.files import open_files

TWO = """
[tables.things]
rows = 1_000
dim = 64
features = ["item_ids", "ads"]
ids_per_sample = [3, 2.5]
[tables.users]
rows = 7
dim = 32
features = ["user"]
kind = "pooled"
module = "dlrm.bags"
dtype = "fp16"
"""


def read(folder, text):
    (folder / "tables.toml").write_text(text)
    return read_tables(folder / "tables.toml")


def test_every_key_is_read(tmp_path):
    things, users = read(tmp_path, TWO)
    assert (things.name, things.rows, things.dim, things.features) == ("things", 1000, 64, ("item_ids", "ads"))
    assert (things.pooled, things.module, things.dtype, things.value_bytes) == (False, "embeddings", "fp32", 4)
    assert (things.ids_per_sample, things.ids) == ((3.0, 2.5), 5.5)
    assert (users.pooled, users.module, users.value_bytes, users.ids_per_sample) == (True, "dlrm.bags", 2, None)
    with pytest.raises(ValueError, match="table users: the ids per sample are not known"):
        _ = users.ids
    assert (things.optimizer, users.optimizer) == ("exact_sgd", "exact_sgd")
    things, users = read(tmp_path, 'optimizer = "adam"' + TWO + 'optimizer = "row_wise_adagrad"')
    assert (things.optimizer, users.optimizer) == ("adam", "row_wise_adagrad")
    things, _ = read(tmp_path, TWO.replace("[3, 2.5]", "4"))
    assert things.ids_per_sample == (4.0, 4.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("rows = 7", "rows = 0"), r"\[tables.users\] rows = 0: a whole number of 1 or more"),
        (("rows = 7", "rows = true"), "rows = True"),
        (("dim = 32", "dims = 32"), "has no 'dims', did you mean 'dim'"),
        (("rows = 7\n", ""), "needs rows"),
        (('["user"]', "[]"), "one or more different names"),
        (('["user"]', '["user", "user"]'), "one or more different names"),
        (('["user"]', '"user"'), "a list of names"),
        (('"pooled"', '"bag"'), "sequence or pooled is needed"),
        (('"fp16"', '"fp8"'), "fp32 or fp16 is needed"),
        (('"fp16"', '"fp16"\noptimizer = "adagrad"'), r"optimizer = 'adagrad': exact_sgd, sgd, .* or partial_row"),
        (("[tables.things]", "optimizer = 3\n[tables.things]"), r"things\] optimizer = 3: .*users\] optimizer = 3"),
        (('"dlrm.bags"', "3"), "the path of the collection"),
        (("dlrm.bags", "dlrm..bags"), "the path of the collection"),
        (("[3, 2.5]", "[3]"), "a number above 0, or one per feature, is needed, 2 in all"),
        (("[3, 2.5]", "[3, 0]"), "a number above 0"),
        (("[3, 2.5]", '["3", 2]'), "a number above 0, or one per feature"),
        (('"dlrm.bags"', '"embeddings"'), "has sequence and pooled tables"),
        (('kind = "pooled"\nmodule = "dlrm.bags"', ""), "differ in dim"),
        (("[tables.users]", "[table.users]"), "'table' is not known: only tables and optimizer are"),
        (("[tables", "[[tables"), "is no TOML"),
        ((TWO, TWO.replace("64", "0").replace("= 7", "= 0")), r"things\] dim = 0.*users\] rows = 0"),
        ((TWO, ""), "no tables: a file with"),
    ],
)  # fmt: skip
def test_faults_are_named_all_in_one_message(tmp_path, change, message):
    with pytest.raises(UsageError, match=message):
        read(tmp_path, TWO.replace(*change))


@given(
    rows=st.integers(1, 50),
    uses=st.none() | st.lists(st.floats(0, 1e6), min_size=1, max_size=50).filter(lambda of: sum(of) > 0),
    cuts=st.lists(st.floats(0, 1), max_size=4),
)
def test_the_shares_of_all_parts_are_1(rows, uses, cuts):
    found = table(rows=rows, uses=None if uses is None else np.array(uses))
    ends = sorted({0, rows, *(int(cut * rows) for cut in cuts)})
    shares = [found.share(first, last - first) for first, last in itertools.pairwise(ends)]
    assert min(shares) >= 0
    assert sum(shares) == pytest.approx(1)


def test_a_share_is_that_of_the_rows():
    found = table(rows=8, uses=np.array([6.0, 2.0, 0.0, 0.0]))
    assert [found.share(first, 2) for first in (0, 2, 4)] == [0.75, 0.25, 0]
    assert found.share(1, 2) == pytest.approx(0.375 + 0.125)
    assert table(rows=8).share(5, 2) == 0.25
    with pytest.raises(ValueError, match="not all 0"):
        table(uses=np.zeros(2))


def unknown(*features, rows=1000):
    return Table(name="t", rows=rows, dim=8, features=features)


@pytest.fixture
def profiled(tmp_path):
    """(profile of the columns items and ads, their ids)."""
    ids = write_profile(tmp_path, columns=("items", "ads"))
    return json.loads((tmp_path / "profile.json").read_text()), ids


def test_lengths_come_from_the_profile_where_none_are_given_and_are_cut(profiled):
    document, ids = profiled
    mean = pytest.approx(ids[0].size / 20_000)
    (found, given) = with_lengths([unknown("items"), table(ids=(3.0,))], document, max_length=None)
    assert (found.ids_per_sample, given.ids_per_sample) == ((mean,), (3.0,))
    document["candidates"] = {"ads": document["sequences"].pop("ads")}  # candidates are not cut
    (found,) = with_lengths([unknown("items", "ads")], document, max_length=1)
    assert found.ids_per_sample == (1.0, mean)
    with pytest.raises(UsageError, match="no lengths of others, users: it has items, ads"):
        with_lengths([unknown("items", "users", "others")], document, max_length=None)
    document["sequences"]["items"]["histogram"] = None  # a quick profile
    with pytest.raises(UsageError, match="no lengths of items: it has ads"):
        with_lengths([unknown("items")], document, max_length=None)


def test_uses_are_the_counts_of_all_features_of_a_table_modulo_its_rows(profiled):
    document, ids = profiled
    both, few, other = with_uses(
        [unknown("items", "ads"), unknown("items", rows=300), table()], document["paths"], ["items", "ads"]
    )
    np.testing.assert_array_equal(both.uses, np.bincount(ids.ravel(), minlength=1000))
    np.testing.assert_array_equal(few.uses, np.bincount(ids[0] % 300, minlength=300))
    assert other.uses is None


def test_large_tables_are_counted_by_slices(tmp_path):
    """Two ids at each end of the largest table that int64 names."""
    path = write(tmp_path / "data.parquet", {"items": [[0, 1, 2**62 - 1, 2**62 - 2]]})
    (found,) = with_uses([unknown("items", rows=2**62)], [str(path)], ["items"])
    assert (len(found.uses), found.uses[0], found.uses[-1]) == (65536, 2, 2)


def test_the_first_ids_of_every_file_are_read_and_nulls_are_not(tmp_path):
    for name, values in (("a", [[1, None], None, [2, 3]]), ("b", [[4], [5, 6, 7]])):
        write(tmp_path / f"{name}.parquet", {"items": values}, group=1)
    files = open_files([str(tmp_path)])
    assert column_ids(files, "items").tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert column_ids(files, "items", most=4).tolist() == [1, 2, 4, 5]
    write(tmp_path / "c.parquet", {"items": [[0.5]]})
    with pytest.raises(UsageError, match="integer ids"):
        with_uses([unknown("items")], [str(tmp_path / "c.parquet")], ["items"])
