"""How rows, or pooled vectors, travel: what is sent, what is read and what is updated, and in which order.

What two steps share travels in *pieces*, most urgent first, and is told by a *class*:

| of a step that is computed in k parts | classes | pieces |
|---|---|---|
| rows before it | 0 shared with the step before, 1 exclusive | k: shared rows by the part that needs them first |
| rows before it, behind managed collision, k = 1 | 0 shared, 1 evicted, 2 exclusive | 2: by class |
| gradients after it, k = 1 | 0 shared with the step after, 1 exclusive | 1 |
| gradients after it, k > 1 | 0 for part 0 of the step after, 1 for a later part, 2 exclusive | 2k: by class and part |

What is *exclusive* travels last, in chunks: it has the highest number among classes and among pieces.

A *strip* is what has one place on the wire: a row; or, of a pooled vector, as many columns as divide the width of every
table of the group. Letters: n strips or ids that travel together, P pieces, C classes but the exclusive one, W peers,
F features of an owner, D columns of a strip.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fscomm.plan import wire_kernels
from fscomm.plan.sharding_group import GroupLayout

IDS_PER_BAG = 32
FEWEST_IDS_PER_BAG = 8  # of all bags of a kernel, on average
Splits = list[list[int]]
"""[chunks][W] strips to each rank, or from each."""


def classes_back(parts: int) -> int:
    """C of the gradients of a step in so many parts."""
    return min(parts, 2)


def pieces_back(parts: int) -> int:
    """P of the gradients of a step in so many parts."""
    return classes_back(parts) * parts


def pieces_of_gradients(classes: np.ndarray, part_of: np.ndarray, parts: int) -> np.ndarray:
    """uint8: from the class and the part of each; `part_of` is not looked at where there is one part."""
    if parts == 1:
        return classes
    pieces: np.ndarray = classes * np.uint8(parts) + part_of
    return np.minimum(pieces, np.uint8(pieces_back(parts)), out=pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What travels between this rank and its peers, by peer.

    Attributes:
        places: int32[n] where each stands as it travels, piece after piece.
        starts: [P + 2] the place where each piece begins, the exclusive one last; and where that ends.
        splits: [P + 1] how many of each piece travel to, or from, each peer; a piece has one chunk, but the last one.
    """

    places: np.ndarray
    starts: list[int]
    splits: list[Splits]

    @property
    def totals(self) -> list[int]:
        """[P + 1] how many travel in each piece."""
        return np.diff(self.starts).tolist()

    def moved(self, starts: Sequence[int]) -> np.ndarray:
        """int[n] the places, if pieces begin there, [P + 1]."""
        shifts = np.subtract(starts, self.starts[:-1]).repeat(self.totals)
        return self.places + shifts[self.places]

    def by_piece(self, values: np.ndarray) -> Iterator[torch.Tensor]:
        """`values`, [n] in the order of places."""
        return pieces_of(values, self.starts)


def cut(pieces: np.ndarray, urgent: int, lengths: np.ndarray, largest: int, step: int) -> Cut:
    """Cut the exclusive piece into exchanges of about `step` strips each from all peers together.

    pieces: uint8[n] of each strip; urgent: P. lengths: int64[W] strips by peer.
    largest: the most of the exclusive piece that one rank has to do with, those of its own left out. It is the same on
    all ranks, so all cut into equally many parts: every pair of ranks cuts its strips into that many, as equal as can
    be. Other pieces stay whole: nothing more urgent waits for the wire.
    """
    splits = np.empty((exchanges(largest, step), len(lengths)), np.int64)
    places, counts = np.empty(len(pieces), np.int32), count(pieces, urgent, lengths)
    wire_kernels.cut(pieces, lengths, counts, splits, places)
    ends = np.cumsum(counts.sum(1)).tolist()
    return Cut(
        places=places,
        starts=[0, *ends, len(places)],
        splits=[*([of_piece] for of_piece in counts.tolist()), splits.tolist()],
    )


def exchanges(largest: int, step: int) -> int:
    """Into how many `cut` cuts the exclusive piece."""
    return max(math.ceil(largest / step), 1)


