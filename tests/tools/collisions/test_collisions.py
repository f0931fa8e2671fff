"""Collisions of consecutive batches: by hand, against sets, and in every order."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tools_kit import ragged
from tools_kit import write as write_file

from freescale_tools.collisions import id_rows
from freescale_tools.collisions.estimate import estimate
from freescale_tools.collisions.kernels import MARKS
from freescale_tools.console.errors import UsageError
from freescale_tools.scan.batch_order import Orders, streaks
from freescale_tools.scan.files import open_files
from fsdata.pages.kernels import rows

SETTINGS = {"batch_size": 2, "ranks": 1, "max_length": None, "dim": 4, "orders": ("file",)}


def write(path, histories, *, group=None, **columns):
    return write_file(path, {"ids": pa.array(histories, pa.list_(pa.int64())), **columns}, group=group)


def count(path, **options):
    return estimate(open_files([str(path)]), "ids", **{**SETTINGS, **options})


def default(document):
    return next(point for point in document["points"] if point["axis"] == "default")


def by_sets(batches, limit=10**9):
    """(mean share by occurrence, mean share by row) over consecutive batches of histories."""
    flat = [[one for history in batch for one in history[-limit:]] for batch in batches]
    occurrences, rows = [], []
    for before, after in itertools.pairwise(flat):
        seen = set(before)
        occurrences.append(sum(one in seen for one in after) / max(len(after), 1))
        rows.append(len(seen & set(after)) / max(len(set(after)), 1))
    return np.mean(occurrences), np.mean(rows)


HAND = [[1, 2], [3], [1, 1, 1, 4], [], [4, 4, 5], [1]]


def test_by_hand(tmp_path):
    """Batches {1 2 3}, {1 1 1 4}, {4 4 5 1}: 3 of 4 and 3 of 4 occurrences, 1 of 2 and 2 of 3 rows."""
    found = count(write(tmp_path / "a.parquet", HAND))
    point = default(found)
    assert point["pairs"] == 2
    assert point["by_occurrence"] == pytest.approx({"mean": 0.75, "p50": 0.75, "p99": 0.75})
    assert point["by_row"] == pytest.approx({"mean": 7 / 12, "p50": 7 / 12, "p99": 0.5 + 0.99 / 6})
    assert (point["occurrences"], point["distinct"], point["max_length"]) == (4.0, 2.5, 4)
    assert (found["rows"], found["rows_read"], found["read_share"], found["notes"]) == (6, 6, 1.0, [])


def test_shorter_histories_along_the_axis_are_those_cut_while_reading(tmp_path):
    generator = np.random.default_rng(2)
    histories = [generator.integers(0, 3000, generator.integers(0, 300)).tolist() for _ in range(80)]
    path = write(tmp_path / "a.parquet", histories)
    for point in count(path, batch_size=8)["points"]:
        if point["axis"] == "max_length":
            cut = default(count(path, batch_size=8, max_length=point["max_length"]))
            assert {**point, "axis": "default"} == cut


def test_few_ids_need_no_kernel_that_reads_pages(tmp_path, monkeypatch):
    """It takes longer to compile than pyarrow takes for all of them."""
    path = write(tmp_path / "a.parquet", HAND)
    monkeypatch.setattr(rows, "read_pages", None)
    assert default(count(path))["pairs"] == 2


def kinds_of_ids():
    """(name, the ids of HAND in another type, how the column is called)."""
    words = pa.array([one for history in HAND for one in history], pa.int16()).dictionary_encode()
    lists = pa.array(HAND, pa.list_(pa.int64()))
    yield "large", pa.array(HAND, pa.large_list(pa.int32())), "ids"
    yield "unsigned", pa.array(HAND, pa.list_(pa.uint64())), "ids"
    yield "dictionary", ragged([len(history) for history in HAND], words), "ids"
    yield "in a struct", pa.StructArray.from_arrays([lists, pa.array(range(6))], ["ids", "x"]), "user.ids"
    yield "a leaf by its path", lists, "ids.list.element"
    yield "nulls", pa.array([[1, None, 2], [3], [1, 1, None, 1, 4], None, [4, 4, 5], [1, None]]), "ids"


@pytest.mark.parametrize("few", [0, id_rows._FEW], ids=["pages", "pyarrow"])
@pytest.mark.parametrize(("ids", "name"), [case[1:] for case in kinds_of_ids()], ids=[c[0] for c in kinds_of_ids()])
def test_kinds_of_ids(tmp_path, ids, name, few, monkeypatch):
    monkeypatch.setattr(id_rows, "_FEW", few)
    write_file(tmp_path / "a.parquet", {name.split(".")[0]: ids})
    point = default(estimate(open_files([str(tmp_path)]), name, **SETTINGS))
    assert point["by_row"]["mean"] == pytest.approx(7 / 12)
    assert (point["by_occurrence"]["mean"], point["occurrences"]) == (pytest.approx(0.75), 4.0)


@pytest.mark.parametrize(
    ("ids", "share", "occurrences"),
    [
        (pa.array([[1, 2], None, [1, 1], [2, None]], pa.list_(pa.int64(), 2)), 1.0, 3.0),
        (pa.array([1, 2, 1, None], pa.int32()), 1.0, 1.0),
    ],
    ids=["lists of one size", "one id per row"],
)
def test_other_forms_of_ids(tmp_path, ids, share, occurrences):
    point = default(count(write_file(tmp_path / "a.parquet", {"ids": ids})))
    assert (point["by_occurrence"]["mean"], point["occurrences"]) == (share, occurrences)


@pytest.mark.parametrize("statistics", [True, False], ids=["with statistics", "without"])
@pytest.mark.parametrize("far", [0, -(2**40), 2**63 - 10], ids=["small", "negative", "huge"])
def test_any_ids(tmp_path, far, statistics):
    """Whatever the range: counted in place, moved to 0, or renumbered."""
    for width in (1, 2**33):
        histories = [[far + (one - 5) * width if far > 0 else far + one * width for one in row] for row in HAND]
        path = write_file(tmp_path / "a.parquet", {"ids": histories}, group=4, write_statistics=statistics)
        point = default(count(path))
        assert point["by_occurrence"]["mean"] == pytest.approx(0.75)
        assert point["by_row"]["mean"] == pytest.approx(7 / 12)


@given(
    st.lists(st.lists(st.integers(-3, 12), max_size=6), min_size=4, max_size=40),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 9),
)
@example([[7], [7], [8], [8], [7], [7]], 2, 1, 6, 6)  # what no batch before had is not shared
@example([[1], [], [], [], [1], []], 2, 1, 6, 6)
@example([[1], [2], [3], [4], [9], [1], [2], [3]], 1, 2, 6, 4)  # ranks read row groups of their own
def test_as_sets_say(tmp_path_factory, histories, batch_size, ranks, limit, group):
    """In file order on one rank, and dealt to several as a loader does."""
    path = write(tmp_path_factory.mktemp("sets") / "a.parquet", histories, group=group)
    size = batch_size * ranks
    if len(histories) < 2 * size:
        return
    hands: list[list] = [[] for _ in range(ranks)]
    for begin in range(0, len(histories) - len(histories) % (group * ranks), group):
        hands[begin // group % ranks] += histories[begin : begin + group]
    if len(hands[-1]) < 2 * batch_size or len(histories) % (group * ranks):
        ranks, hands, batch_size = 1, [histories], size
    steps = min(map(len, hands)) // batch_size
    batches = [
        [row for hand in hands for row in hand[step * batch_size : (step + 1) * batch_size]] for step in range(steps)
    ]
    point = default(count(path, batch_size=batch_size, ranks=ranks, max_length=limit, pairs=60))
    occurrences, rows = by_sets(batches, limit)
    assert point["pairs"] == steps - 1
    assert point["by_occurrence"]["mean"] == pytest.approx(occurrences)
    assert point["by_row"]["mean"] == pytest.approx(rows)


@pytest.mark.parametrize("pairs", [499, 300], ids=["all", "in streaks"])
def test_more_batches_than_marks(tmp_path, pairs):
    """Marks start again; a streak shares nothing with what was counted before it."""
    generator = np.random.default_rng(0)
    histories = [generator.integers(0, 400, 3).tolist() for _ in range(2000)]
    found = default(count(write(tmp_path / "a.parquet", histories), batch_size=4, pairs=pairs))
    orders = Orders([[2000]], np.empty(0), np.empty(0), seed=0)
    used = streaks(orders.batches("file", ranks=1, batch_size=4), pairs)
    assert found["pairs"] == sum(one.batches - 1 for one in used) == pairs
    assert sum(one.batches for one in used) > 2 * MARKS
    batches = [[histories[4 * b : 4 * b + 4] for b in range(one.first, one.first + one.batches)] for one in used]
    weights = [one.batches - 1 for one in used]
    expected = np.average([by_sets(streak) for streak in batches], axis=0, weights=weights)
    assert (found["by_occurrence"]["mean"], found["by_row"]["mean"]) == pytest.approx(tuple(expected))


@pytest.mark.parametrize("time", ["when", "events", "dates"])
def test_orders(tmp_path, time):
    """File order never repeats an id, time order always does, shuffling sometimes. Rows without a time are left out."""
    rows = [*range(200), None, None] * 2
    times = {
        "when": pa.array(rows),
        "events": pa.array([None if n is None else [0, n] for n in rows]),
        "dates": pa.array(rows, pa.int32()).cast(pa.date32()),
    }
    path = write(tmp_path / "a.parquet", [[-at if n is None else n] for at, n in enumerate(rows)], **times)
    found = count(path, batch_size=1, orders=("file", "shuffled", "time"), time=time, pairs=63)
    rates = {point["order"]: point["by_row"]["mean"] for point in found["points"] if point["axis"] == "order"}
    assert rates["file"] == 0.0
    assert rates["shuffled"] < 0.1
    assert rates["time"] == pytest.approx(0.5, abs=0.03)
    assert {point["order"] for point in found["points"] if point["axis"] != "order"} == {"file"}


def test_bytes_by_hand(tmp_path):
    """Ranks hold {1 1 2}, {2 3}, then {1 4 4}, {1 2 2}: all of 1 and 2 is shared, ids leave with a chance of a half."""
    histories = [[1, 1, 2], [1, 4, 4], [2, 3], [1, 2, 2]]
    found = count(write(tmp_path / "a.parquet", histories, group=2), batch_size=1, ranks=2, dim=16)
    assert found["bytes"] == {
        "ids": 6 / 2 / 2 * 8,
        "collision_rows": 3 / 2 / 2 * 64,
        "exclusive_rows": 1 / 2 / 2 * 64,
        "collision_gradients": 4 / 2 / 2 * 64,
        "exclusive_gradients": 2 / 2 / 2 * 64,
    }
    alone = count(tmp_path / "a.parquet", batch_size=1, ranks=1)
    assert set(alone["bytes"].values()) == {0.0}


def test_many_ranks_each_count_their_own_rows(tmp_path):
    """More ranks than a byte can tell apart, each with a row of its own among 255."""
    histories = [[n % 255] * 2 for n in range(1200)]
    found = count(write(tmp_path / "a.parquet", histories, group=1), batch_size=1, ranks=600, dim=1)
    leaving = 599 / 600
    assert found["bytes"]["collision_rows"] == pytest.approx(4 * leaving)
    assert found["bytes"]["collision_gradients"] == pytest.approx(8 * leaving)
    assert found["bytes"]["exclusive_rows"] == 0.0


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        ("ids", {"ranks": 2}, r"2 ranks x 2 samples are 8 rows, but only 6 rows could be read"),
        ("far", {}, r"only 0 rows could be read .* or give more files; the first that was left out: .*int64"),
        ("words", {}, r"words is string; .* integer ids.*hash"),
        ("floats", {}, r"floats is list<.*double>; collisions"),
        ("item", {}, r"no file has a column 'item'; .*has ids, words"),
        ("ids", {"orders": ("time",)}, "needs the column to sort by"),
        ("ids", {"orders": ("time",), "time": "words"}, "words is string; a time is an integer"),
        ("ids", {"orders": ("random",)}, "one of file, shuffled, time, got random"),
        *(("ids", {name: 0}, f"{name} must be at least 1, got 0") for name in ("batch_size", "max_length", "pairs")),
    ],
)
def test_refused(tmp_path, column, options, message):
    far = pa.array([[2**63]] * 6, pa.list_(pa.uint64()))
    write(tmp_path / "a.parquet", HAND, words=["a"] * 6, floats=[[1.0]] * 6, far=far)
    with pytest.raises(UsageError, match=message):
        estimate(open_files([str(tmp_path)]), column, **{**SETTINGS, **options})
