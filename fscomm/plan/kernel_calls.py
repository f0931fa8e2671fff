"""What the fused kernels of an owner are called with: ids, in the bags that each kernel wants."""

from dataclasses import dataclass

import numpy as np
import torch

from fscomm.plan import kernels
from fscomm.plan.sharding_group import GroupLayout

IDS_PER_BAG = 32
FEWEST_IDS_PER_BAG = 8  # of all bags of a kernel, on average


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBags:
    """Which of the ids of a call one fused kernel gets, and in which bags.

    Attributes:
        first, last: between which of all ids.
        offsets: int64[F * B + 1] where each of B bags of a feature of the kernel begins, among its own ids.
    """

    first: int
    last: int
    offsets: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """Of all fused kernels of a group on this rank, to look rows up or to update them.

    Attributes:
        ids: int64[u] rows, by feature. bags: of each fused kernel.
        weights: float32[u] of ids in bags, or None.
    """

    ids: torch.Tensor
    bags: list[KernelBags]
    weights: torch.Tensor | None = None


def bags_of_kernels(layout: GroupLayout, offsets: np.ndarray, samples: int) -> list[KernelBags]:
    """By fused kernel of this rank. offsets: int64[F * B + 1] among the ids of all; samples: B."""
    found, start = [], 0
    for runs in layout.runs_of_kernels:
        end = start + int(runs.sum()) * samples
        first, last = int(offsets[start]), int(offsets[end])
        found.append(KernelBags(first=first, last=last, offsets=torch.from_numpy(offsets[start : end + 1] - first)))
        start = end
    return found


def equal_bags(layout: GroupLayout, ends: np.ndarray) -> list[KernelBags]:
    """The same where every id gets its row: bags of about `IDS_PER_BAG`. ends: int64[T + 1] of the ids of each table,
    behind a zero.

    Where bags end changes no bit, as a kernel adds up the gradients of a row in the order of the ids. But on a GPU a
    warp reads a bag, one row after the other: a table in one bag would keep one warp busy, and all others idle.
    """
    found, table = [], 0
    for runs in layout.runs_of_kernels:
        of_kernel = ends[table : table + len(runs) + 1]
        first, last = int(of_kernel[0]), int(of_kernel[-1])
        offsets = torch.from_numpy(kernels.equal_bags(of_kernel, runs, IDS_PER_BAG, FEWEST_IDS_PER_BAG))
        found.append(KernelBags(first=first, last=last, offsets=offsets))
        table += len(runs)
    return found
