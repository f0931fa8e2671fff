"""The Python and TOML examples of README and docs run as they are written.

Examples that show their output are run by test_figures.py, which compares it. Every other example is run here: a test
takes apart all of its page, or those without output, so that one more example fails until it is run.
"""

import json
import sys
import tomllib
from importlib.metadata import EntryPoint
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from pages import PAGES, ROOT, blocks, name, python

import fscomm
import fsdata

sys.path.append(str(ROOT / "benchmarks"))
from figures import example_data
from figures.examples import examples


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the files that the examples name."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, 300)
    rows = {
        "item_id": [rng.integers(0, 99, n).tolist() for n in lengths],
        "action": [rng.integers(0, 5, n).tolist() for n in lengths],
        "user_id": rng.integers(0, 50, 300),
        "country": rng.integers(0, 9, 300),
        "click": rng.integers(0, 2, 300),
    }
    pl.DataFrame(rows).write_parquet(tmp_path / "impressions/a.parquet", row_group_size=64, mkdir=True)
    return tmp_path


CLICKS = """[schema]
context = ["user_id", "country"]
labels = ["click"]
[[sources]]
paths = "impressions/*.parquet"
"""


class Pipelined(torch.nn.Module):
    """The same as TorchRec's pipelines want it: (losses, output)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        output = self.model(batch)
        return output.sum(), output


@pytest.fixture
def training(here):
    """What the examples of fscomm take for granted: a sharded model, an optimizer, a loader."""
    with example_data.training() as names:
        yield names


def without_output(page: Path | str) -> list[str]:
    """The Python examples of a page that do not show what they print."""
    text = (ROOT / page).read_text()
    return [each.text for each in examples(text) if each.language == "python" and not each.comment]


def test_no_page_with_examples_is_left_out():
    of_data = ("schema", "sources", "histories", "balancing", "resume")
    of_communication = ("fscomm", "steps-in-parts", "managed-collision", "metrics")
    here = {f"docs/{page}.md" for page in (*of_data, *of_communication, "index", "coming-from")} | {"README.md"}
    # By its commands; in test_checkpoints.py; in tests/comm/loop/test_trainers.py.
    run_elsewhere = {"docs/getting-started.md", "docs/checkpoints.md", "docs/trainers.md"}
    assert {name(page) for page in PAGES if without_output(page)} == here | run_elsewhere


def test_readme(training, capsys):
    loop, served = python("README.md")
    scope = dict(training)
    before = training["model"].module.dense.weight.detach().clone()
    exec(loop, scope)
    assert scope["batch"].features.keys() == ["user_id", "country", "item_id", "action"]
    assert not torch.equal(training["model"].module.dense.weight, before)
    exec(served, training)
    assert str(training["comm"].report()) in capsys.readouterr().out


def test_home(training, capsys):
    Path("schema.toml").write_text(CLICKS)
    (loop,) = python("docs/index.md")
    before = training["model"].module.dense.weight.detach().clone()
    exec(loop, training)
    assert training["comm"].report().num_steps == len(training["loader"])
    assert not torch.equal(training["model"].module.dense.weight, before)


def test_coming_from_a_data_loader(training):
    theirs, ours, balanced, *_ = python("docs/coming-from.md")
    seen: list = []

    def model(items, lengths, clicks):
        seen.append((items.sum().item(), lengths.sum().item(), clicks.sum().item()))
        return torch.zeros(len(clicks))

    scope = {"model": model}
    exec(theirs.replace("num_workers=4", "num_workers=0"), scope)
    exec(ours, {"model": model})
    assert np.sum(seen[:3], 0).tolist() == np.sum(seen[3:], 0).tolist()  # all rows, and all of every row
    del seen[:]
    exec(balanced, scope)
    assert len(seen) == 3


def test_coming_from_pipelines(training, capsys):
    *_, theirs, pipeline, served, _, _ = python("docs/coming-from.md")
    inner = training["model"]
    scope = {**training, "model": Pipelined(inner), "device": torch.device("cpu")}
    for loop in (theirs, pipeline, served):
        training["loader"].set_epoch(0)
        exec(loop, scope)
        assert len(scope["output"]) == 300 % 32
    assert str(scope["comm"].report()) in capsys.readouterr().out


def test_coming_from_hf_datasets(here):
    *_, theirs, ours = python("docs/coming-from.md")
    scope = {"rank": 0, "world_size": 1}
    exec(ours, scope)
    countries = pl.read_parquet("impressions/*.parquet")["country"]
    assert len(scope["clicks"]) == (countries > 0).sum() % 128
    compile(theirs, "datasets", "exec")
    pytest.importorskip("datasets")
    exec(theirs, scope)


def test_schema(here):
    (in_python,) = without_output("docs/schema.md")
    example_data.samples()
    scope: dict = {}
    exec(in_python, scope)
    (written,) = blocks("docs/schema.md", "toml")
    (here / "data.toml").write_text(written.text)
    of_file = fsdata.Schema.from_toml("data.toml"), fsdata.sources_from_toml("data.toml")
    for schema, sources in (of_file, scope["JOB"]):
        with fsdata.FreeScaleDataLoader(sources, schema, batch_size=32) as loader:
            assert sum(len(batch) for batch in loader) == 4


def test_sources(here, monkeypatch):
    tables, from_catalog, from_arrow = without_output("docs/sources.md")
    scope = {"ParquetSource": fsdata.ParquetSource}
    monkeypatch.syspath_prepend(ROOT / "examples")
    Path("features").mkdir()
    pl.read_parquet("impressions/*.parquet").rename({"item_id": "items"}).write_ipc("features/a.arrow")
    exec(from_arrow, scope)
    schema = fsdata.Schema(sequences=[fsdata.Sequence("uih", fields=("item_id", "action"))])
    with fsdata.FreeScaleDataLoader(scope["features"], schema, batch_size=300) as loader:
        (batch,) = loader
    actions = pl.read_parquet("impressions/*.parquet")["action"].to_list()
    assert batch.features["action"].values().tolist() == [each for row in actions for each in row]
    exec(tables, scope)
    assert scope["fixed"].table_parts == ("delta", "warehouse/impressions", 41)
    exec(from_catalog, scope)
    assert scope["source"].label == "source-0.catalog"


def test_histories(here):
    once, pools, of_events, by_day, shared, exploded, parts = python("docs/histories.md")
    example_data.histories()
    scope: dict = {}
    exec(once, scope)
    assert scope["history"].values().max() > 900
    plain = scope["history"].values()
    requests = {"requests": scope["requests"]}
    (in_toml,) = blocks("docs/histories.md", "toml")
    (here / "job.toml").write_text(in_toml.text)
    sources = fsdata.sources_from_toml("job.toml")
    with fsdata.FreeScaleDataLoader(sources, scope["schema"], batch_size=128) as loader:
        *_, batch = loader
    assert torch.equal(batch.features["item_id"].values(), plain)
    exec(pools, scope)
    joined = fsdata.ParquetSource("requests/*.parquet", join=scope["histories"])
    with fsdata.FreeScaleDataLoader(joined, fsdata.Schema(sequences=[scope["uih"]]), batch_size=200) as loader:
        (batch,) = loader
    assert set(batch.features["pools"].values().tolist()) == {1, 2, 4}
    exec(of_events, scope)
    found, artists = (scope["batch"].features[name].values() for name in ("item_id", "artist"))
    assert torch.equal(artists, found + 1)
    exec(by_day, scope)
    assert scope["training"].windows == 1
    scope |= requests
    exec(shared, scope)
    assert torch.equal(scope["events"], plain)
    assert len(scope["merged"]) < len(scope["events"])
    exec(exploded, scope)
    assert scope["candidate"].tolist() == [7, 8, 9] * (200 % 64)
    assert scope["click"].tolist() == [0.0, 1.0, 0.0] * (200 % 64)
    exec(parts, scope)
    assert scope["positions"].shape == (scope["parts"].total, 16)
    assert scope["mask"].shape[0] == len(scope["batch"])


def test_balancing(training, capsys):
    default, fitted, in_parts, rebalanced, graph, behind_embeddings, parts = python("docs/balancing.md")
    scope = {name: getattr(fsdata, name) for name in fsdata.__all__} | {"fsdata": fsdata}
    assert repr(eval(default, scope)) == repr(fsdata.Balance())
    exec(fitted, scope)
    assert "Polynomial(linear=" in capsys.readouterr().out
    batches = [{"uih_lengths": torch.arange(4), "x": torch.rand(4, 2)} for _ in range(3)]
    seen: list = []
    exec(rebalanced.replace("...", "seen.append(batch)"), {**scope, "my_loader": batches, "seen": seen})
    assert [batch["x"].tolist() for batch in seen] == [batch["x"].tolist() for batch in batches]
    clicks = {"schema": fsdata.Schema(context=("user_id",), labels=("click",)), "seen": seen}
    exec(graph.replace("...", "seen.append(batch)"), {**scope, **clicks})
    assert sum(len(batch) for batch in seen[3:]) == 300
    one = torch.ones((), requires_grad=True)
    exec(in_parts, {**scope, "batch": seen[3], "model": lambda part: one * part.labels["click"]})
    torch.testing.assert_close(one.grad, seen[3].labels["click"].mean())
    exec(parts, scope)
    assert sorted(scope["plan"].rank.tolist()) == [0, 0, 1, 1]
    model = training["model"].module
    exec(behind_embeddings, {**training, "fsdata": fsdata, "model": model, "criterion": torch.nn.MSELoss()})
    assert model.dense.weight.grad is not None


def test_resume(training, capsys):
    saved, changed, after_a_spike, over_epochs, with_fscomm = python("docs/resume.md")
    loader = training["loader"]
    whole = [batch.features.values().tolist() for batch in loader]
    loader.set_epoch(0)
    exec(saved, {})
    steps = len(whole)
    assert capsys.readouterr().out == f"{[*range(3)]} {[*range(3, steps)]}\n"
    exec(changed, {})
    assert capsys.readouterr().out == f"64 {150 + 140 - 64}\n"
    loader.set_epoch(0)
    trained = []
    exec(after_a_spike, {"loader": loader, "state": loader.state_dict(), "train_step": trained.append})
    assert [batch.features.values().tolist() for batch in trained] == whole[2:]
    loader.set_epoch(0)
    with fscomm.enable(training["model"]) as training["comm"]:
        exec(with_fscomm, training)
    loader.load_state_dict(training["checkpoint"]["data"])
    assert [batch.features.values().tolist() for batch in loader] == whole[1:]
    for epoch, left in ((0, [1, 2]), (2, [])):  # saved after the last batch of an epoch
        loader.set_epoch(epoch)
        for _ in loader:
            state = loader.state_dict()
        loader.load_state_dict(state)
        trained = []
        exec(over_epochs, {"loader": loader, "train_step": trained.append})
        assert [batch.stats.epoch for batch in trained] == [epoch for epoch in left for _ in whole]


def test_fscomm(training, capsys):
    served, traced, pipeline, meter = python("docs/fscomm.md")
    exec(served, training)
    report = training["comm"].report()
    assert report.fallbacks == {}
    assert report.num_steps == len(training["loader"])
    assert report.total.collisions["embeddings"].colliding > 0
    assert str(report) in capsys.readouterr().out
    model = training["model"]
    with fscomm.enable(model) as comm:
        batches = iter(comm.lookahead(training["loader"]))
        steps = islice(batches, 3)
        exec(traced, {"torch": torch, "train_some_steps": lambda: [model(batch).sum().backward() for batch in steps]})
        list(batches)
    events = json.loads(Path("trace-0.json").read_text())["traceEvents"]
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"MainThread", "fscomm exclusive", "fscomm collision"} <= threads
    assert "fscomm: wait for exclusive rows" in {event["name"] for event in events}
    scope = {**training, "pipelined_model": Pipelined(model), "device": torch.device("cpu")}
    exec(pipeline, scope)
    assert len(scope["output"]) == 300 % 32
    exec(meter, training)
    assert f"mean of {len(training['loader'])} steps" in capsys.readouterr().out


def test_steps_in_parts(training):
    (in_parts,) = python("docs/steps-in-parts.md")
    before = training["model"].module.dense.weight.detach().clone()
    exec(in_parts, scope := {**training, "fscomm": fscomm})
    assert scope["comm"].report().num_steps == len(training["loader"])
    assert not torch.equal(training["model"].module.dense.weight, before)


def test_managed_collision(training):
    (on_cpu,) = python("docs/managed-collision.md")
    exec(on_cpu, {**training, "fscomm": fscomm})


def test_transports():
    (entry,) = blocks("docs/transports.md", "toml")
    (points,) = tomllib.loads(entry.text)["project"]["entry-points"].values()
    points = [EntryPoint(each, value, "freescale.host_collectives") for each, value in points.items()]
    assert [(point.module, point.attr) for point in points] == [("my_package", "open_ucc")]
