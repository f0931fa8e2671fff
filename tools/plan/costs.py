"""How long the parts of a step take that depend on where tables lie. Pure: tables and ranks in, numbers out.

A part ends when its busiest rank is done, so a plan is rated as a whole: the sum over parts of the greatest time of
any rank. TorchRec's planner rates it by the rank with the greatest sum instead (`NoopPerfModel`).

Letters: W ranks, B samples of a rank.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from freescale_tools.model.durations import APPLY, FLOAT, ID, LOOKUP, OPTIMIZER, all_reduce, exchange
from freescale_tools.model.hardware import Hardware
from freescale_tools.plan.tables import Table

Sharding = Literal["data_parallel", "table_wise", "column_wise", "row_wise"]
SHARDINGS: tuple[Sharding, ...] = ("data_parallel", "table_wise", "column_wise", "row_wise")
ID_EXCHANGES = 3  # of a sharding group: sizes, lengths, ids (TorchRec's KJTAllToAll)
LENGTH = 8  # bytes of the length of one feature of one sample


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """Rows `first` to `first + rows - 1` of `dim` columns, on `rank`."""

    rank: int
    first: int
    rows: int
    dim: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A table and where its parts lie. `data_parallel`: every rank has the whole table, and there are no shards."""

    table: Table
    sharding: Sharding
    shards: tuple[Shard, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a plan is made for. Raises ValueError for numbers below 1."""

    hardware: Hardware
    ranks: int
    batch_size: int
    """B."""
    lookup_ms_per_mb: float | None = None
    """Of 1e6 bytes of rows, as a run has shown; None: twice over the memory."""
    apply_ms_per_mb: float | None = None
    """The same of gradients that update rows; None: three times over the memory."""
    reduce_all: bool = False
    """Partial sums of row-wise pooled tables travel as an all-reduce, as gloo does, not as a reduce-scatter."""
    receivers_wait: bool = True
    """Whether a link takes in no faster than it gives out. False where only sending is held to a rate."""
    shared_ms_per_mb: float = 0.0
    """Of 1e6 bytes that all ranks together send, where ranks share cores that move them; 0: each has its own."""

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.batch_size < 1:
            raise ValueError(f"ranks = {self.ranks}, batch_size = {self.batch_size}: 1 or more are needed")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """Bytes of one table per step: float64 [W], of every rank, where nothing else is said."""

    ids_out: np.ndarray
    ids_in: np.ndarray
    rows_out: np.ndarray
    """Vectors that leave a rank in the forward pass."""
    rows_in: np.ndarray
    gradients_out: np.ndarray
    gradients_in: np.ndarray
    looked_up: np.ndarray
    """Rows that a rank reads for all ranks, and writes gradients to."""
    travelling: float = 0.0
    """Ids of a rank that travel: once to every column-wise part, not at all for a data-parallel table."""
    reduced: float = 0.0
    """Bytes of the whole gradient of a data-parallel table."""


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


_NUMBERS = ("travelling", "reduced")  # of Load that are no arrays


def load(placed: Placed, setting: Setting) -> Load:
    """The bytes of one table. Ids are taken as in TorchRec: every occurrence travels, once to every column shard."""
    found: dict[str, Any] = {
        name: np.zeros(setting.ranks) for name in Load.__dataclass_fields__ if name not in _NUMBERS
    }
    table, others = placed.table, setting.ranks - 1
    ids = setting.batch_size * table.ids
    bags = setting.batch_size * len(table.features)
    if placed.sharding == "data_parallel":
        found["looked_up"] += ids * table.dim * table.value_bytes
        return Load(**found, reduced=float(table.rows) * table.dim * FLOAT)
    travelling = 0.0
    for shard in placed.shards:
        share, at = table.share(shard.first, shard.rows), shard.rank
        asked = share * ids * ID + bags * LENGTH
        given = FLOAT * shard.dim * (bags if table.pooled else share * ids)
        travelling += share * ids
        found["looked_up"][at] += setting.ranks * share * ids * shard.dim * table.value_bytes
        _to_one(found["ids_out"], found["ids_in"], at, asked, others)
        if not (table.pooled and placed.sharding == "row_wise"):
            _to_one(found["rows_in"], found["rows_out"], at, given, others)
            _to_one(found["gradients_out"], found["gradients_in"], at, given, others)
    if table.pooled and placed.sharding == "row_wise":
        # Every rank has a part of every bag: a reduce-scatter forward, an all-gather backward.
        whole = FLOAT * table.dim * bags * others
        for name in ("rows_out", "rows_in"):
            found[name] += 2 * whole if setting.reduce_all else whole
        for name in ("gradients_out", "gradients_in"):
            found[name] += whole
    return Load(**found, travelling=travelling)


def _to_one(gives: np.ndarray, takes: np.ndarray, owner: int, size: float, others: int) -> None:
    """Every other rank sends `size` bytes to the owner. With the arrays exchanged: the owner sends them."""
    gives += size
    gives[owner] -= size
    takes[owner] += others * size


def parts(plan: Sequence[Placed], setting: Setting, loads: Iterable[Load] | None = None) -> Parts:
    """The parts of a step on this plan; [W] arrays of `loads` are computed where they are not given.

    TorchRec makes one exchange for each sharding group: the tables of a module that are sharded alike. Exchanges of
    all groups share the links, so their bytes add up, and each pays its latency.
    """
    given = list(loads) if loads is not None else [load(one, setting) for one in plan]
    hardware = setting.hardware
    split = {(one.table.module, one.sharding) for one in plan if one.sharding != "data_parallel"}
    groups, kernels = len(split), len({(one.table.module, one.sharding) for one in plan})

    def most(out: str, into: str) -> float:
        sent = sum(getattr(one, out) for one in given)
        taken = sum(getattr(one, into) for one in given) if setting.receivers_wait else sent
        return float(max(np.max(sent), np.max(taken))) if given else 0.0

    looked_up = float(np.max(sum(one.looked_up for one in given))) if given else 0.0
    reduced = sum(one.reduced for one in given)
    floor = kernels * hardware.kernel_floor / 1e3
    # The whole gradient of a data-parallel table is updated, by an optimizer outside the kernel.
    dense = OPTIMIZER / FLOAT * reduced / (hardware.memory * 1e6)
    metadata = hardware.id_metadata * sum(one.travelling for one in given) / 1e6 if setting.ranks > 1 else 0.0

    def shared(out: str) -> float:
        return setting.shared_ms_per_mb * sum(float(getattr(one, out).sum()) for one in given) / 1e6

    return Parts(
        ids=shared("ids_out") + exchanged(setting, most("ids_out", "ids_in"), ID_EXCHANGES * groups) + metadata,
        lookup=max(_memory(looked_up, setting.lookup_ms_per_mb, LOOKUP, hardware), floor),
        rows=shared("rows_out") + exchanged(setting, most("rows_out", "rows_in"), groups),
        gradients=shared("gradients_out") + exchanged(setting, most("gradients_out", "gradients_in"), groups),
        apply=max(_memory(looked_up, setting.apply_ms_per_mb, APPLY, hardware), floor) + dense,
        all_reduce=all_reduce(hardware, reduced, setting.ranks),
    )


def by_rank(plan: Sequence[Placed], setting: Setting) -> dict[str, np.ndarray]:
    """{memory_ms, sent_bytes, received_bytes}: float64 [W] per step; look-ups and updates, what leaves and comes in.

    An all-reduce of data-parallel tables counts as twice its bytes, as a ring sends it.
    """
    loads, none = [load(one, setting) for one in plan], np.zeros(setting.ranks)
    ring = 2 * (setting.ranks - 1) / setting.ranks * sum(one.reduced for one in loads)
    kernels = [_kernels(float(size), setting) for size in sum((one.looked_up for one in loads), none)]
    return {
        "memory_ms": np.array([look + update for look, update in kernels]),
        "sent_bytes": sum((one.ids_out + one.rows_out + one.gradients_out for one in loads), none) + ring,
        "received_bytes": sum((one.ids_in + one.rows_in + one.gradients_in for one in loads), none) + ring,
    }


def exchanged(setting: Setting, size: float, calls: int) -> float:
    """Milliseconds of `calls` all-to-alls in which the busiest rank sends `size` bytes to others, evenly, in all."""
    if setting.ranks == 1 or calls == 0:
        return 0.0
    hardware = setting.hardware
    each = (hardware.exchange_latency + hardware.peer_latency * (setting.ranks - 1)) / 1e3
    whole = size * setting.ranks / (setting.ranks - 1)  # `exchange` counts what stays on the rank, too
    return exchange(hardware, whole, setting.ranks) + (calls - 1 if whole else calls) * each


def _memory(size: float, ms_per_mb: float | None, passes: int, hardware: Hardware) -> float:
    return passes * size / (hardware.memory * 1e6) if ms_per_mb is None else size / 1e6 * ms_per_mb


def shard_cost(placed: Placed, shard: Shard, setting: Setting) -> tuple[float, float, float, float, float]:
    """(look-up, rows, update, gradients, ids): ms that one shard adds to the rank that holds it, without latencies.

    For TorchRec's partitioner, which gives the next shard to the rank with the least sum so far.
    """
    if placed.sharding == "data_parallel":
        one = load(placed, setting)
        look, update = _kernels(float(one.looked_up[shard.rank]), setting)
        return look, 0.0, update, all_reduce(setting.hardware, one.reduced, setting.ranks), 0.0
    one = load(dataclasses.replace(placed, shards=(shard,)), setting)
    look, update = _kernels(float(one.looked_up[shard.rank]), setting)
    latency = exchanged(setting, 0.0, 1)

    def ms(out: np.ndarray, into: np.ndarray) -> float:
        size = max(float(out[shard.rank]), float(into[shard.rank]))
        return exchanged(setting, size, 1) - latency if size else 0.0

    return (
        look, ms(one.rows_out, one.rows_in), update, ms(one.gradients_out, one.gradients_in),
        ms(one.ids_out, one.ids_in),
    )  # fmt: skip


def _kernels(looked_up: float, setting: Setting) -> tuple[float, float]:
    """Milliseconds of look-up and update of these bytes."""
    return (
        _memory(looked_up, setting.lookup_ms_per_mb, LOOKUP, setting.hardware),
        _memory(looked_up, setting.apply_ms_per_mb, APPLY, setting.hardware),
    )
