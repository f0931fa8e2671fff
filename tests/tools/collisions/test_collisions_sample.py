"""What of a large data set is read and counted, and what happens to the parts that cannot be read."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tools_kit import write as write_file

from freescale_tools.collisions import held as holding
from freescale_tools.collisions.estimate import estimate
from freescale_tools.collisions.held import Unit, hold, plan_runs
from freescale_tools.console.errors import UsageError
from freescale_tools.scan.batch_order import WINDOW, Batches, Orders, by_time, streaks
from freescale_tools.scan.files import open_files
from fsdata import FreeScaleDataLoader, ParquetSource, Schema

SETTINGS = {"batch_size": 2, "ranks": 2, "max_length": None, "dim": 4, "orders": ("file", "shuffled")}


def write(path, histories, **options):
    return write_file(path, {"ids": pa.array(histories, pa.list_(pa.int64()))}, **options)


def units(count, *, rows, room):
    return [Unit(file=0, group=group, rows=rows, room=room) for group in range(count)]


def test_large_data_are_read_in_stretches_that_do_not_overlap():
    given = units(1000, rows=10, room=100)
    assert plan_runs(given, 1000 * 140, ranks=64, rows_wanted=10**6) == [given], "what fits is read whole"
    runs = plan_runs(given, 140 * 400, ranks=8, rows_wanted=400)
    assert len(runs) == 8
    groups = [unit.group for run in runs for unit in run]
    assert groups == sorted(set(groups))
    assert all(np.diff([unit.group for unit in run]).tolist() == [1] * (len(run) - 1) for run in runs)
    assert all(sum(unit.rows for unit in run) >= 400 for run in runs)
    weight = sum(unit.room + 4 * unit.rows for run in runs for unit in run)
    assert 0.9 * 140 * 400 < weight <= 140 * 400
    assert groups[0] < 100
    assert groups[-1] > 900


def test_what_is_held_of_a_sample_is_what_the_files_hold(tmp_path):
    generator = np.random.default_rng(0)
    histories = [generator.integers(0, 10**6, generator.integers(0, 40)).tolist() for _ in range(3000)]
    path = write(tmp_path / "a.parquet", histories, group=100)
    held = hold(open_files([str(path)]), "ids", time=None, max_length=9, ranks=16, batch_size=2, most_ids=4000)
    assert 0 < held.rows_read < held.rows == 3000
    assert int(held.lengths.sum()) <= 4000
    assert sum(map(sum, held.units)) == held.rows_read
    assert len(held.units[0]) == 16
    lowest = min(one for history in histories for one in history)
    row = 0
    for group, rows in enumerate(held.units[0], start=7):
        for expected in histories[100 * group : 100 * group + rows]:
            begin = held.starts[row]
            assert (held.ids[begin : begin + held.lengths[row]] + lowest).tolist() == expected[-9:]
            row += 1


def test_times_of_several_units_have_one_order(tmp_path):
    """Seconds in one file, nanoseconds and days in others."""
    units = {"s": [86_400, 86_402], "ns": [86_401 * 10**9, 86_400 * 10**9 + 1], "day": [1, 2]}
    for name, times in units.items():
        days = pa.array(times, pa.int32()).cast(pa.date32()) if name == "day" else pa.array(times, pa.timestamp(name))
        write_file(tmp_path / f"{name}.parquet", {"ids": [1, 2], "when": days})
    files = open_files([str(tmp_path / f"{name}.parquet") for name in units])
    held = hold(files, "ids", time="when", max_length=None, ranks=1, batch_size=1)
    (order,) = by_time(held.time, held.known, [6])
    assert order.tolist() == [0, 4, 3, 2, 1, 5]


def test_reading_ends_where_memory_does(tmp_path):
    """Rows longer than their share of the ids: those that fit are held, and none behind them."""
    histories = [[n] * 30 for n in range(20)] + [[n] for n in range(20, 100)]
    path = write(tmp_path / "a.parquet", histories)
    held = hold(open_files([str(path)]), "ids", time=None, max_length=None, ranks=1, batch_size=1, most_ids=500)
    assert 3 < held.rows_read < 15
    assert held.lengths.tolist() == [30] * held.rows_read
    assert held.ids[held.starts].tolist() == list(range(held.rows_read))


def test_the_document_says_what_was_read(tmp_path):
    path = write(tmp_path / "a.parquet", [[1, 2, 3]] * 3000, group=10)
    found = estimate(open_files([str(path)]), "ids", **SETTINGS, most_ids=3000)
    assert found["rows"] == 3000
    assert 300 < found["rows_read"] < 500
    assert found["read_share"] == found["rows_read"] / 3000
    assert found["notes"] == [f"{found['rows_read']} of 3,000 rows were read, from 8 stretches of the data."]
    assert all(point["by_row"]["mean"] == 1.0 for point in found["points"])


def test_batches_that_do_not_fit_into_memory_are_refused(tmp_path):
    path = write(tmp_path / "a.parquet", [list(range(50))] * 400, group=100)
    with pytest.raises(UsageError, match=r"256 rows; of ids, \d+ of 400 rows fit into memory at a mean of 50 ids: cut"):
        estimate(open_files([str(path)]), "ids", **{**SETTINGS, "batch_size": 64}, most_ids=5000)


def test_damaged_row_groups_and_files_with_other_columns_are_left_out_and_named(tmp_path):
    histories = [[n, n % 3] for n in range(40)]
    path = write(tmp_path / "a.parquet", histories, group=10, compression="none", use_dictionary=False)
    write(tmp_path / "b.parquet", histories[:5])
    write_file(tmp_path / "c.parquet", {"other": [1, 2]})
    write_file(tmp_path / "d.parquet", {"ids": [["a"]]})
    chunk = pq.read_metadata(path).row_group(1).column(0)
    raw = bytearray(path.read_bytes())
    middle = chunk.data_page_offset + chunk.total_compressed_size - 20
    raw[middle : middle + 8] = b"\xff" * 8
    path.write_bytes(raw)
    found = estimate(open_files([str(tmp_path / "*.parquet")]), "ids", **SETTINGS)
    named = [(one["file"], one["row_group"], one["rows"]) for one in found["skipped"]]
    assert named == [("c.parquet", None, 2), ("d.parquet", None, 1), ("a.parquet", 1, 10)]
    reasons = [one["reason"].split(";")[0] for one in found["skipped"][:2]]
    assert reasons == ["no column ids", "ids is list<element: string>"]
    assert (found["rows"], found["rows_read"]) == (48, 35)
    good = [*histories[:10], *histories[20:], *histories[:5]]
    again = estimate(open_files([str(write(tmp_path / "e.parquet", good, group=10))]), "ids", **SETTINGS)
    shuffled = [[point for point in one["points"] if point["order"] == "shuffled"] for one in (found, again)]
    assert shuffled[0] == shuffled[1]


def test_ids_outside_their_statistics_are_damage(tmp_path, monkeypatch):
    """They would be counted outside the memory that the statistics promise to be enough."""
    path = write(tmp_path / "a.parquet", [[n] for n in range(40)], group=10)
    monkeypatch.setattr(holding, "_range", lambda *_: (0, 25))
    found = estimate(open_files([str(path)]), "ids", **SETTINGS)
    assert [one["row_group"] for one in found["skipped"]] == [2, 3]
    assert "outside the range" in found["skipped"][0]["reason"]


def test_streaks_are_spread_over_all_runs():
    batches = Batches(steps=(1, 30, 0, 11), rows=lambda run, step: np.empty(0, np.int64))
    assert batches.pairs == 39
    for pairs in range(1, 45):
        found = streaks(batches, pairs)
        spots = [(one.run, one.first + step) for one in found for step in range(one.batches - 1)]
        assert len(set(spots)) == len(spots)
        assert min(pairs, 39) - 3 <= len(spots) <= pairs
        assert all(one.first + one.batches <= batches.steps[one.run] for one in found)
        if pairs >= 16:
            assert {run for run, _ in spots} == {1, 3}


def test_order_by_time_is_that_of_every_run_alone():
    """Rows without a time are left out, and equal times keep the order of the files."""
    generator = np.random.default_rng(4)
    time, known, runs = generator.integers(0, 9, 50), generator.random(50) < 0.8, (20, 0, 13, 17)
    expected, first = [], 0
    for rows in runs:
        expected.append(sorted((row for row in range(first, first + rows) if known[row]), key=lambda row: time[row]))
        first += rows
    assert [rows.tolist() for rows in by_time(time, known, runs)] == expected


@pytest.mark.parametrize("order", ["file", "shuffled"])
def test_batches_are_those_of_a_loader(tmp_path, order):
    """Of every step: the rows of all ranks, as loaders on so many ranks get them."""
    units, ranks, size = [5, 3, 8, 1, 1, 9, 2], 3, 2
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("row", pa.int64())])) as writer:
        for first, rows in zip(np.cumsum([0, *units]), units, strict=False):
            writer.write_table(pa.table({"row": np.arange(first, first + rows)}))
    source, schema = ParquetSource(tmp_path / "a.parquet"), Schema(context=("row",))
    options = {"batch_size": size, "shuffle": order == "shuffled", "shuffle_window": WINDOW, "seed": 5}
    expected = []
    for rank in range(ranks):
        with FreeScaleDataLoader(source, schema, rank=rank, world_size=ranks, **options) as loader:
            expected.append([batch.features["row"].values().tolist() for batch in loader])
    batches = Orders([units], np.empty(0), np.empty(0), seed=5).batches(order, ranks=ranks, batch_size=size)
    assert batches.steps == (4,)
    for step in range(4):
        assert batches.rows(0, step).tolist() == [row for of_rank in expected for row in of_rank[step]]
