"""A served `EmbeddingBagCollection`: the ids of one feature of one sample get one vector."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionAwaitable,
    _apply_mean_pooling,
    _create_mean_pooling_divisor,
)
from torchrec.distributed.types import NoWait
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.plan.bags import BagRequest, request
from fscomm.tables.torchrec.binding import TorchRecBinding
from fscomm.tables.torchrec.servable import HOST


@dataclass(slots=True, kw_only=True)
class PooledBinding(TorchRecBinding):
    def prepare(self, features: KeyedJaggedTensor) -> tuple[list[Any], list[BagRequest]]:
        """The first is what the sums of row-wise tables are divided by: [B, D of the output], or None."""
        module = self.module
        if module._has_uninitialized_input_dist:
            module._create_input_dist(features.keys())
            module._has_uninitialized_input_dist = False
            if module._has_mean_pooling_callback:
                module._init_mean_pooling_callback(features.keys(), None)
        with torch.no_grad():
            if module._has_features_permute:
                features = features.permute(module._features_order, module._features_order_tensor)
            divisor = self._divisor(features) if module._has_mean_pooling_callback else None
            parts = features.split(module._feature_splits)
            on_host = parts if self.device.type == "cpu" else [part.to(HOST) for part in parts]
            requests = []
            for part, dist, layout in zip(on_host, self.input_dists, self.layouts, strict=True):
                sent = dist(part)
                weights = sent.weights_or_none()
                if weights is not None and not weights.is_floating_point():
                    weights = None  # as TorchRec's look-up does
                lengths = sent.lengths().view(len(sent.keys()), -1)
                requests.append(request(sent.values().long(), lengths, weights, layout))
        return [divisor], requests

    def output(self, parts: list[Any], rows: list[torch.Tensor]) -> Any:
        module = self.module
        for g, dist in enumerate(module._output_dists):
            for callback in getattr(dist, "_callbacks", None) or ():  # column-wise: puts columns of a table together
                rows[g] = callback(rows[g])
        awaitable = EmbeddingBagCollectionAwaitable(
            awaitables=[NoWait(tensor) for tensor in rows],
            embedding_dims=module._embedding_dims,
            embedding_names=module._embedding_names,
            module_fqn=module._module_fqn,
            sharding_types=module._sharding_types,
        )
        (divisor,) = parts
        if divisor is not None:
            awaitable.callbacks.append(partial(_apply_mean_pooling, divisor=divisor))
        return awaitable

    def _divisor(self, features: KeyedJaggedTensor) -> torch.Tensor:
        module = self.module
        return _create_mean_pooling_divisor(
            lengths=features.lengths(),
            stride=features.stride(),
            keys=features.keys(),
            offsets=features.offsets(),
            pooling_type_to_rs_features=module._pooling_type_to_rs_features,
            stride_per_key=features.stride_per_key(),
            dim_per_key=module._dim_per_key,
            embedding_names=module._embedding_names,
            embedding_dims=module._embedding_dims,
            variable_batch_per_feature=False,
            kjt_inverse_order=module._kjt_inverse_order,
            kjt_key_indices=module._kjt_key_indices,
            kt_key_ordering=module._kt_key_ordering,
            inverse_indices=None,
            weights=features.weights_or_none(),
        )
