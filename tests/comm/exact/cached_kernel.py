"""A fused kernel whose tables are in unified memory, with a cache, played on the CPU.

fbgemm fills, writes back and empties its cache by operators that it has for CUDA only. What it does with rows is done
here: an operation first gets places in the cache for all its rows, and only then uses what is in these places. While a
row is in the cache its value there counts, and what is in the table is not a number.
"""

import os
from collections.abc import Iterator
from typing import Any

import torch
from cpu_kernels import KernelOnCpu

SETS, WAYS = 5, 2
OPERATIONS: list[tuple[Any, Any, Any]] = []
"""Kernel, and the moments at which an operation on it began and ended, on a device that is played."""


class CachedKernel(KernelOnCpu):
    """Attributes: as fbgemm's. lxu_cache_weights: [places, columns]; lxu_cache_state: int64[places] where the row in
    each begins in the memory of the tables, -1 for none; lxu_state: int64[places] when it was used.
    """

    device: Any = None
    """The device that is played."""

    def __init__(self, embedding_specs: Any, *args: Any, **options: Any) -> None:
        super().__init__(embedding_specs, *args, **options)
        columns = max(columns for _, columns, *_ in embedding_specs)
        self.lxu_cache_weights = torch.zeros(SETS * WAYS, columns, dtype=self.weights_host.dtype)
        self.lxu_cache_state = torch.full((SETS * WAYS,), -1)
        self.lxu_state = torch.zeros(SETS * WAYS, dtype=torch.int64)
        self.uses = torch.zeros(1, dtype=torch.int64)

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        began = self.device and self.device.now()
        rows = self._rows(indices, offsets)
        held = [(start, columns, self._place(start, columns, rows)) for start, columns in rows.items()]
        for _ in range(3):
            os.sched_yield()  # another thread may come in here, as another stream may on a GPU
        self._take_out(held)
        found: torch.Tensor = super().forward(indices, offsets, *args, **options)
        self._put_back(held)
        if self.device:
            OPERATIONS.append((self, began, self.device.now()))
        return _Update.apply(found, self, held) if found.requires_grad else found  # type: ignore[no-any-return,no-untyped-call]

    def _prefetch(self, *_: Any, **__: Any) -> None:
        """fbgemm's forward calls it. `forward` did what it does on CUDA, so only the calls are counted here."""
        self.timestep += 1
        self.timesteps_prefetched.append(self.timestep)

    def flush(self) -> None:
        """Write the cache back; it stays as it is."""
        with torch.no_grad():
            for place, start in enumerate(self.lxu_cache_state.tolist()):
                if start >= 0:
                    columns = self._columns_at(start)
                    self.weights_host.data[start : start + columns] = self.lxu_cache_weights[place, :columns]

    def reset_cache_states(self) -> None:
        self.lxu_cache_state.fill_(-1)

    def _rows(self, indices: torch.Tensor, offsets: torch.Tensor) -> dict[int, int]:
        """Where each row that is looked up begins -> its columns."""
        features = len(self.feature_table_map)
        ends = offsets[:: max((len(offsets) - 1) // features, 1)].tolist()
        found = {}
        for feature, table in enumerate(self.feature_table_map):
            columns, first = self.embedding_specs[table][1], int(self.weights_physical_offsets[table])
            ids = indices[ends[feature] : ends[feature + 1]].unique().tolist()
            found |= {first + row * columns: columns for row in ids}
        return found

    def _place(self, start: int, columns: int, used: dict[int, int]) -> int:
        """The place of a row in the cache, from which it puts another one out; -1 where all are of rows that are
        `used`."""
        first = start // columns % SETS * WAYS
        inside = self.lxu_cache_state[first : first + WAYS].tolist()
        self.uses += 1
        if start in inside:
            place = first + inside.index(start)
        else:
            free = [first + way for way, of in enumerate(inside) if of not in used]
            if not free:
                return -1
            place = min(free, key=lambda place: int(self.lxu_state[place]))
            with torch.no_grad():
                if (other := int(self.lxu_cache_state[place])) >= 0:
                    width = self._columns_at(other)
                    self.weights_host.data[other : other + width] = self.lxu_cache_weights[place, :width]
                self.lxu_cache_weights[place, :columns] = self.weights_host[start : start + columns]
            self.lxu_cache_state[place] = start
        self.lxu_state[place] = self.uses
        return place

    def _take_out(self, held: list[tuple[int, int, int]]) -> None:
        with torch.no_grad():
            for start, columns, place in held:
                if place >= 0:
                    self.weights_host.data[start : start + columns] = self.lxu_cache_weights[place, :columns]

    def _put_back(self, held: list[tuple[int, int, int]]) -> None:
        with torch.no_grad():
            for start, columns, place in held:
                if place >= 0:
                    self.lxu_cache_weights[place, :columns] = self.weights_host[start : start + columns]
                    self.weights_host.data[start : start + columns] = torch.nan

    def _columns_at(self, start: int) -> int:
        starts = list(map(int, self.weights_physical_offsets))
        table = max((first, number) for number, first in enumerate(starts) if first <= start)[1]
        return int(self.embedding_specs[table][1])


class _Update(torch.autograd.Function):
    """In the places of the forward, as fbgemm's."""

    @staticmethod
    def forward(ctx: Any, found: torch.Tensor, kernel: CachedKernel, held: list[tuple[int, int, int]]) -> torch.Tensor:
        ctx.held = (found, kernel, held)
        return found.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, ...]:
        found, kernel, held = ctx.held
        began = kernel.device and kernel.device.now()
        kernel._take_out(held)
        found.grad_fn(*gradients)
        kernel._put_back(held)
        if kernel.device:
            OPERATIONS.append((kernel, began, kernel.device.now()))
        return (None,) * 3


def _run_backward(self: Any, gradient: torch.Tensor) -> None:
    self.apply(gradient)


_Update._backward_cls.__call__ = _run_backward  # type: ignore[attr-defined]  # see `cpu_kernels`


def overlapping() -> Iterator[str]:
    """Operations on the cache of a kernel that no order on the device keeps apart. Forgets them all."""
    last: dict[int, tuple[Any, Any]] = {}
    for kernel, began, ended in OPERATIONS:
        key = kernel.lxu_cache_state.data_ptr()  # a shadow has it, too
        if key in last and not last[key][1].is_before(began):
            yield f"{began.thread} uses a cache, which is not ordered behind what {last[key][1].thread} does with it"
        last[key] = (began, ended)
    OPERATIONS.clear()
