"""A KJT that a model builds from parts of its batch: where each key comes from, and how to build it from another batch.

Models concatenate, permute and regroup features, or build them from plain tensors. So each key of the KJT that a module
got is looked for by content in the batch that the user held: as one key of any KJT there, or as a tensor of values
with one of lengths or offsets (or without: then all samples are equally long). Keys that several parts fit keep all of
them; later batches tell which one is right.

Letters: B samples, F keys, N values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from fscomm.loop.kjt_paths import KJT, Path, leaves, read, read_part, walk

Make = Callable[[list[str], Tensor, Tensor, Tensor | None, int], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Jagged:
    """One key: values [N], lengths [B], weights [N] or None."""

    values: Tensor
    lengths: Tensor
    weights: Tensor | None

    def equals(self, other: "Jagged") -> bool:
        """Are the contents those of `other`, of any integer type? Weights count only where `other` has some."""
        if len(self.lengths) != len(other.lengths) or len(self.values) != len(other.values):
            return False
        if other.weights is not None and (self.weights is None or not torch.equal(self.weights, other.weights)):
            return False
        return bool((self.lengths == other.lengths).all()) and bool((self.values == other.values).all())


Seen = dict[Path, dict[str, Jagged]]  # KJTs of a batch that were taken apart already


class Part(Protocol):
    """Where one key comes from. `read` raises ValueError where a batch does not have it."""

    def read(self, batch: Any, seen: Seen) -> Jagged: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class OneKey:
    """Key `key` of the KJT at `path`."""

    path: Path
    key: str

    def __str__(self) -> str:
        return f"{self.path}[{self.key!r}]"

    def read(self, batch: Any, seen: Seen) -> Jagged:
        if self.path not in seen:
            kjt = read(batch, self.path)
            seen[self.path] = dict(zip(kjt.keys(), by_key(kjt), strict=True))
        if self.key not in seen[self.path]:
            raise ValueError(f"features were found in the first batch at {self}, but this one has no such key there")
        return seen[self.path][self.key]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensors:
    """A tensor of values, and one of lengths [B] or offsets [B + 1]; with neither, `values` is [B, ...]."""

    values: Path
    lengths: Path | None = None
    offsets: bool = False

    def __str__(self) -> str:
        if self.lengths is None:
            return f"{self.values}, a row for each sample"
        return f"{self.values} with {'offsets' if self.offsets else 'lengths'} {self.lengths}"

    def read(self, batch: Any, seen: Seen) -> Jagged:
        values = read_part(batch, self.values, _holds_ids, "tensor of ids")
        if self.lengths is None:
            lengths = values.new_full((len(values),), values[0].numel() if len(values) else 0)
        else:
            lengths = read_part(batch, self.lengths, _holds_ids, "tensor of integers")
            lengths = lengths.diff() if self.offsets else lengths
        return Jagged(values=values.reshape(-1), lengths=lengths.reshape(-1), weights=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How to build the KJT of a module from a batch.

    Attributes:
        keys: [F].
        parts: [F] for each key the parts that have fitted so far, best first; none is empty.
        values_type, lengths_type: of the KJT that the module got.
        weighted: the KJT has weights.
    """

    keys: tuple[str, ...]
    parts: tuple[tuple[Part, ...], ...]
    values_type: torch.dtype
    lengths_type: torch.dtype
    weighted: bool

    def __str__(self) -> str:
        return ", ".join(f"{key}: {fitting[0]}" for key, fitting in zip(self.keys, self.parts, strict=True))

    def read(self, batch: Any, make: Make) -> Any:
        """The KJT as the model would build it. Raises ValueError where the batch is built otherwise."""
        seen: Seen = {}
        found = [fitting[0].read(batch, seen) for fitting in self.parts]
        strides = {len(each.lengths) for each in found}
        if len(strides) > 1:
            raise ValueError(f"features were found at {self}, but in this batch they are of {sorted(strides)} samples")
        return make(
            list(self.keys),
            torch.cat([each.values.to(self.values_type) for each in found]),
            torch.cat([each.lengths.to(self.lengths_type) for each in found]),
            torch.cat([each.weights for each in found]) if self.weighted else None,  # type: ignore[misc]
            strides.pop(),
        )

    def narrowed(self, batch: Any, kjt: KJT) -> "Recipe | None":
        """This recipe without the parts that do not fit another batch, too; None where a key has none left."""
        if tuple(kjt.keys()) != self.keys:
            return None
        seen: Seen = {}
        left = tuple(
            tuple(part for part in fitting if _fits(part, batch, seen, wanted))
            for fitting, wanted in zip(self.parts, by_key(kjt), strict=True)
        )
        return replace(self, parts=left) if all(left) else None

    @property
    def settled(self) -> bool:
        """Is there one part for each key."""
        return all(len(fitting) == 1 for fitting in self.parts)


