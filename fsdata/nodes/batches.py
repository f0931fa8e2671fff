"""The last nodes: copy every value once, to its final address in a `Batch`, and convert the batch by `adapt`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from fsdata.batch.batch import Batch, CostOf, StepStats
from fsdata.batch.batch_plan import BatchPlan
from fsdata.batch.host_memory import HostMemory, PageLockedMemory, PooledMemory
from fsdata.batch.jagged import Jagged, Shared, SplitSequence
from fsdata.batch.merged_windows import MergedWindows
from fsdata.batch.prefetch import pinned
from fsdata.batch.torchrec_binding import keyed_jagged_tensor, register_pipelineable
from fsdata.compose.batching import batch_type, share_events
from fsdata.decode.block import Spans
from fsdata.decode.row_layout import Layout
from fsdata.nodes.explode import explode
from fsdata.nodes.guards import not_the_end
from fsdata.nodes.loader_options import can_pin, pins_now
from fsdata.nodes.node import Node
from fsdata.nodes.steps import Step
from fsdata.order.progress import Progress

BatchT = TypeVar("BatchT")


@dataclass(frozen=True, slots=True)
class BatchWithProgress(Generic[BatchT]):
    """A prefetched batch, and the position of the job after it. counted: `Batches.counted`, where it is reported."""

    batch: BatchT
    progress: Progress
    counted: tuple[StepStats, int] | None = None

    def pin_memory(self) -> "BatchWithProgress[BatchT]":
        return replace(self, batch=pinned(self.batch))


class Batches(Node[Batch]):
    """One `Batch` per step.

    Args:
        pin_memory: allocate tensors in page-locked memory (CUDA); None: in epochs that begin when this process uses a
            GPU, see `pins_now`.
        cost: `Batch.cost`.

    Attributes:
        pins: whether batches of this epoch are page-locked.
    """

    def __init__(
        self,
        source: Node[Step],
        *,
        pin_memory: bool | None = None,
        cost: CostOf | None = None,
    ) -> None:
        super().__init__(source)
        self._pin = can_pin(pin_memory)
        self._pooled = PooledMemory(self.units.pool)
        self._page_locked = PageLockedMemory()
        self._made: StepStats | None = None
        self._counts = np.empty(0, np.int64)
        self._lists = list(self.units.data.layout.groups.values())
        self.pins = False
        self._maker = BatchMaker(self.units.data.layout, self._pooled, cost)

    def on_begin(self, progress: Progress) -> None:
        self.pins = pins_now(self._pin)
        self._maker.memory = self._page_locked if self.pins else self._pooled
        if self.pins:
            # CUDA starts on the current device of the thread that uses it first: the user chose that of this thread.
            self._page_locked.tensor(1, torch.uint8)

    def counted(self) -> tuple[StepStats, int]:
        """Of the batch made last: its counts, and its tokens: events, candidates and ids of nested fields, as
        `fsdata.order.tokens` counts them."""
        assert self._made is not None
        tokens = self._counts[self._lists].sum() if self._lists else self._made.samples
        return self._made, int(tokens)

    def next(self) -> Batch:
        """Raises StopIteration at the end of the epoch."""
        step = self.source.next()
        spans, origin = step.spans, step.origin
        data = self.units.data
        if data.layout.exploded is not None:  # last, so that each row was read, planned and moved once
            spans, row = explode(spans, data.layout)
            origin = origin[row]
        self._made, self._counts = step.stats, spans.counts
        with data.timing.of("assemble"):
            return self._maker.make(spans, origin=origin, stats=step.stats)


class Adapted(Node[Any]):
    """The result of `adapt` for every batch."""

    def __init__(self, source: Batches, adapt: Callable[[Batch], Any]) -> None:
        super().__init__(source)
        self._adapt = adapt

    def next(self) -> Any:
        """Raises the error of `adapt`, with a note that names step and rank; the other ranks get a PeerError."""
        batch = self.source.next()
        stats = batch.stats
        try:
            adapted = not_the_end("adapt", partial(self._adapt, batch))
            if adapted is None:
                raise TypeError("adapt returned None: it has to return the batch that the loop gets")
            return adapted
        except BaseException as error:
            error.add_note(
                f"adapt=... failed with the batch of step {stats.step} of epoch {stats.epoch} on rank "
                f"{self.units.context.rank}"
            )
            # The step of this batch is complete on all ranks, so they get the error in the step after it.
            self.job.fail(error, self.place())
            raise


class BatchMaker:
    """Builds batches of rows of one layout. cost: `Batch.cost`.

    Attributes:
        memory: of the tensors; it may change between batches.
    """

    def __init__(self, layout: Layout, memory: HostMemory, cost: CostOf | None = None) -> None:
        self._layout = layout
        self._cost = cost
        self.memory = memory
        self._plan = BatchPlan.from_layout(layout)
        self._type = batch_type()

    def make(self, spans: Spans, *, origin: np.ndarray, stats: StepStats) -> Batch:
        """A batch of copies of N rows. origin: int64 [N, 2]. The batch keeps `origin` and the lengths of `spans`."""
        register_pipelineable(Batch)
        layout, plan, memory = self._layout, self._plan, self.memory
        windows: dict[str, MergedWindows] = {}
        parts, length, elements = [spans], spans.length, spans.counts
        if layout.shared:
            parts, length, windows = share_events(spans, layout)
            elements = np.add.reduce(length, axis=1)
        counts = elements.tolist()
        flat, addresses = self._tensors(counts)
        offsets = [self._offsets(length[row]) for row in plan.listed]
        passthrough: dict[str, torch.Tensor | list[str]] = {name: flat[row] for name, row in plan.numbers}
        labels: dict[str, torch.Tensor | Jagged] = {}
        for name, row, at in plan.labels:
            labels[name] = flat[row] if at is None else Jagged(flat[row], offsets[at])
        nested: dict[str, Any] = {}
        num_keys = layout.num_keys
        batch = self._type(
            features=keyed_jagged_tensor(
                layout.keys,
                flat[0] if num_keys else memory.tensor(0, torch.int64),
                memory.tensor_of(length[:num_keys].reshape(-1)),
                spans.num_rows,
                length_per_key=counts[:num_keys],
            ),
            dense=memory.tensor(0, torch.float32).view(spans.num_rows, 0) if plan.dense is None else flat[plan.dense],
            labels=labels,
            jagged={name: Jagged(flat[row], offsets[at or 0]) for name, row, at in plan.jagged},
            origin=memory.tensor_of(origin),
            stats=stats,
            nested=nested,
            shared={name: Shared.from_windows(window, memory.tensor_of) for name, window in windows.items()},
            split=_split(length, layout, windows, memory) if layout.split else {},
            passthrough=passthrough,
            mask={name: flat[row].view(torch.bool) for name, row in plan.masks},
            schema=layout.schema,
            cost=self._cost,
        )
        # Values are copied last: they evict from the processor's caches the lengths that all of the above reads.
        for part in parts:
            part.gather(plan.itemsize, addresses)
        # From here on code that reads values.
        for name, slots in plan.nested.items():
            nested[name] = _nested(flat, counts, *slots)
        for name, row in plan.texts:
            passthrough[name] = _texts(flat[row], length[row])
        return batch

    def _tensors(self, counts: list[int]) -> tuple[dict[int, torch.Tensor], np.ndarray]:
        """Allocate uninitialised tensors, each for the values of one field or of several fields one after another.

        counts: [F] elements of each field. Returns (number of the first field of a tensor -> the tensor; int64 [F], the
        address of the values of each field, 0 if it has no tensor).
        """
        flat = {}
        addresses = [0] * len(counts)
        for first, stop, dtype, width in self._plan.tensors:
            *before, total = accumulate(counts[first:stop], initial=0)
            flat[first] = tensor = self.memory.tensor(total, dtype, width)
            address, size = tensor.data_ptr(), dtype.itemsize
            addresses[first:stop] = [address + size * values for values in before]
        return flat, np.array(addresses, np.int64)

    def _offsets(self, length: np.ndarray) -> torch.Tensor:
        """int64 [N + 1] of a sequence; length: int64 [N]."""
        offsets = np.zeros(len(length) + 1, np.int64)
        np.add.accumulate(length, out=offsets[1:])
        return self.memory.tensor_of(offsets)


def _texts(flat: torch.Tensor, length: np.ndarray) -> list[str]:
    data = flat.numpy().tobytes()
    stop = np.cumsum(length)
    return [data[first:last].decode() for first, last in zip((stop - length).tolist(), stop.tolist(), strict=True)]


def _split(
    length: np.ndarray, layout: Layout, windows: dict[str, MergedWindows], memory: HostMemory
) -> dict[str, SplitSequence]:
    split = {}
    for name, options in layout.split:
        # A copy: the batch keeps it, and a view would keep the lengths of all fields in memory.
        events = windows[name].length if name in windows else length[layout.groups[name]].copy()
        split[name] = SplitSequence.from_lengths(memory.tensor_of(events), options)
    return split


def _nested(flat: dict[int, torch.Tensor], counts: list[int], keys: tuple[str, ...], sizes: slice, ids: slice) -> Any:
    """A KeyedJaggedTensor with one row per event. sizes, ids: the fields with the lengths and values of `keys`."""
    lengths = flat[sizes.start]
    stride = len(lengths) // len(keys)
    return keyed_jagged_tensor(keys, flat[ids.start], lengths, stride, length_per_key=counts[ids])
