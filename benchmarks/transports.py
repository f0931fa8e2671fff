"""How fast is each transport that needs no GPU, and what does bulk traffic cost collision traffic?

    python benchmarks/transports.py [--ranks 2] [--rounds 5] [--transport gloo] [--link MBIT] [--quick]

1. Time of one exchange over sizes and skew, every transport in turn in the same processes, against PyTorch's own
   `all_to_all_single` over gloo, and against copying as many bytes within a process. Slowest rank of each exchange.
2. 64 KiB of collision traffic behind 512 MiB of bulk, between two ranks: idle link, one process group for both, two
   groups, and fscomm's way, with several sizes of chunk. With `--link`, the same once more between two network
   namespaces that send at most so many Mbit/s (needs root): there the wire is the bottleneck, not the cores.

What each way brings is compared before it is timed.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from common.ranks import run_ranks, slowest
from common.table import emit
from network.namespaces import why_not
from parts.transports_behind import GOAL, KIB, MIB, Behind, Found, measure, on_links, verdict

from fscomm.device import Host
from fscomm.exchange.wire_gate import BUDGET_BYTES
from fscomm.plan.sharding_group import CHUNK_BYTES
from fscomm.transports.opening import open_transport
from fscomm.transports.transport import Part, Transport
from fsranks.rank_context import resolve

SIZES = tuple(KIB << shift for shift in range(0, 17, 4))  # 1 KiB ... 64 MiB
SKEWS = ("even", "one rank hot", "half zero")
TRANSPORTS = {
    "gloo": "gloo",
    "host-staged, gloo": "host-staged",
    "host-staged, shared memory": "host-staged:shared-memory",
    "copy-engine, shared memory": "copy-engine",
}
TORCH, COPY = "all_to_all_single", "copy alone"
WAYS = (TORCH, *TRANSPORTS, COPY)
OTHERS = ((2048, 4096), (1024, 2048), (256, 512))
CHUNKS = ((CHUNK_BYTES["cpu"], BUDGET_BYTES), *((chunk * KIB, budget * KIB) for chunk, budget in OTHERS))
MOST = 40  # exchanges of one way and size in a round


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What every rank is to do; `way_s`: about how long one way may take at one size in a round."""

    rounds: int
    sizes: tuple[int, ...]
    way_s: float


