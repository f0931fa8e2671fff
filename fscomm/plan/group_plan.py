"""The ledger of a sharding group: what travels between which ranks, when, and from where to where.

A plan is made of a `Request`, what this rank asks of the owners, and a `Served`, what all ranks ask of this owner. The
kinds of units, rows and bags, differ in how ids get numbers and in how fused kernels are called for them. All else is
here: strips are put into buckets by class and peer, on both sides alike, and each bucket becomes a `Leg`.

N ids, I items, U units (see `fscomm/plan/peer_ids.py`), R distinct rows of an owner, C classes of strips and an
exclusive one behind them, W peers, D columns of a strip, k parts.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from fscomm.plan import kernels
from fscomm.plan.kernel_calls import KernelCall
from fscomm.plan.peer_ids import PeerIds, Strips, classes_back, unit_classes_back
from fscomm.plan.sharding_group import GroupLayout
from fscomm.plan.shared_rows import OwnerRows


class AskedIds(NamedTuple):
    """What a rank asks for in one part of a step, as an input dist of TorchRec gives it.

    ids: int64[n] in the wire order of the part. counts: by owner and feature. from_wire: int[n] where the local output
    of the part is in that order; None for the identity. Of pooled groups: lengths, [features of all owners, B of the
    part] in that order; weights float[n].
    """

    ids: torch.Tensor
    counts: Sequence[int]
    from_wire: torch.Tensor | None = None
    lengths: torch.Tensor | None = None
    weights: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What this rank asks of the owners in one step.

    Attributes:
        ids: peers are the owners.
        counts: int64 ids by owner; of rows also by feature and part.
        local: int64[n] the strip of the local output that each strip of an item is; empty for the identity.
        ends: [k] where the strips of each part end in the local output.
    """

    ids: PeerIds
    counts: np.ndarray
    local: np.ndarray
    ends: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the ranks ask of this owner in one step.

    Attributes:
        ids: peers are the requesters.
        rows: all distinct rows that are asked for.
        irregular: the module cannot be served in this step: an id lies outside its table, for example.
    """

    ids: PeerIds
    rows: OwnerRows
    irregular: bool


class Shared(NamedTuple):
    """What an owner serves that two steps have in common: the class of its rows uint8[R], and of units uint8[U].

    strips: what it sends before the step, or receives after it.
    bounds: [C + 2] of each class, the most strips of one peer; and how many exclusive ones all others have.
    """

    rows: np.ndarray
    units: np.ndarray
    strips: Strips
    bounds: list[int]


class OwnerReply(NamedTuple):
    """What the owners of this rank's units report: their classes uint8[U], and the `bounds` of all owners together.

    hosts: bool[U, H] which ranks of this host ask for each unit; None unless rows travel in two levels.
    """

    units: np.ndarray
    bounds: list[int]
    hosts: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """How the strips of one class get from rank to rank.

    Attributes:
        index: int64[n] which strips of their source travel, in the order in which they are sent.
        send, receive: [W] strips to and from each rank.
        start: where the received ones begin in their buffer.
        chunks: of so many exchanges, with an equal share of every pair of ranks in each.
        bound: no rank sends another one more strips in an exchange.
    """

    index: torch.Tensor
    send: list[int]
    receive: list[int]
    start: int
    chunks: int
    bound: int

    @property
    def end(self) -> int:
        return self.start + sum(self.receive)

    def splits(self) -> Iterator[tuple[list[int], list[int]]]:
        """For each exchange: [W] strips to each rank, and from each."""
        for k in range(self.chunks):
            yield share(self.send, k, self.chunks), share(self.receive, k, self.chunks)


def share(counts: Sequence[int], chunk: int, chunks: int) -> list[int]:
    """Of each count what travels in one of several exchanges: as `kernels.bucket` has it."""
    # Differences of rounded multiples: they add up to the count, and differ by one at most. Both sides of a pair know
    # the count, so splits need not be exchanged.
    return [count * (chunk + 1) // chunks - count * chunk // chunks for count in counts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """How what is in one class comes from the owners: the first of the `legs` sends what the owner looks up, from the
    output of its `call`. Others pass on what is in the buffer by then."""

    call: KernelCall
    legs: list[Leg]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Requester: how received strips become the local output.

    Attributes:
        index: int64[n] the strip of the buffer that each strip of the output is, part after part.
        ends: [k] where the output of each part ends.
        strips: of the buffer.
    """

    index: torch.Tensor
    ends: list[int]
    strips: int

    def new_buffer(self, layout: GroupLayout, where: torch.device) -> torch.Tensor:
        """[strips, row width] to be filled with what is received."""
        return torch.empty(self.strips, layout.row_width, dtype=layout.dtype, device=where)

    def output(self, buffer: torch.Tensor, part: int) -> torch.Tensor:
        """[N of the part, D] the rows in the order of the ids that asked for them."""
        first = self.ends[part - 1] if part else 0
        return buffer.index_select(0, self.index[first : self.ends[part]])

    def read_after(self, part: int) -> list[torch.Tensor]:
        """The tensors that `sent_after` reads for this part, beside the gradients."""
        return []

    def sent_after(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """The gradient that travels after a part; None for zeros. gradients: of the outputs of this part and all before
        it; None where the loss did not use one."""
        return gradients[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """How strips travel before a step; fetch: [C + 1]."""

    merge: Merge
    fetch: list[Fetch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Owner: which gradients update the rows of one class of units.

    Attributes:
        call: of the kernels; of a bag, only with the rows of this class.
        index: int64[n] which received strips, in the order of the call. In bags: what came with a more urgent class has
            gradients of these rows, too.
        shares: float32[u] 1 / the number of ids of the whole bag; None where no table averages.
    """

    call: KernelCall
    index: torch.Tensor
    shares: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """How gradients travel after a step, and what they update.

    Attributes:
        ends: [k] strips of the local gradient up to the end of each part.
        legs: [C + 1] the source is the gradient of the part that the class is of; of all parts for the exclusive one.
        applies: [classes of units + 1].
    """

    ends: list[int]
    legs: list[Leg]
    applies: list[Apply]

    @property
    def parts(self) -> int:
        return len(self.ends)


class Buckets(NamedTuple):
    """places: int32[n] where each strip travels, class after class; counts: int64[C + 1, W] strips of each peer."""

    places: np.ndarray
    counts: np.ndarray

    @property
    def starts(self) -> np.ndarray:
        """int64[C + 2] the place where each class begins; and where the last one ends."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts.sum(1))])

    def by_class(self, values: np.ndarray) -> list[torch.Tensor]:
        """values: [n] in the order of places."""
        return [torch.from_numpy(each) for each in np.split(values, self.starts[1:-1])]

    def in_place_order(self, values: np.ndarray) -> np.ndarray:
        """values: [n] by strip."""
        out = np.empty_like(values)
        kernels.put(self.places, values, out)
        return out


def counts_of(strips: Strips, classes: int) -> np.ndarray:
    """int64[C + 1, W] how many strips of each class each peer has."""
    counts = np.empty((classes + 1, len(strips.by_peer)), np.int64)
    kernels.count(strips.classes, strips.by_peer, counts)
    return counts


def bucket(strips: Strips, classes: int, chunks: int) -> Buckets:
    """Into `classes` and an exclusive one, which travels in so many chunks."""
    counts, places = counts_of(strips, classes), np.empty(len(strips.classes), np.int32)
    kernels.bucket(strips.classes, strips.by_peer, counts, chunks, places)
    return Buckets(places, counts)


class GroupPlan(ABC):
    """Of one sharding group on this rank.

    Attributes:
        chunk_bytes: what a rank sends of exclusive strips in one exchange, about. The same on all ranks.

    Ranks learn of each other's ids in three rounds: some numbers, then words of 8 bytes, then one bit of each unit for
    each class. Numbers, words and bits are by rank.
    """

    def __init__(self, layout: GroupLayout) -> None:
        self.layout = layout
        self.chunk_bytes = layout.chunk_bytes

    # What the kinds of units differ in: how they are asked for, numbered and looked up.

    @abstractmethod
    def request(self, parts: Sequence[AskedIds]) -> Request:
        """Of one step, by part."""

    @abstractmethod
    def numbers_to(self, parts: int) -> np.ndarray:
        """int64[W] how many numbers every requester sends each owner, of a step in so many parts."""

    @abstractmethod
    def numbers(self, request: Any) -> np.ndarray:
        """int64, those of `request`."""

    @abstractmethod
    def words(self, request: Any) -> tuple[np.ndarray, np.ndarray]:
        """int64 words: what the owners have to know of `request`; int64[W] how many go to each."""

    @abstractmethod
    def words_from(self, numbers: np.ndarray, parts: int) -> np.ndarray:
        """int64[W] how many words come from requesters that sent `numbers`, int64[W, n], of a step in so many parts."""

    @abstractmethod
    def serve(self, words: np.ndarray, numbers: np.ndarray, parts: int) -> Any:
        """The `Served` of what the ranks sent."""

    @abstractmethod
    def needed_later(self, served: Any) -> np.ndarray:
        """uint8[R] 1 for rows that no rank asks for in the first part of the step."""

    @abstractmethod
    def units(self, served: Any, rows: np.ndarray) -> np.ndarray:
        """uint8[U] the class of each unit: that of its most urgent row. rows: uint8[R]."""

    @abstractmethod
    def colliding(self, served: Any, rows: np.ndarray) -> int:
        """How many of the ids have a row of class 0."""

    @abstractmethod
    def lookups(self, served: Any, shared: Shared, sent: Buckets) -> list[tuple[KernelCall, torch.Tensor]]:
        """[C + 1] What is read for each class, and the index of the strips that travel in what the kernels give."""

    @abstractmethod
    def merge(self, request: Any, asked: Buckets) -> Merge:
        """From a buffer in which strips are in their places."""

    @abstractmethod
    def applies(self, served: Any, shared: Shared, received: Buckets) -> list[Apply]:
        """[classes of units + 1] from a buffer in which gradients are in their places."""

    # What they have in common.

    def classes(self, parts: int, *, back: bool) -> int:
        """C of strips."""
        return classes_back(parts) if back else self.layout.classes_ahead + parts - 1

    def unit_classes(self, parts: int, *, back: bool) -> int:
        """Of units, without the exclusive one."""
        return unit_classes_back(parts) if back else self.layout.classes_ahead

    def shared(self, served: Served, rows: np.ndarray, *, back: bool) -> Shared:
        """rows: uint8[R] their classes. back: of the gradients after the step, not of the rows before it."""
        units = self.units(served, rows)
        strips = served.ids.back(units) if back else served.ids.ahead(units)
        counts = counts_of(strips, self.classes(served.ids.parts, back=back))
        # What a rank sends to all others sets the number of chunks. A bound from the most strips of one pair would be
        # far above it where ids are skewed: 128 such ranks would cut four times as many chunks.
        others = counts[-1].sum() - counts[-1, self.layout.rank]
        return Shared(rows, units, strips, [*counts.max(1).tolist(), int(others)])

    def num_masks(self, parts: int, *, back: bool) -> int:
        """How many bits of each unit an owner sends."""
        return self.unit_classes(parts, back=back)

    def masks(self, served: Served, shared: Shared, *, back: bool) -> list[np.ndarray]:
        """[num_masks] bool[U] for the requesters of its units: of each class, whether the unit is in it."""
        return [shared.units == of for of in range(self.unit_classes(served.ids.parts, back=back))]

    def reply(self, masks: Sequence[np.ndarray], bounds: np.ndarray) -> OwnerReply:
        """masks: as the owners of this rank's units gave them; bounds: int64[W, C + 2] of each owner."""
        classes = np.full(len(masks[0]), len(masks), np.uint8)
        for of, mask in enumerate(masks):  # a unit is in one of them at most
            classes -= mask.view(np.uint8) * np.uint8(len(masks) - of)
        # Of all owners, not of those of this rank's units: so every rank cuts the same number of chunks.
        return OwnerReply(classes, bounds.max(0).tolist())

    def ahead(self, request: Request, served: Served, shared: Shared, reply: OwnerReply) -> Ahead:
        """How strips travel before the step."""
        parts = request.ids.parts
        classes, chunks = self.classes(parts, back=False), self.chunks(reply.bounds)
        asked = bucket(request.ids.ahead(reply.units), classes, chunks)
        sent = bucket(shared.strips, classes, chunks)
        calls, indices = zip(*self.lookups(served, shared, sent), strict=True)
        legs = self.legs(indices, sent, asked, reply.bounds, chunks)
        fetch = [Fetch(call=call, legs=[leg]) for call, leg in zip(calls, legs, strict=True)]
        return Ahead(merge=self.merge(request, asked), fetch=fetch)

    def back(self, request: Request, served: Served, shared: Shared, reply: OwnerReply) -> Back:
        """How gradients travel after it: those of all items."""
        classes, chunks = self.classes(request.ids.parts, back=True), self.chunks(reply.bounds)
        # The mirror image of `ahead`: the requester sends, so its items take the place of the owner's strips.
        sent = bucket(request.ids.back(reply.units), classes, chunks)
        received = bucket(shared.strips, classes, chunks)
        local = request.local if len(request.local) else np.arange(len(sent.places))
        indices = sent.by_class(sent.in_place_order(local))
        first = [0, *request.ends[:-1]]  # the strips of a class are counted from the beginning of its part
        for of, index in enumerate(indices[:-1]):
            indices[of] = index - first[of % len(first)]
        return Back(
            ends=request.ends,
            legs=self.legs(indices, sent, received, reply.bounds, chunks),
            applies=self.applies(served, shared, received),
        )

    def chunks(self, bounds: Sequence[int]) -> int:
        """In how many exchanges exclusive strips travel, the same on all ranks. Other classes stay whole: nothing more
        urgent waits for the link."""
        chunk_strips = max(self.chunk_bytes // self.layout.row_bytes, 1)
        return max(math.ceil(bounds[-1] / chunk_strips), 1)

    def legs(
        self,
        indices: Sequence[torch.Tensor],
        sent: Buckets,
        received: Buckets,
        bounds: Sequence[int],
        chunks: int,
    ) -> list[Leg]:
        """[C + 1] each into the places of its class in the buffer; the exclusive one in so many chunks."""
        starts, exclusive = received.starts[:-1].tolist(), len(sent.counts) - 1
        in_chunks = [1] * exclusive + [chunks]
        return [
            Leg(
                index=index,
                send=sent.counts[of].tolist(),
                receive=received.counts[of].tolist(),
                start=starts[of],
                chunks=in_chunks[of],
                bound=math.ceil(bounds[of] / in_chunks[of]),
            )
            for of, index in enumerate(indices)
        ]
