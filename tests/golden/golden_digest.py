"""What golden files say of batches: which rows they hold, and a digest of every bit of them.

Orders and saved states stand whole in a golden file. Of other documents it holds digests: `golden_changes.py` shows
what has changed in them.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from fsdata import Batch, Jagged

LINE = 100  # characters
WHOLE = ("states", "fingerprints")


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


def as_first_released(state: dict[str, Any]) -> dict[str, Any]:
    """Without what later releases have added to a state: it loads without, too."""
    del state["run"]
    return state


def fingerprint(states: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Takes the fingerprint out of states, which all have the same one; and what later releases have added."""
    (found,) = {json.dumps(as_first_released(state).pop("fingerprint")) for state in states}
    return json.loads(found)


def shared(fingerprints: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """What all fingerprints have in common once, under "all"; and what each one has of its own."""
    first, *others = fingerprints.values()
    common = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
    own = {name: dict(of_one.items() - common.items()) for name, of_one in fingerprints.items()}
    return {"all": common, **own}


def fingerprint_of(found: dict[str, Any], name: str) -> dict[str, str]:
    return {**found["fingerprints"]["all"], **found["fingerprints"][name]}


def folded(value: Any, depth: int) -> Any:
    """What a golden file holds of a document: what is short, and digests of what lies `depth` levels deep.

    Batches, as `line` writes them, are one text with the rows of all of them and one digest.
    """
    if isinstance(value, str) or len(json.dumps(value)) <= LINE:
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        heads, digests = zip(*(each.partition(": ")[::2] for each in value), strict=True)
        return f"{' | '.join(heads)}: {of_parts(digests)}"
    if not depth:
        return of_parts([rounded(value)])
    if isinstance(value, dict):
        return {key: item if key in WHOLE else folded(item, depth - 1) for key, item in value.items()}
    return [folded(item, depth - 1) for item in value]


def rounded(value: Any) -> Any:
    """Without the last digits of floats, in which machines differ."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def words(values: Iterable[Any] | np.ndarray) -> str:
    return " ".join(map(str, values.tolist() if isinstance(values, np.ndarray) else values))
