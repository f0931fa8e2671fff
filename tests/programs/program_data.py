"""One set of impressions, read by the FreeScale DataLoader or by torch's, as batches of a program's own kind."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from patience import PATIENCE_S
from torch.utils.data import DataLoader
from torchrec import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from fsdata import Batch, FreeScaleDataLoader, Jagged, ParquetSource, Schema, Sequence

ITEMS, ACTIONS, USERS, CATEGORIES = 2_000, 16, 500, 300
ONE_HOT = tuple(f"c{number}" for number in range(26))
DENSE = tuple(f"d{number}" for number in range(4))
HISTORY, CANDIDATES, CONTEXT = ("item", "action"), ("candidate",), ("user", *ONE_HOT)
ASKED = 3  # candidates of a sample
SAMPLES, STEPS = 16, 22
SCHEMA = Schema(
    sequences=[Sequence("history", fields=HISTORY, max_length=40)],
    candidates=Sequence("candidates", fields=CANDIDATES),
    context=CONTEXT,
    dense=DENSE,
    labels=("clicked", "bought"),
)
KEYS = SCHEMA.keys


@dataclass
class Inputs(Pipelineable):
    """What the programs train on.

    ids: all keys. dense: [B, 4]. clicked: [B * ASKED] of the candidates. bought: [B].
    """

    ids: KeyedJaggedTensor
    dense: torch.Tensor
    clicked: torch.Tensor
    bought: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Inputs":
        return Inputs(*(part.to(device, non_blocking=non_blocking) for part in self.parts))

    def record_stream(self, stream: torch.Stream) -> None:
        for part in self.parts:
            part.record_stream(stream)

    @property
    def parts(self) -> list[Any]:
        return [self.ids, self.dense, self.clicked, self.bought]


def write(folder: Path, ranks: int) -> None:
    """Popular ids occur more often; histories have log-normal lengths."""
    rows = SAMPLES * STEPS * ranks
    draw = np.random.default_rng(ranks)

    def lists(lengths: np.ndarray, values: np.ndarray) -> pa.Array:
        return pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), pa.array(values))

    lengths = np.clip(draw.lognormal(2, 1, rows), 1, 40).astype(np.int64)
    asked = np.full(rows, ASKED)
    pq.write_table(
        pa.table(
            {
                "item": lists(lengths, _skewed(draw, ITEMS, int(lengths.sum()))),
                "action": lists(lengths, draw.integers(0, ACTIONS, lengths.sum())),
                "candidate": lists(asked, _skewed(draw, ITEMS, rows * ASKED)),
                "clicked": lists(asked, draw.integers(0, 2, rows * ASKED).astype(np.float32)),
                "bought": draw.integers(0, 2, rows).astype(np.float32),
                "user": draw.integers(0, USERS, rows),
                **{name: _skewed(draw, CATEGORIES, rows) for name in ONE_HOT},
                **{name: draw.random(rows).astype(np.float32) for name in DENSE},
            }
        ),
        folder / "impressions.parquet",
        row_group_size=SAMPLES,
    )


def _skewed(draw: np.random.Generator, rows: int, count: int) -> np.ndarray:
    return (rows * draw.random(count) ** 3).astype(np.int64)


def by_freescale(folder: str, rank: int, size: int, batch_class: type) -> Any:
    """A loader of all batches of one epoch, each turned into `batch_class` in the thread that makes it."""
    del rank, size  # it finds them itself

    def adapt(batch: Batch) -> Any:
        clicked, bought = batch.labels["clicked"], batch.labels["bought"]
        assert isinstance(clicked, Jagged)
        assert isinstance(bought, torch.Tensor)
        return _made(batch_class, Inputs(batch.features, batch.dense, clicked.values, bought))

    return FreeScaleDataLoader(
        ParquetSource(folder), SCHEMA, batch_size=SAMPLES, shuffle=True, adapt=adapt, timeout_s=PATIENCE_S
    )


def by_torch(folder: str, rank: int, size: int, batch_class: type) -> Any:
    """Torch's own loader, with a collate function such as people write them."""

    def collate(rows: list[dict[str, Any]]) -> Any:
        lists = [[row[key] if isinstance(row[key], list) else [row[key]] for row in rows] for key in KEYS]
        ids = KeyedJaggedTensor(
            keys=list(KEYS),
            values=torch.tensor([value for of_key in lists for ids in of_key for value in ids]),
            lengths=torch.tensor([len(ids) for of_key in lists for ids in of_key]),
        )
        dense = torch.tensor([[row[name] for name in DENSE] for row in rows])
        clicked = torch.tensor([value for row in rows for value in row["clicked"]])
        return _made(batch_class, Inputs(ids, dense, clicked, torch.tensor([row["bought"] for row in rows])))

    rows = pq.read_table(folder).to_pylist()[rank::size]
    return DataLoader(rows, batch_size=SAMPLES, collate_fn=collate)


def _made(batch_class: type, inputs: Inputs) -> Any:
    return inputs if batch_class is Inputs else batch_class(inputs.parts)
