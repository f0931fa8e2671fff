"""`freescale profile` of requests whose histories are stored once: what it says of the same samples in rows."""

import itertools
import json

import pyarrow.parquet as pq
import pytest
from stored_once_data import OPTIONS, Samples, opened
from tools_kit import answered, ran, refused

from freescale_tools.collisions.held import hold_stored_once
from freescale_tools.model.hardware import load_hardware
from freescale_tools.profile.sharing import sharing

pytestmark = pytest.mark.usefixtures("few_samples")
SETTINGS = ("--candidates", "shown", "--ranks", "4", "--batch-size", "8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """640 requests are enough for five steps of four times 32 samples."""
    folder = tmp_path_factory.mktemp("requests")
    Samples.drawn(11, requests=640, users=40, longest=60).write(folder, files=2, group=50)
    return folder


@pytest.fixture(scope="module")
def shown(few_samples, folder):
    """What is printed of the histories that are stored once; the report is in `once`."""
    return ran(
        "profile", folder / "requests", "--histories", folder / "histories", *OPTIONS, "--sequence", "item",
        "--sequence", "price", "--share", "user", "--out", folder / "once", "--full", *SETTINGS,
    ).stdout  # fmt: skip


@pytest.fixture(scope="module")
def stored(shown, folder):
    return json.loads((folder / "once" / "profile.json").read_text())


def test_tables_for_people(shown):
    for text in ("by user, as of at", "join=histories", "What Sequence(share='user') saves"):
        assert text in shown


def test_the_document_is_that_of_the_same_samples_in_rows(folder, stored):
    out = ("--out", folder / "out")
    rows = answered("profile", folder / "rows", "--sequence", "item", "--time", "at", *out, *SETTINGS)
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


def test_the_same_is_predicted_from_it_again(folder, stored):
    size = ("--ranks", "4", "--batch-size", "8", "--out", folder / "again")
    again = answered("profile", "--from", folder / "once", *size)
    for same in ("simulation", "stragglers", "balance", "recommended", "answer"):
        assert again[same] == stored[same], same


FILES = ("--histories", "histories")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (OPTIONS, "--on and --event-time without --histories"),
        (FILES, "--histories also needs --on, the key of requests and histories; --event-time, the"),
        ((*FILES, *OPTIONS[:4]), "--histories also needs --time, the column with the time of a request"),
        ((*FILES, *OPTIONS, "--quick"), "--quick reads no rows, and windows of histories are found by"),
        ((*FILES, *OPTIONS, "--engine", "ray"), "--engine ray cannot read --histories"),
        ((*FILES, *OPTIONS, "--ids", "price"), "collisions are counted on integer ids"),
        ((*FILES, *OPTIONS, "--ids", "shown"), "no file has a column 'shown'"),
        ((*FILES, *OPTIONS, "--on", "uid"), "uid"),
        (("--share", "user"), "--share user needs histories that are stored once"),
        ((*FILES, *OPTIONS, "--share", "at"), "the key of --on, and that is user"),
    ],
)
def test_refused(folder, monkeypatch, more, message):
    monkeypatch.chdir(folder)
    assert message in refused("profile", "requests", "--sequence", "item", *more)
    assert not (folder / "freescale-report").exists()
