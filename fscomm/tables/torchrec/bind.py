"""Describes sharded modules of TorchRec, as `requirements` found them: a binding of each, by its TorchRec shardings."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torchrec.modules.embedding_configs import PoolingType

from fscomm.plan.sharding_group import CHUNK_BYTES, GroupLayout, Pooling
from fscomm.tables.forward_guard import ForwardGuard
from fscomm.tables.group_tables import Codecs, as_they_are
from fscomm.tables.torchrec import sharded
from fscomm.tables.torchrec.binding import TorchRecBinding
from fscomm.tables.torchrec.module_view import Keep
from fscomm.tables.torchrec.requirements import MakeCodecs


def unquantised(module: Any, sharding: str, given: torch.dtype, dim: int) -> Codecs:
    """The codecs of a model without quantised communication: see `MakeCodecs`."""
    return as_they_are(given, dim)


def bind(
    name: str,
    module: Any,
    *,
    ranks_per_host: int = 1,
    plainly: Mapping[str, str] = MappingProxyType({}),
    make_codecs: MakeCodecs = unquantised,
    kind: type[TorchRecBinding] = TorchRecBinding,
    guard: ForwardGuard | None = None,
) -> TorchRecBinding:
    """Describe `module`, of this `name` in the model. No collective.

    plainly: why groups are not served, by name. kind, guard: of a module whose forward may reassign rows.
    """
    group = module._env.process_group
    rows = sharded.rows_of(module)
    guard = guard or ForwardGuard()
    reassigns = guard.reassigns is not None
    binding = kind(
        name=name,
        module=module,
        layouts=[],
        codecs=[],
        kernels=[],
        plain=module.forward,
        numbers=[],
        input_dists=[],
        plainly={part: plainly[part] for part in sharded.group_names(name, module) if part in plainly},
        guard=guard,
    )
    for number, (part, sharding_type, sharding) in enumerate(sharded.groups(name, module)):
        if part in binding.plainly:
            continue
        tables = sharded.tables(sharding)
        dim = sharded.row_columns(module, sharding_type, sharding)
        of_group = make_codecs(rows, sharding_type, sharded.output_dtype(sharding), dim)
        assert not isinstance(of_group, str), of_group  # such a group is not served
        binding.layouts.append(
            GroupLayout(
                module=name,
                sharding=sharding_type,
                rank=group.rank(),
                world_size=group.size(),
                dim=dim,
                dtype=of_group.rows.dtype,
                width=of_group.rows.width,
                runs=sharded.runs(sharding),
                rows=tuple(table.local_rows for table in tables[group.rank()]),
                kernels=sharded.tables_of_kernels(sharding, group.rank()),
                chunk_bytes=CHUNK_BYTES[sharded.where(module).type],
                pooling=_pooling(module, sharding_type, sharding, dim) if sharded.is_pooled(module) else None,
                ranks_per_host=1 if reassigns else ranks_per_host,
                reassigns=reassigns,
            )
        )
        binding.numbers.append(number)
        binding.codecs.append(of_group)
        if not reassigns:  # else TorchRec makes them when it sees the first features
            binding.input_dists.append(_input_dist(sharding))
        binding.kernels.append(sharded.kernels(rows._lookups[number]))
    return binding


def _pooling(module: Any, kind: str, sharding: Any, dim: int) -> Pooling:
    owners = sharded.owners(module, kind, sharding)
    return Pooling(
        strips=tuple(
            tuple(table.local_cols // dim for table in of_rank for _ in range(table.num_features()))
            for of_rank in sharded.tables(sharding)
        ),
        owners=1 if owners is None else owners.size(),
        mean=any(config.pooling == PoolingType.MEAN for config in sharded.configs(sharding)),
    )


def _input_dist(sharding: Any) -> Any:
    """In host memory, where plans are made. It sends nothing."""
    dist = sharding.create_input_dist(device=sharded.HOST)
    dist._dist = Keep()
    return dist
