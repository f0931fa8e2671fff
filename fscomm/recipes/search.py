"""Finds by contents where in a batch each key of a KJT comes from, where a model builds the KJT.

A key is compared with everything in the batch that could be one. So that this takes time with the size of the batch,
and not with the square of its number of features, candidates are sorted out first: by the number and sum of their
values, or, of padded lists, by their lengths and then by one row. The number of candidates is bounded.

Letters: B samples, F keys, N values, L places of a padded list.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from fscomm.loop.kjt_paths import KJT, Make, leaves, walk
from fscomm.loop.tensors import as_plain
from fscomm.recipes.recipe import Jagged, Origin, Recipe, Slice, Tensors, Whole, by_key, is_countable

_MOST_CANDIDATES = 20_000
_MOST_SLICES = 4_096
_MOST_FITTING = 32  # origins of a key: an empty list fits everywhere
Held = Sequence[tuple[Slice, Tensor]]


def recipe(batch: Any, kjt: KJT, known: Sequence[Any] = (), *, make: Make) -> tuple[Recipe | None, list[str]]:
    """How `kjt` was built from `batch`; without a recipe, the keys that are nowhere in it. Waits for the device.

    known: sources of this KJT in other batches. make: gives the KJTs that the recipe builds.
    """
    keys = tuple(kjt.keys())
    origins = origins_of(batch, kjt)
    missing = [key for key, fitting in zip(keys, origins, strict=True) if not fitting]
    if missing or not keys:
        return None, missing
    built = Recipe(
        keys=keys,
        origins=tuple(origins),
        values_type=kjt.values().dtype,
        lengths_type=kjt.lengths().dtype,
        weighted=kjt.weights_or_none() is not None,
        make=make,
    )
    return built.completed(known, batch, kjt), []


def origins_of(batch: Any, kjt: KJT) -> list[tuple[Origin, ...]]:
    """[F] for each key its equals in the batch, the likeliest first."""
    search, where = _Search(kjt.keys(), list(by_key(kjt))), kjt.values().device
    samples = len(kjt.lengths()) // max(len(kjt.keys()), 1)
    held = list(islice(_slices(batch, samples, where), _MOST_SLICES))
    for origin, jagged in islice(_views(batch, held, samples, where), _MOST_CANDIDATES):
        search.compare(origin, jagged)
    for source, values, by, lengths in islice(_padded(held, samples, search), _MOST_CANDIDATES):
        search.compare_padded(source, values, by, lengths)
    return search.found()


class _Search:
    """For the keys of one KJT. wanted: [F]."""

    def __init__(self, keys: Sequence[str], wanted: Sequence[Jagged]) -> None:
        self._keys = keys
        self._wanted = wanted
        self._alike: dict[Any, list[int]] = {}
        self._as_long: dict[Any, list[int]] = {}
        for number, jagged in enumerate(wanted):
            self._alike.setdefault(_marks(jagged.values), []).append(number)
            self._as_long.setdefault(_marks(jagged.lengths), []).append(number)
        self._fitting: list[list[tuple[tuple[int, ...], Origin]]] = [[] for _ in keys]

    def compare(self, origin: Origin, jagged: Jagged) -> None:
        for number in self._alike.get(_marks(jagged.values), ()):
            at_home, fitting = origin.key == self._keys[number] or origin.place == number, self._fitting[number]
            if (at_home or len(fitting) < _MOST_FITTING) and jagged.equals(self._wanted[number]):
                # In a batch of few samples much fits by chance: most of all single rows and columns of tensors, then
                # keys of another name or number, then tensors of several containers.
                slices = sum(each.index is not None for each in origin.tensors)
                containers = len({each.path.steps[:-1] for each in origin.tensors})
                fitting.append(((slices, not at_home, containers), origin))

    def found(self) -> list[tuple[Origin, ...]]:
        ordered = (sorted(fitting, key=lambda each: each[0]) for fitting in self._fitting)
        return [tuple(origin for _, origin in fitting) for fitting in ordered]

    def as_long(self, lengths: Tensor) -> list[Jagged]:
        """The keys that have these lengths."""
        found = (self._wanted[number] for number in self._as_long.get(_marks(lengths), ()))
        return [jagged for jagged in found if bool((jagged.lengths == lengths).all())]

    def compare_padded(self, source: Tensors, values: Tensor, by: Tensor, lengths: Tensor) -> None:
        """values [B, L], lengths [B]. Decodes all rows only where the longest is that of a key."""
        # Many features may have the same lengths. To decode all of each would take the square of their number.
        row = int(lengths.argmax())
        end = int(lengths[: row + 1].sum())
        longest = source.decode(values[row : row + 1], by[row : row + 1])[0].values
        here = slice(end - len(longest), end)
        if any(bool((jagged.values[here] == longest).all()) for jagged in self.as_long(lengths)):
            found = source.decode(values, by)[0] if end else Jagged(values=longest, lengths=lengths, weights=None)
            self.compare(Origin(source=source, key=0), found)


def _marks(tensor: Tensor) -> Any:
    """Equal for equal tensors [N], and rarely for others."""
    return (len(tensor), int(tensor.sum()), int(tensor[0]), int(tensor[-1])) if len(tensor) else 0


def _slices(batch: Any, samples: int, where: torch.device) -> Iterator[tuple[Slice, Tensor]]:
    """Every tensor of a batch that lies there and may be one of ids, lengths or a mask, and its columns; narrow ones
    first."""
    plain = ((path, as_plain(tensor)) for path, tensor in leaves(batch) if is_countable(tensor))
    held = [(path, tensor) for path, tensor in plain if tensor.device == where]
    yield from ((Slice(path=path), tensor) for path, tensor in held)
    with_dims = [(tensor.shape[dim], path, tensor, dim) for path, tensor in held for dim in range(tensor.dim())]
    for size, path, tensor, dim in sorted(with_dims, key=lambda each: each[0]):
        if tensor.dim() > 1 and tensor.shape[0 if dim else 1] in (samples, samples + 1):
            yield from ((Slice(path=path, dim=dim, index=i), tensor.select(dim, i)) for i in range(size))


def _views(batch: Any, held: Held, samples: int, device: torch.device) -> Iterator[tuple[Origin, Jagged]]:
    """Every origin that can be read without a copy and has `samples` samples, keys of KJTs first."""
    for path, kjt in walk(batch):
        if kjt.keys() and kjt.values().device == device and len(kjt.lengths()) == samples * len(kjt.keys()):
            source: Whole | Tensors = Whole(path=path)
            yield from ((Origin(source=source, key=key), of) for key, of in zip(kjt.keys(), by_key(kjt), strict=True))
    ids = [(at, values) for at, values in held if values.dtype != torch.bool]
    for at, values in ids:
        if len(values) == samples:
            source = Tensors(values=at)
            yield Origin(source=source, key=0), source.decode(values, values)[0]
    by_size: dict[int, list[tuple[Slice, Tensor]]] = {}
    for at, values in ids:
        by_size.setdefault(values.numel(), []).append((at, values))
    for where, by in ids if samples else ():
        for layout, keys, size in _flat(by, samples):
            for at, values in ids if size is None else by_size.get(size, ()):
                if values is not by:
                    source = Tensors(values=at, by=where, layout=layout, keys=keys)
                    decoded = source.decode(values, by)
                    yield from ((Origin(source=source, key=key), jagged) for key, jagged in decoded.items())


def _flat(by: Tensor, samples: int) -> Iterator[tuple[str, int, int | None]]:
    """The layouts of flat values in which `by` may be what gives their lengths, and how many keys and values there are
    then; None: any number that is not less than the last of `by`."""
    count, flat = by.numel(), by.long().reshape(-1)
    if count == 0 or int(flat.min()) < 0:
        return
    if count % samples == 0:
        yield "lengths", count // samples, int(flat.sum())
    if int(flat[0]) == 0 and bool((flat.diff() >= 0).all()):
        if count > samples and (count - 1) % samples == 0:
            yield "offsets", (count - 1) // samples, int(flat[-1])
        if count % samples == 0:
            yield "starts", count // samples, None


def _padded(held: Held, samples: int, search: _Search) -> Iterator[tuple[Tensors, Tensor, Tensor, Tensor]]:
    """Every source of padded lists whose lengths are those of a key; its values, what gives the lengths, and these."""
    padded = [(at, values) for at, values in held if values.dim() == 2 and values.shape[0] == samples > 0]
    ids = [(at, values) for at, values in padded if values.dtype != torch.bool]
    for where, by in held:
        if by.dim() == 1 and len(by) == samples > 0 and by.dtype != torch.bool and search.as_long(by):
            longest = int(by.max())
            for at, values in ids:
                if values.shape[1] >= longest:
                    yield Tensors(values=at, by=where, layout="the first"), values, by, by
                    yield Tensors(values=at, by=where, layout="the last"), values, by, by
    for where, by in padded:
        for layout, lengths in (("where", (by != 0).sum(1)), ("where not", (by == 0).sum(1))):
            if search.as_long(lengths):
                for at, values in ids:
                    if values.shape == by.shape and values is not by:
                        yield Tensors(values=at, by=where, layout=layout), values, by, lengths
    for at, values in ids:
        for layout, lengths in (("but 0", (values != 0).sum(1)), ("but -1", (values != -1).sum(1))):
            if search.as_long(lengths):
                yield Tensors(values=at, layout=layout), values, values, lengths
