"""How rows and gradients are encoded to travel: quantised communication, by the codecs of TorchRec's output dists.

Served are codecs that encode every number by itself (fp16, bf16, loss scale). Then it makes no difference in which
parts rows travel: decoded, they are the bits of TorchRec's own exchange.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import CommOp

_NUMBER_BY_NUMBER = (SparseType.FP32, SparseType.FP16, SparseType.BF16)


@dataclass(frozen=True, slots=True)
class Codec:
    """encode: to what travels, of `dtype`. decode: back. Both keep the shape."""

    dtype: torch.dtype
    encode: Callable[[torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Codecs:
    """given: dtype of rows as the tables give them, before they are encoded."""

    given: torch.dtype
    rows: Codec
    gradients: Codec


def codecs(module: Any, sharding: str, given: torch.dtype) -> Codecs:
    """Of the tables of `module` with this sharding type."""
    quantised = _quantised(module, sharding)
    if quantised is None:
        return as_they_are(given)
    return Codecs(given, *(_codec(each) for each in (quantised.forward, quantised.backward)))


def as_they_are(given: torch.dtype) -> Codecs:
    """Of what is not quantised."""
    unchanged = Codec(given, _same, _same)
    return Codecs(given, unchanged, unchanged)


def problem(module: Any, shardings: list[str], given: torch.dtype) -> str | None:
    """Why what `module` sends quantised cannot be sent in other parts, or None."""
    for sharding in shardings:
        quantised = _quantised(module, sharding)
        if quantised is None:
            continue
        if _operation(module, sharding) == CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER:
            return "the parts of its vectors are added up while they are quantised (row-wise pooling)"
        if given != torch.float32:
            return f"communication of {given} rows is quantised"
        for codec in (quantised.forward, quantised.backward):
            precision = getattr(codec, "_comm_precision", None)
            if precision not in _NUMBER_BY_NUMBER:
                return f"communication is quantised in groups of numbers ({getattr(precision, 'name', codec)})"
    return None


def _operation(module: Any, sharding: str) -> CommOp:
    if not isinstance(module, ShardedEmbeddingBagCollection):
        return CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL
    return CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER if sharding == "row_wise" else CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL


def _quantised(module: Any, sharding: str) -> Any:
    if module._env.process_group.size() == 1:
        return None  # TorchRec sends nothing then
    return (module.qcomm_codecs_registry or {}).get(_operation(module, sharding).name)


def _codec(theirs: Any) -> Codec:
    return Codec(theirs.quantized_dtype, theirs.encode, theirs.decode)


def _same(values: torch.Tensor) -> torch.Tensor:
    return values
