"""TorchRec as a `fscomm.tables.sharding_library.Library`: describes sharded modules, by their TorchRec shardings."""

import sys
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.plan.sharding_group import CHUNK_BYTES, GroupLayout, Pooling
from fscomm.tables.torchrec import structure
from fscomm.tables.torchrec.binding import TorchRecBinding, asked
from fscomm.tables.torchrec.codecs import codecs
from fscomm.tables.torchrec.managed import ManagedBinding
from fscomm.tables.torchrec.maps import MapsAhead
from fscomm.tables.torchrec.module_view import Keep
from fscomm.tables.torchrec.servable import problems
from fscomm.tables.torchrec.structure import parts, sharded_modules
from fscomm.tables.torchrec.throwaway import trial

__all__ = [
    "adds_parts",
    "asked",
    "bind",
    "features_problem",
    "make_features",
    "parts",
    "problems",
    "sharded_modules",
    "trial",
    "versions",
]


def versions() -> dict[str, str]:
    """Of what this depends on."""
    return {name: sys.modules[name].__version__ for name in ("torch", "torchrec", "fbgemm_gpu")}


def adds_parts(name: str, module: Any, unserved: Collection[str]) -> dict[str, Any]:
    """By what groups are called: the process group whose ranks add up, by gloo, the parts that they have of vectors."""
    if structure.where(module).type == "cuda":  # NCCL adds; of what is served, two parts at most
        return {}
    groups = structure.groups(name, module)
    found = {part: structure.owners(module, kind, of_part) for part, kind, of_part in groups if part not in unserved}
    return {part: group for part, group in found.items() if group is not None}


def features_problem(features: Any) -> str | None:
    """Why these features cannot be prefetched, or None."""
    if not isinstance(features, KeyedJaggedTensor):
        return f"features are a {type(features).__name__}, not a KeyedJaggedTensor"
    if features.variable_stride_per_key():
        return "batch sizes vary by feature (VBE)"
    weights = features.weights_or_none()
    if weights is not None and weights.dim() > 1:
        return "its ids have several weights each"
    if weights is not None and weights.is_floating_point() and weights.dtype != torch.float32:
        return f"the weights of its features are {weights.dtype}, not float32"
    return None


def make_features(
    keys: list[str], values: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None, stride: int
) -> KeyedJaggedTensor:
    """A KJT [N] of `keys` [F], with lengths [F * stride]."""
    return KeyedJaggedTensor(keys=keys, values=values, lengths=lengths, weights=weights, stride=stride)


def bind(name: str, module: Any, ranks_per_host: int, plainly: Mapping[str, str]) -> TorchRecBinding:
    """Describe `module`, of this `name` in the model. No collective. plainly: why groups are not served, by what they
    are called."""
    group = module._env.process_group
    rows = structure.rows_of(module)
    kind = ManagedBinding if structure.is_managed(module) else TorchRecBinding
    binding = kind(
        name=name,
        module=module,
        layouts=[],
        codecs=[],
        kernels=[],
        plain=module.forward,
        numbers=[],
        input_dists=[],
        plainly={part: plainly[part] for part in parts(name, module) if part in plainly},
        maps=MapsAhead(module) if structure.is_managed(module) else None,
    )
    for number, (part, sharding_type, sharding) in enumerate(structure.groups(name, module)):
        if part in binding.plainly:
            continue
        tables = structure.tables(sharding)
        dim = structure.row_columns(module, sharding_type, sharding)
        of_group = codecs(rows, sharding_type, structure.output_dtype(sharding), dim)
        binding.layouts.append(
            GroupLayout(
                module=name,
                sharding=sharding_type,
                rank=group.rank(),
                world_size=group.size(),
                dim=dim,
                dtype=of_group.rows.dtype,
                width=of_group.rows.width,
                runs=structure.runs(sharding),
                rows=tuple(table.local_rows for table in tables[group.rank()]),
                kernels=structure.tables_of_kernels(sharding, group.rank()),
                chunk_bytes=CHUNK_BYTES[structure.where(module).type],
                pooling=_pooling(module, sharding_type, sharding, dim) if structure.is_pooled(module) else None,
                ranks_per_host=1 if structure.is_managed(module) else ranks_per_host,
                managed=structure.is_managed(module),
            )
        )
        binding.numbers.append(number)
        binding.codecs.append(of_group)
        if not structure.is_managed(module):  # else TorchRec makes them when it sees the first features
            binding.input_dists.append(_input_dist(sharding))
        binding.kernels.append(structure.kernels(rows._lookups[number]))
    return binding


def _pooling(module: Any, kind: str, sharding: Any, dim: int) -> Pooling:
    owners = structure.owners(module, kind, sharding)
    return Pooling(
        strips=tuple(
            tuple(table.local_cols // dim for table in of_rank for _ in range(table.num_features()))
            for of_rank in structure.tables(sharding)
        ),
        owners=1 if owners is None else owners.size(),
        mean=any(config.pooling == PoolingType.MEAN for config in structure.configs(sharding)),
    )


def _input_dist(sharding: Any) -> Any:
    """In host memory, where plans are made. It sends nothing."""
    dist = sharding.create_input_dist(device=structure.HOST)
    dist._dist = Keep()
    return dist
