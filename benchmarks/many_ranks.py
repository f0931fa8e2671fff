"""Real jobs of 16 and 32 tiny ranks on one machine: what the model of `scale.py` cannot show.

Every rank is a process in a network namespace of its own. How long all of them take to import fscomm (and numba) at
once, and `fscomm.enable` after it (meeting, groups, workers), and how long to leave it; how far apart the ranks' steps
are; and, after one rank is killed, how long the others take to say which. Needs root, and about 0.4 GB of memory per
rank. Run: python benchmarks/many_ranks.py [--ranks 16 32]

All pairs of ranks are neighbours in the kernel's table, which holds 1,024 by default; when it is full, ranks cannot
connect. With 32 ranks, `sysctl -w net.ipv4.neigh.default.gc_thresh3=8192 net.ipv4.neigh.default.gc_thresh2=8192` first.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.table import add_results_option, emit
from exposure.shape import Shape
from network.namespaces import why_not
from network.world import World

RANKS = (16, 32)
TINY = Shape(sharding=("row",), rows=4_000, width=16, samples=4, ids_per_sample=8)
STEPS = 12
PATIENCE_S = 300
NEIGHBOURS = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
COLUMNS = [
    "ranks",
    "import s",
    "enable s",
    "leave s",
    "step ms",
    "slowest / mean rank",
    "served %",
    "killed: others know after s",
    "of them name it",
]


def measure(ranks: int) -> list[Any]:
    with World(ranks=ranks, module="parts.many_ranks_rank") as world:
        world.call("prepare", shape=asdict(TINY), timeout_s=PATIENCE_S)
        blocks = world.call("block", steps=STEPS, timeout_s=PATIENCE_S)
        victim = ranks // 2
        told = world.call("lose", victim=victim, steps=STEPS, lost=[victim], timeout_s=PATIENCE_S)
        world.close()  # a job that lost a rank cannot end together
    others = [each for rank, each in enumerate(told) if rank != victim]
    named = sum(f"rank {victim}" in each["said"] for each in others)
    waits = [block["waited_ms"] for block in blocks]
    return [
        ranks,
        max(block["import_s"] for block in blocks),
        max(block["enable_s"] for block in blocks),
        max(block["leave_s"] for block in blocks),
        max(block["step_ms"] for block in blocks),
        max(waits) / max(sum(waits) / ranks, 1e-9),
        100 * min(block["served"] for block in blocks),
        max(each["after_s"] for each in others),
        f"{named} of {len(others)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    add_results_option(parser)
    given = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"network namespaces are needed: {reason}")
    room = int(NEIGHBOURS.read_text())
    if max(given.ranks) * (max(given.ranks) + 1) > room:
        raise SystemExit(f"{NEIGHBOURS} is {room}, too few for {max(given.ranks)} ranks: see the top of this file")
    rows = [measure(ranks) for ranks in given.ranks]
    notes = [
        "Steps of tiny models on two cores: their times say how ranks take turns, not how fast a job is.",
        "slowest / mean rank: time that a rank's training thread waited in a block, of the rank that waited longest.",
    ]
    emit(
        "many_ranks",
        "Many ranks on one machine, gloo in namespaces",
        COLUMNS,
        rows,
        notes,
        results=given.results,
        data="random ids, made as it runs",
    )


if __name__ == "__main__":
    main()
