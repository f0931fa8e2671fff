"""The generated sets: statistics, determinism, layout."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freescale_tools import synth


def test_lengths_have_the_promised_quantiles_and_clip():
    lengths = synth.Lengths().draw(np.random.default_rng(0), 400_000)
    assert np.median(lengths) == pytest.approx(180, rel=0.02)
    assert np.percentile(lengths, 95) == pytest.approx(1_200, rel=0.02)
    assert lengths.min() >= 0
    assert lengths.max() == 21_000


@pytest.mark.parametrize("wrong", [{"median": 0}, {"median": 10, "p95": 5}, {"clip": 100}])
def test_lengths_refuse_impossible_quantiles(wrong):
    with pytest.raises(ValueError, match="median <= p95 <= clip"):
        synth.Lengths(**wrong)


def test_same_seed_same_values_whatever_was_written_before(tmp_path):
    first = synth.reference_set(tmp_path / "one", files=2, rows_per_file=300, row_group_rows=128, seed=3)
    again = synth.reference_set(tmp_path / "two", files=2, rows_per_file=300, row_group_rows=128, seed=3)
    other = synth.reference_set(tmp_path / "three", files=2, rows_per_file=300, row_group_rows=128, seed=4)
    tables = [[pq.read_table(path) for path in paths] for paths in (first, again, other)]
    assert tables[0] == tables[1]
    assert tables[0][0] != tables[2][0]
    assert tables[0][0] != tables[0][1]


def test_files_with_the_same_recipe_are_kept_and_others_replaced(tmp_path):
    (path,) = synth.reference_set(tmp_path, files=1, rows_per_file=50, seed=1)
    written = path.stat().st_mtime_ns
    synth.reference_set(tmp_path, files=1, rows_per_file=50, seed=1)
    assert path.stat().st_mtime_ns == written
    values = pq.read_table(path)
    synth.reference_set(tmp_path, files=1, rows_per_file=50, seed=2)
    assert pq.read_table(path) != values
    path.write_bytes(b"PAR1 not a footer")
    synth.reference_set(tmp_path, files=1, rows_per_file=50, seed=1)
    assert pq.read_table(path) == values
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_reference_set_is_laid_out_as_described(tmp_path):
    (path,) = synth.reference_set(tmp_path, files=1, rows_per_file=500, row_group_rows=200)
    columns = synth.reference_columns()
    file = pq.ParquetFile(path)
    assert (len(file.schema_arrow), len(columns.read)) == (67, 27)
    assert set(columns.read) <= set(file.schema_arrow.names)
    assert [file.metadata.row_group(i).num_rows for i in range(3)] == [200, 200, 100]
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    table = file.read()
    past = [table[name].combine_chunks() for name in columns.sequence]
    assert all(column.type == pa.list_(pa.int64()) for column in past)
    assert all(column.offsets.equals(past[0].offsets) for column in past)
    ids, labels = (table[name].combine_chunks() for name in (*columns.candidates, columns.label))
    assert ids.offsets.equals(labels.offsets)
    counts = np.diff(ids.offsets)
    assert counts.min() >= 1
    assert counts.max() <= 50


def test_times_rise_inside_a_history_and_stay_before_the_request(tmp_path):
    (path,) = synth.reference_set(tmp_path, files=1, rows_per_file=300)
    table = pq.read_table(path, columns=["timestamps", "request_ts"])
    for row in table.to_pylist():
        times = np.array([*row["timestamps"], row["request_ts"]])
        assert (np.diff(times) > 0).all()


def test_demo_sources_disagree_on_names_and_types(tmp_path):
    made = synth.demo_set(tmp_path, rows=600, row_group_rows=64)
    assert sum(pq.read_metadata(path).num_rows for path in (*made.site, *made.partner)) == 600
    site, partner = pq.read_schema(made.site[0]), pq.read_schema(made.partner[0])
    assert site.field("item_ids").type == pa.list_(pa.int64())
    assert partner.field("items").type == pa.large_list(pa.int32())
    assert not {"country", "hour", "item_ids", "user_id"} & set(partner.names)
    users = pq.read_table(made.users)["user_id"].to_pylist()
    assert len(set(users)) == len(users) == 200


@pytest.mark.parametrize("wrong", [{"files": 0}, {"rows_per_file": 0}, {"row_group_rows": -1}])
def test_reference_set_refuses_empty_sets(tmp_path, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be at least 1"):
        synth.reference_set(tmp_path, **wrong)
