"""How long does a GPU wait for the loader?

    python benchmarks/feeding.py

Batches of 512 samples of the reference set (16 keys, 10 dense columns, a list of labels) are made, copied to the GPU
and computed on by matrix products over all events of the batch, a stand-in for a model. CUDA events tell when the GPU
computed, copied and waited. The host is at most two steps ahead, as in a training loop that reads its loss late. A sum
over every batch on the GPU is compared with the sum over the same batch on the CPU. Needs a GPU.
"""

import itertools
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from common.environment import need_gpu
from common.reference import reference_schema
from common.table import argument_parser, emit

from freescale_tools.write.synth.presets import reference_set
from fsdata import Batch, FreeScaleDataLoader, ParquetSource
from fsdata.batch.jagged_features import JaggedFeatures

BATCH = 512
HIDDEN = 512
AHEAD = 2
PRODUCTS = (0, 25, 100)  # [events, HIDDEN] x [HIDDEN, HIDDEN], the stand-in for a model
COLUMNS = ("threads", "page-locked", "products", "samples/s", "GPU computes, %", "copies, %", "waits, %", "first s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    threads: int
    pinned: bool
    products: int


def ways(cores: int) -> Iterator[Way]:
    """One batch again and again, then as many decoding threads as there are cores, and fewer."""
    counts = [threads for threads in (0, 1, 2, 4, 8, 16) if threads <= cores]
    for products, threads in itertools.product(PRODUCTS[:2], counts):
        yield Way(threads=threads, pinned=True, products=products)
    for products in PRODUCTS:
        yield Way(threads=2, pinned=False, products=products)
    yield Way(threads=2, pinned=True, products=PRODUCTS[-1])


def loader(paths: Sequence[Path], way: Way) -> FreeScaleDataLoader:
    return FreeScaleDataLoader(
        ParquetSource(paths),
        reference_schema(),
        batch_size=BATCH,
        shuffle=True,
        num_threads=max(way.threads, 1),
        pin_memory=way.pinned,
        rank=0,
        world_size=1,
    )


def tensors(batch: Batch) -> list[torch.Tensor]:
    """The values of a batch: one tensor with torchrec, one for each key without."""
    features = batch.features
    if isinstance(features, JaggedFeatures):
        keys = [features.jagged(key).values for key in features]
    else:
        keys = [features.values()]
    return [*keys, batch.dense, *(label.values for label in batch.labels.values())]


def total(batch: Batch) -> torch.Tensor:
    """int64, over bits, and each place has a weight of its own: the same on every device."""
    parts = [each.reshape(-1) for each in tensors(batch)]
    keys = [part for part in parts if part.dtype == torch.int64]
    floats = [part for part in parts if part.dtype == torch.float32]
    bits = torch.cat([*keys, torch.cat(floats).view(torch.int32).long()])
    return (bits * torch.arange(1, len(bits) + 1, device=bits.device)).sum()


class Steps:
    """Steps on the GPU, one for each batch, and when they did what."""

    def __init__(self, products: int, where: torch.device) -> None:
        self._products, self._where = products, where
        self._weight = torch.randn(HIDDEN, HIDDEN, device=where, dtype=torch.bfloat16)
        self._input = torch.randn(1 << 20, HIDDEN, device=where, dtype=torch.bfloat16)
        self._output = torch.empty_like(self._input)
        self._events: list[tuple[torch.cuda.Event, ...]] = []
        self.totals: list[torch.Tensor] = []
        self.samples = 0

    def run(self, batches: Iterable[Batch]) -> float:
        """Seconds from the first batch to the end of the last step."""
        under_way: deque[torch.cuda.Event] = deque()
        start = 0.0
        for batch in batches:
            start = start or time.perf_counter()
            under_way.append(self._step(batch))
            if len(under_way) > AHEAD:
                under_way.popleft().synchronize()
        torch.cuda.synchronize(self._where)
        return time.perf_counter() - start

    def _step(self, batch: Batch) -> torch.cuda.Event:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        events[0].record()
        here = batch.to(self._where, non_blocking=True)
        events[1].record()
        count = sum(len(each) for each in tensors(here) if each.dtype == torch.int64)
        for _ in range(self._products):
            torch.matmul(self._input[:count], self._weight, out=self._output[:count])
        self.totals.append(total(here))
        events[2].record()
        self._events.append(tuple(events))
        self.samples += len(batch)
        return events[2]

    def shares(self) -> tuple[float, float, float]:
        """Percent of the time from the first copy to the end in which the GPU computed, copied, waited."""
        whole = self._events[0][0].elapsed_time(self._events[-1][2])
        computed = sum(copied.elapsed_time(end) for _, copied, end in self._events)
        copied = sum(begin.elapsed_time(done) for begin, done, _ in self._events)
        return 100 * computed / whole, 100 * copied / whole, 100 * (1 - (computed + copied) / whole)


def row(paths: Sequence[Path], way: Way, wanted: torch.Tensor) -> list[object]:
    where = torch.device("cuda", 0)
    with loader(paths, way) as made:
        start = time.perf_counter()
        batches: Iterator[Batch] = iter(made)
        first = next(batches)
        first_s = time.perf_counter() - start
        if not way.threads:
            batches, wanted = itertools.repeat(first, len(wanted) - 1), wanted[:1].expand(len(wanted))
        steps = Steps(way.products, where)
        seconds = steps.run(itertools.chain([first], batches))
    if not torch.equal(torch.stack(steps.totals).cpu(), wanted):
        raise SystemExit(f"{way}: what arrived on the GPU is not what was sent: nothing to report")
    pinned = "yes" if way.pinned else "no"
    return [way.threads, pinned, way.products, steps.samples / seconds, *steps.shares(), first_s]


def main() -> None:
    results = argument_parser(__doc__).parse_args().results
    need_gpu()
    with tempfile.TemporaryDirectory() as scratch:
        paths = reference_set(Path(scratch))
        chosen = list(ways(os.cpu_count() or 1))
        with loader(paths, Way(threads=2, pinned=False, products=0)) as made:
            wanted = torch.stack([total(batch) for batch in made])
        row(paths, chosen[0], wanted)  # what is loaded and allocated at first use is there
        rows = [row(paths, way, wanted) for way in chosen]
    emit(
        "feeding",
        f"The loader feeds a GPU: batches of {BATCH} samples, shuffled",
        COLUMNS,
        rows,
        [
            f"{torch.cuda.get_device_name(0)}. Products: [events, {HIDDEN}] x [{HIDDEN}, {HIDDEN}] in bfloat16 over "
            "all events of a batch.",
            "Threads: 0 is one batch again and again, without a loader.",
            "Every batch on the GPU has the sum that it has on the CPU.",
        ],
        data=f"reference set, {len(paths)} files",
        results=results,
    )


if __name__ == "__main__":
    main()
