"""`Batch.parts`: cuts a batch into microbatches of consecutive samples and about equal cost.

Values that are stored sample by sample (labels, dense, lists) are cut by view. A KeyedJaggedTensor is stored key by
key, so the ids of one with several keys are copied. A microbatch contains exactly the events that its samples see:
windows of a `Shared` sequence are merged again among its samples.

Letters: B samples, K keys, N rows of a key, E events of a sequence, R ranges of events.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsdata.batch.jagged import Jagged, Shared, SplitSequence
from fsdata.batch.jagged_features import JaggedFeatures
from fsdata.batch.merged_windows import merge_windows
from fsdata.batch.torchrec_binding import is_keyed_jagged_tensor, keyed_jagged_tensor
from fsdata.kernels.ranges import copy_ranges
from fsdata.options import integer

Ranges = tuple[np.ndarray, np.ndarray]
"""First item and number of items of each range: int64 [R] each."""


def cut_batch(batch: Any, number: int) -> list[Any]:
    """See `Batch.parts`."""
    number = integer("parts(number)", number, 1)
    if number == 1:
        return [batch]
    cutter = _Cutter(batch)
    return [cutter.part(first, stop) for first, stop in pairwise(cut_points(cutter.costs(), number))]


def cut_points(costs: np.ndarray, number: int) -> list[int]:
    """[number + 1], ascending from 0 to B: the sample boundary nearest to i * total / number, the first one of two that
    are equally near. costs: int64 [B], not negative."""
    before = _offsets(costs)
    total, cuts = int(before[-1]), [0]
    for i in range(1, number):
        wanted = i * total  # in units of 1 / number: Python's integers do not overflow
        cut = int(np.searchsorted(before, wanted // number, side="right")) - 1
        if cut + 1 < len(before) and wanted - int(before[cut]) * number > int(before[cut + 1]) * number - wanted:
            cut += 1
        cuts.append(cut)
    return [*cuts, len(costs)]


class _Cutter:
    """A batch whose lengths and offsets are in host memory. The constructor waits for the device of the lengths."""

    def __init__(self, batch: Any) -> None:
        schema = batch.schema
        if schema is None and (batch.shared or batch.nested):
            raise ValueError(
                "parts() needs the schema to assign fields to the sequences of `shared` and `nested`, and this Batch "
                "has none, because it does not come from a FreeScaleDataLoader: pass Batch(schema=...)"
            )
        self._batch = batch
        self._groups = {} if schema is None else {group.name: group for group in schema.groups}
        self._group_of = {name: group.name for group in self._groups.values() for name in group.all_fields}
        if schema is not None and schema.candidates is not None:  # labels of the schema may be aligned with candidates
            self._group_of |= dict.fromkeys(schema.labels, schema.candidates.name)
        self._host_offsets: dict[int, np.ndarray] = {}
        self._features = _HostKeyed(batch.features, "features")
        # `Shared` with arrays in place of tensors.
        self._shared: dict[str, Any] = {name: shared.map(_to_host) for name, shared in batch.shared.items()}
        self._split = {name: _to_host(split.events) for name, split in batch.split.items()}
        self._nested = {name: _HostKeyed(keyed, f"nested[{name!r}]") for name, keyed in batch.nested.items()}
        self._check()

    def _check(self) -> None:
        """Raises ValueError where a field does not have a row per sample, or per event."""
        batch, samples = self._batch, len(self._batch)
        fields = {"features": self._features, "dense": batch.dense, "origin": batch.origin}
        for role in ("labels", "jagged", "passthrough", "mask"):
            fields |= {f"{role}[{name!r}]": value for name, value in getattr(batch, role).items()}
        rows = {field: (len(value), samples, "samples") for field, value in fields.items()}
        for name, keyed in self._nested.items():
            events = batch.shared[name].held if name in self._shared else int(self._lengths(name).sum())
            rows[f"nested[{name!r}]"] = len(keyed), events, f"events of {name!r}"
        for field, (number, wanted, unit) in rows.items():
            if number != wanted:
                raise ValueError(
                    f"batch.{field} has {number} rows, and the batch {wanted} {unit}: parts() needs a row for each"
                )

    def costs(self) -> np.ndarray:
        """int64 [B]."""
        if self._batch.cost is not None and self._groups and len(self._batch):
            costs = np.asarray(self._batch.cost({name: self._lengths(name) for name in self._groups}))
            if costs.any():
                return costs
        return self._tokens()

    def _tokens(self) -> np.ndarray:
        """int64 [B]: the numbers of each sample in `features`, `jagged` and `nested`, plus 1."""
        tokens = np.ones(len(self._batch), np.int64)
        stored = dict(zip(self._features.keys, self._features.lengths, strict=True))
        stored |= {name: np.diff(self._on_host(value.offsets)) for name, value in self._batch.jagged.items()}
        for name, lengths in stored.items():
            # The stored lengths of a shared sequence are those of merged windows.
            shared = self._shared.get(self._group_of.get(name, ""))
            tokens += lengths if shared is None else shared.length
        for name, keyed in self._nested.items():
            ids = _offsets(keyed.lengths.sum(axis=0))
            if name in self._shared:
                first = self._shared[name].offset
                tokens += ids[first + self._shared[name].length] - ids[first]
            else:
                tokens += np.diff(ids[_offsets(self._lengths(name))])
        return tokens

    def _lengths(self, name: str) -> np.ndarray:
        """int64 [B]: events that each sample sees in a sequence."""
        if name in self._shared:
            lengths: np.ndarray = self._shared[name].length
            return lengths
        for field in self._groups[name].all_fields:
            if field in self._features.keys:
                return self._features.lengths[self._features.keys.index(field)]
            value = self._batch.jagged.get(field, self._batch.labels.get(field))
            if isinstance(value, Jagged):
                return np.diff(self._on_host(value.offsets))
        raise ValueError(f"parts() cannot find the lengths of the sequence {name!r}: the batch has none of its fields")

    def _on_host(self, offsets: Tensor) -> np.ndarray:
        """Copied once per tensor: fields of one sequence have one offsets tensor."""
        if id(offsets) not in self._host_offsets:
            self._host_offsets[id(offsets)] = _to_host(offsets)
        return self._host_offsets[id(offsets)]

    def part(self, first: int, stop: int) -> Any:
        """The samples first, ..., stop - 1 as a batch."""
        batch, rows, samples = self._batch, slice(first, stop), stop - first
        # Windows that only samples of other microbatches connect become separate windows again.
        windows = {
            name: merge_windows(shared.row[rows], shared.start[rows], shared.length[rows])
            for name, shared in self._shared.items()
        }
        events = {
            name: (self._shared[name].offset[rows][merged.first], merged.size) for name, merged in windows.items()
        }
        part_offsets: dict[int, Tensor] = {}

        def cut(name: str, value: Any) -> Any:
            if isinstance(value, Jagged):
                return self._cut_jagged(value, rows, events.get(self._group_of.get(name, "")), part_offsets)
            return value[rows]

        selected = []
        for key, name in enumerate(self._features.keys):
            own = events.get(self._group_of.get(name, ""))
            selected.append(
                self._features.select_rows(key, _one_range(first, stop))
                if own is None
                else self._features.select_events(key, own, samples)
            )
        return replace(
            batch,
            features=self._features.gather(selected, samples),
            dense=batch.dense[rows],
            labels={name: cut(name, value) for name, value in batch.labels.items()},
            jagged={name: cut(name, value) for name, value in batch.jagged.items()},
            origin=batch.origin[rows],
            nested={name: self._cut_nested(name, rows, events.get(name)) for name in self._nested},
            shared={
                name: Shared.from_windows(merged, partial(_like, tensor=batch.shared[name].row))
                for name, merged in windows.items()
            },
            split={name: self._cut_split(name, rows) for name in batch.split},
            passthrough={name: value[rows] for name, value in batch.passthrough.items()},
            mask={name: value[rows] for name, value in batch.mask.items()},
            stats=replace(batch.stats, samples=samples),
        )

    def _cut_jagged(self, value: Jagged, rows: slice, events: Ranges | None, part_offsets: dict[int, Tensor]) -> Jagged:
        """events: of a shared sequence. part_offsets: id of the batch's offsets -> offsets of the microbatch, so that
        the fields of a sequence share one tensor there, too."""
        offsets = value.offsets
        if events is None:
            host = self._on_host(offsets)
            values = value.values[int(host[rows.start]) : int(host[rows.stop])]
            if id(offsets) not in part_offsets:
                part_offsets[id(offsets)] = offsets[rows.start : rows.stop + 1] - offsets[rows.start]
        else:
            values = _gather(value.values, *events)
            if id(offsets) not in part_offsets:
                lengths = _padded_with_zeros(events[1], rows.stop - rows.start)
                part_offsets[id(offsets)] = _like(_offsets(lengths), offsets)
        return Jagged(values, part_offsets[id(offsets)])

    def _cut_nested(self, name: str, rows: slice, events: Ranges | None) -> Any:
        """The nested fields of a sequence, for the events of the microbatch."""
        keyed = self._nested[name]
        if events is None:
            events = _one_range(*_offsets(self._lengths(name))[[rows.start, rows.stop]].tolist())
        selected = [keyed.select_rows(key, events) for key in range(len(keyed.keys))]
        return keyed.gather(selected, int(events[1].sum()))

    def _cut_split(self, name: str, rows: slice) -> SplitSequence:
        split: SplitSequence = self._batch.split[name]
        # The totals are computed on the host; the lengths stay on their device.
        on_host = SplitSequence.from_lengths(torch.from_numpy(self._split[name][rows]), split.options)
        return replace(on_host, events=split.events[rows])


class _HostKeyed:
    """A KeyedJaggedTensor or JaggedFeatures [K, N] whose lengths are on the host.

    Attributes:
        keys: [K]. lengths: integers [K, N].
    """

    def __init__(self, keyed: Any, field: str) -> None:
        self._weights: Tensor | None = None
        self._is_plain = isinstance(keyed, JaggedFeatures)
        if isinstance(keyed, JaggedFeatures):
            self._values, lengths = keyed.flat()
        elif not is_keyed_jagged_tensor(keyed):
            raise ValueError(
                f"parts() cannot cut batch.{field}, a {type(keyed).__name__}: call it before `adapt` or the loop "
                "replaces the KeyedJaggedTensor"
            )
        elif keyed.variable_stride_per_key():
            raise ValueError(
                f"parts() cannot cut batch.{field}, whose keys have a batch size each: use one batch size for all keys"
            )
        else:
            self._values, self._weights = keyed.values(), keyed.weights_or_none()
            lengths = keyed.lengths().view(len(keyed.keys()), keyed.stride())
        self.keys = tuple(keyed.keys())
        self.lengths: np.ndarray = _to_host(lengths)
        self._begin = _offsets(self.lengths.reshape(-1))

    def __len__(self) -> int:
        return self.lengths.shape[1]

    def select_rows(self, key: int, rows: Ranges) -> tuple[Ranges, np.ndarray]:
        """(ranges of the values, lengths of all rows) of some rows of a key."""
        begin, size = rows
        first = self._begin[key * len(self) + begin]
        end = self._begin[key * len(self) + begin + size]
        within = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        return (first, end - first), self.lengths[key][np.repeat(begin, size) + within]

    def select_events(self, key: int, events: Ranges, rows: int) -> tuple[Ranges, np.ndarray]:
        """(ranges of the values, lengths of `rows` rows) of ranges of a key's events: range r becomes row r."""
        begin, size = events
        return (self._begin[key * len(self)] + begin, size), _padded_with_zeros(size, rows)

    def gather(self, selected: list[tuple[Ranges, np.ndarray]], rows: int) -> Any:
        """A tensor [K, rows] of the same type. selected: for each key the result of `select_rows` or
        `select_events`."""
        empty = np.empty(0, np.int64)
        begin, size = (np.concatenate([empty, *(ranges[i] for ranges, _ in selected)]) for i in (0, 1))
        values = _gather(self._values, begin, size)
        dtype = self.lengths.dtype
        lengths = np.concatenate([empty.astype(dtype), *(lengths for _, lengths in selected)], dtype=dtype)
        if self._is_plain:
            return JaggedFeatures.from_lengths(self.keys, values, torch.from_numpy(lengths), rows)
        weights = None if self._weights is None else _gather(self._weights, begin, size)
        per_key = [int(ranges[1].sum()) for ranges, _ in selected]
        return keyed_jagged_tensor(self.keys, values, _like(lengths, self._values), rows, weights, per_key)


