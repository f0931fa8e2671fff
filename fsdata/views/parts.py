"""A batch cut into parts of consecutive samples of about equal cost, for steps that are computed part by part.

What lies sample by sample (labels, dense, lists) is cut by view. A KeyedJaggedTensor lies key by key, so the ids of one
with several keys are copied. Events that samples share (`Shared`) stand in every part whose samples see them: they are
merged anew, so that a part holds no event that none of its samples sees.

Letters: B samples, K keys, E events of a sequence, R ranges of them.
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
from fsdata.batch.torchrec_binding import is_keyed_jagged_tensor, keyed_jagged_tensor
from fsdata.batch.windows import Windows, merge_windows
from fsdata.kernels.ranges import copy_ranges
from fsdata.options import integer

Ranges = tuple[np.ndarray, np.ndarray]
"""Where each range begins, and how many it holds: int64 [R] each."""


def parts_of(batch: Any, number: int) -> list[Any]:
    """See `Batch.parts`."""
    number = integer("parts(number)", number, 1)
    if number == 1:
        return [batch]
    whole = _Whole(batch)
    return [whole.part(first, stop) for first, stop in pairwise(cut_points(whole.costs(), number))]


def cut_points(costs: np.ndarray, number: int) -> list[int]:
    """[number + 1], ascending from 0 to B: the sample boundary nearest to i * total / number, the first of two that are
    equally near. costs: int64 [B], not negative."""
    before = _before(costs)
    total, found = int(before[-1]), [0]
    for i in range(1, number):
        wanted = i * total  # in units of 1 / number: Python's integers do not overflow
        at = int(np.searchsorted(before, wanted // number, side="right")) - 1
        if at + 1 < len(before) and wanted - int(before[at]) * number > int(before[at + 1]) * number - wanted:
            at += 1
        found.append(at)
    return [*found, len(costs)]


class _Whole:
    """What every part asks of its batch, in host memory. Making it waits for the device that the lengths lie on."""

    def __init__(self, batch: Any) -> None:
        schema = batch.schema
        if schema is None and (batch.shared or batch.nested):
            raise ValueError(
                "parts() has to know which fields belong to the sequences of `shared` and `nested`, and this Batch "
                "knows no schema, because no FreeScaleDataLoader made it: give Batch(schema=...)"
            )
        self._batch = batch
        self._groups = {} if schema is None else {group.name: group for group in schema.groups}
        self._group_of = {name: group.name for group in self._groups.values() for name in group.all_fields}
        if schema is not None and schema.candidates is not None:  # labels of the schema may be lists along them
            self._group_of |= dict.fromkeys(schema.labels, schema.candidates.name)
        self._offsets: dict[int, np.ndarray] = {}
        self._features = _Keyed(batch.features, "features")
        self._shared = {name: _Seen(each) for name, each in batch.shared.items()}
        self._split = {name: each.events.cpu().numpy() for name, each in batch.split.items()}
        self._nested = {name: _Keyed(each, f"nested[{name!r}]") for name, each in batch.nested.items()}
        self._check()

    def _check(self) -> None:
        """Raises ValueError where a field does not have a row per sample, or per event."""
        batch, samples = self._batch, len(self._batch)
        fields = {"features": self._features, "dense": batch.dense, "origin": batch.origin}
        for role in ("labels", "jagged", "passthrough", "mask"):
            fields |= {f"{role}[{name!r}]": value for name, value in getattr(batch, role).items()}
        rows = {what: (len(value), samples, "samples") for what, value in fields.items()}
        for name, keyed in self._nested.items():
            events = batch.shared[name].held if name in self._shared else int(self._lengths(name).sum())
            rows[f"nested[{name!r}]"] = len(keyed), events, f"events of {name!r}"
        for what, (has, wanted, of) in rows.items():
            if has != wanted:
                raise ValueError(
                    f"batch.{what} has {has} rows, and the batch {wanted} {of}: parts() cuts what has a row for each"
                )

    def costs(self) -> np.ndarray:
        """int64 [B]."""
        if self._batch.cost is not None and self._groups and len(self._batch):
            found = np.asarray(self._batch.cost({name: self._lengths(name) for name in self._groups}))
            if found.any():
                return found
        return self._tokens()

    def _tokens(self) -> np.ndarray:
        """int64 [B], at least 1: the numbers of each sample in `features`, `jagged` and `nested`."""
        found = np.ones(len(self._batch), np.int64)
        own = dict(zip(self._features.keys, self._features.lengths, strict=True))
        own |= {name: np.diff(self._host(value.offsets)) for name, value in self._batch.jagged.items()}
        for name, lengths in own.items():
            shared = self._shared.get(self._group_of.get(name, ""))
            found += lengths if shared is None else shared.length
        for name, keyed in self._nested.items():
            ids = _before(keyed.lengths.sum(axis=0))
            if name in self._shared:
                begin = self._shared[name].offset
                found += ids[begin + self._shared[name].length] - ids[begin]
            else:
                found += np.diff(ids[_before(self._lengths(name))])
        return found

    def _lengths(self, name: str) -> np.ndarray:
        """int64 [B]: events that each sample sees in a sequence."""
        if name in self._shared:
            return self._shared[name].length
        for field in self._groups[name].all_fields:
            if field in self._features.keys:
                return self._features.lengths[self._features.keys.index(field)]
            along = self._batch.jagged.get(field, self._batch.labels.get(field))
            if isinstance(along, Jagged):
                return np.diff(self._host(along.offsets))
        raise ValueError(f"parts() finds no field of the sequence {name!r} in the batch that says how long it is")

    def _host(self, offsets: Tensor) -> np.ndarray:
        """Fields of one sequence have the same offsets: they are copied once."""
        if id(offsets) not in self._offsets:
            self._offsets[id(offsets)] = offsets.cpu().numpy()
        return self._offsets[id(offsets)]

    def part(self, first: int, stop: int) -> Any:
        """The samples first, ..., stop - 1 as a batch."""
        batch, rows = self._batch, slice(first, stop)
        windows = {name: seen.windows(rows) for name, seen in self._shared.items()}
        events = {name: (self._shared[name].offset[rows][each.first], each.size) for name, each in windows.items()}
        known: dict[int, Tensor] = {}

        def cut(name: str, value: Any) -> Any:
            if isinstance(value, Jagged):
                return self._jagged(value, rows, events.get(self._group_of.get(name, "")), known)
            return value[rows]

        keyed = []
        for key, name in enumerate(self._features.keys):
            own = events.get(self._group_of.get(name, ""))
            keyed.append(
                self._features.rows(key, _one(first, stop))
                if own is None
                else self._features.events(key, own, stop - first)
            )
        return replace(
            batch,
            features=self._features.taken(keyed, stop - first),
            dense=batch.dense[rows],
            labels={name: cut(name, value) for name, value in batch.labels.items()},
            jagged={name: cut(name, value) for name, value in batch.jagged.items()},
            origin=batch.origin[rows],
            nested={name: self._events(name, each, rows, events.get(name)) for name, each in self._nested.items()},
            shared={
                name: Shared.of(each, partial(_beside, tensor=batch.shared[name].row)) for name, each in windows.items()
            },
            split={name: self._split_of(name, rows) for name in batch.split},
            passthrough={name: value[rows] for name, value in batch.passthrough.items()},
            mask={name: value[rows] for name, value in batch.mask.items()},
            stats=replace(batch.stats, samples=stop - first),
        )

    def _jagged(self, value: Jagged, rows: slice, events: Ranges | None, known: dict[int, Tensor]) -> Jagged:
        """known: offsets of the batch -> those of the part, so that fields go on to share them."""
        if events is None:
            host = self._host(value.offsets)
            values = value.values[int(host[rows.start]) : int(host[rows.stop])]
            if id(value.offsets) not in known:
                known[id(value.offsets)] = value.offsets[rows.start : rows.stop + 1] - value.offsets[rows.start]
        else:
            values = _taken(value.values, *events)
            if id(value.offsets) not in known:
                lengths = _filled_up(events[1], rows.stop - rows.start)
                known[id(value.offsets)] = _beside(_before(lengths), value.offsets)
        return Jagged(values, known[id(value.offsets)])

    def _events(self, name: str, keyed: "_Keyed", rows: slice, events: Ranges | None) -> Any:
        """The nested fields of a sequence, of the events that the part holds."""
        if events is None:
            begin, end = _before(self._lengths(name))[[rows.start, rows.stop]].tolist()
            events = _one(begin, end)
        return keyed.taken([keyed.rows(key, events) for key in range(len(keyed.keys))], int(events[1].sum()))

    def _split_of(self, name: str, rows: slice) -> SplitSequence:
        split: SplitSequence = self._batch.split[name]
        counted = SplitSequence.of(torch.from_numpy(self._split[name][rows]), split.options)
        return counted.map(lambda _: split.events[rows])


class _Seen:
    """A `Shared` in host memory."""

    def __init__(self, shared: Shared) -> None:
        self.row, self.start, self.length, self.offset = (
            each.cpu().numpy() for each in (shared.row, shared.start, shared.length, shared.offset)
        )

    def windows(self, rows: slice) -> Windows:
        """What some samples see, merged as the loader merges it: windows that others had joined lie apart again."""
        return merge_windows(self.row[rows], self.start[rows], self.length[rows])


class _Keyed:
    """A KeyedJaggedTensor or JaggedFeatures [K, N] whose lengths are known on the host.

    Attributes:
        keys: [K]. lengths: integers [K, N].
    """

    def __init__(self, keyed: Any, what: str) -> None:
        self._weights: Tensor | None = None
        if isinstance(keyed, JaggedFeatures):
            self._values, lengths = keyed.flat()
        elif not is_keyed_jagged_tensor(keyed):
            raise ValueError(
                f"parts() cannot cut batch.{what}, a {type(keyed).__name__}: cut the Batch before `adapt` or the loop "
                "puts something else in the place of a KeyedJaggedTensor"
            )
        elif keyed.variable_stride_per_key():
            raise ValueError(f"parts() cannot cut batch.{what}, whose keys have a batch size each: give all the same")
        else:
            self._values, self._weights = keyed.values(), keyed.weights_or_none()
            lengths = keyed.lengths().view(len(keyed.keys()), keyed.stride())
        self._plain = isinstance(keyed, JaggedFeatures)
        self.keys = tuple(keyed.keys())
        self.lengths: np.ndarray = lengths.cpu().numpy()
        self._begin = _before(self.lengths.reshape(-1))

    def __len__(self) -> int:
        return self.lengths.shape[1]

    def rows(self, key: int, rows: Ranges) -> tuple[Ranges, np.ndarray]:
        """(where their values lie, the lengths of all of them) of some rows of a key."""
        begin, size = rows
        first = self._begin[key * len(self) + begin]
        end = self._begin[key * len(self) + begin + size]
        return (first, end - first), self.lengths[key][_each(begin, size)]

    def events(self, key: int, events: Ranges, rows: int) -> tuple[Ranges, np.ndarray]:
        """The same of events that are the first of `rows` rows, one range each."""
        begin, size = events
        return (self._begin[key * len(self)] + begin, size), _filled_up(size, rows)

    def taken(self, chosen: list[tuple[Ranges, np.ndarray]], rows: int) -> Any:
        """What `rows` or `events` say of every key."""
        nothing = np.empty(0, np.int64)
        begin, size = (np.concatenate([nothing, *(ranges[i] for ranges, _ in chosen)]) for i in (0, 1))
        values = _taken(self._values, begin, size)
        lengths = np.concatenate(
            [np.empty(0, self.lengths.dtype), *(each for _, each in chosen)], dtype=self.lengths.dtype
        )
        if self._plain:
            return JaggedFeatures.of(self.keys, values, torch.from_numpy(lengths), rows)
        weights = None if self._weights is None else _taken(self._weights, begin, size)
        per_key = [int(ranges[1].sum()) for ranges, _ in chosen]
        return keyed_jagged_tensor(self.keys, values, _beside(lengths, self._values), rows, weights, per_key)


def _one(first: int, stop: int) -> Ranges:
    return np.array([first]), np.array([stop - first])


def _before(lengths: np.ndarray) -> np.ndarray:
    """int64 [N + 1]: where each of N things begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _each(begin: np.ndarray, size: np.ndarray) -> np.ndarray:
    """int64: all places of some ranges, range after range."""
    within = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
    found: np.ndarray = np.repeat(begin, size) + within
    return found


def _filled_up(lengths: np.ndarray, rows: int) -> np.ndarray:
    """int64 [rows]: merged events are the lists of the first rows, and the others are empty."""
    found = np.zeros(rows, np.int64)
    found[: len(lengths)] = lengths
    return found


def _taken(values: Tensor, begin: np.ndarray, size: np.ndarray) -> Tensor:
    """Ranges of values [T, ...] one after another: a view where they follow each other, else one copy."""
    begin, size = begin[size > 0], size[size > 0]
    if not len(begin):
        return values[:0]
    if (begin[1:] == (begin + size)[:-1]).all():
        return values[int(begin[0]) : int(begin[-1] + size[-1])]
    shape = (int(size.sum()), *values.shape[1:])
    target = torch.empty(shape, dtype=values.dtype, device=values.device, pin_memory=_is_pinned(values))
    copy_ranges(values.contiguous(), target, *(_beside(each, values) for each in (begin, _before(size)[:-1], size)))
    return target


def _beside(numbers: np.ndarray, tensor: Tensor) -> Tensor:
    """The same numbers where `tensor` lies."""
    made = torch.from_numpy(np.ascontiguousarray(numbers))
    return made.pin_memory() if _is_pinned(tensor) else made.to(tensor.device)


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_pinned()
