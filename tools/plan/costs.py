"""How long the parts of a step take that depend on where tables lie. Pure: tables and ranks in, numbers out.

A part ends when its busiest rank is done, so a plan is rated as a whole: the sum over parts of the greatest time of
any rank. TorchRec's planner rates it by the rank with the greatest sum instead (`NoopPerfModel`).

Letters: W ranks, B samples of a rank.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from freescale_tools.model.durations import APPLY, FLOAT, ID, LOOKUP, OPTIMIZER, all_reduce, exchange
from freescale_tools.model.hardware import Hardware
from freescale_tools.model.step import PIPELINED
from freescale_tools.plan.tables import Table

Sharding = Literal["data_parallel", "table_wise", "column_wise", "row_wise"]
SHARDINGS: tuple[Sharding, ...] = ("data_parallel", "table_wise", "column_wise", "row_wise")
PLAIN, PRIORITIZED = "plain", "prioritized"
SHOWN = (PLAIN, PIPELINED, PRIORITIZED)  # the ways of training that a plan is shown for
IDS, ROWS, GRADIENTS = range(3)  # what is exchanged, in the order of `Load.moved`
ID_EXCHANGES = 3  # of a sharding group: sizes, lengths, ids (TorchRec's KJTAllToAll)
LENGTH = 8  # bytes of the length of one feature of one sample
RESERVED = 0.15  # of the memory of a rank: for all that is no table, as TorchRec's default reserves


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """Rows `first` to `first + rows - 1` of `dim` columns, on `rank`."""

    rank: int
    first: int
    rows: int
    dim: int
    held_bytes: int = 0  # as TorchRec counts them: rows, their optimizer, buffers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A table and where its parts lie. `data_parallel`: every rank has one part, which is the whole table."""

    table: Table
    sharding: Sharding
    shards: tuple[Shard, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a plan is made for. Raises ValueError for numbers below 1."""

    hardware: Hardware
    ranks: int
    batch_size: int  # B
    device: Literal["cuda", "cpu"] = "cuda"  # where tables lie; on CPUs ranks exchange by gloo
    memory_bytes: int = 80_000_000_000  # of one rank
    lookup_ms_per_mb: float | None = None  # of 1e6 bytes of rows, as a run has shown; None: twice over the memory
    apply_ms_per_mb: float | None = None  # the same of gradients that update rows; None: three times over the memory
    receivers_wait: bool = True  # a link takes in no faster than it gives out; False where only sending has a rate
    shared_ms_per_mb: float = 0.0  # of 1e6 bytes that all ranks send, where they share cores that move them

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.batch_size < 1:
            raise ValueError(f"ranks = {self.ranks}, batch_size = {self.batch_size}: 1 or more are needed")

    @property
    def ranks_per_host(self) -> int:
        return min(int(self.hardware.gpus_per_host), self.ranks)

    @property
    def room_bytes(self) -> float:
        """That tables and what goes with them may take of a rank."""
        return (1 - RESERVED) * self.memory_bytes

    def kernels_ms(self, looked_up: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Milliseconds of look-up and update of these bytes, without the launches of kernels."""
        over_memory = 1e-6 / self.hardware.memory
        look, update = self.lookup_ms_per_mb, self.apply_ms_per_mb
        return (
            looked_up * (LOOKUP * over_memory if look is None else look / 1e6),
            looked_up * (APPLY * over_memory if update is None else update / 1e6),
        )


class Load(NamedTuple):
    """Bytes of one table, or of several, on every rank: those of a step, where nothing else is said.

    `travelling` counts ids.
    """

    moved: np.ndarray  # float64 [3, 2, W]: IDS, ROWS (forward), GRADIENTS (backward); that leave a rank, that come in
    looked_up: np.ndarray  # float64 [W]: rows that a rank reads for all ranks, and writes gradients to
    held: np.ndarray  # float64 [W]: what lies on a rank all the time
    travelling: float = 0.0  # ids of a rank: once to every column-wise part, not at all for a data-parallel table
    reduced: float = 0.0  # the whole gradient of a data-parallel table

    def busy_ms(self, setting: Setting) -> np.ndarray:
        """float64 [W]: how long each rank would take if it waited for no other, without latencies."""
        each_mb = exchanged(setting, 1e6, 1) - exchanged(setting, 0.0, 1)
        return sum(setting.kernels_ms(self.looked_up)) + self.moved.max(axis=1).sum(axis=0) / 1e6 * each_mb


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Milliseconds of the parts of a step that tables decide, each alone, of the busiest rank."""

    ids: float
    lookup: float
    rows: float
    gradients: float
    apply: float
    all_reduce: float

    @property
    def total(self) -> float:
        """Of a step in which nothing overlaps."""
        return self.ids + self.lookup + self.rows + self.gradients + self.apply + self.all_reduce


def load(placed: Placed, setting: Setting) -> Load:
    """The bytes of one table. Ids are taken as in TorchRec: every occurrence travels, once to every column shard."""
    table, ranks = placed.table, setting.ranks
    ids, bags = setting.batch_size * table.ids, setting.batch_size * len(table.features)
    moved, looked_up, held, travelling = np.zeros((3, 2, ranks)), np.zeros(ranks), np.zeros(ranks), 0.0
    for shard in placed.shards:
        held[shard.rank] += shard.held_bytes
    if placed.sharding == "data_parallel":
        looked_up += ids * table.dim * table.value_bytes
        reduced = float(table.rows) * table.dim * FLOAT
        return Load(moved=moved, looked_up=looked_up, held=held, reduced=reduced)
    in_parts = table.pooled and placed.sharding == "row_wise"
    for shard in placed.shards:
        share, at = table.share(shard.first, shard.rows), shard.rank
        given = FLOAT * shard.dim * (bags if table.pooled else share * ids)
        travelling += share * ids
        looked_up[at] += ranks * share * ids * shard.dim * table.value_bytes
        _to_one(moved[IDS], at, share * ids * ID + bags * LENGTH)
        if not in_parts:
            _to_one(moved[ROWS, ::-1], at, given)
            _to_one(moved[GRADIENTS], at, given)
    if in_parts:
        # Every rank has a part of every bag: a reduce-scatter forward, which gloo makes an all-reduce of, and an
        # all-gather backward.
        whole = FLOAT * table.dim * bags * (ranks - 1)
        moved[ROWS] += 2 * whole if setting.device == "cpu" else whole
        moved[GRADIENTS] += whole
    return Load(moved=moved, looked_up=looked_up, held=held, travelling=travelling)


def _to_one(moved: np.ndarray, owner: int, size: float) -> None:
    """Every other rank sends `size` bytes to the owner. moved: [2, W]; with its rows exchanged, the owner sends."""
    gives, takes = moved
    gives += size
    gives[owner] -= size
    takes[owner] += (len(gives) - 1) * size


def together(loads: Sequence[Load]) -> Load:
    """The load of several tables, one or more."""
    return Load._make(sum(values) for values in zip(*loads, strict=True))


def parts(plan: Sequence[Placed], setting: Setting, whole: Load | None = None) -> Parts:
    """The parts of a step on this plan; its load, `whole`, is computed where it is not given.

    TorchRec makes one exchange for each sharding group: the tables of a module that are sharded alike. Exchanges of
    all groups share the links, so their bytes add up, and each pays its latency.
    """
    hardware = setting.hardware
    whole = whole or together([load(one, setting) for one in plan])
    kernels = {(one.table.module, one.sharding) for one in plan}
    groups = sum(sharding != "data_parallel" for _, sharding in kernels)
    most = whole.moved.max(axis=2)  # [3, 2]
    busiest = most.max(axis=1) if setting.receivers_wait else most[:, 0]
    of_all = setting.shared_ms_per_mb * whole.moved[:, 0].sum(axis=1) / 1e6
    ids, rows, gradients = (
        float(of_all[kind]) + exchanged(setting, float(busiest[kind]), calls * groups)
        for kind, calls in ((IDS, ID_EXCHANGES), (ROWS, 1), (GRADIENTS, 1))
    )
    metadata = hardware.id_metadata * whole.travelling / 1e6 if setting.ranks > 1 else 0.0
    look, update = (float(ms.max()) for ms in setting.kernels_ms(whole.looked_up))
    launches = len(kernels) * hardware.kernel_floor / 1e3
    # The whole gradient of a data-parallel table is updated, by an optimizer outside the kernel.
    dense = OPTIMIZER / FLOAT * whole.reduced / (hardware.memory * 1e6)
    return Parts(
        ids=ids + metadata,
        lookup=max(look, launches),
        rows=rows,
        gradients=gradients,
        apply=max(update, launches) + dense,
        all_reduce=all_reduce(hardware, whole.reduced, setting.ranks),
    )


def exchanged(setting: Setting, size: float, calls: int) -> float:
    """Milliseconds of `calls` all-to-alls in which the busiest rank sends `size` bytes to others, evenly, in all."""
    if setting.ranks == 1 or calls == 0:
        return 0.0
    hardware = setting.hardware
    each = (hardware.exchange_latency + hardware.peer_latency * (setting.ranks - 1)) / 1e3
    whole = size * setting.ranks / (setting.ranks - 1)  # `exchange` counts what stays on the rank, too
    return exchange(hardware, whole, setting.ranks) + (calls - 1 if whole else calls) * each


def by_rank(plan: Sequence[Placed], setting: Setting) -> dict[str, np.ndarray]:
    """{memory_ms, sent_bytes, received_bytes, memory_bytes}: float64 [W].

    Of a step: look-ups and updates, what leaves and what comes in. An all-reduce of data-parallel tables counts as
    twice its bytes, as a ring sends it. `memory_bytes`: what lies on a rank.
    """
    whole = together([load(one, setting) for one in plan])
    sent, received = whole.moved.sum(axis=0) + 2 * (setting.ranks - 1) / setting.ranks * whole.reduced
    return {
        "memory_ms": sum(setting.kernels_ms(whole.looked_up)),
        "sent_bytes": sent,
        "received_bytes": received,
        "memory_bytes": whole.held,
    }


def rated(parts: Parts, *, compute: float, collision: float, way: str) -> float:
    """Milliseconds that a step waits for tables, in closed form: what plans are compared by while they are searched.

    `plain`: everything. `sparse dist`: ids as far as they take longer than the compute. `prioritized`: the share of
    collisions, and what of the rest takes longer than the compute. Dense gradients always count. `compute` in
    milliseconds, `collision` a share.
    """
    if way == PLAIN:
        return parts.total
    moved = parts.total - parts.ids - parts.all_reduce
    if way == PIPELINED:
        return max(parts.ids - compute, 0.0) + moved + parts.all_reduce
    colliding = collision * moved
    return colliding + parts.all_reduce + max(parts.ids + moved - colliding - compute, 0.0)
