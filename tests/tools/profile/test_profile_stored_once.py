"""`freescale profile` of requests whose histories are stored once: what it says of the same samples in rows."""

import itertools
import json

import pyarrow.parquet as pq
import pytest
from stored_once_data import OPTIONS, Samples, opened

from freescale_tools.collisions.held import hold_stored_once
from freescale_tools.model.hardware import load_hardware
from freescale_tools.profile.sharing import sharing

COMMAND = "profile"
pytestmark = pytest.mark.usefixtures("few_samples")
SETTINGS = ("--candidates", "shown", "--ranks", "4", "--batch-size", "8", "--json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """640 requests are enough for five steps of four times 32 samples."""
    folder = tmp_path_factory.mktemp("requests")
    Samples.drawn(11, requests=640, users=40, longest=60).write(folder, files=2, group=50)
    return folder


@pytest.fixture(scope="module")
def stored(few_samples, call, folder):
    """The document of the histories that are stored once; its report is in `once`."""
    done = call(folder / "requests", "--histories", folder / "histories", *OPTIONS, "--sequence", "item",
                "--sequence", "price", "--share", "user", "--out", folder / "once", *SETTINGS)  # fmt: skip
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_document_is_that_of_the_same_samples_in_rows(call, folder, stored):
    rows = call(folder / "rows", "--sequence", "item", "--time", "at", "--out", folder / "out", *SETTINGS)
    assert rows.exit_code == 0, rows.output
    rows = json.loads(rows.stdout)
    assert stored["sequences"]["item"] == rows["sequences"]["item"]
    for same in ("candidates", "stragglers", "collisions", "simulation", "mode", "rows", "files"):
        assert stored[same] == rows[same], same
    assert stored["collisions"]["sampled_pairs"] > 20
    advice = [{**each["recommended"], "code": ""} for each in (rows, stored)]
    assert advice[0] == advice[1]
    files = [pq.read_metadata(path).num_rows for path in (folder / "histories").iterdir()]
    assert stored["histories"]["keys"] == sum(files)
    assert "stored once" in (folder / "once" / "profile.html").read_text()


def test_what_sharing_saves_is_predicted_and_shown(folder, stored):
    found, most = stored["sharing"], stored["recommended"]["max_length"]
    with opened(folder) as requests:
        held = hold_stored_once(requests, None, max_length=most, ranks=4, batch_size=8)
    orders = ("file", "shuffled", "time")
    hardware = load_hardware("h100-ib")
    assert found == sharing(held, stored, hardware, share="user", fields=1, dim=128, orders=orders)
    settings = {(one["order"], one["batch_size"]) for one in found["points"]}
    assert settings == set(itertools.product(orders, (2, 8, 32)))
    page = (folder / "once" / "profile.html").read_text()
    assert "Histories that samples share" in page
    assert "Events held (%) by batch size, balanced" in page


def test_the_code_reads_the_windows(stored):
    code = stored["recommended"]["code"]
    scope = {"samples": 0, "events": 0}
    step = "samples += len(batch.origin); events += len(batch.features['item'].values())  #"
    assert "share='user')" in code
    exec(code.replace("...  #", step).replace(", share='user'", ""), scope)
    lengths = zip(*stored["sequences"]["item"]["histogram"].values(), strict=True)
    most = stored["recommended"]["max_length"]
    assert (scope["samples"], scope["events"]) == (640, sum(count * min(length, most) for length, count in lengths))


def test_the_same_is_predicted_from_it_again(call, folder, stored):
    again = call("--from", folder / "once", "--ranks", "4", "--batch-size", "8", "--out", folder / "again", "--json")
    assert again.exit_code == 0, again.output
    again = json.loads(again.stdout)
    for same in ("simulation", "stragglers", "balance", "recommended", "answer"):
        assert again[same] == stored[same], same


def test_tables_for_people(call, folder):
    done = call(folder / "requests", "--histories", folder / "histories", *OPTIONS, "--sequence", "price", "--share",
                "user", "--out", folder / "out", "--ranks", 2, "--batch-size", 4, "--full")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "by user, as of at" in done.stdout
    assert "price holds no integers; name a column that does with --ids" in done.stdout
    assert "join=histories" in done.stdout
    assert "What Sequence(share='user') saves" in done.stdout


def refused():
    files = ("--histories", "histories")
    yield "no histories", OPTIONS, "--on and --event-time without --histories"
    yield "nothing else", files, "--histories also needs --on, the key of requests and histories; --event-time, the"
    yield "no time", (*files, *OPTIONS[:4]), "--histories also needs --time, the column with the time of a request"
    yield "quick", (*files, *OPTIONS, "--quick"), "--quick reads no rows, and windows of histories are found by"
    yield "ray", (*files, *OPTIONS, "--engine", "ray"), "--engine ray cannot read --histories"
    yield "floats as ids", (*files, *OPTIONS, "--ids", "price"), "collisions are counted on integer ids"
    yield "ids in the requests", (*files, *OPTIONS, "--ids", "shown"), "no file has a column 'shown'"
    yield "key", (*files, *OPTIONS, "--on", "uid"), "uid"
    yield "share without histories", ("--share", "user"), "--share user needs histories that are stored once"
    yield "share by another key", (*files, *OPTIONS, "--share", "at"), "the key of --on, and that is user"


@pytest.mark.parametrize(("more", "message"), [case[1:] for case in refused()], ids=[case[0] for case in refused()])
def test_refused(call, folder, monkeypatch, more, message):
    monkeypatch.chdir(folder)
    done = call("requests", "--sequence", "item", *more)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.split())
    assert not (folder / "freescale-report").exists()
