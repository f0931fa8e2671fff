"""Tables as a TOML file names them: what is read, what is refused, and which share of the look-ups rows have."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_examples import table

from freescale_tools.console.errors import UsageError
from freescale_tools.plan.tables import Table, read_tables

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


def test_one_mean_is_that_of_every_feature(tmp_path):
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
        (('"dlrm.bags"', "3"), "the path of the collection"),
        (("[3, 2.5]", "[3]"), "one number above 0 per feature is needed, 2 in all"),
        (("[3, 2.5]", "[3, 0]"), "one number above 0"),
        (("[3, 2.5]", '["3", 2]'), "a number, or one per feature"),
        (('"dlrm.bags"', '"embeddings"'), "has sequence and pooled tables"),
        (('kind = "pooled"\nmodule = "dlrm.bags"', ""), "differ in dim"),
        (("[tables.users]", "[table.users]"), "'table' is not known"),
        (("[tables", "[[tables"), "is no TOML"),
    ],
)  # fmt: skip
def test_faults_are_named(tmp_path, change, message):
    with pytest.raises(UsageError, match=message):
        read(tmp_path, TWO.replace(*change))


def test_all_faults_come_in_one_message(tmp_path):
    with pytest.raises(UsageError, match=r"things\] dim = 0.*users\] rows = 0"):
        read(tmp_path, TWO.replace("dim = 64", "dim = 0").replace("rows = 7", "rows = 0"))


def test_a_file_without_tables_and_no_file_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no tables: a file with"):
        read(tmp_path, "")
    with pytest.raises(UsageError, match=r"or a model as package\.module:NAME"):
        read_tables(tmp_path / "nowhere.toml")


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


def test_impossible_uses_are_refused():
    with pytest.raises(ValueError, match="not all 0"):
        Table(name="t", rows=2, dim=4, features=("f",), pooled=True, uses=np.zeros(2))
