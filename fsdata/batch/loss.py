"""The loss of the global batch, right for any number of samples per rank.

Averaging gradients over ranks (what data-parallel training does) weighs every rank alike. If ranks hold different
numbers of samples, a local mean would count the samples of a small batch for more; scaling by the global count instead
gives exactly the gradient of the mean over the global batch.
"""

from collections.abc import Mapping
from typing import Any

import torch

from fsdata.batch.jagged import Jagged

_SAMPLES = "samples"
_CANDIDATES = "candidates"


def global_mean(per_item_loss: torch.Tensor, batch: Any, over: str = _SAMPLES) -> torch.Tensor:
    """local sum * W / global count, a scalar: averaged over the W ranks, the mean over the global batch.

    per_item_loss: [items of this rank]; on an empty rank [0], which gives a 0 that backward can run through.
    batch: a `Batch`, the `.last` of `rebalance`, or a batch of your own (`adapt`) that kept the `stats` of its `Batch`
        and, to count over labels, its `labels`.
    over: "samples"; the name of a label, counted per sample or, where the label is a list, per candidate or event; or
        the name of a sequence, counted per event.

    The value on one rank is not the global mean, only the average over ranks is. Does not communicate or synchronise.

    Raises ValueError if `per_item_loss` does not have one value per item, if `over` names nothing in the batch, or if
    the global count is unknown: elements are counted over ranks only with `balance` (or one rank).
    """
    stats = getattr(batch, "stats", None)
    if stats is None:
        raise ValueError(
            f"global_mean needs the counts of all ranks, and a {type(batch).__name__} has no `stats`: keep those of "
            "the Batch in it, stats=batch.stats"
        )
    local, total = _counts(batch, over)
    if per_item_loss.dim() != 1 or (local is not None and len(per_item_loss) != local):
        wanted = "items of this rank" if local is None else local
        raise ValueError(
            f"global_mean(over={over!r}) needs one loss per item, shape [{wanted}], got {list(per_item_loss.shape)}: "
            "compute the loss with reduction='none', without padding"
        )
    return per_item_loss.sum() * (stats.world_size / max(total, 1))


def _counts(batch: Any, over: str) -> tuple[int | None, int]:
    """Items of this rank (None if the batch does not say) and of all ranks."""
    stats = batch.stats
    labels = getattr(batch, "labels", {})
    labels = labels if isinstance(labels, Mapping) else {}
    label = labels.get(over)
    if over == _SAMPLES or (label is not None and not isinstance(label, Jagged)):
        return stats.samples, stats.global_samples
    local = None if label is None else len(label.values)
    group = over if label is None or over in stats.global_items else _CANDIDATES
    if group in stats.global_items:
        return local, stats.global_items[group]
    if label is None:
        names = ", ".join(sorted({_SAMPLES, *labels, *stats.global_items}))
        raise ValueError(
            f"global_mean(over={over!r}): no such label or sequence; this batch can be counted over {names}"
        )
    raise ValueError(
        f"global_mean(over={over!r}): the number of its items on all ranks is unknown. Use balance=Balance(), whose "
        "ranks tell each other their lengths, or sum it up yourself"
    )
