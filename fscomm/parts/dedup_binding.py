"""The binding of a module with index dedup in a block with parts: what `dedup_plan` plans from.

Which feature a distinct id is sent for depends on the whole batch. So TorchRec's index dedup runs over all parts
together; the output of a part is that of features without dedup.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.parts.dedup_plan import AskedOnce
from fscomm.tables.torchrec.binding import TorchRecBinding, asked_of, asks_nothing
from fscomm.tables.torchrec.features import has_strays, make_features
from fscomm.tables.torchrec.module_view import InputDist, dist_input, pass_by


class DedupBinding(TorchRecBinding):
    __slots__ = ()

    @property
    def whole_batches_only(self) -> str | None:
        if getattr(self._rows, "_use_sorted_select", False):
            return "how it adds up the gradients of an id (use_sorted_select) depends on the whole batch"
        return None

    def prepare_step(self, parts: Sequence[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
        if len(parts) == 1:
            return super().prepare_step(parts)
        features = [of_part for of_part, _ in parts]
        return [self._given(of_part) for of_part in features], self._asked_once(features)

    def _given(self, features: KeyedJaggedTensor) -> list[Any]:
        """What `output` needs for a part."""
        if features.stride() == 0:
            return []
        context = self.module.create_context()
        nothing_sent = [pass_by] * len(self._rows._lookups)
        return [context, *dist_input(self._asks, nothing_sent, context, features, without_dedup=True)]

    def _asked_once(self, parts: Sequence[KeyedJaggedTensor]) -> list[AskedOnce]:
        """[G] of all parts together."""
        whole = joined(parts)
        if whole.stride() == 0:
            return [
                AskedOnce(asks_nothing(layout), np.empty(0, np.int64), np.zeros((1, len(parts)), np.int64))
                for layout in self.layouts
            ]
        context = self.module.create_context()
        dists = [InputDist(dist) for dist in self.input_dists]
        of_groups: list[Any] = [pass_by] * len(self._rows._lookups)
        for number, dist in zip(self.numbers, dists, strict=True):
            of_groups[number] = dist
        strays = has_strays(self.module, whole)  # see `prepare`
        dist_input(self._asks, of_groups, context, whole, without_dedup=strays)
        asked = []
        for number, dist in zip(self.numbers, dists, strict=True):
            if strays:
                uses, of_uses = context.sharding_contexts[number].features_before_input_dist, np.empty(0, np.int64)
            else:
                uses, of_uses = context.input_features[number], context.reverse_indices[number].cpu().numpy()
            counts = _by_part(uses, [part.stride() for part in parts])
            asked.append(AskedOnce(asked_of(dist, pooled=False), of_uses, counts, self._gathers(number)))
        return asked

    def _gathers(self, number: int) -> bool:
        """How TorchRec selects the rows of a group."""
        kind = list(self._rows._sharding_type_to_sharding)[number]
        by_kind = getattr(self._rows, "_use_gather_select_per_sharding", None) or {}
        return bool(by_kind.get(kind, getattr(self._rows, "_use_gather_select", False)))


def joined(parts: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
    """The samples of all parts, one after the other. All have the same keys."""
    first, stride = parts[0], sum(part.stride() for part in parts)
    keys = first.keys()
    lengths = torch.cat([part.lengths().view(len(keys), -1) for part in parts], dim=1)
    values = [part.values().split(part.length_per_key()) for part in parts]
    return make_features(
        keys,
        torch.cat([each for of_key in zip(*values, strict=True) for each in of_key]),
        lengths.flatten(),
        None,
        stride,
    )


def _by_part(features: KeyedJaggedTensor, samples: Sequence[int]) -> np.ndarray:
    """int64[F, k] ids; samples: of each part."""
    lengths = features.lengths().view(len(features.keys()), -1).long().cpu()
    ends = torch.cumsum(torch.tensor(samples), 0)
    totals = torch.nn.functional.pad(lengths.cumsum(1), (1, 0))
    counts: np.ndarray = (totals[:, ends] - totals[:, ends - torch.tensor(samples)]).numpy()
    return counts


def deduplicated() -> dict[str, Any]:
    """What `bind` needs for such a module."""
    return {"kind": DedupBinding, "dedups": True}
