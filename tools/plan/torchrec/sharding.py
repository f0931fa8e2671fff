"""Sharding plans as JSON, and back: `DistributedModelParallel(model, plan=load_plan("sharding-plan.json"))`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan

from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import read_document
from freescale_tools.plan.costs import Placed


def as_document(placed: Sequence[Placed], *, ranks: int, device: str, ranks_per_host: int) -> dict[str, Any]:
    """{version, kind, ranks, device, ranks_per_host, modules}: module -> table -> how and where it is sharded.

    Without the time: equal plans are equal files.
    """
    modules: dict[str, dict[str, Any]] = {}
    for one in sorted(placed, key=lambda one: (one.table.module, one.table.name)):
        modules.setdefault(one.table.module, {})[one.table.name] = _written(one, ranks)
    return {
        "version": 1, "kind": "sharding-plan", "ranks": ranks, "device": device,
        "ranks_per_host": ranks_per_host, "modules": modules,
    }  # fmt: skip


def _written(placed: Placed, ranks: int) -> dict[str, Any]:
    everywhere, shards, column = placed.sharding == "data_parallel", [], 0
    for shard in placed.shards:
        shards.append({"offset": [shard.first, column], "size": [shard.rows, shard.dim], "rank": shard.rank})
        column += shard.dim if placed.sharding == "column_wise" else 0
    return {
        "sharding_type": placed.sharding,
        "compute_kernel": "dense" if everywhere else "fused",
        "ranks": list(range(ranks)) if everywhere else [shard.rank for shard in placed.shards],
        "shards": shards,
    }


def load_plan(path: Path | str) -> ShardingPlan:
    """The plan that `freescale plan` wrote, for `DistributedModelParallel(plan=...)`.

    Raises UsageError for other files, and for ranks outside the plan's.
    """
    make = "write one with `freescale plan TABLES --profile DIR --ranks N`"
    document = read_document(Path(path), "sharding-plan", make=make)
    return from_document(document, str(path))


def from_document(document: Mapping[str, Any], where: str) -> ShardingPlan:
    """The plan of a document of `as_document`. Raises UsageError that names table and fault."""
    plan: dict[str, Any] = {}
    for module, tables in document["modules"].items():
        plan[module] = made = EmbeddingModuleShardingPlan()
        for name, one in tables.items():
            try:
                made[name] = ParameterSharding(
                    sharding_type=one["sharding_type"],
                    compute_kernel=one["compute_kernel"],
                    ranks=one["ranks"],
                    sharding_spec=_spec(one["shards"], document),
                )
            except (KeyError, TypeError, ValueError) as error:
                raise UsageError(f"{where}: table {name} of module {module!r}: {error}") from error
    return ShardingPlan(plan)


def _spec(shards: Sequence[Mapping[str, Any]], document: Mapping[str, Any]) -> EnumerableShardingSpec | None:
    return EnumerableShardingSpec([_shard(one, document) for one in shards]) if shards else None


def _shard(shard: Mapping[str, Any], document: Mapping[str, Any]) -> ShardMetadata:
    rank, ranks = shard["rank"], document["ranks"]
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} holds a part, but the plan is for ranks 0 to {ranks - 1}")
    device = "cpu" if document["device"] == "cpu" else f"{document['device']}:{rank % document['ranks_per_host']}"
    return ShardMetadata(
        shard_offsets=list(shard["offset"]), shard_sizes=list(shard["size"]), placement=f"rank:{rank}/{device}"
    )
