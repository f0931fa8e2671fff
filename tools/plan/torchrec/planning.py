"""Drives TorchRec's EmbeddingShardingPlanner with the costs of this package.

`shard_cost` stands in for its estimates of shards, and `costs.parts`, as `performance_model`, for its rating of plans.
Climbers propose plans beside TorchRec's own proposers, as sharding groups make tables depend on each other. A callback
then moves parts of tables from rank to rank while that makes the step shorter.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.proposers import GreedyProposer, UniformProposer
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    Enumerator,
    Perf,
    PerfModel,
    PlannerError,
    Proposer,
    ShardEstimator,
    ShardingOption,
)
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from freescale_tools.console.errors import UsageError, first_line
from freescale_tools.plan.costs import SHARDINGS, Load, Parts, Placed, Setting, Shard, load, parts, shard_cost
from freescale_tools.plan.tables import Table
from freescale_tools.plan.torchrec.modules import model_of

LEAST_COLUMNS = 32  # of a column-wise part; narrower ones read less than a cache line per row and rank
MARGIN = 0.05  # of the rate: smaller differences are within the error of the model
_RESERVED = 0.15  # of the memory of a rank: for all that is no table, as TorchRec's default reserves
_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What TorchRec has to know of the ranks. `memory_bytes`: of one rank, for tables and what goes with them."""

    device: str
    ranks_per_host: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A plan. `memory`: bytes of each rank, as TorchRec's storage estimator counts: tables, optimizer, buffers."""

    placed: tuple[Placed, ...]
    memory: tuple[int, ...]
    sharding: ShardingPlan


Rate = Callable[[Parts], float]


def chosen_plan(tables: Sequence[Table], setting: Setting, machine: Machine, rate: Rate) -> Chosen:
    """The plan of least `rate`; TorchRec's own, if its rate is not MARGIN above that.

    Blocks for up to some minutes. Raises UsageError where no plan fits into the memory.
    """
    rating = _Rating(tables, setting, rate)
    topology = _topology(setting, machine)
    limits = _constraints(tables, setting.ranks, machine)
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=setting.batch_size,
        constraints=limits,
        enumerator=EmbeddingEnumerator(
            topology=topology,
            batch_size=setting.batch_size,
            constraints=limits,
            estimator=[_Estimator(topology, rating), EmbeddingStorageEstimator(topology=topology, constraints=limits)],
        ),
        proposer=[
            GreedyProposer(),
            GreedyProposer(use_depth=False),
            UniformProposer(),
            *(_Climber(start) for start in (None, "table_wise", "row_wise")),
        ],
        performance_model=rating,
        callbacks=[lambda options: _moved(options, rating, machine)],
        storage_reservation=FixedPercentageStorageReservation(_RESERVED),
        stats=[],
        timeout_seconds=_SECONDS,
    )
    own, theirs = _planned(planner, tables, rating), default_plan(tables, setting, machine)
    found, usual = (rate(parts(one.placed, setting)) for one in (own, theirs))
    return own if found < (1 - MARGIN) * usual else theirs


def default_plan(tables: Sequence[Table], setting: Setting, machine: Machine) -> Chosen:
    """What TorchRec's planner chooses by itself: its own estimates, bandwidths and proposers, given the lengths.

    Of the ways to shard, it has those of `costs.SHARDINGS`. Raises UsageError where no plan fits into the memory.
    """
    planner = EmbeddingShardingPlanner(
        topology=_topology(setting, machine),
        batch_size=setting.batch_size,
        constraints=_constraints(tables, setting.ranks, machine, narrow=False),
        storage_reservation=FixedPercentageStorageReservation(_RESERVED),
        stats=[],
    )
    return _planned(planner, tables, _Rating(tables, setting, lambda found: found.total), own=False)


