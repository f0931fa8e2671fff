"""The bags between this rank and its peers, without empty ones: those have a vector of zeros, which does not travel.

A bag has the class of its most urgent row. So has its vector, and its gradient, which travels once for all of its rows:
the owner updates rows of that class at once, and other rows with their own class.

Bags of one id that are asked for more than once by a rank have the same vector, which travels once: they are one unit.

Row-wise, a bag here is the part of it that one owner has.
N ids, I bags, U distinct bags, W peers, F features of an owner, k parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fscomm.bags import kernels
from fscomm.plan.arrays import segments, starts_of, sums
from fscomm.plan.group_plan import AskedIds
from fscomm.plan.peer_ids import PeerIds
from fscomm.plan.shared_rows import first_occurrences

_UNIQUE = 1 << 62  # above all ids: the key of a bag that is like no other


@dataclass(frozen=True, slots=True, kw_only=True)
class BagIds(PeerIds):
    """Items are bags.

    Attributes:
        weights: float32[N] or None.
        starts: int64[I + 1] where each bag begins.
        features, samples: int64[I] numbers of the owner's feature and of the requester's sample.
        widths: int64[I].
    """

    weights: np.ndarray | None
    starts: np.ndarray
    features: np.ndarray
    samples: np.ndarray
    widths: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """int64[I] ids of each bag."""
        return np.diff(self.starts)


def bag_ids(
    lengths: np.ndarray,
    features: np.ndarray,
    samples: np.ndarray,
    widths: np.ndarray,
    ids: np.ndarray,
    weights: np.ndarray | None,
    ends: np.ndarray,
) -> BagIds:
    """lengths: int32 ids of each bag, by peer, feature and sample. features, samples: int64[W]; widths: int64 strips
    by peer and feature. ends: int64[W, k] the sample at which each part of a peer's step ends."""
    number = np.count_nonzero(lengths)
    starts, bags_of = np.empty(number + 1, np.int64), np.empty_like(widths)
    of_feature, of_sample, of_width, keys = (np.empty(number, np.int64) for _ in range(4))
    kernels.find_bags(
        lengths, features, samples, widths, ids, weights is None, _UNIQUE,
        starts, of_feature, of_sample, of_width, keys, bags_of,
    )  # fmt: skip
    found = first_occurrences(keys, bags_of)
    items = sums(bags_of, features)
    part_of = (of_sample[:, None] >= ends[:, :-1].repeat(items, axis=0)).sum(1, dtype=np.uint8)
    return BagIds(
        ids=ids,
        weights=weights,
        starts=starts,
        features=of_feature,
        samples=of_sample,
        parts=ends.shape[1],
        part_of=part_of,
        first_of=part_of,
        widths=of_width,
        items=items,
        positions=found.positions,
        slots=found.slots,
        units=sums(found.counts, features),
    )


def whole_step(parts: Sequence[AskedIds]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Of all parts: lengths int32[features of all owners, B]; ids int64[N] and weights float32[N] in wire order."""
    by_part = [part.lengths.int().numpy() for part in parts if part.lengths is not None]
    given = [[part.ids.numpy() for part in parts]]
    if any(part.weights is not None for part in parts):  # a part without a sample has none
        given.append([_weights(part.weights) for part in parts])
    if len(parts) == 1:
        ids, *weights = [values for (values,) in given]
    else:
        counts = np.array([lengths.sum(1) for lengths in by_part], np.int64)  # [k, features of all owners]
        before = starts_of(np.array([len(part.ids) for part in parts]))
        starts = (np.cumsum(counts, axis=1) - counts + before[:, None]).T
        ids, *weights = [segments(np.concatenate(values), starts, counts.T) for values in given]
    return np.concatenate(by_part, axis=1), ids, weights[0] if weights else None


def _weights(weights: torch.Tensor | None) -> np.ndarray:
    return np.empty(0, np.float32) if weights is None else weights.float().numpy()
