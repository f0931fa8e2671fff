"""Makes the binding of a sharded module: the layout of its groups, read from TorchRec's shardings."""

from typing import Any

from torch import nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.modules.embedding_configs import PoolingType

from fscomm.plan.sharding_group import CHUNK_BYTES, GroupLayout, Pooling
from fscomm.tables.binding import Binding
from fscomm.tables.torchrec.codecs import codecs
from fscomm.tables.torchrec.pooled_binding import PooledBinding
from fscomm.tables.torchrec.sequence_binding import SequenceBinding
from fscomm.tables.torchrec.servable import (
    HOST,
    IN_PARTS,
    columns,
    kernels,
    output_dtype,
    owners,
    shardings,
    version_problem,
    where,
)


def bind(name: str, module: Any, ranks_per_host: int) -> Binding:
    """Describe `module`, of this `name` in the model. No collective."""
    group = module._env.process_group
    pooled = isinstance(module, ShardedEmbeddingBagCollection)
    layouts, all_codecs, input_dists, of_lookups = [], [], [], []
    for (kind, sharding), lookup in zip(shardings(module), module._lookups, strict=True):
        dist = sharding.create_input_dist(device=HOST)  # plans are made in host memory
        splits = list(dist._dist._splits)
        dist._dist = _Keep()
        configs = sharding._grouped_embedding_configs_per_rank
        tables = [[table for config in of_rank for table in config.embedding_tables] for of_rank in configs]
        runs = tuple(tuple(table.num_features() for table in of_rank) for of_rank in tables)
        if [sum(run) for run in runs] != splits:
            raise RuntimeError(f"{name}: features per rank {splits} do not fit its tables {runs}; {version_problem()}")
        widths = [[table.local_cols for table in of_rank for _ in range(table.num_features())] for of_rank in tables]
        dim = columns(configs) if pooled else module._embedding_dim_for_sharding_type(kind)
        of_group = codecs(module, kind, output_dtype(config for of_rank in configs for config in of_rank), dim)
        all_codecs.append(of_group)
        layouts.append(
            GroupLayout(
                module=name,
                sharding=kind,
                rank=group.rank(),
                world_size=group.size(),
                dim=dim,
                dtype=of_group.rows.dtype,
                width=of_group.rows.width,
                runs=runs,
                rows=tuple(table.local_rows for table in tables[group.rank()]),
                chunk_bytes=CHUNK_BYTES[where(module).type],
                pooling=_pooling(widths, dim, _owners(module, kind, sharding), configs) if pooled else None,
                ranks_per_host=ranks_per_host,
            )
        )
        input_dists.append(dist)
        of_lookups.append(kernels(lookup))
    binding = PooledBinding if pooled else SequenceBinding
    return binding(
        name=name,
        module=module,
        layouts=layouts,
        codecs=all_codecs,
        kernels=of_lookups,
        plain=module.forward,
        input_dists=input_dists,
    )


def _owners(module: Any, kind: str, sharding: Any) -> int:
    return owners(module, kind, sharding).size() if kind in IN_PARTS else 1


def _pooling(widths: list[list[int]], dim: int, owners: int, configs: list[list[Any]]) -> Pooling:
    return Pooling(
        strips=tuple(tuple(width // dim for width in of_rank) for of_rank in widths),
        owners=owners,
        mean=any(config.pooling == PoolingType.MEAN for of_rank in configs for config in of_rank),
    )


class _Keep(nn.Module):
    """In the place of the all-to-all of an input dist: hands back the KJT that would have been sent."""

    def forward(self, features: Any) -> Any:
        return features
