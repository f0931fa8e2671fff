"""What golden files say of batches: which rows they hold, and a digest of every bit of them."""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from fsdata import Batch, Jagged


def tensors(batch: Batch) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a batch of the loader, by a name of its own."""
    yield "features values", batch.features.values()
    yield "features lengths", batch.features.lengths()
    yield "dense", batch.dense
    yield "origin", batch.origin
    for role, parts in (("label", batch.labels), ("jagged", batch.jagged)):
        for name, part in parts.items():
            if isinstance(part, Jagged):
                yield f"{role} {name} values", part.values
                yield f"{role} {name} offsets", part.offsets
            else:
                yield f"{role} {name}", part


def of_tensor(tensor: torch.Tensor) -> str:
    """sha256 of the bytes, dtype, shape."""
    array = tensor.detach().contiguous().numpy()
    return f"{sha256(array.tobytes()).hexdigest()} {tensor.dtype} {list(tensor.shape)}"


def of_parts(parts: Iterable[Any]) -> str:
    """The first 24 digits of the sha256 of JSON-able parts."""
    result = sha256()
    for part in parts:
        result.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return result.hexdigest()[:24]


def of_batch(batch: Batch) -> str:
    """Digest of all tensors (bytes, dtypes, shapes), keys and statistics."""
    named = [[name, of_tensor(tensor)] for name, tensor in tensors(batch)]
    return of_parts([batch.features.keys(), stats_of(batch), *named])


def stats_of(batch: Any) -> dict[str, Any]:
    """`stats` and the weight of the loss; also of the `last` of `rebalance`."""
    return {**dataclasses.asdict(batch.stats), "loss_weight": batch.loss_weight}


def rows(batch: Batch) -> list[int]:
    return batch.features["row"].values().tolist()


def line(batch: Batch) -> str:
    """Rows and digest of one batch."""
    return f"{words(rows(batch))}: {of_batch(batch)}"


def rest(batches: Iterable[Batch]) -> str:
    """Rows of all batches and one digest."""
    held = list(batches)
    return f"{' | '.join(words(rows(batch)) for batch in held)}: {of_parts(map(of_batch, held))}"


def words(values: Iterable[Any] | np.ndarray) -> str:
    return " ".join(map(str, values.tolist() if isinstance(values, np.ndarray) else values))
