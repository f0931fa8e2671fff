"""`freescale plan` as it is called."""

import json
import sys

import numpy as np
import pytest
from plan_examples import write_profile
from test_calibrate_run import run as write_run
from tools_kit import answered, ran, refused

import freescale_tools.plan
from freescale_tools.calibrate.calibration import calibrate
from freescale_tools.calibrate.measured_steps import read_steps
from freescale_tools.console.terminal import plain
from freescale_tools.plan.torchrec import load_plan
from freescale_tools.scan.histogram import LengthHistogram

HISTORY = """
[tables.history]
rows = 1000
dim = 64
features = ["items"]
"""
TABLES = f"""{HISTORY}
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
    (tmp_path / "history.toml").write_text(HISTORY)
    write_profile(tmp_path)
    return tmp_path


def planned(tables, *arguments, ranks=4):
    """The document of the command on the CPU, in the folder of the profile."""
    return answered("plan", tables, "--profile", ".", "--ranks", ranks, "--device", "cpu", *arguments)


def test_it_shows_the_plan_and_writes_what_loads(folder):
    done = ran("plan", "tables.toml", "--profile", folder, "--ranks", 4)
    for text in ("history", "this plan", "TorchRec's default", "prioritized", "written: sharding-plan.json"):
        assert text in done.stdout
    assert done.stderr == ""
    assert {*load_plan("sharding-plan.json").plan} == {"embeddings", "bags"}


def test_json_carries_the_plan_that_is_written_and_nothing_else(folder):
    document = planned("tables.toml", "--out", "mine.json")
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


def test_lengths_and_used_rows_come_from_the_data(folder):
    """Half of the ids lie in the first quarter of the rows, so that no plan of four ranks is even."""
    read, unread = (
        planned("history.toml", "--batch-size", 4096, "--extrapolate", of) for of in ("--rows", "--no-rows")
    )
    profile = json.loads((folder / "profile.json").read_text())
    lengths = LengthHistogram.from_dict(profile["sequences"]["items"]["histogram"])
    assert read["placed"][0]["ids_per_sample"] == pytest.approx(lengths.mean)
    assert unread["placed"][0]["sharding"] == "row_wise"
    assert unread["balance"]["chosen"]["over_mean"]["memory_ms"] == pytest.approx(0)
    assert read["balance"]["chosen"]["over_mean"]["memory_ms"] > 0.9


def test_a_model_is_planned_like_its_tables(folder):
    (folder / "planned_model.py").write_text(MODEL)
    assert planned("planned_model:model")["sharding"] == planned("history.toml")["sharding"]


def test_a_calibration_makes_exchanges_and_look_ups_what_they_were(folder):
    """More ranks than were calibrated are planned when asked for."""
    run = write_run(folder / "run.json", ranks=4)
    arguments = ("tables.toml", "--batch-size", 4096, "--extrapolate")
    usual, calibrated = planned(*arguments, ranks=8), planned(*arguments, "--calibration", run, ranks=8)
    assert (usual["calibration"], calibrated["calibration"][:12]) == (None, "calibration:")
    slow, fast = (
        next(one for one in of["steps"] if one["plan"] == "chosen" and one["way"] == "plain")
        for of in (calibrated, usual)
    )
    assert slow["ids_ms"] > 3 * 2 > fast["ids_ms"]  # exchanges of 2 ms, of which ids take three
    assert slow["lookup_ms"] != fast["lookup_ms"]


def test_look_ups_take_what_the_bytes_of_the_calibrated_run_took(folder):
    """Whatever dims the profile was given: events of that run had 64 floats."""
    document = calibrate(read_steps(write_run(folder / "run.json", ranks=4)))
    document["run"]["bytes"]["embeddings"] = 4 * 64 * document["run"]["events"]
    (folder / "calibration.json").write_text(json.dumps(document, default=plain))
    arguments = ("history.toml", "--batch-size", 4096, "--extrapolate", "--calibration", "calibration.json")
    (known,) = planned(*arguments)["placed"]
    profile = json.loads((folder / "profile.json").read_text())
    (folder / "profile.json").write_text(json.dumps(profile | {"dims": 16}))
    (told,) = planned(*arguments)["placed"]
    assert told["lookup_ms"] == known["lookup_ms"] > 0


@pytest.mark.parametrize(
    ("tables", "arguments", "message"),
    [
        ("tables.toml", ("--ranks", 0), "--ranks must be above 0, got 0"),
        ("tables.toml", ("--memory", 0), "--memory must be above 0"),
        ("tables.toml", ("--memory", "inf"), "--memory must be a number of GB, got inf"),
        ("tables.toml", ("--way", "fast"), "--way 'fast': there are plain, sparse dist, prioritized"),
        ("tables.toml", ("--device", "tpu"), "--device 'tpu': cuda or cpu is needed"),
        ("tables.toml", ("--out", "nowhere/plan.json"), "the folder nowhere is not there"),
        ("tables.toml", ("--hardware", "b300"), "no hardware 'b300'"),
        ("tables.toml", ("--profile", "nowhere"), "no profile at nowhere"),
        ("tables.toml", ("--ranks", 4096), "--ranks 4096: the 20,000 rows make less than 5 global batches"),
        ("tables.toml", ("--ranks", 8, "--calibration", "run.json"), "the calibration is of 4 ranks. --extrapolate"),
        ("tables.toml", ("--memory", 0.001), "TorchRec's planner finds no plan"),
        ("nothing.toml", (), "no tables nothing.toml"),
        ("nothing.toml", (), "or a model as package.module:NAME"),
        ("no_such_package:model", (), "ModuleNotFoundError"),
        ("data.parquet", (), "is no TOML"),
    ],
)
def test_unusable_tables_and_arguments_end_with_status_2_and_write_nothing(folder, tables, arguments, message):
    write_run(folder / "run.json", ranks=4)
    assert message in refused("plan", tables, "--profile", folder, "--ranks", 4, *arguments)
    assert not (folder / "sharding-plan.json").exists()


def test_without_torchrec_the_error_says_what_to_install(folder, monkeypatch):
    monkeypatch.delitem(sys.modules, "freescale_tools.plan.torchrec")
    monkeypatch.delattr(freescale_tools.plan, "torchrec")
    monkeypatch.setitem(sys.modules, "torchrec.distributed.embedding", None)
    said = refused("plan", "tables.toml", "--profile", folder, "--ranks", 4)
    assert "planning needs torchrec" in said
    assert "README" in said