def count(pieces: np.ndarray, urgent: int, lengths: np.ndarray) -> np.ndarray:
    """int64[P, W] how many of each peer are in each piece but the exclusive one; as in `cut`."""
    counts = np.empty((urgent, len(lengths)), np.int64)
    wire_kernels.count(pieces, lengths, counts)
    return counts


def pieces_of(values: np.ndarray, starts: Iterable[int]) -> Iterator[torch.Tensor]:
    """`values` between consecutive `starts`."""
    return map(torch.from_numpy, np.split(values, list(starts)[1:-1]))


class Shared(NamedTuple):
    """What an owner serves that two steps have in common: the class of its rows uint8[R], and of units uint8[U].

    pieces: uint8 of all strips that it sends, or of all whose gradients it gets; strips: int64[P + 1, W] how many.
    ids: int64[W] those of each requester; colliding: int64[W] those of them that are not exclusive.
    """

    rows: np.ndarray
    units: np.ndarray
    pieces: np.ndarray
    strips: np.ndarray
    ids: np.ndarray
    colliding: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a rank knows of the units that it asked for once all owners told it, and what all ranks know alike.

    Attributes:
        mine: uint8[U] the classes of the units.
        asking: bool[U, H] which ranks of this host ask for them; None unless rows go in two levels.
        largest: the most exclusive strips that one owner sends to all others, or gets from them.
        most: [P + 1] no rank sends another one more strips in an exchange of the piece.
        most_passed: [P + 1] nor passes more on to one.
    """

    mine: np.ndarray
    asking: np.ndarray | None
    largest: int
    most: Sequence[int]
    most_passed: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBags:
    """Owner: which ids one fused kernel is called with, and in which bags.

    Attributes:
        first, last: between which of all ids.
        offsets: int64[F * B + 1] where each of B bags of a feature of the kernel begins, among its own ids.
    """

    first: int
    last: int
    offsets: torch.Tensor


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
        lengths = np.diff(of_kernel)
        # All features have equally many, so few long tables among many short ones must not make too many empty ones.
        longest, mean = (-(-lengths // runs)).max(initial=0), -(-(last - first) // runs.sum())
        bags = runs * max(min(-(-longest // IDS_PER_BAG), -(-mean // FEWEST_IDS_PER_BAG)), 1)
        number = np.arange(bags.sum()) - starts_of(bags).repeat(bags)
        starts = (of_kernel[:-1] - first).repeat(bags) + lengths.repeat(bags) * number // bags.repeat(bags)
        offsets = torch.from_numpy(np.append(starts, last - first))
        found.append(KernelBags(first=first, last=last, offsets=offsets))
        table += len(runs)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Owner: the rows, or vectors, of one piece for the next step, as the fused kernels read them.

    Attributes:
        ids: int64[u] to look up, by feature. bags: of each fused kernel.
        index: int64[n] which of the strips that the kernels give go on the wire.
        splits: to each requester.
        weights: float32[u] of ids in bags, or None.
    """

    ids: torch.Tensor
    bags: list[KernelBags]
    index: torch.Tensor
    splits: Splits
    weights: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOn:
    """Requester: rows of one piece that came to one rank of a host, on their way to its other ranks.

    Attributes:
        index: int64[n] of the rows of the piece that came to this rank from owners, those that it passes on.
        sent, received: to and from each rank.
        most: as in `Told`.
    """

    index: torch.Tensor
    sent: Splits
    received: Splits
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """How what is in one piece comes from the owners.

    Attributes:
        lookup: what this rank sends as an owner. received: from each owner.
        most: as in `Told`.
        passed_on: if rows go in two levels.
    """

    lookup: Lookup
    received: Splits
    most: int
    passed_on: PassOn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Requester: how the rows received in all pieces become the local output.

    Attributes:
        starts: [P + 2] where the rows of each piece begin in one buffer; inside a piece those of owners come first,
            then those that ranks of the same host pass on.
        index: int64[N] the row of the buffer that is local output i; part after part.
        ends: [k] where the output of each part ends.
    """

    starts: list[int]
    index: torch.Tensor
    ends: list[int]

    def new_buffer(self, layout: GroupLayout, where: torch.device) -> torch.Tensor:
        """[strips, row width] to be filled with what is received."""
        return torch.empty(self.starts[-1], layout.row_width, dtype=layout.dtype, device=where)

    def output(self, buffer: torch.Tensor, part: int) -> torch.Tensor:
        """[N of the part, D] the rows in the order of the ids that asked for them."""
        first = self.ends[part - 1] if part else 0
        return buffer.index_select(0, self.index[first : self.ends[part]])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAhead:
    """How the rows of a group travel before a step; fetch: [P + 1]."""

    merge: Merge
    fetch: list[Fetch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Owner: the gradients of one class, and the rows that they update.

    Attributes:
        index: int64[n] which strips of all that was received, in the order of the look-up. In bags, int64[B * strips]:
            what came with a more urgent class has gradients of these rows, too.
        ids, bags, weights: as in `Lookup`; of a bag, only the rows of this class.
        shares: float32[u] 1 / the number of ids of the whole bag; None where no table averages.
    """

    index: torch.Tensor
    ids: torch.Tensor
    bags: list[KernelBags]
    weights: torch.Tensor | None = None
    shares: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GoBack:
    """How the gradients of one piece go to the owners.

    Attributes:
        index: int64[n] strips of the local gradient, as they go on the wire: of the part of the piece, or of all parts
            one after the other if it is exclusive.
        sent, received: to each owner, and from each requester.
        most: as in `Told`.
    """

    index: torch.Tensor
    sent: Splits
    received: Splits
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """How the gradients of a group travel after a step in k parts.

    Attributes:
        ends: [k] strips of the local gradient up to the end of each part.
        pieces: [P + 1]. starts: [P + 2] where those of each piece begin in one buffer of all that is received.
        applies: [C + 1] what this rank does with what has come.
    """

    ends: list[int]
    pieces: list[GoBack]
    starts: list[int]
    applies: list[Apply]

    @property
    def parts(self) -> int:
        return len(self.ends)


