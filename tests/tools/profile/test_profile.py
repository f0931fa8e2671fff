"""`freescale profile`: documents, predictions, what is written, printed and found; exit codes."""

import json
import math
import re

import numpy as np
import pyarrow as pa
import pytest
import typer
from test_calibrate_run import run as write_run
from tools_kit import answered, damage, ragged, ran, refused
from tools_kit import write as write_file

from freescale_tools.calibrate.calibration import load_calibration
from freescale_tools.cli import app
from freescale_tools.console.errors import UsageError
from freescale_tools.model.batches import Samples, Setting, fitting, supported
from freescale_tools.model.step import BALANCED
from freescale_tools.profile import predict as profile_predictions
from freescale_tools.profile.measure import Settings
from freescale_tools.profile.recommend import even_cut
from freescale_tools.profile.tradeoff import batch_sizes, lengths
from freescale_tools.scan.histogram import LengthHistogram

pytestmark = pytest.mark.usefixtures("few_samples")
ROWS, RANKS, BATCH = 3000, 4, 16


def write(path, rows, *, group=4, **more):
    items = rows if isinstance(rows, pa.Array) else pa.array(rows, pa.list_(pa.int64()))
    return write_file(path, {"items": items, **more}, group=group)


@pytest.fixture
def folder(tmp_path):
    """Two files of three and five rows."""
    write(tmp_path / "data" / "a.parquet", [[1, 2], [], [3]])
    return write(tmp_path / "data" / "b.parquet", [[4], None, [5] * 7, [6, 6], [7]]).parent


@pytest.fixture
def unpredicted(monkeypatch):
    """Without the seconds that predictions take."""
    monkeypatch.setattr(profile_predictions, "predict", lambda *_, **__: ["nothing is predicted"])


@pytest.fixture(scope="module")
def long_tail(tmp_path_factory):
    """Some histories are so long that their rank is waited for."""
    rng = np.random.default_rng(3)
    sizes = np.where(rng.random(ROWS) < 0.004, 2000, rng.integers(1, 40, ROWS))
    kinds, at = ragged(sizes, rng.integers(0, 9, sizes.sum())), np.arange(ROWS)[::-1]
    return write(tmp_path_factory.mktemp("data") / "a.parquet", ragged(sizes), group=ROWS, kinds=kinds, at=at)


@pytest.fixture(scope="module")
def profiled(long_tail, few_samples):
    """(profile.json, the folder of the report) of one run with all that a run can have."""
    out = long_tail.parent / "out"
    document = answered(
        "profile", long_tail, "--sequence", "items", "--sequence", "kinds", "--time", "at", "--ids", "kinds", "--out",
        out, "--ranks", "4", "--batch-size", BATCH, "--gpu-hour-price", 2.5,
    )  # fmt: skip
    return document, out


def test_one_command_writes_everything(profiled, long_tail):
    document, out = profiled
    assert document.pop("findings") == []
    assert document == json.loads((out / "profile.json").read_text())
    assert sorted(path.name for path in out.iterdir()) == ["profile.html", "profile.json"]
    page = (out / "profile.html").read_text()
    for text in ("items", "What batch size and longest history cost", ">Money<"):
        assert text in page
    assert (document["version"], document["kind"], document["mode"]) == (2, "profile", "full")
    assert (document["files"], document["rows"], document["paths"]) == (1, ROWS, [str(long_tail)])
    assert list(document["sequences"]) == ["items", "kinds"]
    assert document["sequences"]["items"]["histogram"] == document["sequences"]["kinds"]["histogram"]
    assert (document["stragglers"]["default"]["ranks"], document["stragglers"]["ranks"]) == (4, [2, 4])
    assert document["recommended"]["max_length"] <= document["sequences"]["items"]["max"]
    assert document["collisions"]["column"] == "kinds"
    assert {point["order"] for point in document["collisions"]["points"]} == {"file", "shuffled", "time"}
    assert [one["ranks"] for one in document["simulation"]["gain"]] == [2, 4]


