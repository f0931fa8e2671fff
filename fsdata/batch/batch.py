"""What the loader yields, one rank's share of a global batch, and the loss of the global batch.

Averaging gradients over ranks (what data-parallel training does) weighs every rank alike. If ranks hold different
numbers of samples, a local mean would count the samples of a small batch for more; scaling by the global count instead
gives exactly the gradient of the mean over the global batch.
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

_NO_VIEWS = "{} is one of the views of a batch (fsdata.views), which are not there"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """What is known of one step, for losses, logs and tests.

    Attributes:
        epoch, step: position of the step; `step` counts the steps yielded in this epoch, from 0.
        world_size: ranks that share the global batch.
        samples, global_samples: samples of this rank (of a part of its batch, those of the part) and of all ranks.
        global_items: group name -> elements of that group over all ranks ("candidates": how many candidates), where
            known: always with one rank or with `balance`. Also under the names of labels that a sequence has, and of
            nested fields, whose ids are counted.
        straggler_before, straggler_after: planned share of waiting (1 - mean / max of the ranks' cost) without and
            with balancing; None without `balance`.
        moved: share of the global batch's events (and ids of nested fields) that changed rank; None without `balance`.
        carried: rows of all ranks that were read for this step and come in the next one, because with them no plan
            keeps `Balance(max_tokens=...)`. They do not count in the other fields.
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
    """B samples.

    Attributes:
        features: KeyedJaggedTensor, int64; keys are the schema's field names, scalars with length 1. One object. Where
            torchrec is not installed: `fsdata.batch.jagged_features.JaggedFeatures`, a mapping to jagged tensors of
            torch.
        dense: float32 [B, D], columns in schema order.
        labels: name -> float32 [B]; `Jagged` float32 where the label is a list aligned with the candidates; `Jagged`
            float32 or int64 with the offsets of its sequence, for its `labels` and `id_labels`.
        jagged: name -> `Jagged` float32, the `floats` of the schema's sequences.
        nested: sequence name -> KeyedJaggedTensor, int64, of the sequence's `nested` fields. Its batch are the E events
            of this rank: `lengths()` [keys * E] says how many ids every event has. Which events belong to which sample
            is said by the offsets of the sequence's other fields.
        shared: sequence name -> where samples find their events, of sequences with `share`; see `fsdata.expand`.
        split: sequence name -> how its events stand in parts, of sequences with `split`; see `fsdata.segment_mask`.
        passthrough: name -> int64 [B], or the strings of the samples, a list of B, which stays on the host.
        mask: name -> bool [B], whether the sample had a match in the side table that the field comes from, of joins
            with `missing="mask"`.
        origin: int64 [B, 2], the rank that read the sample and its row in that rank's batch before balancing.
        stats: counts and planned balance of the step.
        schema: what the fields are; None in batches that no loader made.
        cost: what `Balance(cost=...)` of the loader says, lengths by sequence -> int64 [B]; None without balance.
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
        """Field name -> what the batch has of it, for models that take tensors by name. `context` fields are int64 [B],
        `dense` fields float32 [B], lists are `Jagged`, labels and passthrough fields as they are here.

        Sequences with `share` are expanded, so that every sample has its own events. `nested` fields and masks of joins
        are not in it: they stay in `batch.nested` and `batch.mask`.
        """
        raise NotImplementedError(_NO_VIEWS.format("to_dict()"))

    def padded(self, max_length: int | Mapping[str, int] | None = None) -> dict[str, Any]:
        """`to_dict()` with lists as tensors [B, max_length]: the values first, then zeros. `{sequence}_mask`, bool
        [B, max_length], says where values are. Of longer lists the end is kept that `Sequence(keep=...)` names.

        max_length: of all sequences, or by the sequence's name; None: that of the schema.

        Raises:
            ValueError: no length for a sequence, one below 1, or a name that is no sequence. SchemaError: a field is
                called like a mask.
        """
        raise NotImplementedError(_NO_VIEWS.format("padded()"))

    def parts(self, number: int) -> list["Batch"]:
        """The batch cut into `number` batches of consecutive samples that cost about the same, for steps that are
        computed part by part (gradient accumulation). A part without samples is a batch like any other.

        A cut is at the sample boundary nearest to its share of the cost: by `cost`, or by tokens where there is none or
        where it says 0 for all: the numbers that a sample has in `features`, `jagged` and `nested`, and 1.

        `stats` are those of the step but for `samples`. So the sum of `global_mean(loss, part)` over the parts is that
        of the whole batch, and so are its gradients: backward for each part, one average over ranks for all. Over
        events that are shared, give the losses of what `expand` makes, `over` the name of the sequence: merged events
        that lie in two parts would count twice.

        Parts are views of the batch's tensors, with two exceptions that are copied: ids of a KeyedJaggedTensor with
        several keys, and events of `shared` that do not lie one after another. A part holds the shared events that its
        samples see, so those that samples on both sides of a cut see are in both parts. With 1 it is the batch itself.

        On a device this waits for the lengths: cut before `to` where that matters.

        Raises:
            ValueError: `number` is no integer of at least 1; fields with other rows than samples, or a
                KeyedJaggedTensor with a batch size per key; `shared` or `nested` without a schema.
        """
        raise NotImplementedError(_NO_VIEWS.format("parts()"))

    @property
    def loss_weight(self) -> float:
        """samples * W / global samples: what a mean over this rank's samples is multiplied with, so that averaging
        gradients over ranks gives the gradient of the global batch's mean."""
        return loss_weight(self.stats)

    def __len__(self) -> int:
        return self.stats.samples

    def __repr__(self) -> str:
        """What it holds, in one line, without values."""
        named = ("labels", "jagged", "nested", "shared", "split", "passthrough", "mask")
        parts = [f"{kind}: {', '.join(of_kind)}" for kind in named if (of_kind := getattr(self, kind))]
        where = f"epoch {self.stats.epoch}, step {self.stats.step}"
        samples = f"{self.stats.samples} of {self.stats.global_samples} samples"
        features, dense = f"features: {', '.join(self.features.keys())}", f"dense {list(self.dense.shape)}"
        return f"Batch({'; '.join((where, samples, features, dense, *parts))})"

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        def move(value: Any) -> Any:
            return value.to(device, non_blocking=non_blocking)

        return self._map(move)

    def pin_memory(self) -> "Batch":
        return self._map(lambda value: value.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        named = (
            *self.shared.values(),
            *self.split.values(),
            *self.nested.values(),
            *self.labels.values(),
            *self.jagged.values(),
            *(value for value in self.passthrough.values() if isinstance(value, torch.Tensor)),
            *self.mask.values(),
        )
        for value in (self.features, self.dense, self.origin, *named):
            value.record_stream(stream)

    def _map(self, function: Any) -> "Batch":
        """The same with `function` of every tensor and KeyedJaggedTensor. Offsets that fields share stay shared."""
        known: dict[int, torch.Tensor] = {}

        def once(offsets: torch.Tensor) -> torch.Tensor:
            if id(offsets) not in known:
                known[id(offsets)] = function(offsets)
            return known[id(offsets)]

        def each(value: Any) -> Any:
            if isinstance(value, Jagged):
                return Jagged(function(value.values), once(value.offsets))
            return function(value)

        return replace(
            self,
            features=function(self.features),
            nested={name: function(value) for name, value in self.nested.items()},
            dense=function(self.dense),
            labels={name: each(value) for name, value in self.labels.items()},
            jagged={name: each(value) for name, value in self.jagged.items()},
            origin=function(self.origin),
            shared={name: value.map(function) for name, value in self.shared.items()},
            split={name: value.map(function) for name, value in self.split.items()},
            passthrough={
                name: function(value) if isinstance(value, torch.Tensor) else value
                for name, value in self.passthrough.items()
            },
            mask={name: function(value) for name, value in self.mask.items()},
        )


def loss_weight(stats: StepStats) -> float:
    """samples * W / global samples, 0 for an empty rank."""
    return stats.samples * stats.world_size / max(stats.global_samples, 1)


_CANDIDATES = "candidates"


def global_mean(per_item_loss: torch.Tensor, batch: Any, over: str = SAMPLES) -> torch.Tensor:
    """local sum * W / global count, a scalar: averaged over the W ranks, the mean over the global batch.

    per_item_loss: [items of this rank]; on an empty rank [0], which gives a 0 that backward can run through.
    batch: a `Batch`, the `.last` of `rebalance`, or a batch of your own (`adapt`) that kept the `stats` of its `Batch`
        and, to count over labels, its `labels`.
    over: "samples"; the name of a label, counted per sample or, where the label is a list, per candidate or event; or
        the name of a sequence, counted per event.

    The value on one rank is not the global mean, only the average over ranks is. Does not communicate or synchronise.

    Raises ValueError if `per_item_loss` does not have one value per item, if `over` names nothing in the batch, or if
    the global count is unknown: elements are counted over ranks only with `balance` (or one rank).
    """
    stats = getattr(batch, "stats", None)
    if stats is None:
        raise ValueError(
            f"global_mean needs the counts of all ranks, and a {type(batch).__name__} has no `stats`: keep those of "
            "the Batch in it, stats=batch.stats"
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
    """Items of this rank (None if the batch does not say) and of all ranks."""
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
        f"global_mean(over={over!r}): the number of its items on all ranks is unknown. Use balance=Balance(), whose "
        "ranks tell each other their lengths, or sum it up yourself"
    )
