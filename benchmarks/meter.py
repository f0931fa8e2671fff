"""Does the BubbleMeter find a delay of known size, of every kind, where it was put?

    python benchmarks/meter.py [--delay-ms 40] [--rounds 3] [--steps 12] [--quick]

Two ranks train a small TorchRec model under DDP, with 20 ms of emulated compute (a sleep). Blocks of steps with and
without the delay alternate; *found* is the median of the part with it minus the median without. The last rows, where
network namespaces can be made (root), slow the link itself down: there the delay is what a bare all-to-all of the same
bytes takes on it.
"""

import argparse
import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch.distributed as dist
from _table import emit
from network.namespaces import why_not
from network.world import World

RANKS = 2
SMALL, LARGE = 4, 1024
LINK_MBIT = 200
CASES = [  # what is delayed, on which rank it shows, in which part of the report
    ("data", 0, "data"),
    ("rank 1's data", 1, "data"),
    ("rank 1's data", 0, "straggler"),
    ("rank 1 computes", 1, "compute"),
    ("rank 1 computes", 0, "straggler"),
    ("ids", 0, "ids"),
    ("embeddings", 0, "embeddings"),
    ("gradients", 0, "gradients"),
    ("dense", 0, "dense"),
]


class Ranks(Protocol):
    def call(self, function: str, **arguments: Any) -> list[Any]: ...


class Local:
    """The ranks of network.rank on this machine, without namespaces."""

    def __enter__(self) -> Self:
        limit = datetime.timedelta(seconds=120)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
        self._calls = 0
        command = [sys.executable, "-m", "network.rank"]
        place = [str(RANKS), "127.0.0.1", str(self._store.port), "meter_rank"]
        settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": socket.if_indextoname(1)}
        self._ranks = [
            subprocess.Popen([*command, str(rank), *place], cwd=Path(__file__).parent, env=os.environ | settings)
            for rank in range(RANKS)
        ]
        return self

    def call(self, function: str, **arguments: Any) -> list[Any]:
        keys = [f"answer/{self._calls}/{rank}" for rank in range(RANKS)]
        self._post({"function": function, "arguments": arguments})
        self._store.wait(keys)
        return [json.loads(self._store.get(key)) for key in keys]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._post({"function": None, "arguments": {}})
        for rank in self._ranks:
            if kind is not None:
                rank.kill()
            rank.wait(timeout=60)

    def _post(self, call: dict[str, Any]) -> None:
        self._store.set(f"call/{self._calls}", json.dumps(call))
        self._calls += 1


def part_ms(step: dict[str, Any], part: str) -> float:
    return 1e3 * (step["exposed_s"][part] if part in step["exposed_s"] else step[f"{part}_s"])


class Blocks:
    """Steps of blocks that were run alike."""

    def __init__(self, ranks: Ranks, *, steps: int, length: int = SMALL) -> None:
        self._ranks, self._options = ranks, {"steps": steps, "length": length}
        self._steps: list[dict[str, Any]] = []

    def run(self, what: str, delay_ms: float) -> None:
        answers = self._ranks.call("block", what=what, delay_ms=delay_ms, **self._options)
        self._steps += answers[0]

    def median_ms(self, part: str, rank: int) -> float:
        return statistics.median(part_ms(step, part) for step in self._steps if step["rank"] == rank)


def injected(ranks: Ranks, *, delay_ms: float, rounds: int, steps: int) -> list[list[Any]]:
    """One row per case."""
    plain = Blocks(ranks, steps=steps)
    slow = {what: Blocks(ranks, steps=steps) for what, _, _ in CASES}
    plain.run("", 0)
    plain = Blocks(ranks, steps=steps)  # the first block warmed the ranks up
    for _ in range(rounds):
        for what, blocks in slow.items():
            plain.run("", 0)
            blocks.run(what, delay_ms)
    rows = []
    for what, rank, part in CASES:
        without, found = plain.median_ms(part, rank), slow[what].median_ms(part, rank)
        rows.append(row(what, rank, part, delay_ms, without, found))
    return rows


def slow_link(*, rounds: int, steps: int) -> list[list[Any]]:
    """Rows for embeddings and gradients over a link of LINK_MBIT, against a bare all-to-all over the same link."""
    with World(ranks=RANKS, module="meter_rank") as world:
        plain, slow = (Blocks(world, steps=steps, length=LARGE) for _ in range(2))
        bare = []
        plain.run("", 0)
        plain = Blocks(world, steps=steps, length=LARGE)
        for _ in range(rounds):
            world.network.shape(None)
            plain.run("", 0)
            bare.append(-world.call("exchange", steps=steps, length=LARGE)[0])
            world.network.shape(LINK_MBIT)
            slow.run("", 0)
            bare[-1] += world.call("exchange", steps=steps, length=LARGE)[0]
        delay = statistics.median(bare)
        return [
            row(f"link of {LINK_MBIT} Mbit/s", 0, part, delay, plain.median_ms(part, 0), slow.median_ms(part, 0))
            for part in ("embeddings", "gradients")
        ]


def row(what: str, rank: int, part: str, delay: float, without: float, found: float) -> list[Any]:
    return [what, rank, part, delay, without, found, found - without, (found - without - delay) / delay * 100]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--delay-ms", type=float, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--quick", action="store_true", help="one round of few steps")
    options = parser.parse_args()
    rounds, steps = (1, 4) if options.quick else (options.rounds, options.steps)
    with Local() as ranks:
        rows = injected(ranks, delay_ms=options.delay_ms, rounds=rounds, steps=steps)
    reason = why_not()
    if reason is None:
        rows += slow_link(rounds=rounds, steps=steps)
    emit(
        "meter",
        "Delays injected and found again by the BubbleMeter, ms per step",
        ["delayed", "seen on rank", "as", "injected", "without", "with", "found", "error %"],
        rows,
        notes=[
            f"{RANKS} ranks, {rounds} rounds of {steps} steps with and without each delay, alternating; medians.",
            *([f"Links were not slowed down: {reason}."] if reason else []),
        ],
    )


if __name__ == "__main__":
    main()
