"""The fused kernels of one sharding group on this rank: reads and updates of their tables, and codecs for the link."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fscomm.plan.group_plan import Apply
from fscomm.plan.kernel_calls import KernelBags, KernelCall
from fscomm.tables.shadow_kernels import Hyper, Shadow


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
    unchanged = Codec(given, dim, _same, _same)
    return Codecs(given, unchanged, unchanged)


def _same(values: torch.Tensor) -> torch.Tensor:
    return values


class TableUpdate(NamedTuple):
    """What the backward of one fused kernel does. adding: by the sum of weighted rows instead of a mean."""

    kernel: int  # its number
    ids: torch.Tensor
    offsets: torch.Tensor
    gradient: torch.Tensor
    weights: torch.Tensor | None = None
    adding: bool = False

    def run(self, shadow: Shadow, hyper: Hyper) -> None:
        kernel = shadow.adding if self.adding else shadow
        kernel.update(hyper, self.gradient, self.ids, self.offsets, self.weights)


class GroupTables(ABC):
    """All kernels of a group, for one thread. D: columns of a row, or of a strip of a vector.

    Attributes:
        where: the device of the tables, and so of the rows.
        shadows: one of each kernel.
    """

    def __init__(
        self, kernels: list[Any], *, dim: int, codecs: Codecs, divide_by: Sequence[int], where: torch.device
    ) -> None:
        self.where = where
        self.codecs = codecs
        self.shadows = [Shadow(kernel) for kernel in kernels]
        self._dim = dim
        # Applied one after the other: two divisions round twice, as TorchRec's do, and one by the product would not.
        self._divide_by = [ranks for ranks in divide_by if ranks != 1]

    def lookup(self, call: KernelCall, index: torch.Tensor) -> torch.Tensor:
        """[n, width] those rows or strips, by `index`, that the kernels return for `call`, encoded to be sent."""
        return self.codecs.rows.encode(self._read(call).index_select(0, index))

    def updates(self, apply: Apply, received: torch.Tensor) -> Iterator[TableUpdate]:
        """One for each kernel. received: [n, width] all gradients that were received, encoded."""
        gradients = self.codecs.gradients.decode(received.index_select(0, apply.index))
        for ranks in self._divide_by:
            gradients.div_(ranks)
        return self._updates(apply, gradients)

    def apply(self, apply: Apply, received: torch.Tensor, hypers: list[Hyper]) -> None:
        """Update the rows of `apply`; `received`: see `updates`."""
        for update in self.updates(apply, received):
            if len(update.ids):
                update.run(self.shadows[update.kernel], hypers[update.kernel])

    @abstractmethod
    def _read(self, call: KernelCall) -> torch.Tensor:
        """[*, D] the rows or strips of all kernels."""

    @abstractmethod
    def _updates(self, apply: Apply, gradients: torch.Tensor) -> Iterator[TableUpdate]: ...


def _by_kernel(bags: Sequence[KernelBags]) -> Iterator[tuple[int, slice, torch.Tensor]]:
    """(number, slice of its ids, their offsets) of each kernel."""
    for number, of_kernel in enumerate(bags):
        yield number, slice(of_kernel.first, of_kernel.last), of_kernel.offsets


class Tables(GroupTables):
    """Tables that return a row for every id."""

    def _read(self, call: KernelCall) -> torch.Tensor:
        parts = [torch.empty(0, self._dim, dtype=self.codecs.given, device=self.where)]
        for number, ids, offsets in _by_kernel(call.bags):
            if ids.stop > ids.start:
                parts.append(self.shadows[number].lookup(call.ids[ids], offsets).view(-1, self._dim))
        return parts[-1] if len(parts) == 2 else torch.cat(parts)

    def _updates(self, apply: Apply, gradients: torch.Tensor) -> Iterator[TableUpdate]:
        for number, ids, offsets in _by_kernel(apply.call.bags):
            yield TableUpdate(number, apply.call.ids[ids], offsets, gradients[ids])


class PooledTables(GroupTables):
    """Tables that return a vector for every bag: bags are read whole, and updated row by row.

    A kernel that averages is updated by one that adds, so that rows of a bag can be left out. On the CPU it multiplies
    by 1 / the length of the whole bag for each id, as a weight; on CUDA once for each bag, before it adds up. The bits
    are the same: measured on an H200 (`means` in `benchmarks/results/gpu_torchrec.json`).
    """

    def __init__(self, kernels: list[Any], *, scales_bags: bool | None = None, **options: Any) -> None:
        super().__init__(kernels, **options)
        self._means = [kernel.pooling_mode.name == "MEAN" for kernel in kernels]
        widths = [[kernel.dims[table] for table in kernel.feature_table_map] for kernel in kernels]
        self._columns = [sum(of_kernel) for of_kernel in widths]
        self._widths = [torch.tensor(of_kernel, device=self.where) for of_kernel in widths]
        self._scales_bags = self.where.type == "cuda" if scales_bags is None else scales_bags

    def _read(self, call: KernelCall) -> torch.Tensor:
        if not len(call.ids):
            return torch.empty(0, self._dim, dtype=self.codecs.given, device=self.where)
        vectors = [
            self.shadows[number].lookup(call.ids[ids], offsets, _some(call.weights, ids))
            for number, ids, offsets in _by_kernel(call.bags)
        ]
        return torch.cat(vectors, dim=1).view(-1, self._dim)

    def _updates(self, apply: Apply, gradients: torch.Tensor) -> Iterator[TableUpdate]:
        by_kernel = gradients.view(-1, sum(self._columns)).split(self._columns, dim=1) if self._columns else ()
        for gradient, (number, ids, offsets) in zip(by_kernel, _by_kernel(apply.call.bags), strict=True):
            averages = self._means[number] and apply.call.weights is None
            weights = _some(apply.shares if averages else apply.call.weights, ids)
            if averages and self._scales_bags and weights is not None and len(weights):
                gradient = self._scaled(number, gradient, weights, offsets)
                weights = None
            yield TableUpdate(number, apply.call.ids[ids], offsets, gradient.contiguous(), weights, averages)

    def _scaled(self, number: int, gradient: torch.Tensor, shares: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """gradient [B, columns] times the share of each bag. shares: float32[n] by id, in the order of the bags; all
        ids of a bag have the same."""
        widths = self._widths[number]
        first = offsets[:-1].clamp(max=len(shares) - 1)  # bags without an id may have any share
        of_bags = shares[first].view(len(widths), -1).T
        return gradient * of_bags.repeat_interleave(widths, dim=1, output_size=self._columns[number])


def _some(weights: torch.Tensor | None, which: slice) -> torch.Tensor | None:
    return None if weights is None else weights[which]
