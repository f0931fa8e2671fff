"""A small module behind managed collision, for a trial of such modules."""

import itertools
from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.sharding_plan import row_wise
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import LRU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from fscomm.managed import cpu_kernels
from fscomm.managed.maps import own_maps
from fscomm.managed.requirements import METHODS
from fscomm.tables.torchrec import requirements
from fscomm.tables.torchrec.sharded import HOST
from fscomm.verify.trial_modules import RANKS, RATE, ROWS, TABLES, Trial, rows, shard

IDS = 60  # of fewer rows


def trial_of(module: Any) -> Trial:
    """The trial that modules with maps of the same kinds need."""
    kinds = {type(each) for each in own_maps(module).values()}
    return Trial(
        kind=f"managed collision by {' and '.join(sorted(kind.__name__ for kind in kinds))}",
        make=partial(_make, kinds=kinds),
        ids=IDS,
        methods=requirements.METHODS | METHODS,
    )


def _make(group: Any, *, kinds: Collection[type]) -> Any:
    torch.manual_seed(0)
    kind_of = dict(zip(TABLES, itertools.cycle(sorted(kinds, key=lambda kind: kind.__name__)), strict=False))
    tables = rows()
    apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), RATE)
    maps = {name: _map(kind_of[name]) for name in TABLES}
    module = ManagedCollisionEmbeddingCollection(tables, ManagedCollisionCollection(maps, tables.embedding_configs()))
    made = shard(module, dict.fromkeys(TABLES, row_wise()), ManagedCollisionEmbeddingCollectionSharder(), group)
    cpu_kernels.install(made)
    return made


def _map(kind: Any) -> Any:
    """MCH that evicts in every step. MPZCH evicts by the hour only, so a trial sees none of that."""
    if kind is MCHManagedCollisionModule:
        return kind(ROWS, HOST, LRU_EvictionPolicy(), eviction_interval=1, input_hash_size=IDS)
    return kind(ROWS, HOST, total_num_buckets=RANKS, max_probe=3)
