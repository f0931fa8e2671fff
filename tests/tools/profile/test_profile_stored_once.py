"""`freescale profile` of requests whose histories are stored once: what it says of the same samples in rows."""

import json

import pyarrow.parquet as pq
import pytest
from stored_once_data import OPTIONS, Samples
from typer.testing import CliRunner

from freescale_tools.cli import app

COMMAND = "profile"
pytestmark = pytest.mark.usefixtures("few_samples")
SETTINGS = ("--ranks", "2,4", "--batch-size", "4", "--json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("requests")
    Samples.drawn(11, requests=600, users=40, longest=60).write(folder, files=2, group=50)
    return folder


@pytest.fixture(scope="module")
def stored(few_samples, call, folder):
    """The document of the histories that are stored once; its report is in `once`."""
    done = call(folder / "requests", "--histories", folder / "histories", *OPTIONS, "--sequence", "item",
                "--candidates", "shown", "--out", folder / "once", *SETTINGS)  # fmt: skip
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_document_is_that_of_the_same_samples_in_rows(call, folder, stored):
    rows = call(folder / "rows", "--sequence", "item", "--candidates", "shown", "--time", "at", "--out", folder / "out",
                *SETTINGS)  # fmt: skip
    assert rows.exit_code == 0, rows.output
    rows = json.loads(rows.stdout)
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


def test_the_code_reads_the_windows(stored):
    document = json.loads(json.dumps(stored))
    scope = {"samples": 0, "events": 0}
    step = "samples += len(batch.origin); events += len(batch.features['item'].values())  #"
    exec(document["recommended"]["code"].replace("...  #", step), scope)
    lengths = zip(*document["sequences"]["item"]["histogram"].values(), strict=True)
    most = document["recommended"]["max_length"]
    assert (scope["samples"], scope["events"]) == (600, sum(count * min(length, most) for length, count in lengths))


def test_other_ids(call, folder, stored):
    done = call(folder / "requests", "--histories", folder / "histories", *OPTIONS, "--sequence", "price",
                "--ids", "item", "--candidates", "shown", "--out", folder / "out", *SETTINGS)  # fmt: skip
    prices = json.loads(done.stdout)
    assert prices["collisions"] == stored["collisions"]
    assert list(prices["sequences"]) == ["price"]


def test_a_step_is_simulated_from_it(folder, stored):
    again = CliRunner().invoke(app, ["simulate", "--profile", str(folder / "once"), "--ranks", "2,4", "--out",
                                     str(folder / "steps"), "--json"])  # fmt: skip
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["simulation"]["points"] == stored["simulation"]["points"]


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
