"""The plan of a group with index dedup in a step of several parts (pure).

TorchRec sends every distinct id of a batch once, and adds up the gradients of its uses before one of them goes back. So
do steps in parts: a row travels before the first part that uses it, and its gradient after the last one. Only then the
sum is complete; it is made in the order of the whole batch, on which its rounding depends.

N uses of ids, I distinct ids, k parts, F features of the group, D columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fscomm.plan import kernels
from fscomm.plan.arrays import starts_of, take
from fscomm.plan.group_plan import AskedIds, Merge, Request
from fscomm.plan.row_plan import RowIds, RowPlan


class AskedOnce(NamedTuple):
    """What a rank asks for in a step of several parts.

    asked: the distinct ids of all parts. of_uses: int64[N] which of them, in the order of the local output, each use
    is of; empty for the identity. counts: int64[F, k] uses; they are ordered by feature, then by part. gathers:
    torch's `gather` selects the rows of uses, and not `index_select`.
    """

    asked: AskedIds
    of_uses: np.ndarray
    counts: np.ndarray
    gathers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """Those in one part of ids whose gradients are added up.

    Attributes:
        part: the number of the part.
        rows: int64[n] of its gradient; None: all of them.
        places: int64[n] among all uses, in the order of the whole batch; None: there are no others.
    """

    part: int
    rows: torch.Tensor | None
    places: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSum:
    """What is added up after a part.

    Attributes:
        uses: by part, of the ids that no later part uses.
        into: int64[n] which of the sums each use goes into, in the order of the whole batch. sums: how many there are.
    """

    uses: list[Uses]
    into: torch.Tensor
    sums: int

    def gathered(self, gradients: Sequence[torch.Tensor | None], some: torch.Tensor) -> torch.Tensor:
        """[n, D] the gradients of all uses, zeros where there are none. some: one of `gradients`."""
        found = []
        for of_part in self.uses:
            gradient = gradients[of_part.part]
            if gradient is not None:
                rows = gradient if of_part.rows is None else gradient.index_select(0, of_part.rows)
                if of_part.places is None:
                    return rows
                found.append((of_part.places, rows))
        together = some.new_zeros(len(self.into), some.shape[1])
        for places, rows in found:
            together.index_copy_(0, places, rows)
        return together


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupMerge(Merge):
    """index: of each use. by_part: [k]."""

    by_part: list[PartSum]
    gathers: bool

    def read_after(self, part: int) -> list[torch.Tensor]:
        of_part = self.by_part[part]
        indices = [index for uses in of_part.uses for index in (uses.rows, uses.places)]
        return [of_part.into, *(index for index in indices if index is not None)]

    def sent_after(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        some = next((gradient for gradient in gradients if gradient is not None), None)
        if some is None:
            return None
        of_part = self.by_part[len(gradients) - 1]
        of_uses = of_part.gathered(gradients, some)
        sums = some.new_zeros(of_part.sums, some.shape[1])
        # As the backward pass of TorchRec's selection does it: another operator might round otherwise.
        if self.gathers:
            return sums.scatter_add_(0, of_part.into.unsqueeze(1).expand_as(of_uses), of_uses)
        return sums.index_add_(0, of_part.into, of_uses)


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupRequest(Request):
    """An item is a distinct id.

    Attributes:
        items: int64[N] of each use, part after part. ends: of the gradients that travel; ends_of_uses: [k].
        by_part, gathers: see `DedupMerge`.
    """

    items: np.ndarray
    ends_of_uses: list[int]
    by_part: list[PartSum]
    gathers: bool


class DedupPlan(RowPlan):
    """The ids of a feature are ordered by the last part that uses them, then by the first one."""

    def counts_of(self, parts: int) -> int:
        return parts * parts

    def _number(
        self,
        ids: np.ndarray,
        counts: np.ndarray,
        features: np.ndarray,
        runs: np.ndarray,
        tables: np.ndarray,
        parts: int,
    ) -> RowIds:
        found = super()._number(ids, counts, features, runs, tables, self.counts_of(parts))
        if parts == 1:
            return found
        last, first = np.divmod(found.part_of, parts)
        return replace(found, parts=parts, part_of=last.astype(np.uint8), first_of=first.astype(np.uint8))

    def request(self, parts: Any) -> Request:
        return self._of_whole_step(parts) if isinstance(parts, AskedOnce) else super().request(parts)

    def _of_whole_step(self, given: AskedOnce) -> Request:
        layout, (asked, of_uses, counts, gathers) = self.layout, given
        parts, number = counts.shape[1], len(asked.ids)
        part_of_use = np.tile(np.arange(parts, dtype=np.uint8), len(counts)).repeat(counts.ravel())
        in_parts = np.argsort(part_of_use, kind="stable")  # uses part after part, each feature after feature
        item = np.arange(number) if asked.from_wire is None else asked.from_wire.numpy().astype(np.int64)
        item = take(item, of_uses) if len(of_uses) else item
        first, last = _first_and_last(item, part_of_use, in_parts, number, parts)

        of_feature = np.arange(len(asked.counts)).repeat(asked.counts)
        of_count = of_feature * self.counts_of(parts) + last.astype(np.int64) * parts + first
        wire = np.argsort(of_count, kind="stable")
        item, last = _inverse(wire)[item], last[wire]
        wire_counts = np.bincount(of_count, minlength=len(asked.counts) * self.counts_of(parts))
        ids = asked.ids.numpy()[wire]
        local = _inverse(np.argsort(last, kind="stable"))
        sizes = np.bincount(last, minlength=parts)
        return DedupRequest(
            ids=self._number(ids, wire_counts, layout.features, layout.flat_runs, layout.tables, parts),
            counts=wire_counts,
            local=local,
            ends=np.cumsum(sizes).tolist(),
            items=item[in_parts],
            ends_of_uses=np.cumsum(counts.sum(0)).tolist(),
            by_part=_sums(part_of_use, _inverse(in_parts), local[item], last[item], sizes),
            gathers=gathers,
        )

    def _merge(self, request: Request, places: np.ndarray, strips: int) -> Merge:
        if not isinstance(request, DedupRequest):
            return super()._merge(request, places, strips)
        index = take(take(places, request.ids.slots), request.items).astype(np.int64)
        return DedupMerge(
            index=torch.from_numpy(index),
            ends=request.ends_of_uses,
            strips=strips,
            by_part=request.by_part,
            gathers=request.gathers,
        )


def _first_and_last(
    item: np.ndarray, part_of_use: np.ndarray, in_parts: np.ndarray, number: int, parts: int
) -> tuple[np.ndarray, np.ndarray]:
    """uint8[I] the parts that use each of so many items. item, part_of_use: [N]; in_parts: the order by part."""
    first, last = np.full(number, parts, np.uint8), np.zeros(number, np.uint8)
    kernels.first_parts(item.astype(np.int32), part_of_use, first)
    last[item[in_parts]] = part_of_use[in_parts]  # of equal indices the last one counts
    return first, last


def _sums(
    part_of_use: np.ndarray, use: np.ndarray, local: np.ndarray, last: np.ndarray, sizes: np.ndarray
) -> list[PartSum]:
    """[k]. Of each use, in the order of the whole batch: its part, its number part after part, the number of its sum
    among those of all parts, and the last part that uses its id. sizes: [k] sums."""
    lengths = np.bincount(part_of_use, minlength=len(sizes))
    row = use - starts_of(lengths)[part_of_use]
    found = []
    for part, (start, size) in enumerate(zip(starts_of(sizes), sizes.tolist(), strict=True)):
        which = np.flatnonzero(last == part)
        uses = []
        for source in np.unique(part_of_use[which]).tolist():
            places = np.flatnonzero(part_of_use[which] == source)
            rows = row[which[places]]
            whole, alone = len(rows) == lengths[source], len(places) == len(which)
            # The rows of a part increase with the places, so all of them are the rows as they are.
            uses.append(
                Uses(
                    part=source,
                    rows=None if whole else torch.from_numpy(rows),
                    places=None if alone else torch.from_numpy(places),
                )
            )
        found.append(PartSum(uses=uses, into=torch.from_numpy(local[which] - start), sums=size))
    return found


def _inverse(order: np.ndarray) -> np.ndarray:
    """Where each index is in `order`, a permutation."""
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order))
    return found
