"""`freescale simulate` as it is called."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from freescale_tools.scan.histogram import LengthHistogram
from freescale_tools.simulate.command import simulate


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # else names are folded
    app = typer.Typer()
    app.command()(simulate)
    return lambda *arguments: CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture
def profile(tmp_path):
    lengths = np.random.default_rng(0).lognormal(5, 1, 20_000).astype(np.int64)
    document = {
        "version": 1, "kind": "profile", "sequences": {"uih": {"histogram": LengthHistogram.of(lengths).to_dict()}},
        "stragglers": None, "recommended": None, "collisions": None,
    }  # fmt: skip
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "profile.json"
    file.write_text(json.dumps(document))
    return file


def test_it_writes_the_document_and_the_page_and_shows_tables(run, profile):
    done = run("--profile", profile.parent, "--ranks", "8,16", "--out", "there")
    assert (done.exit_code, done.stderr) == (0, "")
    for text in ("QPS gain", "sm-free", "exchange_efficiency", "assumed"):
        assert text in done.stdout
    written = sorted(path.name for path in (profile.parents[1] / "there").iterdir())
    assert written == ["simulation.html", "simulation.json"]


def test_json_carries_the_same_document_and_nothing_else(run, profile):
    done = run("--profile", profile, "--ranks", "8", "--hardware", "h200-nvl", "--dim", "64", "--json")
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document.pop("findings") == []
    assert document == json.loads((profile.parents[1] / "freescale-report" / "simulation.json").read_text())
    assert (document["version"], document["kind"], document["profile"]) == (1, "simulate", str(profile))
    assert document["simulation"]["hardware"]["name"] == "h200-nvl"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "has version 2, this program reads 1"),
        ({"kind": "collisions"}, "is no profile"),
        ({"sequences": {"uih": {"histogram": None}}}, "a quick profile"),
    ],
)
def test_unusable_profiles_end_with_status_2(run, profile, change, message):
    profile.write_text(json.dumps(json.loads(profile.read_text()) | change))
    done = run("--profile", profile)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--hardware", "b300"), "no hardware 'b300': give h100-ib, h200-nvl"),
        (("--ranks", "8;16"), "numbers joined by commas"),
        (("--ranks", "0"), "at least 1"),
        (("--sequence", "clicks"), "no sequence 'clicks'"),
    ],
)
def test_unusable_arguments_end_with_status_2_and_write_nothing(run, profile, arguments, message):
    done = run("--profile", profile, *arguments, "--out", "there")
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (profile.parents[1] / "there").exists()


@pytest.mark.parametrize("text", ["{", "[]"])
def test_files_that_are_no_profile_end_with_status_2(run, profile, text):
    profile.write_text(text)
    assert run("--profile", profile).exit_code == 2
    profile.unlink()
    done = run("--profile", profile.parent)
    assert done.exit_code == 2
    assert "no profile at" in done.stderr


def test_more_ranks_than_the_rows_are_enough_for_are_refused_unless_asked_for(run, profile):
    done = run("--profile", profile, "--ranks", "8,64,128")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--ranks 64, 128: the 20,000 rows make less than 5 global batches of 64 x 128 samples" in done.stderr
    assert "--extrapolate shows such ranks all the same" in done.stderr

    def ranks(*arguments):
        answer = run("--profile", profile, "--json", *arguments)
        assert answer.exit_code == 0, answer.output
        return sorted({point["ranks"] for point in json.loads(answer.stdout)["simulation"]["points"]})

    assert ranks("--ranks", "8,64,128", "--extrapolate") == [8, 64, 128]
    assert ranks() == [8, 16], "of 8 to 1024, those that the rows are enough for"
    assert ranks("--batch-size", "4096") == [8], "never none"
