"""`freescale profile` of requests whose histories are stored once: what it says of the same samples in rows."""

import json

import pyarrow.parquet as pq
import pytest
from stored_once_data import OPTIONS, Samples
from typer.testing import CliRunner

from freescale_tools.cli import app

COMMAND = "profile"
SETTINGS = ("--ranks", "2,4", "--batch-size", "4", "--json")


@pytest.fixture
def folder(tmp_path):
    samples = Samples.drawn(11, requests=600, users=40, longest=60)
    samples.write(tmp_path, files=2, group=50)
    return tmp_path


def test_the_document_is_that_of_the_same_samples_in_rows(call, folder):
    rows = call(folder / "rows", "--sequence", "item", "--candidates", "shown", "--time", "at", "--out", folder / "out",
                *SETTINGS)  # fmt: skip
    stored = call(folder / "requests", "--histories", folder / "histories", *OPTIONS, "--sequence", "item",
                  "--candidates", "shown", "--out", folder / "once", *SETTINGS)  # fmt: skip
    assert (rows.exit_code, stored.exit_code) == (0, 0), stored.output
    rows, stored = (json.loads(done.stdout) for done in (rows, stored))
    for same in (
        "sequences",
        "candidates",
        "stragglers",
        "collisions",
        "simulation",
        "sharing",
        "mode",
        "rows",
        "files",
    ):
        assert stored[same] == rows[same], same
    assert stored["collisions"]["sampled_pairs"] > 20
    advice = [{**each["recommended"], "code": ""} for each in (rows, stored)]
    assert advice[0] == advice[1]
    assert stored["histories"]["keys"] == sum(
        pq.read_metadata(path).num_rows for path in (folder / "histories").iterdir()
    )
    assert "stored once" in (folder / "once" / "profile.html").read_text()


def test_the_code_reads_the_windows(call, folder):
    done = call(folder / "requests", "--histories", folder / "histories", *OPTIONS, "--sequence", "price",
                "--candidates", "shown", "--out", folder / "out", *SETTINGS)  # fmt: skip
    document = json.loads(done.stdout)
    scope = {"samples": 0, "events": 0}
    step = "samples += len(batch.origin); events += len(batch.jagged['price'].values)  #"
    exec(document["recommended"]["code"].replace("...  #", step), scope)
    lengths = zip(*document["sequences"]["price"]["histogram"].values(), strict=True)
    most = document["recommended"]["max_length"]
    assert (scope["samples"], scope["events"]) == (600, sum(count * min(length, most) for length, count in lengths))
    assert document["collisions"] is None


def test_other_ids(call, folder):
    stored = (folder / "requests", "--histories", folder / "histories", *OPTIONS, "--out", folder / "out", *SETTINGS)
    items = json.loads(call(*stored, "--sequence", "item").stdout)
    prices = json.loads(call(*stored, "--sequence", "price", "--ids", "item").stdout)
    assert prices["collisions"] == items["collisions"]
    assert list(prices["sequences"]) == ["price"]


def test_a_step_is_simulated_from_it(call, folder):
    call(folder / "requests", "--histories", folder / "histories", *OPTIONS, "--sequence", "item", "--out",
         folder / "out", *SETTINGS)  # fmt: skip
    again = CliRunner().invoke(app, ["simulate", "--profile", str(folder / "out"), "--ranks", "2,4", "--out",
                                     str(folder / "steps"), "--json"])  # fmt: skip
    assert again.exit_code == 0, again.output
    profile = json.loads((folder / "out" / "profile.json").read_text())
    assert json.loads(again.stdout)["simulation"]["points"] == profile["simulation"]["points"]


def test_tables_for_people(call, folder):
    done = call(folder / "requests", "--histories", folder / "histories", *OPTIONS, "--sequence", "price", "--out",
                folder / "out", *SETTINGS[:-1])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "as of at: histories by user" in done.stdout
    assert "price holds no integers; name a column that does with --ids" in done.stdout
    assert "join=histories" in done.stdout


def refused():
    files = ("--histories", "histories")
    yield "no histories", OPTIONS, "--on and --event-time without --histories"
    yield "nothing else", files, "--histories also needs --on, the key of requests and histories; --event-time, the"
    yield "no time", (*files, *OPTIONS[:4]), "--histories also needs --time, the column with the time of a request"
    yield "quick", (*files, *OPTIONS, "--quick"), "--quick reads no rows, and windows of histories are found by"
    yield "ray", (*files, *OPTIONS, "--engine", "ray"), "--engine ray cannot read --histories"
    yield "floats as ids", (*files, *OPTIONS, "--ids", "price"), "collisions are counted on integer ids"
    yield "ids in the requests", (*files, *OPTIONS, "--ids", "shown"), "no file has a column 'shown'"
    yield "a list in the requests", (*files, *OPTIONS, "--sequence", "shown"), "no file has a column 'shown'"
    yield "key", (*files, *OPTIONS, "--on", "uid"), "uid"


@pytest.mark.parametrize(("more", "message"), [case[1:] for case in refused()], ids=[case[0] for case in refused()])
def test_refused(call, folder, monkeypatch, more, message):
    monkeypatch.chdir(folder)
    done = call("requests", "--sequence", "item", *more)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.split())
    assert not (folder / "freescale-report").exists()