def test_every_cell_of_the_trade_off_table_agrees_with_the_rest_of_the_profile(profiled):
    document, _ = profiled
    found, advice = document["tradeoff"], document["recommended"]
    histogram = LengthHistogram.from_dict(document["sequences"]["items"]["histogram"])
    assert {point["batch_size"] for point in found["points"]} == {4, 8, 16, 32, 64}
    (usual,) = (
        point
        for point in found["points"]
        if (point["batch_size"], point["max_length"]) == (BATCH, advice["max_length"])
    )
    assert usual["time_lost"] == pytest.approx(advice["time_lost"])
    assert usual["time_lost_error"] == pytest.approx(advice["time_lost_error"])
    assert (usual["events_lost"], usual["rows_touched"]) == (advice["events_cut"], advice["rows_cut"])
    step = next(one for one in document["simulation"]["points"] if (one["ranks"], one["way"]) == (RANKS, BALANCED))
    assert usual["step_ms"] == pytest.approx(step["step_ms"])
    counted = {point["batch_size"]: point for point in document["collisions"]["points"] if point["axis"] == "default"}
    assert usual["collisions"] == counted[BATCH]["by_occurrence"]["mean"]
    assert found["collisions_max_length"] == document["collisions"]["max_length"]
    for point in found["points"]:
        assert point["steps"] == math.ceil(ROWS / (RANKS * point["batch_size"]))
        assert point["events_lost"] == pytest.approx(1 - histogram.kept_share(point["max_length"]))
        assert point["bytes"] == point["tokens"] * (8 + 8 * found["dim"])
        assert point["gpu_hours"] == pytest.approx(point["steps"] * RANKS * point["step_ms"] / 3.6e6)
        assert point["money"] == pytest.approx(2.5 * point["gpu_hours"])


def test_a_calibration_gives_the_cost_model_and_the_seconds(long_tail, tmp_path):
    """Without a price the tables show no money."""
    path = write_run(tmp_path / "run.json")
    shown = ran(
        "profile", long_tail, "--sequence", "items", "--ranks", "2", "--batch-size", BATCH, "--calibration", path,
        "--out", tmp_path / "out", "--full",
    ).stdout  # fmt: skip
    document = json.loads((tmp_path / "out" / "profile.json").read_text())
    model = repr(load_calibration(path).cost)
    assert document["stragglers"]["default"]["cost"] == document["recommended"]["cost_model"] == model
    sources = {one["name"]: one["source"] for one in document["simulation"]["hardware"]["parameters"]}
    assert sources["compute_ms"] == sources["cost"] == "calibration: run.json, 120 rows"
    assert "2 ranks, balanced by" in shown
    assert "calibration: run.json" in shown.partition("Trade-off table")[2]
    assert "--gpu-hour-price shows money" in shown
    assert ">Money<" not in (tmp_path / "out" / "profile.html").read_text()


def test_batch_sizes_are_those_that_the_rows_are_enough_for():
    asked = Setting(max_length=9, ranks=4, batch_size=16)
    assert batch_sizes(10_000, asked) == [4, 8, 16, 32, 64]
    assert batch_sizes(640, asked) == [4, 8, 16, 32]
    assert batch_sizes(10, asked) == [16]
    assert batch_sizes(10_000, Setting(max_length=9, ranks=4, batch_size=1)) == [1, 2, 4]


def test_lengths_of_the_trade_off_table_end_uncut_and_lose_no_more_than_they_say():
    histogram = LengthHistogram.from_lengths(np.array([10] * 950 + [400] * 50))
    cut = even_cut(Samples(histogram=histogram), Setting(max_length=400, ranks=4, batch_size=4))
    found = lengths(histogram, cut)
    assert found[-1] == 400
    assert cut.max_length in found
    for lost in (0.05, 0.2):
        shortest = min(length for length in range(1, 401) if 1 - histogram.kept_share(length) <= lost)
        assert shortest in found


def test_the_columns_of_the_history_are_found_and_named(folder, unpredicted, tmp_path):
    shown = ran("profile", folder, "--out", tmp_path / "out").stdout
    for text in ("files 2", "rows 8", "nothing is predicted", "history: items, the longest lists", "profile.html"):
        assert text in shown


def test_the_terminal_shows_dates(tmp_path, unpredicted):
    path = write(tmp_path / "a.parquet", [[1]] * 4, ts=[1_750_000_000 + 3600 * hour for hour in range(4)])
    shown = ran("profile", path, "--sequence", "items", "--time", "ts", "--out", tmp_path / "out", "--full").stdout
    assert "over time (UTC, from seconds since 1970)" in shown
    assert "2025-06-15 15:06:40" in shown
    assert "1750000000" not in shown


def test_quick_reads_footers_only(folder, tmp_path):
    for group in range(2):
        damage(folder / "b.parquet", group)
    shown = ran("profile", folder, "--sequence", "items", "--quick", "--out", tmp_path / "out").stdout
    assert "from footers" in shown
    document = json.loads((tmp_path / "out" / "profile.json").read_text())
    found = document["sequences"]["items"]
    assert (document["mode"], found["rows"], found["events"], found["histogram"]) == ("quick", 8, 14, None)
    assert [(one["file"], one["events"], one["mean"]) for one in found["per_file"]] == [
        ("a.parquet", 3, 1.0), ("b.parquet", 11, 2.2),
    ]  # fmt: skip
    assert document["stragglers"] is document["recommended"] is document["collisions"] is document["simulation"] is None
    assert (tmp_path / "out" / "profile.html").stat().st_size > 1000


