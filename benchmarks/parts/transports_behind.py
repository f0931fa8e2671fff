"""Collision traffic behind bulk traffic: how long 64 KiB take while 512 MiB are on their way, between two ranks.

Used by `transports.py`. Ways, all over one transport:

idle            nothing else on the link
one group       bulk in one operation, and the collision rows behind it on the same instance
two groups      bulk in one operation; an instance of its own for the collision rows
chunk x budget  fscomm's way: two instances, bulk in chunks through `exchange` with a gate that collision traffic enters
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from common.ranks import slowest
from network.world import World

from fscomm.device import Host
from fscomm.exchange.wire_gate import OpenWire, WireGate
from fscomm.transports.opening import open_transport
from fscomm.transports.transport import Part
from fsranks.rank_context import resolve

KIB, MIB = 1 << 10, 1 << 20
GOAL = 2  # times as long as on an idle link
PAUSE_S = (0.004, 0.012)  # between two collision exchanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """What is measured.

    Attributes:
        chunks: (bytes of a chunk, bytes of the budget), each a way of its own.
        rounds: how often each way carries all the bulk.
        idle: samples of the idle link in a round.
    """

    transport: str
    rounds: int
    bulk_bytes: int = 512 * MIB
    urgent_bytes: int = 64 * KIB
    chunks: tuple[tuple[int, int], ...]
    idle: int = 100

    @property
    def ways(self) -> tuple[str, ...]:
        return "idle", "one group", "two groups", *self.chunked

    @property
    def chunked(self) -> dict[str, tuple[int, int]]:
        """`chunks` by the name of their way."""
        return {f"{chunk // KIB} x {budget // KIB} KiB": (chunk, budget) for chunk, budget in self.chunks}


@dataclass(slots=True)
class Found:
    """Of one way: seconds of each collision exchange on its slowest rank, and bulk bytes per second of each round."""

    urgent_s: list[float] = field(default_factory=list)
    bulk_rate: list[float] = field(default_factory=list)
    undisturbed_rate: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Nearest rank."""
        return sorted(self.urgent_s)[min(int(share * len(self.urgent_s)), len(self.urgent_s) - 1)]

    def row(self, idle: "Found") -> list[float | None]:
        """P50 and P99 in ms, both against those of the idle link, exchanges, GB/s of bulk without and with them."""
        p50, p99 = self.percentile(0.5), self.percentile(0.99)
        rates = [statistics.median(rates) / 1e9 if rates else None for rates in (self.undisturbed_rate, self.bulk_rate)]
        against = [p50 / idle.percentile(0.5), p99 / idle.percentile(0.99)]
        return [1e3 * p50, 1e3 * p99, *against, len(self.urgent_s), *rates]


