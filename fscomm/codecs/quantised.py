"""How rows and gradients are encoded to travel: quantised communication, by the codecs of TorchRec's output dists.

Served are codecs that encode every number by itself (fp16, bf16, loss scale), or groups of numbers that lie inside
one row (int8). Then it makes no difference in which parts rows travel: decoded, they are the bits of TorchRec's own
exchange.
"""

from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from torchrec.distributed.types import CommOp

from fscomm.tables.group_tables import Codec, Codecs, as_they_are
from fscomm.tables.torchrec.sharded import is_pooled

_NUMBER_BY_NUMBER = (SparseType.FP32, SparseType.FP16, SparseType.BF16)
_IN_GROUPS = (SparseType.INT8,)


def quantised_codecs(module: Any, sharding: str, given: torch.dtype, dim: int) -> Codecs | str:
    """Of the tables of `module` with this sharding type, whose rows have `dim` columns: see `MakeCodecs`."""
    quantised = _quantised(module, sharding)
    if quantised is None:
        return as_they_are(given, dim)
    if why := _problem(quantised, _operations(module, sharding), sharding, given, dim):
        return why
    return Codecs(given, *(_codec(each, dim) for each in (quantised.forward, quantised.backward)))


def _problem(quantised: Any, operations: list[CommOp], sharding: str, given: torch.dtype, dim: int) -> str | None:
    """Why rows and gradients that are sent quantised cannot be sent in other parts, or None."""
    if len(operations) > 1:
        return f"its vectors are quantised twice, inside a host and between hosts ({sharding})"
    if given != torch.float32:
        return f"communication of {given} rows is quantised"
    for codec in (quantised.forward, quantised.backward):
        precision = getattr(codec, "_comm_precision", None)
        if precision not in (*_NUMBER_BY_NUMBER, *_IN_GROUPS):
            name = getattr(precision, "name", codec)
            return f"communication is quantised in a way that was never measured here ({name})"
        if precision in _IN_GROUPS and CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER in operations:
            return f"the parts of its vectors are added up as {precision.name} (row-wise pooling)"
        if precision in _IN_GROUPS and dim % _group(codec):
            return f"communication is quantised in groups of {_group(codec)} numbers, which do not cut {dim} columns"
    return None


def _operations(module: Any, sharding: str) -> list[CommOp]:
    """What rows go through on their way, one after the other."""
    if not is_pooled(module):
        return [CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL]
    match sharding:
        case "row_wise":
            return [CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER]
        case "table_row_wise" | "grid_shard":
            return [CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER, CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL]
    return [CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL]


def _quantised(module: Any, sharding: str) -> Any:
    """The codecs of the first operation that has any."""
    if module._env.process_group.size() == 1:
        return None  # TorchRec sends nothing then
    registry = module.qcomm_codecs_registry or {}
    return next((found for each in _operations(module, sharding) if (found := registry.get(each.name))), None)


def _codec(theirs: Any, dim: int) -> Codec:
    if theirs._comm_precision not in _IN_GROUPS:
        return Codec(theirs.quantized_dtype, dim, theirs.encode, theirs.decode)
    context = theirs.create_context()
    context.row_dim_quant = theirs.calc_quantized_size(_group(theirs), context)
    width = theirs.calc_quantized_size(dim, context)

    def encode(values: torch.Tensor) -> torch.Tensor:
        return theirs.encode(values.contiguous(), context).view(len(values), values.shape[1] // dim * width)

    def decode(received: torch.Tensor) -> torch.Tensor:
        return theirs.decode(received.contiguous(), context).view(len(received), received.shape[1] // width * dim)

    return Codec(theirs.quantized_dtype, width, encode, decode)


def _group(theirs: Any) -> int:
    """Numbers that are encoded together."""
    return int(theirs.create_context().row_dim)