def test_what_was_skipped_is_named_and_status_1(folder, unpredicted, tmp_path):
    (folder / "c.parquet").write_bytes(b"PAR1 and no more")
    (folder / "d.parquet").write_bytes(b"")
    write_file(folder / "e.parquet", {"other": [1, 2]})
    for more in ((), ("--quick",)):
        done = ran("profile", folder, "--sequence", "items", "--out", tmp_path / "out", "--json", *more, status=1)
        document = json.loads(done.stdout)
        assert [one["file"] for one in document["skipped"]] == ["c.parquet", "d.parquet", "e.parquet"]
        assert len(document["findings"]) == 3
        assert "e.parquet: no column items (2 rows left out)" in done.stderr
        assert document["sequences"]["items"]["rows"] == 8


def test_a_file_with_a_column_of_another_kind_is_left_out(folder, tmp_path):
    write(folder / "a.parquet", [[1, 2], [], [3]], at=pa.array([1, 2, 3]))
    write(folder / "b.parquet", [[4], None, [5] * 7, [6, 6], [7]], at=pa.array([1.5] * 5))
    write_file(folder / "0.parquet", {"items": [1, 2], "at": [4, 5]})
    write_file(folder / "z.parquet", {"items": [[[1]]], "at": [6]})
    options = ("--sequence", "items", "--out", tmp_path / "out", "--ranks", "2", "--batch-size", "1")
    document = answered("profile", folder, *options, "--time", "at", "--extrapolate", status=1)
    assert {one["file"]: one["reason"] for one in document["skipped"]} == {
        "0.parquet": "items is int64, one value per row; a sequence is a list column",
        "b.parquet": "at is double; a time is an integer, a timestamp or a date",
        "z.parquet": "items holds lists in lists; a sequence is a list of numbers",
    }
    assert document["sequences"]["items"]["rows"] == document["collisions"]["rows"] == 8
    assert document["recommended"] is not None


def cases():
    data = ("data", "--sequence", "items")
    yield ("nowhere.parquet", "--sequence", "items"), "no such file"
    yield ("none",), "no column is the list of a history: user: "
    yield ("two",), "name the history with --sequence: several lists, not aligned with each other"
    yield ("data", "--sequence", "itms"), "no file has a column 'itms'"
    yield ("data", "--sequence", "itms"), "Did you mean 'items'?"
    yield ("data", "--sequence", "user"), "user is int64, one value per row"
    yield (*data, "--ids", "uid"), "no file has a column 'uid'"
    yield (*data, "--time", "ts"), "no file has a column 'ts'"
    yield (*data, "--engine", "spark"), "spark"
    yield (*data, "--batch-size", "0"), "--batch-size must be at least 1, got 0"
    yield (*data, "--ranks", "-1"), "--ranks must be at least 1, got -1"
    yield (*data, "--out", "data/a.parquet"), "is a file; name a folder"
    for option in (("--time", "user"), ("--calibration", "run.json")):
        yield (*data, "--quick", *option), "leave out --time, --ids, --calibration, --gpu-hour-price and"
    for price in ("0", "nan"):
        yield (*data, "--gpu-hour-price", price), "--gpu-hour-price must be above 0"