class Rows:
    """Rows for the only peer: int32, each rank's own, and what has to arrive."""

    def __init__(self, rank: int, nbytes: int) -> None:
        self._rank = rank
        self.inp = torch.arange(nbytes // 4, dtype=torch.int32).add_(rank)
        self.out = torch.empty_like(self.inp)

    def parts(self, nbytes: int) -> Iterator[Part]:
        """Chunk by chunk."""
        for out, inp in zip(self.out.split(nbytes // 4), self.inp.split(nbytes // 4), strict=True):
            splits = [len(out) * (peer != self._rank) for peer in range(2)]
            yield Part(out, inp, splits, splits, out.nbytes)

    @property
    def whole(self) -> Part:
        return next(self.parts(self.out.nbytes))

    def check(self, what: str) -> None:
        """Raise SystemExit if it is not the peer's; poison it for the next time."""
        if not torch.equal(self.out, self.inp - self._rank + (1 - self._rank)):
            raise SystemExit(f"rank {self._rank}: {what} did not bring the peer's rows: nothing to report")
        self.out.fill_(-1)


class Bench:
    """One rank."""

    def __init__(self, rank: int, behind: Behind) -> None:
        self.behind = behind
        context = resolve()
        self.bulk, self.urgent = (open_transport(behind.transport, context, Host(), timeout_s=60) for _ in range(2))
        self.bulk_rows = Rows(rank, behind.bulk_bytes)
        self.urgent_rows = Rows(rank, behind.urgent_bytes)
        self.random = random.Random(7)  # the same pauses on both ranks

    def run(self, way: str, *, alone: bool = False) -> tuple[list[float], float]:
        """Seconds of each collision exchange, none if bulk is to be `alone`, and of the bulk."""
        if way == "idle":
            idle = range(self.behind.idle)
            return [self.collision(None) for _ in idle if not self.over_after_a_pause(lambda: False)], 0.0
        if way == "one group":
            return self.one_group()
        if way == "two groups":
            return self.beside(lambda: self.bulk_rows.whole.over(self.bulk).wait(), None, alone=alone)
        chunk_bytes, budget_bytes = self.behind.chunked[way]
        gate = WireGate(budget_bytes=budget_bytes)
        return self.beside(lambda: gate.exchange(self.bulk, self.bulk_rows.parts(chunk_bytes)), gate, alone=alone)

    def one_group(self) -> tuple[list[float], float]:
        dist.barrier()
        start = time.perf_counter()
        bulk = self.bulk_rows.whole.over(self.bulk)
        behind = time.perf_counter()
        urgent = self.urgent_rows.whole.over(self.bulk)
        bulk.wait()
        bulk_s = time.perf_counter() - start
        urgent.wait()
        return [time.perf_counter() - behind], bulk_s

    def beside(self, bulk: Callable[[], None], gate: WireGate | None, *, alone: bool) -> tuple[list[float], float]:
        """Collision exchanges with pauses, while `bulk` runs in a thread of its own on both ranks."""

        def worker() -> float:
            start = time.perf_counter()
            bulk()
            return time.perf_counter() - start

        took: list[float] = []
        with ThreadPoolExecutor(1) as pool:
            dist.barrier()
            seconds = pool.submit(worker)
            while not alone and not self.over_after_a_pause(seconds.done):
                took.append(self.collision(gate))
            return took, seconds.result()

    def over_after_a_pause(self, is_over: Callable[[], bool]) -> bool:
        """On any rank. Both come out of this at about the same time."""
        time.sleep(self.random.uniform(*PAUSE_S))
        return any(slowest([float(is_over())]))

    def collision(self, gate: WireGate | None) -> float:
        start = time.perf_counter()
        if gate is not None:
            gate.enter()
        OpenWire().exchange(self.urgent, [self.urgent_rows.whole])
        took = time.perf_counter() - start
        if gate is not None:
            gate.leave()
        return took

    def check(self, way: str) -> None:
        """Once, before anything is timed."""
        self.bulk_rows.out.fill_(-1)
        self.urgent_rows.out.fill_(-1)
        self.run(way)
        self.urgent_rows.check(f"{way}: collision")
        if way != "idle":
            self.bulk_rows.check(f"{way}: bulk")

    def close(self) -> None:
        dist.barrier()
        for transport in (self.bulk, self.urgent):
            transport.close("the benchmark is over")


def on_links(rate_mbit: float, behind: Behind) -> dict[str, Found]:
    """`measure` between two network namespaces, each of which sends at most at that rate."""
    with World(ranks=2, module="parts.transports_behind") as world:
        world.network.shape(rate_mbit)
        answer = world.call("rank_on_link", timeout_s=900, settings=asdict(behind))[0]
    return {way: Found(**each) for way, each in answer.items()}


def rank_on_link(state: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Called by name, on each rank of a network's world."""
    del state
    return {way: asdict(found) for way, found in measure(dist.get_rank(), 2, Behind(**settings)).items()}


def measure(rank: int, world_size: int, behind: Behind) -> dict[str, Found]:
    """Collective over two ranks: every way in turn, in every round."""
    assert world_size == 2
    bench = Bench(rank, behind)
    found = {way: Found() for way in behind.ways}
    for way in behind.ways:
        bench.check(way)
    for number in range(behind.rounds):
        for way in behind.ways if number % 2 == 0 else reversed(behind.ways):
            took, bulk_s = bench.run(way)
            found[way].urgent_s += slowest(took)
            if bulk_s:
                found[way].bulk_rate.append(behind.bulk_bytes / slowest([bulk_s])[0])
            if way not in ("idle", "one group"):
                alone_s = bench.run(way, alone=True)[1]
                found[way].undisturbed_rate.append(behind.bulk_bytes / slowest([alone_s])[0])
    bench.close()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A chunked way, and by how much it is slower than the idle link: the larger of P50 and P99."""

    way: str
    budget_bytes: int
    ratio: float


def verdict(found: dict[str, Found], behind: Behind) -> Best:
    """The largest chunks that reach the goal, as they cost bulk the least; the nearest to it where none does."""
    idle = found["idle"]
    tried = [
        Best(
            way=way, budget_bytes=budget, ratio=max(found[way].percentile(q) / idle.percentile(q) for q in (0.5, 0.99))
        )
        for way, (_, budget) in behind.chunked.items()
    ]
    reaching = [each for each in tried if each.ratio <= GOAL]
    return max(reaching, key=lambda each: each.budget_bytes) if reaching else min(tried, key=lambda each: each.ratio)
