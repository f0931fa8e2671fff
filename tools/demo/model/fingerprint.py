"""Computes a fingerprint of everything that training changes."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor


def fingerprint(model: nn.Module, optimizer: Any) -> str:
    """SHA-256 over names and bytes of this rank's tables, dense weights and optimizer states."""
    digest = hashlib.sha256()
    for name, tensor in (*_tensors("model", model.state_dict()), *_tensors("optimizer", optimizer.state_dict())):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, ShardedTensor):
        yield from ((name, shard.tensor) for shard in value.local_shards())
    elif isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _tensors(f"{name}.{key}", child)
