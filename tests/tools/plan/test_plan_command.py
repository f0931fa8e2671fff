"""`freescale plan` as it is called."""

import json

import numpy as np
import pytest
from plan_examples import write_profile
from test_calibrate_run import run as write_run

from freescale_tools.plan.torchrec.sharding import load_plan
from freescale_tools.scan.histogram import LengthHistogram

COMMAND = "plan"
CPU = ("--device", "cpu", "--json")
TABLES = """
[tables.history]
rows = 1000
dim = 64
features = ["items"]
[tables.users]
rows = 50_000
dim = 32
features = ["user"]
kind = "pooled"
module = "bags"
ids_per_sample = 1
"""
MODEL = """
import torch
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

def model():
    table = EmbeddingConfig(name="history", num_embeddings=1000, embedding_dim=64, feature_names=["items"])
    outer = torch.nn.Module()
    outer.embeddings = EmbeddingCollection([table], device=torch.device("meta"))
    return outer
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # else names are folded
    (tmp_path / "tables.toml").write_text(TABLES)
    write_profile(tmp_path)
    return tmp_path


def test_it_shows_the_plan_and_writes_what_loads(call, folder):
    done = call("tables.toml", "--profile", folder, "--ranks", 4)
    assert done.exit_code == 0, done.output
    for text in ("history", "this plan", "TorchRec's default", "prioritized", "written: sharding-plan.json"):
        assert text in done.stdout
    assert done.stderr == ""
    assert {*load_plan("sharding-plan.json").plan} == {"embeddings", "bags"}


def test_json_carries_the_plan_that_is_written_and_nothing_else(call, folder):
    done = call("tables.toml", "--profile", folder, "--ranks", 4, "--device", "cpu", "--out", "mine.json", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["version"], document["kind"], document["ranks"], document["batch_size"]) == (1, "plan", 4, 16)
    assert document["sharding"] == json.loads((folder / "mine.json").read_text())
    assert (document["sharding"]["device"], document["sharding"]["ranks_per_host"]) == ("cpu", 4)
    steps = {(one["way"], one["plan"]): one for one in document["steps"]}
    assert len(steps) == 6
    for plan in ("chosen", "torchrec"):
        plain, pipelined = (steps[way, plan] for way in ("plain", "sparse dist"))
        assert plain["step_ms"] > pipelined["step_ms"] > 0  # ids are sent ahead
        balance = document["balance"][plan]
        for name in ("memory_ms", "sent_bytes", "received_bytes", "memory_bytes"):
            assert len(balance[name]) == 4
            assert balance["over_mean"][name] == pytest.approx(max(balance[name]) / np.mean(balance[name]) - 1)
    for one in document["placed"]:
        assert one["plain_ms"] == pytest.approx(one["lookup_ms"] + one["communication_ms"])
        assert one["overlapped_ms"] < one["plain_ms"]


def test_lengths_and_used_rows_come_from_the_data(call, folder):
    """Half of the ids lie in the first quarter of the rows, so that no plan of four ranks is even."""
    (folder / "tables.toml").write_text(TABLES.partition("[tables.users]")[0])
    arguments = ("tables.toml", "--profile", folder, "--ranks", 4, "--batch-size", 4096, "--extrapolate", *CPU)
    read, unread = (json.loads(call(*arguments, option).stdout) for option in ("--rows", "--no-rows"))
    profile = json.loads((folder / "profile.json").read_text())
    lengths = LengthHistogram.from_dict(profile["sequences"]["items"]["histogram"])
    assert read["placed"][0]["ids_per_sample"] == pytest.approx(lengths.mean)
    assert unread["placed"][0]["sharding"] == "row_wise"
    assert unread["balance"]["chosen"]["over_mean"]["memory_ms"] == pytest.approx(0)
    assert read["balance"]["chosen"]["over_mean"]["memory_ms"] > 0.9


def test_a_model_is_planned_like_its_tables(call, folder):
    (folder / "planned_model.py").write_text(MODEL)
    (folder / "tables.toml").write_text(TABLES.partition("[tables.users]")[0])
    answers = []
    for spec in ("planned_model:model", "tables.toml"):
        done = call(spec, "--profile", folder, "--ranks", 4, "--json")
        assert done.exit_code == 0, done.output
        answers.append(json.loads(done.stdout)["sharding"])
    assert answers[0] == answers[1]


def test_a_calibration_makes_exchanges_and_look_ups_what_they_were(call, folder):
    run = write_run(folder / "run.json", ranks=4)
    arguments = ("tables.toml", "--profile", folder, "--ranks", 4, "--batch-size", 4096, "--extrapolate", *CPU)
    usual = json.loads(call(*arguments).stdout)
    calibrated = json.loads(call(*arguments, "--calibration", run).stdout)
    assert (usual["calibration"], calibrated["calibration"][:12]) == (None, "calibration:")
    slow, fast = (
        next(one for one in of["steps"] if one["plan"] == "chosen" and one["way"] == "plain")
        for of in (calibrated, usual)
    )
    assert slow["ids_ms"] > 3 * 2 > fast["ids_ms"]  # exchanges of 2 ms, of which ids take three
    assert slow["lookup_ms"] != fast["lookup_ms"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", 0), "--ranks must be above 0, got 0"),
        (("--memory", 0), "--memory must be above 0"),
        (("--way", "fast"), "--way 'fast': there are plain, sparse dist, prioritized"),
        (("--device", "tpu"), "--device 'tpu': cuda or cpu is needed"),
        (("--out", "nowhere/plan.json"), "the folder nowhere is not there"),
        (("--hardware", "b300"), "no hardware 'b300'"),
        (("--profile", "nowhere"), "no profile at nowhere"),
        (("--ranks", 4096), "--ranks 4096: the 20,000 rows make less than 5 global batches"),
        (("--ranks", 8, "--calibration", "run.json"), "the calibration is of 4 ranks. --extrapolate"),
        (("--memory", 0.001), "TorchRec's planner finds no plan"),
    ],
)
def test_unusable_arguments_end_with_status_2_and_write_nothing(call, folder, arguments, message):
    write_run(folder / "run.json", ranks=4)
    done = call("tables.toml", "--profile", folder, "--ranks", 4, *arguments)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.stderr.split())
    assert not (folder / "sharding-plan.json").exists()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nothing.toml", "no tables nothing.toml"),
        ("no_such_package:model", "ModuleNotFoundError"),
        ("data.parquet", "is no TOML"),
    ],
)
def test_tables_that_are_none_end_with_status_2(call, folder, spec, message):
    done = call(spec, "--profile", folder, "--ranks", 4)
    assert done.exit_code == 2, done.output
    assert message in done.stderr


def test_more_ranks_than_were_calibrated_are_planned_when_asked_for(call, folder):
    run = write_run(folder / "run.json", ranks=4)
    done = call("tables.toml", "--profile", folder, "--ranks", 8, "--calibration", run, "--extrapolate")
    assert done.exit_code == 0, done.output


def test_without_torchrec_the_error_says_what_to_install(call, folder, monkeypatch):
    import sys

    for name in [name for name in sys.modules if name.startswith("freescale_tools.plan.torchrec")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchrec.distributed.embedding", None)
    done = call("tables.toml", "--profile", folder, "--ranks", 4)
    assert done.exit_code == 2, done.output
    assert "planning needs torchrec" in done.stderr
    assert "README" in done.stderr