def go_back(index: np.ndarray, sent: Cut, came: Cut, told: Told, ends: Sequence[int]) -> list[GoBack]:
    """[P + 1]. index: int64[n] strips of the local gradient of all parts, as they go on the wire. ends: [k] strips of
    it up to each part."""
    starts = [0, *ends[:-1]]
    first = [*(starts * classes_back(len(ends))), 0]  # of what the index of each piece counts from
    given = zip(sent.by_piece(index), first, sent.splits, came.splits, told.most, strict=True)
    return [
        GoBack(index=strips - start if start else strips, sent=to, received=from_, most=most)
        for strips, start, to, from_, most in given
    ]


def with_tensors(part: Any, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Any:
    """The same part of a plan, with `change(its name, it)` in the place of every tensor."""
    if isinstance(part, list) and part and is_dataclass(part[0]):
        return [with_tensors(each, change) for each in part]
    if not is_dataclass(part) or isinstance(part, type):
        return part
    changed = {}
    for name in (each.name for each in fields(part)):
        value = getattr(part, name)
        is_tensor = isinstance(value, torch.Tensor)
        changed[name] = change(name, value) if is_tensor else with_tensors(value, change)
    return replace(part, **changed)


def sums(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """int64: of consecutive `values`, so many each."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    ends = np.cumsum(lengths)
    return before[ends] - before[ends - lengths]


def starts_of(lengths: np.ndarray) -> np.ndarray:
    """int64: where each of consecutive pieces begins."""
    return np.cumsum(lengths) - lengths


def take(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """values[index]; index: int32."""
    out = np.empty(len(index), values.dtype)
    wire_kernels.take(values, index, out)
    return out


def segments(source: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Pieces of `source`, one behind the other. starts, lengths: int64, of one shape."""
    out = np.empty(lengths.sum(), source.dtype)
    words = np.dtype(f"i{source.itemsize}")  # one form of the kernel for each size
    wire_kernels.gather_segments(source.view(words), starts.ravel(), lengths.ravel(), out.view(words))
    return out