class _AnyDevice(EmbeddingBagCollectionSharder):
    """Row-wise also on CPUs: TorchRec's sharder leaves it out there, though such tables train over gloo."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(dict.fromkeys([*super().sharding_types(compute_device_type), "row_wise"]))


def _sharders(*, own: bool = True) -> list[ModuleSharder[nn.Module]]:
    """Of the two kinds of collections: `own`, or as TorchRec has them."""
    found: Any = [_AnyDevice() if own else EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
    return found


def _planned(
    planner: EmbeddingShardingPlanner, tables: Sequence[Table], rating: "_Rating", *, own: bool = True
) -> Chosen:
    try:
        with _quiet():
            sharding = planner.plan(model_of(tables), _sharders(own=own))
    except PlannerError as error:
        # Its text is a page long; the first line says what is missing.
        raise UsageError(
            f"TorchRec's planner finds no plan: {first_line(error).strip()} Give more --ranks or --memory, smaller "
            "tables or a smaller --batch-size"
        ) from error
    options = planner._best_plan or []  # TorchRec 1.7 has no get_selected_options() yet, which gives the same
    return Chosen(
        placed=tuple(rating.placed(option) for option in options),
        memory=_memory(options, rating.setting.ranks),
        sharding=sharding,
    )


def _memory(options: Sequence[ShardingOption], ranks: int) -> tuple[int, ...]:
    held = [0] * ranks
    for option in options:
        for shard in option.shards:
            if shard.storage is not None and shard.rank is not None:
                held[shard.rank] += shard.storage.hbm + shard.storage.ddr
    return tuple(held)


def _topology(setting: Setting, machine: Machine) -> Topology:
    cap = {"ddr_cap" if machine.device == "cpu" else "hbm_cap": machine.memory_bytes}
    with _quiet():
        return Topology(
            world_size=setting.ranks,
            compute_device=machine.device,
            local_world_size=min(machine.ranks_per_host, setting.ranks),
            **cap,
        )


def _constraints(
    tables: Sequence[Table], ranks: int, machine: Machine, *, narrow: bool = True
) -> dict[str, ParameterConstraints]:
    """`narrow`: column-wise parts are as narrow as ranks and LEAST_COLUMNS allow, else TorchRec's default."""
    found = {}
    for table in tables:
        columns = max(LEAST_COLUMNS, -(-table.dim // ranks // 4) * 4)
        cut = narrow and columns < table.dim and table.dim % columns == 0
        ways = [one for one in SHARDINGS if one != "column_wise" or cut or not narrow]
        if machine.device == "cpu" and not table.pooled:
            # The dense kernel that TorchRec 1.9 takes there pools the rows of a sample into one.
            ways.remove("data_parallel")
        found[table.name] = ParameterConstraints(
            sharding_types=ways,
            compute_kernels=["fused", "dense"],
            min_partition=columns if cut else None,
            pooling_factors=list(table.ids_per_sample or ()),
        )
    return found


class _Rating(PerfModel):
    """Rates whole plans. Loads of tables are kept: searching places the same table on the same ranks many times."""

    def __init__(self, tables: Sequence[Table], setting: Setting, rate: Rate) -> None:
        self.setting = setting
        self._rate = rate
        self._tables = {table.name: table for table in tables}
        self._loads: dict[Any, Load] = {}

    def rate(self, plan: list[ShardingOption]) -> float:
        placed = [self.placed(option) for option in plan]
        return self._rate(parts(placed, self.setting, [self._load(one) for one in placed]))

    def placed(self, option: ShardingOption) -> Placed:
        way: Any = option.sharding_type
        shards = () if way == "data_parallel" else tuple(self.shard(shard) for shard in option.shards)
        return Placed(table=self._tables[option.name], sharding=way, shards=shards)

    @staticmethod
    def shard(shard: Any) -> Shard:
        rank = 0 if shard.rank is None else shard.rank
        return Shard(rank=rank, first=shard.offset[0], rows=shard.size[0], dim=shard.size[1])

    def _load(self, placed: Placed) -> Load:
        key = placed.table.name, placed.sharding, placed.shards
        if key not in self._loads:
            self._loads[key] = load(placed, self.setting)
        return self._loads[key]


class _Estimator(ShardEstimator):
    """Gives every shard its cost alone, which TorchRec places shards by."""

    def __init__(self, topology: Topology, rating: _Rating) -> None:
        self._topology = topology
        self._rating = rating

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any = None) -> None:
        for option in sharding_options:
            placed = self._rating.placed(option)
            for shard in option.shards:
                look, rows, update, gradients, ids = shard_cost(placed, self._rating.shard(shard), self._rating.setting)
                # Perf.total leaves the exchange of ids out; Perf of TorchRec 1.4 has no place for it.
                shard.perf = Perf(look, rows + ids, update, gradients)


class _Climber(Proposer):
    """Changes how one table is sharded, keeps what makes the plan better, and ends when no change does."""

    def __init__(self, start: str | None) -> None:
        self._start = start
        self._options: list[list[ShardingOption]] = []

    def load(self, search_space: list[ShardingOption], enumerator: Enumerator | None = None) -> None:
        by_table: dict[str, list[ShardingOption]] = {}
        for option in search_space:
            by_table.setdefault(option.fqn, []).append(option)
        self._options = list(by_table.values())
        self._best = [self._first(options) for options in self._options]
        self._rating: float | None = None
        self._tried = self._best
        self._since = -1  # changes that were tried since the last that helped
        self._changes = [(table, way) for table, options in enumerate(self._options) for way in range(len(options))]

    def _first(self, options: list[ShardingOption]) -> int:
        alone = [max(shard.perf.total for shard in option.shards if shard.perf) for option in options]
        wanted = [place for place, option in enumerate(options) if option.sharding_type == self._start]
        return wanted[0] if wanted else alone.index(min(alone))

    def propose(self) -> list[ShardingOption] | None:
        if self._since >= len(self._changes):
            return None
        return [options[way] for options, way in zip(self._options, self._tried, strict=True)]

    def feedback(
        self,
        partitionable: bool,
        plan: list[ShardingOption] | None = None,
        perf_rating: float | None = None,
        storage_constraint: Topology | None = None,
    ) -> None:
        if partitionable and perf_rating is not None and (self._rating is None or perf_rating < self._rating):
            self._rating, self._best, self._since = perf_rating, self._tried, 0
        else:
            self._since = max(self._since, 0) + 1
        while self._changes and self._since < len(self._changes):
            table, way = self._changes[0]
            self._changes = [*self._changes[1:], self._changes[0]]
            if self._best[table] != way:
                self._tried = [*self._best[:table], way, *self._best[table + 1 :]]
                return
            self._since += 1


def _moved(options: list[ShardingOption], rating: _Rating, machine: Machine) -> list[ShardingOption]:
    """The same shardings, with table- and column-wise parts moved to other ranks, or two of them exchanged.

    Every change makes the rating better. Ends when none does.
    """
    ranks, room = rating.setting.ranks, (1 - _RESERVED) * machine.memory_bytes
    whole = [option for option in options if option.sharding_type in ("table_wise", "column_wise")]
    movable = [(option, shard) for option in whole for shard in option.shards]
    best, better = rating.rate(options), True

    def possible() -> bool:
        apart = all(len({shard.rank for shard in option.shards}) == len(option.shards) for option in whole)
        return apart and max(_memory(options, ranks)) <= room

    while better:
        better = False
        for place, (_, shard) in enumerate(movable):
            before = shard.rank
            targets = [(rank, None) for rank in range(ranks)] + [(o.rank, o) for _, o in movable[place + 1 :]]
            for rank, other in targets:
                home = shard.rank
                if rank == home or (other is not None and other.rank == home):
                    continue
                old = other.rank if other is not None else None
                shard.rank = rank if other is None else old
                if other is not None:
                    other.rank = home
                found = rating.rate(options) if possible() else best
                if found < best * (1 - 1e-9):
                    best = found
                else:
                    shard.rank = home
                    if other is not None:
                        other.rank = old
            better = better or shard.rank != before
    return options


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """TorchRec's planner warns of data-parallel tables, and of its own objects not being made by its factories."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