def splits(skew: str, world_size: int, nbytes: int) -> np.ndarray:
    """float32 entries from rank to rank [W, W]; about `nbytes` a pair, however they are spread."""
    entries = np.full((world_size, world_size), nbytes // 4)
    ranks = np.arange(world_size)
    if skew == "one rank hot":
        entries = entries // 8
        entries[:, 0] += nbytes // 4 * world_size - entries.sum(1)
    elif skew == "half zero":
        entries = 2 * entries * ((ranks[:, None] + ranks) % 2)
    return entries


class Case:
    """One size and skew on one rank: rows to send, and what has to arrive."""

    def __init__(self, rank: int, world_size: int, skew: str, nbytes: int) -> None:
        of_all = splits(skew, world_size, nbytes)
        self.in_splits, self.out_splits = of_all[rank].tolist(), of_all[:, rank].tolist()
        self.largest_bytes = 4 * int(of_all.max())
        self.inp = torch.rand(sum(self.in_splits), generator=torch.Generator().manual_seed(rank))
        self.out = torch.empty(sum(self.out_splits))
        self.wanted = torch.empty_like(self.out)
        dist.all_to_all_single(self.wanted, self.inp, self.out_splits, self.in_splits)
        elsewhere = of_all * (1 - np.eye(world_size, dtype=int))
        self.wire_bytes = 4 * int(max(elsewhere.sum(0).max(), elsewhere.sum(1).max()))
        self.source = torch.rand(self.wire_bytes // 4)
        self.target = torch.empty_like(self.source)

    def torch(self) -> None:
        dist.all_to_all_single(self.out, self.inp, self.out_splits, self.in_splits)

    def copy(self) -> None:
        self.target.copy_(self.source)

    def over(self, transport: Transport) -> Callable[[], None]:
        part = Part(self.out, self.inp, self.out_splits, self.in_splits, self.largest_bytes)
        return lambda: part.over(transport).wait()

    def check(self, way: str, call: Callable[[], None]) -> None:
        self.out.fill_(float("nan"))
        self.target.fill_(float("nan"))
        call()
        right = torch.equal(self.target, self.source) if way == COPY else torch.equal(self.out, self.wanted)
        if not right:
            raise SystemExit(f"{way} brought something else than all_to_all_single: nothing to report")


def timed(call: Callable[[], None], times: int) -> list[float]:
    """Seconds of each call, from when all ranks are there until the slowest has all its rows."""
    took = []
    for _ in range(times):
        dist.barrier()
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return slowest(took)


def work(rank: int, world_size: int, run: Run) -> dict[tuple[str, int], dict[str, Any]]:
    """Seconds by skew, size and way, and the bytes that the busiest rank sends or receives."""
    context = resolve()
    transports = {way: open_transport(name, context, Host(), timeout_s=60) for way, name in TRANSPORTS.items()}
    answer = {}
    for skew in SKEWS:
        for nbytes in run.sizes:
            case = Case(rank, world_size, skew, nbytes)
            calls = {TORCH: case.torch, **{way: case.over(each) for way, each in transports.items()}, COPY: case.copy}
            for way, call in calls.items():
                case.check(way, call)
            seconds: dict[str, list[float]] = {way: [] for way in calls}
            times = {way: int(min(MOST, max(2, run.way_s / timed(call, 2)[1]))) for way, call in calls.items()}
            for number in range(run.rounds):
                for way in calls if number % 2 == 0 else reversed(calls):
                    seconds[way] += timed(calls[way], times[way])
            answer[skew, nbytes] = {"wire_bytes": case.wire_bytes, "seconds": seconds}
    dist.barrier()
    for transport in transports.values():
        transport.close("the benchmark is over")
    return answer


def size_name(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


def report_sizes(answer: dict[tuple[str, int], dict[str, Any]], ranks: int) -> None:
    median = {
        key: {way: statistics.median(seconds) for way, seconds in found["seconds"].items()}
        for key, found in answer.items()
    }
    emit(
        "transports",
        f"One exchange, {ranks} ranks on one machine, ms: median of the slowest rank's",
        ["skew", "mean bytes a pair", *WAYS],
        [[skew, size_name(n), *(1e3 * median[skew, n][way] for way in WAYS)] for skew, n in answer],
        notes=[
            f"{COPY}: as many bytes as the busiest rank sends or receives, on every rank at once, without a message.",
            "Nobody compares splits, as in fscomm's engine. One rank hot: rank 0 gets seven eighths of what the others "
            "would get. Half zero: every other pair, twice as much.",
        ],
        extra={
            "seconds": [
                {"skew": skew, "bytes": n, "wire_bytes": found["wire_bytes"], **found["seconds"]}
                for (skew, n), found in answer.items()
            ]
        },
        data="random bytes",
    )
    emit(
        "transports_throughput",
        f"Throughput of the busiest rank in one direction, {ranks} ranks on one machine, GB/s",
        ["skew", "mean bytes a pair", *WAYS],
        [
            [skew, size_name(n), *(found["wire_bytes"] / 1e9 / median[skew, n][way] for way in WAYS)]
            for (skew, n), found in answer.items()
            if n >= MIB // 4
        ],
        notes=["Bytes to or from other ranks; the copy's rate is the limit that memory sets."],
        data="random bytes",
    )


def report_behind(found: dict[str, Found], behind: Behind, *, rate_mbit: float | None) -> None:
    best = verdict(found, behind)
    idle, way = found["idle"], found[best.way]
    held_ms = 1e3 * best.budget_bytes / statistics.median(way.undisturbed_rate)
    restless = idle.percentile(0.99) / idle.percentile(0.5)
    link = "over loopback" if rate_mbit is None else f"over links of {rate_mbit:g} Mbit/s"
    emit(
        "transports_behind" if rate_mbit is None else "transports_behind_link",
        f"{size_name(behind.urgent_bytes)} of collision traffic behind {size_name(behind.bulk_bytes)} of bulk, "
        f"2 ranks, {behind.transport} {link}",
        ["way", "P50, ms", "P99, ms", "P50 / idle", "P99 / idle", "exchanges", "bulk alone, GB/s", "bulk beside, GB/s"],
        [[name, *each.row(idle)] for name, each in found.items()],
        notes=[
            f"A x B: chunks of A, at most B under way; by default: {CHUNK_BYTES['cpu'] // KIB} x {BUDGET_BYTES // KIB} "
            "KiB. Slowest rank of every exchange, bulk that is under way included.",
            f"Goal: P50 and P99 within {GOAL}x of the idle link. {best.way}: {best.ratio:.2g}x, "
            f"{'reached' if best.ratio <= GOAL else 'NOT reached'}. What is under way cannot be called back: "
            f"{held_ms:.2g} ms of the link at this way's rate.",
            f"P99 / P50 of the idle link: {restless:.2g}; where it is large, the machine was busy and P99 says little.",
        ],
        extra={name: asdict(each) for name, each in found.items()},
        data="random bytes",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="of the first part")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transport", choices=["gloo", "copy-engine"], default="gloo", help="of the second part")
    parser.add_argument("--link", type=float, metavar="MBIT", help="the second part over links of this rate, too")
    parser.add_argument("--quick", action="store_true", help="less of everything; not for the record")
    arguments = parser.parse_args()
    if arguments.link is not None and (reason := why_not()):
        parser.error(f"--link: {reason}")
    rounds = 1 if arguments.quick else arguments.rounds
    run = Run(rounds=rounds, sizes=SIZES, way_s=0.2)
    behind = Behind(transport=arguments.transport, rounds=rounds, chunks=CHUNKS)
    if arguments.quick:
        run = replace(run, sizes=SIZES[:-1:2], way_s=0.05)
        behind = replace(behind, chunks=CHUNKS[:1], bulk_bytes=128 * MIB, idle=50)
    print("sizes and skew ...", file=sys.stderr)
    report_sizes(run_ranks(arguments.ranks, work, run)[0], arguments.ranks)
    print("collision traffic behind bulk ...", file=sys.stderr)
    report_behind(run_ranks(2, measure, behind)[0], behind, rate_mbit=None)
    if arguments.link is not None:
        behind = replace(behind, rounds=min(rounds, 2))
        report_behind(on_links(arguments.link, behind), behind, rate_mbit=arguments.link)


if __name__ == "__main__":
    main()
