"""`Batch`, one rank's share of a global batch, and `global_mean`, the loss of the global batch.

Data-parallel training averages gradients over ranks with equal weights. Where ranks have different numbers of samples,
a local mean gives the samples of small batches a larger weight; scaling by the global count instead gives exactly the
gradient of the mean over the global batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fsdata.batch.jagged import Jagged, Shared, SplitSequence
from fsdata.schema import SAMPLES, Schema

CostOf = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""Lengths by sequence -> int64 [B]; see `fsdata.CostModel`."""

_NO_VIEWS = "{} is one of the views of a batch: it needs the extension fsdata.views, which is not installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """Counts of one step, for losses, logs and tests.

    Attributes:
        epoch, step: position of the step; `step` counts the steps yielded in this epoch, from 0.
        world_size: ranks that share the global batch.
        samples, global_samples: samples of this rank's batch (or of the microbatch, see `Batch.parts`) and of all
            ranks.
        global_items: group name -> elements of that group over all ranks ("candidates": number of candidates). Set
            with one rank and with `balance`. Labels of a sequence and nested fields have entries under their own
            names; of nested fields the ids are counted.
        straggler_before, straggler_after: planned share of waiting (1 - mean / max of the ranks' cost) without and
            with balancing; None without `balance`.
        moved: share of the global batch's events (and ids of nested fields) that changed rank; None without `balance`.
        carried: rows of all ranks that were read for this step but are deferred to the next one, because no plan that
            includes them satisfies `Balance(max_tokens=...)`. The other attributes do not count them.
    """

    epoch: int
    step: int
    world_size: int
    samples: int
    global_samples: int
    global_items: dict[str, int] = field(default_factory=dict)
    straggler_before: float | None = None
    straggler_after: float | None = None
    moved: float | None = None
    carried: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One rank's batch of B samples.

    Attributes:
        features: one KeyedJaggedTensor, int64; keys are the schema's field names, scalars have length 1. Where torchrec
            is not installed: `fsdata.batch.jagged_features.JaggedFeatures`, a mapping to jagged tensors of torch.
        dense: float32 [B, D], columns in schema order.
        labels: name -> float32 [B]; `Jagged` float32 where the label is a list aligned with the candidates; `Jagged`
            float32 or int64 with the offsets of its sequence, for its `labels` and `id_labels`.
        jagged: name -> `Jagged` float32, the `floats` of the schema's sequences.
        nested: sequence name -> KeyedJaggedTensor, int64, the sequence's `nested` fields. Its rows are the E events of
            this rank: `lengths()` [keys * E] is the number of ids of every event. The offsets of the sequence's other
            fields assign events to samples.
        shared: name of a sequence with `share` -> position of each sample's events; see `fsdata.expand`.
        split: name of a sequence with `split` -> its segments and recent events; see `fsdata.segment_mask`.
        passthrough: name -> int64 [B], or the strings of the samples, a list of B, which stays on the host.
        mask: name -> bool [B], for fields of joins with `missing="mask"`: whether the sample has a match in the side
            table.
        origin: int64 [B, 2], the rank that read the sample and its row in that rank's batch before balancing.
        stats: counts and planned balance of the step.
        schema: the loader's schema; None in a batch that was constructed without a loader.
        cost: the cost function of the loader's `Balance(cost=...)`, lengths by sequence -> int64 [B]; None without
            balance.
    """

    features: Any
    dense: torch.Tensor
    labels: dict[str, torch.Tensor | Jagged]
    jagged: dict[str, Jagged]
    origin: torch.Tensor
    stats: StepStats
    nested: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Shared] = field(default_factory=dict)
    split: dict[str, SplitSequence] = field(default_factory=dict)
    passthrough: dict[str, torch.Tensor | list[str]] = field(default_factory=dict)
    mask: dict[str, torch.Tensor] = field(default_factory=dict)
    schema: Schema | None = None
    cost: CostOf | None = None

    def to_dict(self) -> dict[str, Any]:
        """Field name -> values, for models that take tensors by name. `context` fields are int64 [B], `dense` fields
        float32 [B], lists are `Jagged`, labels and passthrough fields are those of the batch.

        Sequences with `share` are expanded: every sample has its own events. The dict has no `nested` fields and no
        masks of joins: read them from `batch.nested` and `batch.mask`.
        """
        raise NotImplementedError(_NO_VIEWS.format("to_dict()"))

    def padded(self, max_length: int | Mapping[str, int] | None = None) -> dict[str, Any]:
        """`to_dict()` with lists as tensors [B, max_length]: the values first, then zeros. `{sequence}_mask`, bool
        [B, max_length], is True where values are. Longer lists are truncated as `Sequence(keep=...)` defines.

        max_length: one for all sequences, or by the sequence's name; None: that of the schema.

        Raises:
            ValueError: no length for a sequence, a length below 1, or a name that is not a sequence.
            SchemaError: a field has the name of a mask.
        """
        raise NotImplementedError(_NO_VIEWS.format("padded()"))

    def parts(self, number: int) -> list["Batch"]:
        """Microbatches for gradient accumulation: `number` batches of consecutive samples and about equal cost. A
        microbatch may have no samples.

        Each cut is at the sample boundary nearest to its share of the cost. The cost is `cost`; where that is None or 0
        for all samples, it is the tokens: the numbers of a sample in `features`, `jagged` and `nested`, plus 1.

        `stats` are those of the step except for `samples`. The sum of `global_mean(loss, part)` over the microbatches
        is therefore that of the whole batch, and so are its gradients: run backward for each, then average over ranks
        once. For losses over shared events, pass the losses of the result of `expand` and, as `over`, the name of the
        sequence: merged events that are in two microbatches would count twice.

        Microbatches are views of the batch's tensors. Two kinds of values are copied: ids of a KeyedJaggedTensor with
        several keys, and events of `shared` that are not consecutive. A microbatch contains the shared events that its
        samples see, so events that samples on both sides of a cut see are in both. With 1 the result is this batch.

        On a device this waits for the lengths: where that matters, call it before `to`.

        Raises:
            ValueError: `number` is not an integer of at least 1; a field has another number of rows than the batch has
                samples; a KeyedJaggedTensor has a batch size per key; `shared` or `nested` without a schema.
        """
        raise NotImplementedError(_NO_VIEWS.format("parts()"))

    @property
    def loss_weight(self) -> float:
        """samples * W / global samples: the factor for a mean over this rank's samples with which averaging gradients
        over ranks gives the gradient of the global batch's mean."""
        return loss_weight(self.stats)

    def __len__(self) -> int:
        return self.stats.samples

    def __repr__(self) -> str:
        """Position, sizes and field names in one line, without values."""
        roles = ("labels", "jagged", "nested", "shared", "split", "passthrough", "mask")
        fields = [f"{role}: {', '.join(names)}" for role in roles if (names := getattr(self, role))]
        position = f"epoch {self.stats.epoch}, step {self.stats.step}"
        samples = f"{self.stats.samples} of {self.stats.global_samples} samples"
        features, dense = f"features: {', '.join(self.features.keys())}", f"dense {list(self.dense.shape)}"
        return f"Batch({'; '.join((position, samples, features, dense, *fields))})"

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        return self._map(lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        return self._map(lambda value: value.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        def record(value: Any) -> Any:
            value.record_stream(stream)
            return value

        self._map(record)

    def _map(self, function: Callable[[Any], Any]) -> "Batch":
        """A copy with `function` applied to every tensor and KeyedJaggedTensor."""
        offsets: dict[int, torch.Tensor] = {}

        def map_value(value: Any) -> Any:
            if isinstance(value, list):  # the strings of a passthrough field
                return value
            if not isinstance(value, Jagged):
                return function(value)
            # Fields of a sequence have one offsets tensor: it is copied once, and their offsets stay one object, by
            # which `parts` and users recognize fields with equal lengths.
            if id(value.offsets) not in offsets:
                offsets[id(value.offsets)] = function(value.offsets)
            return Jagged(function(value.values), offsets[id(value.offsets)])

        def map_all(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: map_value(value) for name, value in values.items()}

        return replace(
            self,
            features=function(self.features),
            nested=map_all(self.nested),
            dense=function(self.dense),
            labels=map_all(self.labels),
            jagged=map_all(self.jagged),
            origin=function(self.origin),
            shared={name: shared.map(function) for name, shared in self.shared.items()},
            split={name: split.map(function) for name, split in self.split.items()},
            passthrough=map_all(self.passthrough),
            mask=map_all(self.mask),
        )


def loss_weight(stats: StepStats) -> float:
    """samples * W / global samples, 0 for an empty rank."""
    return stats.samples * stats.world_size / max(stats.global_samples, 1)


_CANDIDATES = "candidates"


def global_mean(per_item_loss: torch.Tensor, batch: Any, over: str = SAMPLES) -> torch.Tensor:
    """local sum * W / global count, a scalar whose average over the W ranks is the mean over the global batch.

    per_item_loss: [items of this rank]; on an empty rank [0], which gives a 0 through which backward can run.
    batch: a `Batch`, the `.last` of `rebalance`, or a batch of your own (`adapt`) with the `stats` of its `Batch` and,
        to count over labels, its `labels`.
    over: "samples"; the name of a label, counted per sample or, where the label is a list, per candidate or event; or
        the name of a sequence, counted per event.

    The value on one rank is not the global mean, only the average over ranks is. Does not communicate or synchronise.

    Raises ValueError if `per_item_loss` does not have one value per item, if `over` is not a name of the batch, or if
    the global count is unknown: elements are counted over ranks only with `balance` (or one rank).
    """
    stats = getattr(batch, "stats", None)
    if stats is None:
        raise ValueError(
            f"global_mean needs the counts of all ranks, and a {type(batch).__name__} has no `stats`: copy those of "
            "the Batch into it, stats=batch.stats"
        )
    local, total = _counts(batch, over)
    if per_item_loss.dim() != 1 or (local is not None and len(per_item_loss) != local):
        wanted = "items of this rank" if local is None else local
        raise ValueError(
            f"global_mean(over={over!r}) needs one loss per item, shape [{wanted}], got {list(per_item_loss.shape)}: "
            "compute the loss with reduction='none', without padding"
        )
    return per_item_loss.sum() * (stats.world_size / max(total, 1))


def _counts(batch: Any, over: str) -> tuple[int | None, int]:
    """Items of this rank (None if the batch does not have the number) and of all ranks."""
    stats = batch.stats
    labels = getattr(batch, "labels", {})
    labels = labels if isinstance(labels, Mapping) else {}
    label = labels.get(over)
    if over == SAMPLES or (label is not None and not isinstance(label, Jagged)):
        return stats.samples, stats.global_samples
    local = None if label is None else len(label.values)
    group = over if label is None or over in stats.global_items else _CANDIDATES
    if group in stats.global_items:
        return local, stats.global_items[group]
    if label is None:
        names = ", ".join(sorted({SAMPLES, *labels, *stats.global_items}))
        raise ValueError(
            f"global_mean(over={over!r}): no such label or sequence; this batch can be counted over {names}"
        )
    raise ValueError(
        f"global_mean(over={over!r}): the number of its items on all ranks is unknown. Use balance=Balance(), with "
        "which ranks exchange their lengths, or reduce the count over the ranks yourself"
    )
