"""The FreeScale DataLoader, with as many decoding threads as the yardstick."""

from collections.abc import Iterator

import torch
from common.reference import reference_schema

from fsdata import FreeScaleDataLoader, ParquetSource

from .common import COLUMNS, Delivered, Run
from .raw import THREADS

SCHEMA = reference_schema(COLUMNS)


def batches(run: Run, *, shuffle: bool = False) -> Iterator[Delivered]:
    """One rank of one."""
    with FreeScaleDataLoader(
        [ParquetSource(run.paths)],
        SCHEMA,
        batch_size=run.batch_size,
        shuffle=shuffle,
        seed=run.seed,
        num_threads=THREADS,
        rank=0,
        world_size=1,
    ) as loader:
        for batch in loader:
            label = batch.labels[COLUMNS.label]
            of_one = isinstance(label, torch.Tensor)
            values, offsets = (label, torch.arange(len(label) + 1)) if of_one else (label.values, label.offsets)
            yield Delivered(batch.features, batch.dense, values, offsets)
