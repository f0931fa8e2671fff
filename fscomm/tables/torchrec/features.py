"""What a sharded module gets, KeyedJaggedTensors as fscomm reads and makes them, and what it returns."""

from typing import Any

import torch
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from fscomm.tables.torchrec import sharded


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


def one_sample_without_ids(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """Of the same keys: TorchRec's methods accept it where they fail on features without a sample."""
    keys, weights = features.keys(), features.weights_or_none()
    return KeyedJaggedTensor(
        keys=keys,
        values=features.values().new_empty(0),
        lengths=torch.zeros(len(keys), dtype=torch.int32, device=features.device()),
        weights=None if weights is None else weights.new_empty(0),
        stride=1,
    )


def has_strays(module: Any, features: KeyedJaggedTensor) -> bool:
    """Whether an id is outside of its table, as where features were found in the wrong place of a batch."""
    shardings = (sharding for _, _, sharding in sharded.groups("", module))
    tables = (table for sharding in shardings for table in sharded.all_tables(sharding))
    rows = {feature: table.num_embeddings for table in tables for feature in table.feature_names}
    of_keys = features.values().split(features.length_per_key())
    return any(
        len(ids) > 0 and key in rows and (int(ids.min()) < 0 or int(ids.max()) >= rows[key])
        for key, ids in zip(features.keys(), of_keys, strict=True)
    )


def output_tensors(given: Any) -> list[torch.Tensor]:
    """Of what a forward returned: a KeyedTensor, or JaggedTensors by feature."""
    return [given.values()] if isinstance(given, KeyedTensor) else [each.values() for each in given.values()]


def forward_size(module: Any, features: Any, sharding: Any = None) -> tuple[int, int]:
    """(ids that a forward of a module looks up, bytes of the embeddings that it returns). sharding: of this group of it
    only."""
    if not isinstance(features, KeyedJaggedTensor):
        return 0, 0
    if sharding is None:
        ids, widths = features.values().numel(), getattr(module, "_embedding_dims", [])
    else:
        lengths = dict(zip(features.keys(), features.length_per_key(), strict=True))
        ids, widths = sum(lengths[name] for name in set(sharding.feature_names())), sharding.embedding_dims()
    if isinstance(module, ShardedEmbeddingCollection):
        return ids, 4 * ids * module._embedding_dim
    return ids, 4 * features.stride() * sum(widths)  # one vector a sample
