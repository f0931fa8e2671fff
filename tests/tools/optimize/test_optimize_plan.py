"""How files are laid out anew, and how their values are compared."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freescale_tools.write.optimize.compare import unequal_row
from freescale_tools.write.optimize.layout import Settings, delta_columns, note_nulls, tightened, unit_rows

NAN = float("nan")
OTHER_NAN = np.array([0x7FF8000000000123], np.uint64).view(np.float64)[0]


def test_nulls_below_null_lists_do_not_count():
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array([5, None]), mask=pa.array([False, True]))
    found = set()
    note_nulls(lists, ("x",), found)
    assert found == {("x",)}
    schema, required = tightened(pa.schema([("x", lists.type)]), found)
    assert required == ("x.element",)
    assert schema.field("x").nullable


def test_times_become_deltas_and_few_values_stay_in_a_dictionary():
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.integers(1, 5_000, 20_000))
    sample = pa.table({"t": times, "few": rng.integers(0, 4, 20_000) ** 30, "f": rng.random(20_000)})
    assert delta_columns(sample, {"compression": "zstd"}) == (("t",), ("few", "f"))
    assert delta_columns(sample.slice(0, 0), {}) == ((), ("t", "few", "f"))


def test_rows_of_a_unit_follow_from_decoded_bytes(tmp_path):
    table = pa.table({"x": pa.array([[1] * 100] * 3_000)})  # 800 bytes a row
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=17)
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    assert unit_rows(metadata, Settings(unit_bytes=800 * 1024)) == 1024
    assert unit_rows(metadata, Settings(unit_bytes=1)) == 256
    assert unit_rows(metadata, Settings(unit_bytes=1 << 40)) == 65_536
    assert unit_rows(metadata, Settings(row_group_rows=7)) == 7
    with pytest.raises(ValueError, match="row_group_rows must be at least 1, got 0"):
        Settings(row_group_rows=0)


def test_differences_are_seen_to_the_bit():
    floats = [pa.array(values) for values in ([0.0, NAN], [-0.0, NAN], [0.0, OTHER_NAN], [0.0, None])]
    assert [unequal_row(floats[0], other) for other in floats] == [None, 0, 1, 1]
    lists = [
        pa.array(values) for values in ([[1], [], [2, 3]], [[1], None, [2, 3]], [[1], [2], [3]], [[1], [], [2, 4]])
    ]
    assert [unequal_row(lists[0], other) for other in lists] == [None, 1, 1, 2]
    maps = [pa.array([[("a", value)]], pa.map_(pa.string(), pa.float64())) for value in (NAN, 1.0)]
    assert [unequal_row(maps[0], other) for other in maps] == [None, 0]
    structs = [pa.array(values) for values in ([{"a": 1}, None], [{"a": 1}, {"a": None}], [{"a": 2}, None])]
    assert [unequal_row(structs[0], other) for other in structs] == [None, 1, 0]
