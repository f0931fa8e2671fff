"""What examples take for granted: `examples.given` takes the names of these functions.

They write files into the current folder. A context manager gives names to the examples of its page.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch


def impressions() -> None:
    """300 requests."""
    draw = np.random.default_rng(0)
    rows = {"user_id": draw.integers(0, 50, 300), "click": draw.integers(0, 2, 300)}
    _write({"impressions/a.parquet": rows})


def samples() -> None:
    """Six impressions of four users in three row groups, others that a partner has written, and tables beside them."""
    prices = {11: 2.5, 12: 4.0, 13: 1.5, 14: 8.0, 15: 3.0, 16: 6.5}
    categories = {11: [1, 2], 12: [1], 13: [], 14: [3], 15: [2, 3], 16: [1]}
    items = [[11, 12, 13], [14], [], [11, 15], [12, 11, 14, 16], [13, 12]]
    rows = {
        "request_id": list("abcdef"),
        "request_ts": [1_764_374_400 + 3600 * hour for hour in (8, 9, 9, 12, 20, 23)],
        "user_id": [1, 2, 1, 3, 4, 2],
        "country": [1, 4, 1, 8, 0, 4],
        "age_days": [400.0, 30.0, 400.0, 7.0, 90.0, 30.0],
        "hour": [8, 9, 9, 12, 20, 23],
        "item_id": items,
        "action": [[1, 0, 2], [1], [], [0, 1], [2, 1, 1, 0], [0, 1]],
        "timestamp": [[100, 160, 220], [300], [], [50, 90], [10, 20, 30, 40], [310, 320]],
        "price": [[prices[item] for item in row] for row in items],
        "categories": [[categories[item] for item in row] for row in items],
        "watch_time": [[3.0, 1.0, 2.0], [4.0], [], [1.0, 2.0], [2.0, 1.0, 1.0, 3.0], [2.0, 2.0]],
        "weight": [[1.0, 0.0, 1.0], [1.0], [], [1.0, 0.0], [1.0, 1.0, 0.0, 1.0], [1.0, 0.0]],
        "next_item": [[12, 13, 14], [11], [], [15, 12], [11, 14, 16, 11], [12, 15]],
        "candidate_id": [[11, 16], [12, 13], [14, 11], [15, 12], [16, 13], [11, 14]],
        "click": [1, 0, 0, 1, 0, 1],
    }
    partner = {
        "items": [[21, 22], [23], [24], [25, 21]],
        "action": [[0, 1], [1], [2], [0, 0]],
        "user_id": [5, 6, 7, 5],
        "country": [2, 2, 5, 2],
        "seconds": [7200, 10800, None, 50400],
        "is_test": [False, True, False, False],
        "click": [0, 1, 1, 0],
    }
    visit = {"item_id": 11, "price": 2.5, "shop": "north"}
    sessions = [[visit, {"item_id": 12, "price": 4.0, "shop": "south"}], [], [visit]]
    tables = {
        "impressions/a.parquet": rows,
        "partner/a.parquet": partner,
        "sessions.parquet": {"session": sessions},
        "site/2025.parquet": {"user_id": [1, 2]},
        "site/2026.parquet": {"user_id": ["2", "1"]},
        "users.parquet": {"user_id": [1, 2, 3, 4], "segment": [7, 8, 7, 9]},
        "items.parquet": {"item_id": [11, 12, 13, 14, 15], "artist": [1, 1, 2, 2, 3], "album": [5, 6, 7, 7, 8]},
        "users_by_name.parquet": {"user_name": ["ann", "bob"], "segment": [7, 8]},
        "visits_by_name.parquet": {"user_name": ["bob", "eve", "ann", "bob"]},
    }
    _write(tables, rows_of_a_group=2)


def growing() -> None:
    """Two files of impressions, the second not yet renamed, and requests with a teacher's predictions for some of
    them. They were written an hour ago."""
    tables = {
        "impressions/part-1.parquet": {"request_id": list("abcdef"), "click": [1, 0, 0, 1, 0, 1]},
        "impressions/.part-2.parquet": {"request_id": list("ghijkl"), "click": [0, 0, 1, 0, 1, 1]},
        "requests/part-1.parquet": {"request": [1, 2, 3, 4], "click": [1, 0, 0, 1]},
        "predictions/part-1.parquet": {"request": [1, 3, 4], "teacher_p": [0.75, 0.25, 0.5]},
    }
    _write(tables)
    written = time.time() - 3600
    for name in tables:
        os.utime(name, (written, written))


@contextmanager
def model() -> Iterator[dict[str, Any]]:
    """What gives a loss for every sample of a padded batch."""
    yield {"model": lambda items, lengths, clicks: torch.zeros(len(clicks))}


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
    import torch.distributed as dist
    from torchrec import EmbeddingCollection, EmbeddingConfig
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel

    import fsdata

    class Score(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, rows: dict[str, Any]) -> torch.Tensor:
            scores: torch.Tensor = rows["user_id"].values() @ self.weight
            return scores

    class Popularity(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            users = EmbeddingConfig(name="users", num_embeddings=50, embedding_dim=4, feature_names=["user_id"])
            self.embeddings = EmbeddingCollection(tables=[users], device=torch.device("meta"))
            self.dense = Score()

        def forward(self, batch: fsdata.Batch) -> Any:
            return self.dense(self.embeddings(batch.features))

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


def _write(tables: dict[str, dict[str, Any]], rows_of_a_group: int | None = None) -> None:
    for name, table in tables.items():
        Path(name).parent.mkdir(exist_ok=True)
        pl.DataFrame(table).write_parquet(name, row_group_size=rows_of_a_group)
