"""What `time_lost.py` measures: batches as ranks get them from their loaders, and a small sequence model on each.

The compute of a rank does not depend on the other ranks. So the ranks of a world only deal batches, and one process
trains on those of all ranks: ranks that train at a time on fewer cores than ranks disturb each other.
"""

import dataclasses
import gc
import time

import numpy as np
import torch
import torch.nn.functional as F
from common.history_sets import COLUMN, HistorySet
from torch import Tensor, nn

from fsdata import Balance, FreeScaleDataLoader, ParquetSource, Polynomial, Schema, Sequence
from fsdata.balance.packing.planning import Method

_ROWS = 2**14
_CHANNELS = 16
_WARM_UP = 20
_RUNS = 3  # of a step

Batch = tuple[np.ndarray, np.ndarray]
"""Ids of all events, int64 [E], and lengths of the samples, int64 [B]."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One epoch that is measured."""

    of: HistorySet
    batch_size: int
    shuffle: bool
    cost: Polynomial | None
    """Of balanced batches; None: plain ones."""
    method: Method = "fbs+swap"
    """Of balanced batches."""
    steps: int | None = None
    """At most so many; None: the whole epoch."""
    seed: int = 0


def deal(rank: int, world_size: int, conditions: list[Condition]) -> list[list[Batch]]:
    """The batches of this rank under each condition. Collective where there is more than one rank."""
    return [_epoch(each, rank, world_size) for each in conditions]


def _epoch(condition: Condition, rank: int, world_size: int) -> list[Batch]:
    schema = Schema(sequences=(Sequence("items", (COLUMN,), max_length=condition.of.max_length),))
    found: list[Batch] = []
    with FreeScaleDataLoader(
        ParquetSource(condition.of.paths),
        schema,
        batch_size=condition.batch_size,
        shuffle=condition.shuffle,
        seed=condition.seed,
        balance=None if condition.cost is None else Balance(method=condition.method, cost=condition.cost),
        drop_last=True,
        rank=rank,
        world_size=world_size,
        num_threads=1,
    ) as loader:
        for number, batch in enumerate(loader):
            if number == condition.steps:
                break
            events = batch.features[COLUMN]
            found.append((events.values().numpy().copy(), events.lengths().numpy().astype(np.int64)))
    return found


class Model(nn.Module):
    """Embedding, one layer of causal self-attention, a feed-forward layer, a score per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_ROWS, _CHANNELS)
        self.before, self.between = nn.LayerNorm(_CHANNELS), nn.LayerNorm(_CHANNELS)
        self.inward, self.outward = nn.Linear(_CHANNELS, 3 * _CHANNELS), nn.Linear(_CHANNELS, _CHANNELS)
        self.wide, self.narrow = nn.Linear(_CHANNELS, 4 * _CHANNELS), nn.Linear(4 * _CHANNELS, _CHANNELS)
        self.head = nn.Linear(_CHANNELS, 1)

    def forward(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """ids: int64 [E]. lengths: of each sample. Returns the loss."""
        x_ED = self.embedding(ids % _ROWS)
        samples = self.inward(self.before(x_ED)).split(lengths)
        x_ED = x_ED + self.outward(torch.cat([_attention(sample) for sample in samples]))
        x_ED = x_ED + self.narrow(F.relu(self.wide(self.between(x_ED))))
        scores = [self.head(sample.sum(0)) for sample in x_ED.split(lengths)]
        return F.softplus(torch.cat(scores)).mean()


def _attention(projected_L3D: Tensor) -> Tensor:
    """float32 [L, D] of one sample."""
    query, key, value = (each[None, None] for each in projected_L3D.chunk(3, dim=-1))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)[0, 0]


class Trainer:
    """Times steps of a model on one thread of torch."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        gc.disable()  # a collection would count as work of the step in which it comes
        self._model = Model()
        for _ in range(_WARM_UP):
            self._once(np.arange(400), np.full(8, 50))

    def seconds(self, step: list[Batch]) -> list[float]:
        """CPU seconds of this thread in forward and backward, of each batch: the smallest of some runs.

        Runs of a batch alternate with those of the others. What else uses the caches at a time then affects all batches
        of a step, and not all runs of one.
        """
        runs = [[self._once(*batch) for batch in step] for _ in range(_RUNS)]
        return [min(of_batch) for of_batch in zip(*runs, strict=True)]

    def _once(self, ids: np.ndarray, lengths: np.ndarray) -> float:
        given = torch.from_numpy(ids), lengths.tolist()
        self._model.zero_grad()
        before = time.thread_time()
        self._model(*given).backward()
        return time.thread_time() - before