@pytest.mark.parametrize(("arguments", "message"), list(cases()))
def test_bad_usage_is_refused(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run.json")
    write(tmp_path / "data" / "a.parquet", [[1], [2]], user=pa.array([1, 2]))
    write(tmp_path / "two" / "a.parquet", [[1], [2, 3]], old_items=pa.array([[1, 2], [3]]))
    write_file(tmp_path / "none" / "a.parquet", {"user": [1, 2]})
    assert message in refused("profile", *arguments)
    assert not (tmp_path / "freescale-report").exists()


def test_what_cannot_be_predicted_says_why(tmp_path):
    path, out = tmp_path / "a.parquet", ("--out", tmp_path / "out")
    size = ("--ranks", 2, "--batch-size", 2)

    def document():
        return json.loads((tmp_path / "out" / "profile.json").read_text())

    write(path, [[], None])
    assert "items has no events: there is nothing to predict from" in ran("profile", path, *size, *out).stdout
    write(path, [[1], [2]])
    few = ran("profile", path, *out).stdout
    assert "2 rows are too few to predict from: 10 make 5 global batches of 2 ranks x 1 samples" in few
    assert document()["stragglers"] is document()["simulation"] is None
    write(path, pa.array([["a"], ["b", "c"]] * 20, pa.list_(pa.string())))
    assert "items holds no integers" in ran("profile", path, *size, *out).stdout
    assert document()["collisions"] is None
    assert document()["simulation"]["gain"]
    assert "items" in refused("profile", path, *size, *out, "--ids", "items")


def test_all_is_for_the_most_ranks_that_the_rows_are_enough_for():
    assert [supported(rows, 128) for rows in (100_000, 4_372, 1_280, 1_279, 10**9)] == [128, 4, 2, 1, 1024]
    assert Settings().size(4_372) == (4, 128)
    assert Settings().size(1_000) == (2, 64), "fewer samples, rather than one rank"
    assert Settings(batch_size=16).size(1_000) == (8, 16)
    assert Settings(ranks=3).size(4_372) == (3, 128)
    assert Settings(ranks=64, extrapolate=True).size(4_372) == (64, 128)
    with pytest.raises(UsageError, match=r"--ranks 64: the 4,372 rows .* enough for --ranks 4. --extrapolate"):
        Settings(ranks=64).size(4_372)
    with pytest.raises(UsageError, match=r"the 4,372 rows .* 2 x 512 samples; they are enough for --batch-size 437"):
        Settings(batch_size=512).size(4_372)
    assert fitting(100_000, 64, 128) == (64, 128)
    assert fitting(4_372, 64, 128) == (4, 128)
    assert fitting(100, 64, 128) == (1, 16)
    assert fitting(0, 64, 128) == (1, 1)


def lines(text):
    return len(text.rstrip().splitlines())


def test_the_answer_fits_on_a_screen_and_says_no_setting_that_the_commands_refuse(long_tail, tmp_path):
    shown = ran("profile", long_tail, "--sequence", "items", "--out", tmp_path / "out").stdout
    assert lines(shown) <= 40, shown
    document = json.loads((tmp_path / "out" / "profile.json").read_text())
    ranks = document["balance"]["ranks"]
    assert ranks == supported(ROWS, 128) == 4
    of_all = (document["simulation"]["verdict"], document["tradeoff"], document["collisions"])
    assert [one["ranks"] for one in (document["stragglers"]["default"], *of_all)] == [ranks] * 4
    settings = [*document["stragglers"]["points"], *document["collisions"]["points"]]
    assert max(one["ranks"] for one in settings) == ranks
    assert all(one["ranks"] * one["batch_size"] * 2 <= ROWS for one in settings)
    method = document["recommended"]["method"]
    assert f"method={method!r}" in document["recommended"]["code"]
    assert document["balance"]["method"] == document["tradeoff"]["method"] == method
    page = (tmp_path / "out" / "profile.html").read_text().partition("<main>")[2].partition("</main>")[0]
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", shown + page))
    commands = typer.main.get_command(app).commands.values()
    known = {name for command in commands for one in command.params for name in one.opts}
    assert {"--full", "--calibration"} <= options <= known, options - known
    more = ran("profile", long_tail, "--sequence", "items", "--out", tmp_path / "full", "--full").stdout
    assert more.startswith(shown.partition("; made")[0])
    assert lines(more) > 90


def one_giant(path, rows):
    """(what `profile` prints, its document) of one row of 40,000 events among rows of 20."""
    sizes = np.full(rows, 20)
    sizes[777] = 40_000
    write(path, ragged(sizes), group=200)
    shown = ran("profile", path, "--batch-size", 16, "--ranks", 8, "--out", path.parent / "out").stdout
    return shown, json.loads((path.parent / "out" / "profile.json").read_text())


def test_one_giant_history_among_very_many_is_cut(tmp_path):
    _, document = one_giant(tmp_path / "a.parquet", 12_000)
    balance, cut, *_ = document["answer"]
    assert (balance["remedy"], balance["pays"], cut["pays"]) == ("balance", "no", "yes")
    assert "touches 0.008" in cut["said"]
    assert document["recommended"]["rows_cut"] == 1 / 12_000
    assert document["recommended"]["time_lost"] < 0.02 < 0.5 < document["recommended"]["even_cut"]["time_lost_uncut"]


def test_the_answer_names_single_histories_that_cause_the_wait(tmp_path):
    shown, document = one_giant(tmp_path / "a.parquet", 2_000)
    balance, *others = document["answer"]
    assert balance["pays"] == "not yet"
    said = balance["said"].replace("\u00a0", " ")
    assert said.startswith(
        "Do nothing yet: single histories cause 100.0 % of the wait, the longest has 40,000 events; "
    )
    assert "touches 0.050 % of the rows" in said
    assert [one["remedy"] for one in others] == ["dedup", "pinned", "fscomm", "all"], "the cut is in the first sentence"
    assert "Do nothing yet" in shown