def _one_range(first: int, stop: int) -> Ranges:
    return np.array([first]), np.array([stop - first])


def _offsets(lengths: np.ndarray) -> np.ndarray:
    """int64 [N + 1]: the sum of the lengths before each item, and of all."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _padded_with_zeros(lengths: np.ndarray, rows: int) -> np.ndarray:
    """int64 [rows]: merged windows are the first rows of a shared sequence, and its other rows are empty."""
    return np.pad(lengths, (0, rows - len(lengths)))


def _gather(values: Tensor, begin: np.ndarray, size: np.ndarray) -> Tensor:
    """Ranges of values [T, ...], concatenated: a view where each range follows the one before it, else a copy."""
    begin, size = begin[size > 0], size[size > 0]
    if not len(begin):
        return values[:0]
    if (begin[1:] == (begin + size)[:-1]).all():
        return values[int(begin[0]) : int(begin[-1] + size[-1])]
    shape = (int(size.sum()), *values.shape[1:])
    target = torch.empty(shape, dtype=values.dtype, device=values.device, pin_memory=_is_pinned(values))
    starts, places, lengths = (_like(array, values) for array in (begin, _offsets(size)[:-1], size))
    copy_ranges(values.contiguous(), target, starts, places, lengths)
    return target


def _to_host(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array


def _like(array: np.ndarray, tensor: Tensor) -> Tensor:
    """The array as a tensor on the device of `tensor`, in page-locked memory if `tensor` is."""
    copied = torch.from_numpy(np.ascontiguousarray(array))
    return copied.pin_memory() if _is_pinned(tensor) else copied.to(tensor.device)


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_pinned()
