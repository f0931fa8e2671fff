"""What examples use and do not make themselves: `examples.given` takes the names of these functions.

They write files into the current folder. A context manager gives names to the examples of its page.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl


def impressions() -> None:
    """300 requests."""
    draw = np.random.default_rng(0)
    rows = {"user_id": draw.integers(0, 50, 300), "click": draw.integers(0, 2, 300)}
    _write({"impressions/a.parquet": rows})


def histories() -> None:
    """The histories of 30 users, 200 requests with three candidates each, and the artists of the items."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(0, 600, 30)

    def lists(least: int, most: int) -> list[list[int]]:
        return [draw.integers(least, most, length).tolist() for length in lengths]

    tables = {
        "histories/a.parquet": {
            "user_id": np.arange(30),
            "item_id": lists(0, 999),
            "action": lists(0, 5),
            "event_ts": [sorted(times) for times in lists(0, 1000)],
            "percent": lists(0, 101),
        },
        "items.parquet": {"item_id": range(999), "artist": range(1, 1000)},
        "requests/a.parquet": {
            "user_id": draw.integers(0, 30, 200),
            "request_ts": draw.integers(0, 1000, 200),
            "click": [1] * 200,
            "candidate_id": [[7, 8, 9]] * 200,
            "clicks": [[0.0, 1.0, 0.0]] * 200,
        },
    }
    _write(tables)


def programs() -> None:
    """The folder `examples`."""
    Path("examples").symlink_to(Path(__file__).parents[2] / "examples")


@contextmanager
def training() -> Iterator[dict[str, Any]]:
    """What the loops of pages on fscomm use: a sharded model with a number for every user, its optimizer, and a loader
    of impressions."""
    import torch
    import torch.distributed as dist
    from torchrec import EmbeddingCollection, EmbeddingConfig
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel

    import fsdata

    class Popularity(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            users = EmbeddingConfig(name="users", num_embeddings=50, embedding_dim=4, feature_names=["user_id"])
            self.embeddings = EmbeddingCollection(tables=[users], device=torch.device("meta"))
            self.dense = torch.nn.Linear(4, 1, bias=False)

        def forward(self, batch: fsdata.Batch) -> torch.Tensor:
            rows: torch.Tensor = self.embeddings(batch.features)["user_id"].values()
            return self.dense(rows).squeeze(1)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    model = DistributedModelParallel(
        Popularity(),
        device=torch.device("cpu"),
        sharders=[EmbeddingCollectionSharder({"learning_rate": 0.1})],
        data_parallel_wrapper=DefaultDataParallelWrapper(static_graph=False),
    )
    optimizer = torch.optim.SGD(model.module.dense.parameters(), lr=0.1)
    schema = fsdata.Schema(context=("user_id",), labels=("click",))

    def train_step(batch: fsdata.Batch) -> None:
        fsdata.global_mean(model(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    names = {"model": model, "optimizer": optimizer, "global_mean": fsdata.global_mean, "train_step": train_step}
    with fsdata.FreeScaleDataLoader(fsdata.ParquetSource("impressions/*.parquet"), schema, batch_size=32) as loader:
        yield {**names, "loader": loader}
    dist.destroy_process_group()


def _write(tables: dict[str, dict[str, Any]]) -> None:
    for name, table in tables.items():
        Path(name).parent.mkdir(exist_ok=True)
        pl.DataFrame(table).write_parquet(name)
