"""The fused kernels of one sharding group on this rank: reads and updates of their tables, and codecs for the link."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fscomm.plan.group_plan import Apply
from fscomm.plan.kernel_calls import KernelCall
from fscomm.tables.shadow_kernels import Hyper, Shadow
from fscomm.tables.turns import NO_TURNS, Turns


@dataclass(frozen=True, slots=True)
class Codec:
    """How rows, or strips of pooled vectors, of D columns are encoded to be sent.

    dtype: of the encoded numbers. width: how many of them encode a row. encode: [n, k D] -> [n, k width]; decode: the
    inverse. Each row is encoded independently of the others: it makes no difference in which messages rows travel.
    """

    dtype: torch.dtype
    width: int
    encode: Callable[[torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Codecs:
    """given: dtype of rows as the tables return them, before they are encoded."""

    given: torch.dtype
    rows: Codec
    gradients: Codec


def as_they_are(given: torch.dtype, dim: int) -> Codecs:
    """Codecs that change nothing: without quantised communication."""
    unchanged = Codec(given, dim, encode=lambda rows: rows, decode=lambda rows: rows)
    return Codecs(given, unchanged, unchanged)


class TableUpdate(NamedTuple):
    """What the backward of one fused kernel does, by this shadow of it."""

    shadow: Shadow
    gradient: torch.Tensor
    ids: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None = None


class GroupTables:
    """All kernels of a group, for one thread; they return a row for every id. D: columns of a row, or of a strip of a
    pooled vector.

    turns_of: a kernel.

    Attributes:
        where: the device of the tables, and so of the rows.
        shadows: one of each kernel.
    """

    def __init__(
        self,
        kernels: list[Any],
        *,
        dim: int,
        codecs: Codecs,
        divide_by: Sequence[int],
        where: torch.device,
        turns_of: Callable[[Any], Turns] = lambda _: NO_TURNS,
    ) -> None:
        self.where = where
        self.codecs = codecs
        self.shadows = [Shadow(kernel, turns_of(kernel)) for kernel in kernels]
        self._dim = dim
        # Applied one after the other: two divisions round twice, as TorchRec's do, and one by the product would not.
        self._divide_by = [ranks for ranks in divide_by if ranks != 1]

    def lookup(self, call: KernelCall, index: torch.Tensor) -> torch.Tensor:
        """[n, width] those rows or strips, by `index`, that the kernels return for `call`, encoded to be sent."""
        return self.codecs.rows.encode(self._read(call).index_select(0, index))

    def apply(self, apply: Apply, received: torch.Tensor, hypers: list[Hyper]) -> None:
        """Update the rows of `apply`. received: [n, width] all gradients that were received, encoded."""
        # `received` also serves the other classes of its step: `index_select` copies, so division does not change it.
        gradients = self.codecs.gradients.decode(received.index_select(0, apply.index))
        for ranks in self._divide_by:
            gradients.div_(ranks)
        for update, hyper in zip(self.updates(apply, gradients), hypers, strict=True):
            if len(update.ids):
                update.shadow.update(hyper, update.gradient, update.ids, update.offsets, update.weights)

    def updates(self, apply: Apply, gradients: torch.Tensor) -> Iterator[TableUpdate]:
        """One for each kernel. gradients: [*, D] in the order of `apply.index`."""
        for shadow, bags in zip(self.shadows, apply.call.bags, strict=True):
            ids = slice(bags.first, bags.last)
            yield TableUpdate(shadow, gradients[ids], apply.call.ids[ids], bags.offsets)

    def _read(self, call: KernelCall) -> torch.Tensor:
        """[*, D] the rows or strips of all kernels."""
        parts = [torch.empty(0, self._dim, dtype=self.codecs.given, device=self.where)]
        for shadow, bags in zip(self.shadows, call.bags, strict=True):
            if bags.last > bags.first:
                rows = shadow.lookup(call.ids[bags.first : bags.last], bags.offsets)
                parts.append(rows.view(-1, self._dim))
        return parts[-1] if len(parts) == 2 else torch.cat(parts)
