"""Tables behind managed collision: ids of any value are mapped to few rows, by maps that training writes.

Time is what the loop says: policies read whole hours.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from exact_kinds import sharded_by_rows
from exact_model import Batch, Config, Net, Table, ids_of
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.modules import hash_mc_evictions
from torchrec.modules.hash_mc_evictions import HashZchEvictionConfig, HashZchEvictionPolicyName
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.modules.mc_embedding_modules import (
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
)
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


class OwnPolicy(LFU_EvictionPolicy):
    pass


BY_COUNT = {
    "own": OwnPolicy,
    "lfu": LFU_EvictionPolicy,
    "lru": LRU_EvictionPolicy,
    "distance lfu": DistanceLFU_EvictionPolicy,
}


def mch(
    table: Table,
    policy: str = "lfu",
    interval: int = 2,
    filtering: Any = None,
    kind: type = MCHManagedCollisionModule,
    ids: int = IDS,
) -> Any:
    """Rows go to the ids that came most often, or last, every `interval` steps. Owners have as many of the ids below
    `ids`."""
    return kind(
        zch_size=table.rows,
        input_hash_size=ids,
        device=CPU,
        eviction_policy=BY_COUNT[policy](threshold_filtering_func=filtering),
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


needs_mpzch = pytest.mark.skipif(
    not hasattr(HashZchManagedCollisionModule, "_zero_collision_hash"), reason="MPZCH cannot be trained on the CPU"
)


class Subclassed(MCHManagedCollisionModule):
    pass


subclassed = partial(mch, kind=Subclassed)
MapOf = Callable[[Table], Any]


class Managed(Net):
    """maps: by table; a module has maps for all of its tables, or for none. tells: it gives remapped features, too."""

    def __init__(self, config: Config, maps: Mapping[str, MapOf], *, tells: bool) -> None:
        super().__init__(config)
        self.managed = [name for name, tables in config.modules.items() if tables[0].name in maps]
        for name in self.managed:
            rows = self.embeddings[name]
            made = {table.name: maps[table.name](table) for table in config.modules[name]}
            pooled = bool(config.modules[name][0].pooling)
            kind = ManagedCollisionEmbeddingBagCollection if pooled else ManagedCollisionEmbeddingCollection
            configs = rows.embedding_bag_configs() if pooled else rows.embedding_configs()  # type: ignore[operator]
            self.embeddings[name] = kind(
                rows,  # type: ignore[arg-type]
                ManagedCollisionCollection(made, configs),
                return_remapped_features=tells,
                allow_in_place_embed_weight_update=True,  # by a forward before the backward of another one
            )
        self.remapped: list[Any] = []  # in each forward of a module

    def find(self, batch: Batch) -> dict[str, Any]:
        asked = {
            name: self.embeddings[name](ids_of(batch, name))
            for name in self.embeddings
            if name not in batch.extra.get("skip", ())
        }
        found: dict[str, Any] = {}
        for name, answer in asked.items():
            if name in self.managed:
                answer, remapped = answer
                self.remapped.append(None if remapped is None else remapped.wait())
            found |= dict(answer.items())
        unused = batch.extra.get("unused", ())
        return {name: None if name in unused else found.get(name) for name in self.config.features}


def managed(
    maps: Mapping[str, MapOf], initial: float | None = None, *, kernels: bool = True, tells: bool = True
) -> Callable[[Config, int], tuple[Any, Any]]:
    """A builder of such models. initial: what new rows are filled with; None: random numbers. kernels: it can be
    trained on the CPU."""
    return partial(_build, maps, initial, kernels, tells)


def _build(
    maps: Mapping[str, MapOf], initial: float | None, kernels: bool, tells: bool, config: Config, size: int
) -> tuple[Any, Any]:
    net = Managed(config, maps, tells=tells)
    plain = EmbeddingCollectionSharder(use_index_dedup=config.dedup)
    sharders = {name: _sharder(net.embeddings[name], plain) for name in config.modules}
    modules = {f"embeddings.{name}": (net.embeddings[name], sharder) for name, sharder in sharders.items()}
    model, optimizer = sharded_by_rows(config, size, net, modules)
    if kernels:
        fscomm.cpu_kernels.install(model)
    if initial is not None:
        for name in net.managed:
            for table in model.module.embeddings[name]._embedding_module._table_name_to_config.values():
                table.init_fn = lambda rows: rows.fill_(initial)
    return model, optimizer


def _sharder(module: Any, plain: EmbeddingCollectionSharder) -> Any:
    if isinstance(module, ManagedCollisionEmbeddingBagCollection):
        return ManagedCollisionEmbeddingBagCollectionSharder()
    managed = isinstance(module, ManagedCollisionEmbeddingCollection)
    return ManagedCollisionEmbeddingCollectionSharder(ec_sharder=plain) if managed else plain


@contextlib.contextmanager
def at_hour(hour: int | Callable[[], int]) -> Iterator[None]:
    clock = SimpleNamespace(time=lambda: 3600.0 * (hour() if callable(hour) else hour) + 1800)
    with mock.patch.object(hash_mc_evictions, "time", clock):
        yield
