"""The README's examples run as they are written."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

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
