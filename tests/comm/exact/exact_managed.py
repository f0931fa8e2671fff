"""Tables behind managed collision: module `b` of a model, which maps any ids to few rows by maps that training writes.

Time is what the loop says: policies read whole hours.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from exact_kinds import sharded_by_rows
from exact_model import Batch, Config, Net, Table
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.modules import hash_mc_evictions
from torchrec.modules.hash_mc_evictions import HashZchEvictionConfig, HashZchEvictionPolicyName
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)

import fscomm

CPU = torch.device("cpu")
IDS = 997  # ids are drawn below this, many more than rows
BUCKETS = 12  # cut into 1 to 4 ranks
BY_COUNT = {"lfu": LFU_EvictionPolicy, "lru": LRU_EvictionPolicy, "distance lfu": DistanceLFU_EvictionPolicy}


def mch(table: Table, policy: str = "lfu", interval: int = 2) -> Any:
    """Rows go to the ids that came most often, or last, every `interval` steps."""
    return MCHManagedCollisionModule(
        zch_size=table.rows,
        input_hash_size=IDS,
        device=CPU,
        eviction_policy=BY_COUNT[policy](),
        eviction_interval=interval,
    )


def hash_zch(table: Table, policy: str | None = "SINGLE_TTL", hours: int = 1, probes: int = 4, **options: Any) -> Any:
    """Rows go to the ids that find one in their probing chain, or evict one that nobody used for `hours`."""
    name = None if policy is None else HashZchEvictionPolicyName[f"{policy}_EVICTION"]
    times = {"per_feature_ttl": [hours + i for i in range(len(table.features))]}
    given = times if policy == "PER_FEATURE_TTL" else {"single_ttl": hours}
    return HashZchManagedCollisionModule(
        zch_size=table.rows,
        device=CPU,
        total_num_buckets=BUCKETS,
        max_probe=probes,
        eviction_policy_name=name,
        eviction_config=None if name is None else HashZchEvictionConfig(features=list(table.features), **given),
        **options,
    )


MapOf = Callable[[Table], Any]


class Managed(Net):
    """maps: of the tables of module b, by name."""

    def __init__(self, config: Config, maps: Mapping[str, MapOf]) -> None:
        super().__init__(config)
        rows = self.embeddings["b"]
        made = {table.name: maps[table.name](table) for table in config.modules["b"]}
        collection = ManagedCollisionCollection(made, rows.embedding_configs())  # type: ignore[operator]
        self.embeddings["b"] = ManagedCollisionEmbeddingCollection(
            rows,  # type: ignore[arg-type]
            collection,
            return_remapped_features=True,
            allow_in_place_embed_weight_update=True,  # of rows that a forward evicts before the backward of another one
        )
        self.remapped: Any = None

    def find(self, batch: Batch) -> dict[str, Any]:
        rows, remapped = self.embeddings["b"](batch.ids["b"])
        self.remapped = remapped.wait()
        return dict(self.embeddings["a"](batch.ids["a"]).items()) | dict(rows.items())


def managed(
    maps: Mapping[str, MapOf], initial: float | None = None, kernels: bool = True
) -> Callable[[Config, int], tuple[Any, Any]]:
    """A builder of such models. initial: what new rows are filled with; None: random numbers. kernels: it can be
    trained on the CPU."""
    return partial(_build, maps, initial, kernels)


def _build(
    maps: Mapping[str, MapOf], initial: float | None, kernels: bool, config: Config, size: int
) -> tuple[Any, Any]:
    net = Managed(config, maps)
    sharders = {"a": EmbeddingCollectionSharder(), "b": ManagedCollisionEmbeddingCollectionSharder()}
    modules = {f"embeddings.{name}": (net.embeddings[name], sharder) for name, sharder in sharders.items()}
    model, optimizer = sharded_by_rows(config, size, net, modules)
    if kernels:
        fscomm.cpu_kernels.install(model)
    if initial is not None:
        inner = model.module.embeddings["b"]._embedding_module
        for table in inner._table_name_to_config.values():
            table.init_fn = lambda rows: rows.fill_(initial)
    return model, optimizer


@contextlib.contextmanager
def at_hour(hour: int) -> Iterator[None]:
    clock = SimpleNamespace(time=lambda: 3600.0 * hour + 1800)
    with mock.patch.object(hash_mc_evictions, "time", clock):
        yield
