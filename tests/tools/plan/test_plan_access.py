"""What the profiled files say of tables: lengths, and how often rows are used."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plan_examples import table, write_profile

from freescale_tools.console.errors import UsageError
from freescale_tools.plan.access import column_ids, with_lengths, with_uses
from freescale_tools.plan.tables import Table
from freescale_tools.scan.files import open_files


def unknown(*features, rows=1000):
    return Table(name="t", rows=rows, dim=8, features=features, pooled=False)


def profile(folder, **more):
    ids = write_profile(folder, **more)
    return json.loads((folder / "profile.json").read_text()), ids


def test_lengths_come_from_the_profile_where_none_are_given(tmp_path):
    document, ids = profile(tmp_path)
    (found, given) = with_lengths([unknown("items"), table(ids=(3.0,))], document, max_length=None)
    assert found.ids_per_sample == (pytest.approx(ids.size / 20_000),)
    assert given.ids_per_sample == (3.0,)


def test_lengths_are_cut(tmp_path):
    document, _ = profile(tmp_path)
    (found,) = with_lengths([unknown("items")], document, max_length=1)
    assert found.ids_per_sample == (1.0,)


def test_candidates_are_features_and_are_not_cut(tmp_path):
    document, ids = profile(tmp_path)
    document["candidates"] = {"ads": document["sequences"]["items"]}
    (found,) = with_lengths([unknown("ads")], document, max_length=1)
    assert found.ids_per_sample == (pytest.approx(ids.size / 20_000),)


def test_features_without_lengths_are_named(tmp_path):
    document, _ = profile(tmp_path)
    with pytest.raises(UsageError, match="no lengths of ads, users: it has items"):
        with_lengths([unknown("items", "users", "ads")], document, max_length=None)
    document["sequences"]["items"]["histogram"] = None  # a quick profile
    with pytest.raises(UsageError, match="no lengths of items: it has none"):
        with_lengths([unknown("items")], document, max_length=None)


def test_uses_are_the_counts_of_all_features_of_a_table(tmp_path):
    document, ids = profile(tmp_path, columns=("items", "ads"))
    (found, other) = with_uses([unknown("items", "ads"), table()], document["paths"], ["items", "ads"])
    np.testing.assert_array_equal(found.uses, np.bincount(ids.ravel(), minlength=1000))
    assert other.uses is None


def test_ids_beyond_a_table_are_taken_modulo_its_rows(tmp_path):
    document, (ids,) = profile(tmp_path)
    (found,) = with_uses([unknown("items", rows=300)], document["paths"], ["items"])
    np.testing.assert_array_equal(found.uses, np.bincount(ids % 300, minlength=300))


def test_large_tables_are_counted_by_slices(tmp_path):
    """Two ids at each end of the largest table that int64 names."""
    ids = pa.array([[0, 1, 2**62 - 1, 2**62 - 2]], pa.list_(pa.int64()))
    pq.write_table(pa.table({"items": ids}), tmp_path / "data.parquet")
    (found,) = with_uses([unknown("items", rows=2**62)], [str(tmp_path / "data.parquet")], ["items"])
    assert (len(found.uses), found.uses[0], found.uses[-1]) == (65536, 2, 2)


def test_the_first_ids_of_every_file_are_read_and_nulls_are_not(tmp_path):
    for name, values in (("a", [[1, None], None, [2, 3]]), ("b", [[4], [5, 6, 7]])):
        pq.write_table(pa.table({"items": values}), tmp_path / f"{name}.parquet", row_group_size=1)
    files = open_files([str(tmp_path)])
    assert column_ids(files, "items").tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert column_ids(files, "items", most=4).tolist() == [1, 2, 4, 5]


def test_columns_that_hold_no_ids_are_refused(tmp_path):
    pq.write_table(pa.table({"items": [[0.5]]}), tmp_path / "data.parquet")
    with pytest.raises(UsageError, match="integer ids"):
        with_uses([unknown("items")], [str(tmp_path)], ["items"])
