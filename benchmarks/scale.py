"""What one of 16 to 1,024 ranks has to do for a step and an epoch, measured on one core without a network.

One real rank among synthetic peers, in one process (`common/synthetic_peers.py`). fscomm: numbering the ids it asks
for, and the three exchanges of ids with all plans behind them, for 64 row-wise tables. fsdata: the plan of a global
batch, the route of its samples, the streams of an epoch. Times are processor time of the calling thread; what peers
take is taken off. Run: python benchmarks/scale.py [--ranks 16 64 256 1024] [--events FOLDER]
"""

import argparse
import functools
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common.lengths import LOGNORMAL
from common.synthetic_peers import Asked, Planner, World, in_time_order, uniform
from common.table import RESULTS, emit

from fscomm.plan.group_plan import compile_kernels
from fsdata.balance.cost import Polynomial
from fsdata.balance.exchange import RecordSpec
from fsdata.balance.exchange.route import Route
from fsdata.balance.packing import pack
from fsdata.order import deal

RANKS = (16, 64, 256, 1024)
FEATURES, IDS, ROWS = 64, 1_000_000, 10_000_000
SAMPLES = 128  # of a rank
UNITS = 1_000_000
STEPS = 5
SPEC = RecordSpec(
    names=("item",),
    itemsize=np.array([4]),
    group=np.array([0]),
    width=np.array([0]),
    groups=("uih",),
    group_field=np.array([0]),
)
COLUMNS = ["stage", "ids", "ranks", "ms", "MiB at most", "bytes sent", "exchanges"]


def planning(name: str, world: World, asked: Callable[..., Asked]) -> list[Any]:
    """The best of several steps; memory and exchanges of one that is not timed."""
    planner = Planner(world, asked)
    planner.step(*planner.draw())
    times = [planner.step(*planner.draw())[0] for _ in range(STEPS)]
    given = planner.draw()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    _, ids = planner.step(*given)
    most = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    back = ids.back[0]
    assert back is not None
    rows = len(ids.ahead(0).fetch[-1].received) + len(back.pieces[-1].sent) + 2
    return ["fscomm: plan a step", name, world.ranks, min(times), most / 2**20, sum(planner.peers.sent[-3:]), 3 + rows]


def loading(ranks: int) -> list[list[Any]]:
    lengths = LOGNORMAL.batch(ranks * SAMPLES, seed=0)
    costs, home = Polynomial()({"uih": lengths}), np.repeat(np.arange(ranks), SAMPLES)
    counts, found = np.full(ranks, SAMPLES), pack(costs, ranks)
    units = np.random.default_rng(0).integers(4_000, 70_000, UNITS)
    epoch = functools.partial(deal.epoch_streams, units, world_size=ranks, shuffle=True, shuffle_window=8, seed=0)
    stages: dict[str, Callable[[], object]] = {
        "fsdata: plan a batch": lambda: pack(costs, ranks, home=home),
        "fsdata: route samples": lambda: Route.of(SPEC, lengths[None], counts, found.rank, 0),
        "fsdata: an epoch of 1 M units": lambda: epoch(epoch=0),
    }
    return [[stage, "-", ranks, _best(work), None, None, None] for stage, work in stages.items()]


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(STEPS):
        start = time.thread_time()
        work()
        times.append(1e3 * (time.thread_time() - start))
    return min(times)


def events(folder: Path) -> np.ndarray:
    """Items of all events, by time, from Parquet files with lists `item_ids` and `timestamps`."""
    import polars as pl

    found = pl.scan_parquet(folder / "interactions-*.parquet").select("item_ids", "timestamps")
    exploded = found.explode("item_ids", "timestamps").drop_nulls().sort("timestamps", maintain_order=True)
    return exploded.collect()["item_ids"].to_numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--events", type=Path, metavar="FOLDER", help="real ids: a folder like oss_events")
    given = parser.parse_args()
    torch.set_num_threads(1)
    compile_kernels()
    real = events(given.events) if given.events else None
    rows = []
    for ranks in given.ranks:
        world = World(ranks=ranks, features=FEATURES, rows=ROWS, ids=IDS)
        skewed = World(ranks=ranks, features=FEATURES, rows=ROWS, ids=IDS, skew=20.0)
        rows.append(planning("uniform", world, uniform))
        if ranks > 20:  # else one pair would have more ids than all others together
            rows.append(planning("one pair 20 x", skewed, uniform))
        if real is not None:
            rows.append(planning("real", world, in_time_order(real)))
        rows += loading(ranks)
    emit(
        "scale",
        f"One rank of many: {FEATURES} tables, {IDS:,} ids and {SAMPLES} samples a rank, one core",
        COLUMNS,
        rows,
        notes=[f"ms: the best of {STEPS}. Exchanges: of ids; of rows and gradients of 512 bytes, 16 MiB a chunk."],
        results=RESULTS,
        data="oss_events, random ids",
    )


if __name__ == "__main__":
    main()
