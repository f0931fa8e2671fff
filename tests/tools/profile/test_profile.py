"""`freescale profile`: documents, predictions, what is written, printed and found; exit codes."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from test_calibrate_run import run as write_run
from typer.testing import CliRunner

from freescale_tools.calibrate.calibration import load_calibration
from freescale_tools.console.errors import UsageError
from freescale_tools.profile import predict as profile_predictions
from freescale_tools.profile.command import profile as command
from freescale_tools.profile.measure import Columns, Settings, full, quick
from freescale_tools.scan.files import open_files
from freescale_tools.simulate.enough_rows import fitting
from freescale_tools.write.synth.presets import demo_set

pytestmark = pytest.mark.usefixtures("few_samples")
DATA = Path(os.environ.get("FREESCALE_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))


def write(path, rows, *, group=4, **more):
    kind = pa.list_(pa.int64())
    table = pa.table({"items": pa.array(rows, kind), **more})
    pq.write_table(table, path, row_group_size=group)
    return path


def call(*arguments):
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path):
    """Two files of three and five rows."""
    data = tmp_path / "data"
    data.mkdir()
    write(data / "a.parquet", [[1, 2], [], [3]])
    write(data / "b.parquet", [[4], None, [5] * 7, [6, 6], [7]])
    return data


@pytest.fixture
def unpredicted(monkeypatch):
    """Without the seconds that predictions take."""
    monkeypatch.setattr(profile_predictions, "predict", lambda *_, **__: ["nothing is predicted"])


def test_one_command_writes_everything(tmp_path):
    demo = demo_set(tmp_path / "data", rows=3000)
    paths = [str(path) for path in demo.site]
    out = tmp_path / "report"
    done = call(
        *paths, "--sequence", "item_ids", "--sequence", "actions", "--time", "request_ts", "--out", out,
        "--ranks", "4", "--ranks", "2", "--batch-size", "16", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed.pop("findings") == []
    document = json.loads((out / "profile.json").read_text())
    assert document == printed
    assert sorted(path.name for path in out.iterdir()) == ["profile.html", "profile.json"]
    assert "item_ids" in (out / "profile.html").read_text()
    assert (document["version"], document["kind"], document["mode"]) == (1, "profile", "full")
    assert (document["files"], document["rows"], document["paths"]) == (4, 2000, paths)
    assert list(document["sequences"]) == ["item_ids", "actions"]
    assert document["sequences"]["item_ids"]["histogram"] == document["sequences"]["actions"]["histogram"]
    assert document["stragglers"]["default"]["ranks"] == 4
    assert document["stragglers"]["ranks"] == [2, 4]
    assert document["recommended"]["max_length"] <= document["sequences"]["item_ids"]["max"]
    assert document["collisions"]["column"] == "item_ids"
    assert {point["order"] for point in document["collisions"]["points"]} == {"file", "shuffled", "time"}
    assert [one["ranks"] for one in document["simulation"]["gain"]] == [2, 4]


def test_tables_for_people(folder, unpredicted, tmp_path):
    done = call(folder, "--sequence", "items", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    for text in ("2 files", "8 rows", "Lengths", "Longest rows of items", "b.parquet", "nothing is predicted"):
        assert text in done.stdout
    assert "profile.html" in done.stdout


def test_the_terminal_shows_dates(tmp_path, unpredicted):
    write(tmp_path / "a.parquet", [[1], [2], [3], [4]], ts=[1_750_000_000 + 3600 * hour for hour in range(4)])
    ran = call(tmp_path / "a.parquet", "--sequence", "items", "--time", "ts", "--out", tmp_path / "out")
    assert ran.exit_code == 0
    assert "over time (UTC, from seconds since 1970)" in ran.stdout
    assert "2025-06-15 15:06:40" in ran.stdout
    assert "1750000000" not in ran.stdout


def test_quick_reads_footers_only(folder, tmp_path):
    good = pq.read_metadata(folder / "b.parquet").row_group(0).column(0)
    raw = bytearray((folder / "b.parquet").read_bytes())
    raw[4 : 4 + good.total_compressed_size] = bytes(good.total_compressed_size)
    (folder / "b.parquet").write_bytes(raw)  # no page of it can be decoded
    done = call(folder, "--sequence", "items", "--quick", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "from footers" in done.stdout
    document = json.loads((tmp_path / "out" / "profile.json").read_text())
    found = document["sequences"]["items"]
    assert (document["mode"], found["rows"], found["events"], found["histogram"]) == ("quick", 8, 14, None)
    assert found["per_file"] == [
        {"file": "a.parquet", "rows": 3, "events": 3, "mean": 1.0},
        {"file": "b.parquet", "rows": 5, "events": 11, "mean": 2.2},
    ]
    assert document["stragglers"] is document["recommended"] is document["collisions"] is document["simulation"] is None
    assert (tmp_path / "out" / "profile.html").stat().st_size > 1000


def test_what_was_skipped_is_named_and_status_1(folder, unpredicted, tmp_path):
    (folder / "c.parquet").write_bytes(b"PAR1 and no more")
    write(folder / "d.parquet", [[1]]).write_bytes(b"")
    pq.write_table(pa.table({"other": [1, 2]}), folder / "e.parquet")
    for more in ((), ("--quick",)):
        done = call(folder, "--sequence", "items", "--out", tmp_path / "out", "--json", *more)
        assert done.exit_code == 1
        document = json.loads(done.stdout)
        assert [one["file"] for one in document["skipped"]] == ["c.parquet", "d.parquet", "e.parquet"]
        assert len(document["findings"]) == 3
        assert "e.parquet: no column items (2 rows left out)" in done.stderr
        assert document["sequences"]["items"]["rows"] == 8


def test_a_file_with_a_column_of_another_kind_is_left_out(folder, tmp_path):
    write(folder / "a.parquet", [[1, 2], [], [3]], at=pa.array([1, 2, 3]))
    write(folder / "b.parquet", [[4], None, [5] * 7, [6, 6], [7]], at=pa.array([1.5] * 5))
    pq.write_table(pa.table({"items": [1, 2], "at": [4, 5]}), folder / "0.parquet")
    pq.write_table(pa.table({"items": [[[1]]], "at": [6]}), folder / "z.parquet")
    options = ("--sequence", "items", "--out", tmp_path / "out", "--json", "--ranks", "2", "--batch-size", "2")
    for more in ((), ("--quick",), ("--time", "at")):
        done = call(folder, *options, *more)
        assert done.exit_code == 1, done.output
        document = json.loads(done.stdout)
        left_out = {one["file"]: one["reason"] for one in document["skipped"] if one["file"] != "b.parquet"}
        assert left_out == {
            "0.parquet": "items is int64, one value per row; a sequence is a list column",
            "z.parquet": "items holds lists in lists; a sequence is a list of numbers",
        }
        assert document["sequences"]["items"]["rows"] == 8
        assert (document["recommended"] is None) == (more == ("--quick",))
        assert more == ("--quick",) or document["collisions"]["rows"] == 8
    assert "b.parquet: at is double; a time is an integer, a timestamp or a date (5 rows left out)" in done.stderr


def refused():
    yield "no such path", ["nowhere.parquet", "--sequence", "items"], "no such file"
    yield "no sequence", ["two"], "two/a.parquet has the list columns items, more"
    yield "no list", ["none"], "none/a.parquet has no list column"
    yield "no such column", ["data", "--sequence", "itms"], "no file has a column 'itms'"
    yield "meant", ["data", "--sequence", "itms"], "Did you mean 'items'?"
    yield "scalar", ["data", "--sequence", "user"], "user is int64, one value per row"
    yield "no such ids", ["data", "--sequence", "items", "--ids", "uid"], "no file has a column 'uid'"
    yield "no such time", ["data", "--sequence", "items", "--time", "ts"], "no file has a column 'ts'"
    yield "engine", ["data", "--sequence", "items", "--engine", "spark"], "spark"
    yield "batch size", ["data", "--sequence", "items", "--batch-size", "0"], "--batch-size must be at least 1, got 0"
    yield "ranks", ["data", "--sequence", "items", "--ranks", "-1"], "--ranks must be at least 1, got -1"
    yield "out", ["data", "--sequence", "items", "--out", "data/a.parquet"], "is a file; name a folder"
    yield "quick and time", ["data", "--sequence", "items", "--quick", "--time", "user"], "--quick reads no rows"


@pytest.mark.parametrize(("arguments", "message"), [case[1:] for case in refused()], ids=[c[0] for c in refused()])
def test_bad_usage_is_refused(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "a.parquet", [[1], [2]], user=pa.array([1, 2]))
    for name in ("two", "none"):
        (tmp_path / name).mkdir()
    write(tmp_path / "two" / "a.parquet", [[1], [2]], more=pa.array([[1], [2]]))
    pq.write_table(pa.table({"user": [1, 2]}), tmp_path / "none" / "a.parquet")
    done = call(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert not (tmp_path / "freescale-report").exists()


def test_nothing_half_written_where_writing_fails(folder, unpredicted, tmp_path):
    out = tmp_path / "out"
    (out / "profile.html").mkdir(parents=True)  # in the way
    done = call(folder, "--sequence", "items", "--out", out)
    assert done.exit_code == 1
    assert "cannot write to" in done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["profile.html", "profile.json"]
    json.loads((out / "profile.json").read_text())


def predicted(folder, **options):
    columns = Columns(sequences=("items",))
    files = open_files([str(folder)])
    found = full(files, columns, paths=["here"])
    settings = Settings(ranks=(2,), batch_size=2, **options)
    bar = type("Bar", (), {"__enter__": lambda self: self, "__exit__": lambda *_: None, "advance": lambda *_, **__: 0})
    notes = profile_predictions.predict(found, files, columns, settings, paths=["here"], bar=lambda _: bar())
    return found.document, notes


def test_what_cannot_be_predicted_says_why(tmp_path):
    write(tmp_path / "a.parquet", [[], None])
    document, notes = predicted(tmp_path)
    assert notes == ["items has no events: there is nothing to predict from"]
    assert document["stragglers"] is document["simulation"] is None
    rows = pa.array([["a"], ["b", "c"]] * 20, pa.list_(pa.string()))
    pq.write_table(pa.table({"items": rows}), tmp_path / "a.parquet")
    document, notes = predicted(tmp_path)
    assert "items holds no integers" in notes[0]
    assert document["collisions"] is None
    assert document["simulation"]["gain"]
    with pytest.raises(UsageError, match="items"):
        predicted(tmp_path, ids="items")


def test_collisions_fit_the_rows():
    assert fitting(100_000, 64, 128) == (64, 128)
    assert fitting(4_372, 64, 128) == (4, 128)
    assert fitting(100, 64, 128) == (1, 16)
    assert fitting(0, 64, 128) == (1, 1)


def test_defaults_are_near_the_papers():
    assert Settings(ranks=(8, 64, 1024), batch_size=128).default_ranks == 64
    assert Settings(ranks=(8, 16), batch_size=128).default_ranks == 16
    assert Settings(ranks=(128, 1024), batch_size=128).default_ranks == 128


# From the README of each set; their quantiles are between rows where ours are lengths that occur.
REAL = {
    "oss_events": {"rows": 165_838, "events": 3_450_378, "max": 87_597, "p50": 2, "p90": 12, "p99": 178, "top1": 0.734},
    "online_retail": {"rows": 4_372, "events": 406_829, "max": 7_983, "p50": 42, "p90": 212, "p99": 674, "top1": 0.165},
}


@pytest.mark.parametrize("name", REAL)
def test_real_data(name):
    if not (DATA / name).is_dir():
        pytest.skip(f"{DATA / name} is not there; FREESCALE_DATA names the folder of the real sets")
    paths = [str(DATA / name / "interactions-*.parquet")]
    files = open_files(paths)
    columns = Columns(sequences=("item_ids", "timestamps"))
    document = full(files, columns, paths=paths).document
    items, times = document["sequences"].values()
    assert items == times
    known = REAL[name]
    assert {key: items[key] for key in ("rows", "events", "max")} == {k: known[k] for k in ("rows", "events", "max")}
    assert {key: items["quantiles"][key] for key in ("p50", "p90", "p99")} == {
        k: known[k] for k in ("p50", "p90", "p99")
    }
    assert items["top1_share"] == pytest.approx(known["top1"], abs=0.002)
    assert items["longest"][0]["length"] == known["max"]
    assert (items["null"], items["empty"], document["skipped"]) == (0, 0, [])
    place = items["longest"][0]
    row = pq.read_table(DATA / name / place["file"], columns=["item_ids"])["item_ids"][place["row"]]
    assert len(row) == known["max"]
    counted = quick(files, columns, paths=paths).document["sequences"]["item_ids"]
    assert {key: counted[key] for key in ("rows", "events", "mean", "per_file")} == {
        key: items[key] for key in ("rows", "events", "mean", "per_file")
    }


def test_a_calibration_gives_the_cost_model_and_the_seconds(tmp_path):
    demo = demo_set(tmp_path / "data", rows=600)
    path = write_run(tmp_path / "run.json")
    done = call(
        demo.site[0], "--sequence", "item_ids", "--ranks", "2", "--batch-size", "16", "--calibration", path,
        "--out", tmp_path / "report", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    model = repr(load_calibration(path).cost)
    assert document["stragglers"]["default"]["cost"] == document["recommended"]["cost_model"] == model
    sources = {one["name"]: one["source"] for one in document["simulation"]["hardware"]["parameters"]}
    assert sources["compute"] == sources["cost"] == "calibration: run.json, 120 rows"
    refused = call(demo.site[0], "--sequence", "item_ids", "--quick", "--calibration", path)
    assert refused.exit_code == 2
    assert "leave out --time, --ids, --calibration and --gpu-hour-price" in refused.stderr


def test_the_only_list_column_is_the_history(folder, tmp_path, unpredicted):
    done = call(folder, "--out", tmp_path / "report", "--json")
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout)["sequences"]) == ["items"]