def recipe(batch: Any, kjt: KJT) -> tuple[Recipe | None, list[str]]:
    """How `kjt` was built from `batch`; without a recipe, the keys that are nowhere in it. Waits for the device."""
    held = list(_parts(batch, len(kjt.lengths()) // max(len(kjt.keys()), 1)))
    keys = tuple(kjt.keys())
    parts = []
    for key, wanted in zip(keys, by_key(kjt), strict=True):
        fitting = [part for part, jagged in held if jagged.equals(wanted)]
        named = [part for part in fitting if isinstance(part, OneKey) and part.key == key]  # the likeliest
        parts.append(tuple(named + [part for part in fitting if part not in named]))
    missing = [key for key, fitting in zip(keys, parts, strict=True) if not fitting]
    if missing or not keys:
        return None, missing
    built = Recipe(
        keys=keys,
        parts=tuple(parts),
        values_type=kjt.values().dtype,
        lengths_type=kjt.lengths().dtype,
        weighted=kjt.weights_or_none() is not None,
    )
    return built, []


def by_key(kjt: KJT) -> Iterator[Jagged]:
    """[F] the keys of a KJT whose keys have equally many samples."""
    keys = kjt.keys()
    if not keys:
        return
    lengths = kjt.lengths().view(len(keys), -1)
    ends = [0, *lengths.sum(1).cumsum(0).tolist()]
    weights = kjt.weights_or_none()
    for row, (start, end) in zip(lengths, pairwise(ends), strict=True):
        yield Jagged(
            values=kjt.values()[start:end], lengths=row, weights=None if weights is None else weights[start:end]
        )


def _parts(batch: Any, samples: int) -> Iterator[tuple[Part, Jagged]]:
    """Every part of a batch that could be a key of `samples` samples, keys of KJTs first."""
    for path, kjt in walk(batch):
        if kjt.keys() and len(kjt.lengths()) == samples * len(kjt.keys()):
            for key, jagged in zip(kjt.keys(), by_key(kjt), strict=True):
                yield OneKey(path=path, key=key), jagged
    held = [(path, tensor) for path, tensor in leaves(batch) if _holds_ids(tensor)]
    for path, values in held:
        for part in _with_lengths(path, values, held, samples):
            yield part, part.read(batch, {})


def _with_lengths(path: Path, values: Tensor, held: Sequence[tuple[Path, Tensor]], samples: int) -> Iterator[Tensors]:
    if len(values) == samples:
        yield Tensors(values=path)
    for other, lengths in held:
        if lengths is values or lengths.dim() != 1:
            continue
        if len(lengths) == samples and int(lengths.sum()) == values.numel() and bool((lengths >= 0).all()):
            yield Tensors(values=path, lengths=other)
        elif len(lengths) == samples + 1 and int(lengths[0]) == 0 and int(lengths[-1]) == values.numel():
            yield Tensors(values=path, lengths=other, offsets=True)


def _fits(part: Part, batch: Any, seen: Seen, wanted: Jagged) -> bool:
    try:
        return part.read(batch, seen).equals(wanted)
    except ValueError:
        return False


def _holds_ids(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.dim() > 0
        and not value.is_floating_point()
        and not value.is_complex()
        and value.dtype != torch.bool
    )
