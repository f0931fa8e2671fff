"""Does the BubbleMeter find a delay of known size, of every kind, where it was put?

    python benchmarks/meter.py [--delay-ms 40] [--rounds 3] [--steps 12] [--quick]

Two ranks train a small TorchRec model under DDP, with 20 ms of emulated compute (a sleep). Blocks of steps with and
without the delay alternate; *found* is the median of the part with it minus the median without.
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
from typing import Any, Self

import torch.distributed as dist
from common.table import emit

RANKS = 2
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


class Local:
    """The ranks of network.rank on this machine, without namespaces."""

    def __enter__(self) -> Self:
        limit = datetime.timedelta(seconds=120)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
        self._calls = 0
        command = [sys.executable, "-m", "network.rank"]
        place = [str(RANKS), "127.0.0.1", str(self._store.port), "parts.meter_rank"]
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

    def __init__(self, ranks: Local, *, steps: int) -> None:
        self._ranks, self._num_steps = ranks, steps
        self._steps: list[dict[str, Any]] = []

    def run(self, what: str = "", delay_ms: float = 0) -> None:
        self._steps += self._ranks.call("block", what=what, delay_ms=delay_ms, steps=self._num_steps)[0]

    def median_ms(self, part: str, rank: int) -> float:
        return statistics.median(part_ms(step, part) for step in self._steps if step["rank"] == rank)


def injected(ranks: Local, *, delay_ms: float, rounds: int, steps: int) -> list[list[Any]]:
    """One row per case."""
    Blocks(ranks, steps=steps).run()  # warms the ranks up
    plain = Blocks(ranks, steps=steps)
    slow = {what: Blocks(ranks, steps=steps) for what, _, _ in CASES}
    for _ in range(rounds):
        for what, blocks in slow.items():
            plain.run()
            blocks.run(what, delay_ms)
    rows = []
    for what, rank, part in CASES:
        without, found = plain.median_ms(part, rank), slow[what].median_ms(part, rank)
        rows.append(row(what, rank, part, delay_ms, without, found))
    return rows


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
    emit(
        "meter",
        "Delays injected and found again by the BubbleMeter, ms per step",
        ["delayed", "seen on rank", "as", "injected", "without", "with", "found", "error %"],
        rows,
        notes=[
            f"{RANKS} ranks, {rounds} rounds of {steps} steps with and without each delay, alternating; medians.",
            "Every wait is delayed on both ranks, so that it is exposed and nobody late.",
        ],
        data="random ids, made as it runs",
    )


if __name__ == "__main__":
    main()
