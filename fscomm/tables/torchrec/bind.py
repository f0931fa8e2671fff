"""Makes the binding of a sharded module: the layout of its groups, read from TorchRec's shardings."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torchrec.modules.embedding_configs import PoolingType

from fscomm.plan.sharding_group import CHUNK_BYTES, GroupLayout, Pooling
from fscomm.tables.torchrec import structure
from fscomm.tables.torchrec.binding import TorchRecBinding
from fscomm.tables.torchrec.codecs import codecs


def bind(name: str, module: Any, ranks_per_host: int, plainly: Mapping[str, str]) -> TorchRecBinding:
    """Describe `module`, of this `name` in the model. No collective. plainly: why groups are not served, by what they
    are called."""
    group = module._env.process_group
    binding = TorchRecBinding(
        name=name,
        module=module,
        layouts=[],
        codecs=[],
        kernels=[],
        plain=module.forward,
        numbers=[],
        input_dists=[],
        plainly={part: plainly[part] for part in structure.parts(name, module) if part in plainly},
    )
    for number, (part, (kind, sharding)) in enumerate(
        zip(structure.parts(name, module), structure.shardings(module), strict=True)
    ):
        if part in binding.plainly:
            continue
        tables = structure.tables(sharding)
        dim = structure.row_columns(module, kind, sharding)
        of_group = codecs(module, kind, structure.output_dtype(sharding), dim)
        binding.layouts.append(
            GroupLayout(
                module=name,
                sharding=kind,
                rank=group.rank(),
                world_size=group.size(),
                dim=dim,
                dtype=of_group.rows.dtype,
                width=of_group.rows.width,
                runs=structure.runs(sharding),
                rows=tuple(table.local_rows for table in tables[group.rank()]),
                chunk_bytes=CHUNK_BYTES[structure.where(module).type],
                pooling=_pooling(module, kind, sharding, dim) if structure.is_pooled(module) else None,
                ranks_per_host=ranks_per_host,
            )
        )
        binding.numbers.append(number)
        binding.codecs.append(of_group)
        binding.input_dists.append(_input_dist(sharding))
        binding.kernels.append(structure.kernels(module._lookups[number]))
    return binding


def _pooling(module: Any, kind: str, sharding: Any, dim: int) -> Pooling:
    owners = structure.owners(module, kind, sharding)
    return Pooling(
        strips=tuple(
            tuple(table.local_cols // dim for table in of_rank for _ in range(table.num_features()))
            for of_rank in structure.tables(sharding)
        ),
        owners=1 if owners is None else owners.size(),
        mean=any(config.pooling == PoolingType.MEAN for of_rank in structure.configs(sharding) for config in of_rank),
    )


def _input_dist(sharding: Any) -> Any:
    """In host memory, where plans are made. It sends nothing."""
    dist = sharding.create_input_dist(device=structure.HOST)
    dist._dist = _Keep()
    return dist


class _Keep(nn.Module):
    """In the place of the all-to-all of an input dist: hands back the KJT that would have been sent."""

    def forward(self, features: Any) -> Any:
        return features
