"""What a batch costs beside decoding and copying its values: the Python of the loader, by part and thread.

    python benchmarks/batch_python.py [--rounds 15] [--batch 128]

The real steps run over rows of the reference schema (16 keys, 10 dense, a list of labels) that are decoded beforehand;
the kernel that copies values gets no places. So what is left does not depend on how long the lists are. Each figure is
the median of the rounds, processor time of all threads concerned, 100 batches a round.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from unittest import mock

import numpy as np
import torch
from common.table import add_results_option, emit
from ways.freescale import SCHEMA

from freescale_tools.write.synth.presets import reference_set
from fsdata import ParquetSource
from fsdata.batch.host_memory import Reused
from fsdata.batch.prefetch import Ahead
from fsdata.decode.block import RowRefs, Spans, concat
from fsdata.decode.reused_buffers import Pool
from fsdata.loader import made_of
from fsdata.nodes import Batches, Kept, Rows, Steps, Units
from fsdata.nodes.rows import Decoded
from fsdata.order.progress import Progress

GOAL_US = 30
WINDOW = 4 * 4096
BATCHES = 100


class Undecoded(Rows):
    """Windows of rows that were decoded beforehand, in the place of decoding threads."""

    def __init__(self, units: Units, rows: RowRefs) -> None:
        super().__init__(units, num_threads=1)
        self._all = rows

    def begin(self, progress: Progress) -> None:
        super().begin(progress)
        self.end()
        order = np.arange(self._all.num_rows)
        if self.source.data.window_units:
            order = np.random.default_rng(0).permutation(order)
        self._left = iter([Decoded(self._all.take(order), range(1, len(order) + 1), len(order))])

    def next(self) -> Decoded:
        return next(self._left)


class Rounds:
    """Fresh steps over the same decoded rows, `BATCHES` batches each."""

    def __init__(self, folder: str, batch: int, *, shuffle: bool, rounds: int) -> None:
        paths = [str(path) for path in reference_set(folder, files=1, rows_per_file=WINDOW)]
        self.units = Units(ParquetSource(paths), SCHEMA, shuffle=shuffle, rank=0, world_size=1)
        decoding = Rows(self.units)
        parts = list(decoding)
        self._rows = concat([part.rows for part in parts])
        self._batch, self._rounds = batch, rounds
        self._memory = Reused(Pool())

    def steps(self) -> Steps:
        steps = Steps(Undecoded(self.units, self._rows), self._batch)
        steps.begin(Progress.start(0, 1))
        return steps

    def batches(self) -> Batches:
        batches = Batches(Kept(self.steps()), memory=self._memory)
        batches.begin(Progress.start(0, 1))
        return batches

    def us(self, prepare: Callable[[], Callable[[], object]]) -> float:
        """Median us of one call of what `prepare` returns, its first call of each round left out."""
        found = []
        for _ in range(self._rounds + 1):
            call = prepare()
            call()
            start = time.process_time()
            for _ in range(BATCHES):
                call()
            found.append(1e6 * (time.process_time() - start) / BATCHES)
        return statistics.median(found[1:])

    def taking(self) -> Callable[[], object]:
        steps = self.steps()
        return lambda: steps.take(self._batch)

    def assembling(self) -> Callable[[], object]:
        steps, batches = self.steps(), self.batches()
        spans = steps.take(self._batch).spans()
        origin, stats = steps.own_origin(self._batch), steps.stats(self._batch, self._batch, {})
        return lambda: batches._maker.make(spans, origin=origin, stats=stats)

    def stepping(self) -> Callable[[], object]:
        return self.batches().next

    def ahead(self, depth: int) -> Callable[[], object]:
        return Ahead(partial(made_of, self.batches()), depth=depth, pin=False).take


def measured(rounds: Rounds) -> Iterator[tuple[str, str, float]]:
    """(thread, part, us per batch)."""
    gather = Spans.gather
    with mock.patch.object(
        Spans, "gather", lambda self, itemsize, target: gather(self, itemsize, np.zeros_like(target))
    ):
        take, make, step = rounds.us(rounds.taking), rounds.us(rounds.assembling), rounds.us(rounds.stepping)
        alone, queued = (rounds.us(lambda depth=depth: rounds.ahead(depth)) for depth in (0, 2))
    yield "prefetch", "take rows of the window", take
    yield "prefetch", "make the batch, values not copied", make
    yield "prefetch", "the rest: sizes, statistics, progress, rows that are in no cache", step - take - make
    yield "prefetch", "a step in all", step
    yield "training", "hand out, made in the same thread", alone - step
    yield "both", "hand out, by the queue", queued - step
    yield "both", "in all, prefetch=2", queued


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=128)
    add_results_option(parser)
    arguments = parser.parse_args()
    if not 1 <= arguments.batch <= WINDOW // (BATCHES + 4):
        parser.error(f"--batch must be from 1 to {WINDOW // (BATCHES + 4)}, got {arguments.batch}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        both = [Rounds(folder, arguments.batch, shuffle=shuffle, rounds=arguments.rounds) for shuffle in (False, True)]
        found = [list(measured(rounds)) for rounds in both]
        fields = len(both[0].units.data.layout.fields)
    rows = [[thread, part, us, found[1][row][2]] for row, (thread, part, us) in enumerate(found[0])]
    steps = next(row for row in rows if row[1] == "a step in all")
    emit(
        "batch_python",
        f"Python of the loader, us per batch of {arguments.batch}: {fields} fields, values not copied",
        ["thread", "part", "in order", "shuffled"],
        rows,
        notes=[
            f"Goal for a step at 128: at most {GOAL_US} us: {steps[2]:.3g} in order, {steps[3]:.3g} shuffled, "
            f"{'reached' if max(steps[2], steps[3]) <= GOAL_US else 'NOT reached'}."
        ],
        results=arguments.results,
        data="rows of the reference schema, made as it runs",
    )


if __name__ == "__main__":
    main()
