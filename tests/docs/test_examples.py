"""The README's examples run as they are written."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
import torch.distributed as dist
from torchrec import EmbeddingCollection, EmbeddingConfig
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder

import fscomm
import fsdata

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


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
    for folder, renamed in (("impressions", {}), ("partner", {"item_id": "items"})):
        (tmp_path / folder).mkdir()
        pl.DataFrame(rows).rename(renamed).write_parquet(tmp_path / folder / "a.parquet", row_group_size=64)
    return tmp_path


def test_the_first_example_trains(here):
    weight = torch.nn.Parameter(torch.ones(()))
    scope = {
        "model": lambda batch: weight * batch.labels["click"],
        "optimizer": SimpleNamespace(step=lambda: None, zero_grad=lambda: None),
    }
    exec(blocks("python")[0], scope)
    assert weight.grad is not None
    assert scope["batch"].features.keys() == ["user_id", "country", "item_id", "action"]


def test_the_sources_example_is_accepted():
    scope: dict = {}
    exec(blocks("python")[1], scope)
    assert scope["schema"].keys == ("user_id", "country", "segment", "item_id", "action", "timestamp", "candidate_id")
    assert scope["partner"].on_error == "skip"


def test_the_balance_example_is_the_default():
    assert repr(eval(blocks("python")[2], vars(fsdata).copy())) == repr(fsdata.Balance())


def test_the_rebalance_example_yields_the_users_batches():
    batches = [{"uih_lengths": torch.arange(4), "x": torch.rand(4, 2)} for _ in range(3)]
    seen = []
    scope = {"fsdata": fsdata, "my_loader": batches, "seen": seen}
    exec(blocks("python")[3].replace("...", "seen.append(batch)"), scope)
    assert [batch["x"].tolist() for batch in seen] == [batch["x"].tolist() for batch in batches]


def test_the_schema_file_and_the_resume_example(here):
    (here / "data.toml").write_text(blocks("toml")[0])
    schema, sources = fsdata.Schema.from_toml("data.toml"), fsdata.sources_from_toml("data.toml")
    with fsdata.FreeScaleDataLoader(sources, schema, batch_size=32) as loader:
        whole = [batch.features.values().tolist() for batch in loader]
        loader.set_epoch(0)
        for _ in zip(range(2), loader, strict=False):
            pass
        exec(blocks("python")[4], {"loader": loader})
        assert [batch.features.values().tolist() for batch in loader] == whole[2:]


class Popularity(torch.nn.Module):
    """Something with a sharded table to train: a number for every user."""

    def __init__(self):
        super().__init__()
        tables = [EmbeddingConfig(name="users", num_embeddings=50, embedding_dim=4, feature_names=["user_id"])]
        self.embeddings = EmbeddingCollection(tables=tables, device=torch.device("meta"))
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, batch):
        return self.embeddings(batch.features)["user_id"].values() @ self.weight


@pytest.fixture
def training(here):
    """What the examples of fscomm take for granted: a sharded model, an optimizer, a loader."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    model = DistributedModelParallel(
        Popularity(), device=torch.device("cpu"), sharders=[EmbeddingCollectionSharder({"learning_rate": 0.1})]
    )
    schema = fsdata.Schema(context=("user_id", "country"), labels=("click",))
    with fsdata.FreeScaleDataLoader(fsdata.ParquetSource("impressions/*.parquet"), schema, batch_size=32) as loader:
        optimizer = torch.optim.SGD([model.module.weight], lr=0.1)
        yield {"model": model, "optimizer": optimizer, "loader": loader, "global_mean": fsdata.global_mean}
    dist.destroy_process_group()


def test_the_fscomm_example_is_served(training, capsys):
    exec(blocks("python")[5], training)
    report = training["comm"].report()
    assert report.fallbacks == {}
    assert report.num_steps == len(training["loader"])
    assert report.total.collisions["embeddings"].colliding > 0
    assert str(report) in capsys.readouterr().out


def test_the_meter_example_counts_every_step(training, capsys):
    model = training["model"]
    exec(blocks("python")[6], {**training, "fscomm": fscomm, "train_step": lambda batch: model(batch).sum().backward()})
    assert f"mean of {len(training['loader'])} steps" in capsys.readouterr().out
