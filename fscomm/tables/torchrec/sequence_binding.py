"""A served `EmbeddingCollection`: every id gets its row."""

from dataclasses import dataclass
from typing import Any

import torch
from torchrec.distributed.embedding import EmbeddingCollectionAwaitable
from torchrec.distributed.types import NoWait

from fscomm.plan.routes import Request, request
from fscomm.tables.torchrec.binding import TorchRecBinding
from fscomm.tables.torchrec.servable import HOST


@dataclass(slots=True, kw_only=True)
class SequenceBinding(TorchRecBinding):
    def prepare(self, features: Any) -> tuple[list[Any], list[Request]]:
        """What `output` needs, and what is asked of the owners. No collective.

        The first is the KJT of each group as the module would send it, and the context of its forward, in which index
        dedup notes which unique id each id was.
        """
        module = self.module
        context = module.create_context()
        if module._has_uninitialized_input_dist:
            module._create_input_dist(input_feature_names=features.keys())
            module._has_uninitialized_input_dist = False
        with torch.no_grad():
            if module._features_order:
                features = features.permute(module._features_order, module._features_order_tensor)
            parts = features.split(module._feature_splits)
            if module._use_index_dedup:
                parts = module._dedup_indices(context, parts)
            requests = []
            on_host = parts if self.device.type == "cpu" else [part.to(HOST) for part in parts]
            for part, dist, layout in zip(on_host, self.input_dists, self.layouts, strict=True):
                sent = dist(part)
                unbucketize = getattr(dist, "unbucketize_permute_tensor", None)
                requests.append(request(sent.values().long(), sent.length_per_key(), unbucketize, layout))
        return [*parts, context], requests

    def output(self, parts: list[Any], rows: list[torch.Tensor]) -> Any:
        """What the module's forward returns, from what `prepare` gave and the output rows of each group."""
        module = self.module
        *features, context = parts
        return EmbeddingCollectionAwaitable(
            awaitables_per_sharding=[NoWait(tensor) for tensor in rows],
            features_per_sharding=features,
            embedding_names_per_sharding=module._embedding_names_per_sharding,
            ctx=context,
            need_indices=module._need_indices,
            features_to_permute_indices=module._features_to_permute_indices,
            module_fqn=module._module_fqn,
            sharding_types=list(module._sharding_type_to_sharding),
            use_gather_select=module._use_gather_select,
            use_gather_select_per_sharding=module._use_gather_select_per_sharding,
            use_sorted_select=module._use_sorted_select,
        )
