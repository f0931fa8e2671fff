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
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import torch
from common.table import add_results_option, emit
from ways.freescale import SCHEMA

from freescale_tools.write.synth.presets import reference_set
from fsdata import FreeScaleDataLoader, ParquetSource
from fsdata.batch.host_memory import Reused
from fsdata.batch.prefetch import Ahead
from fsdata.decode.block import RowRefs, Spans, SurvivingRows
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.row_layout import Layout
from fsdata.order.progress import Progress
from fsdata.order.stream import Piece, Window
from fsdata.nodes.adapt import AdaptedSteps
from fsdata.nodes.reader import Reader
from fsdata.nodes.steps import PlannedSteps, Share
from fsdata.nodes.timing import Timing

GOAL_US = 30
WINDOW = 4 * 4096
BATCHES = 100


def decoded(folder: str) -> tuple[RowRefs, Layout]:
    """A window of rows, as decoding threads leave them."""
    paths = reference_set(folder, files=1, rows_per_file=WINDOW)
    with FreeScaleDataLoader(
        ParquetSource([str(path) for path in paths]), SCHEMA, batch_size=WINDOW, rank=0, world_size=1, shuffle=True
    ) as loader:
        data = loader._data
        reader = data.reader(
            data.streams(Progress.start(0, 1), 1)[0], epoch=0, executor=loader._executor, num_threads=1
        )
        return reader.take(WINDOW), data.layout


class Rounds:
    """Fresh steps over the same decoded rows, `BATCHES` batches each."""

    def __init__(self, rows: RowRefs, layout: Layout, batch: int, *, shuffle: bool, rounds: int) -> None:
        self._rows, self._layout, self._batch, self._shuffle = rows, layout, batch, shuffle
        self._rounds = rounds
        self._memory = Reused(Pool())
        self._executor = ThreadPoolExecutor(1)

    def reader(self) -> Reader:
        window = Window((Piece(0, 0, self._rows.num_rows),), 0, self._rows.num_rows)
        return Reader(
            [window],
            read=lambda piece, fetched: SurvivingRows(self._rows, None),
            order=(lambda window: np.random.default_rng(0).permutation(window.rows)) if self._shuffle else None,
            fields=len(self._layout.fields),
            executor=self._executor,
            ahead=1,
            timing=Timing(),
        )

    def steps(self) -> PlannedSteps:
        share = Share(
            rank=0,
            world_size=1,
            batch_size=self._batch,
            drop_last=False,
            hold=False,
            left=np.array([self._rows.num_rows]),
            progress=Progress.start(0, 1),
        )
        return PlannedSteps(share, self.reader(), self._layout, self._memory)

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
        reader = self.reader()
        return lambda: reader.take(self._batch)

    def assembling(self) -> Callable[[], object]:
        steps = self.steps()
        spans = self.reader().take(self._batch).spans()
        origin, stats = steps._own_origin(self._batch), steps._stats(self._batch, self._batch, global_items={})
        return lambda: steps._maker.make(spans, origin=origin, stats=stats)

    def stepping(self) -> Callable[[], object]:
        return self.steps().next

    def ahead(self, depth: int) -> Callable[[], object]:
        return Ahead(AdaptedSteps(self.steps(), None).next, depth=depth, pin=False).take


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
        rows_there, layout = decoded(folder)
        found = [
            list(measured(Rounds(rows_there, layout, arguments.batch, shuffle=shuffle, rounds=arguments.rounds)))
            for shuffle in (False, True)
        ]
    rows = [[thread, part, us, found[1][row][2]] for row, (thread, part, us) in enumerate(found[0])]
    steps = next(row for row in rows if row[1] == "a step in all")
    emit(
        "batch_python",
        f"Python of the loader, us per batch of {arguments.batch}: {len(layout.fields)} fields, values not copied",
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
