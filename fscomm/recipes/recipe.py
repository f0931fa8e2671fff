"""A KJT that a model builds from its batch: the source of each key, and how to build the KJT of another batch.

Models concatenate, permute and regroup features, or build them from plain tensors. So every key of the KJT has an
*origin*: a key of a KJT of the batch, or of tensors of it in one of the `LAYOUTS`. `search` finds the origins.

Letters: B samples, F keys, N values, L places of a padded list.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fscomm.loop.kjt_paths import KJT, Make, Path
from fscomm.loop.tensors import as_plain

Key = str | int
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """The keys of the KJT at `path`."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def read(self, batch: Any) -> Mapping[Any, Jagged]:
        """Raises ValueError where the batch does not have it."""
        kjt = self.path.read(batch)
        if len(kjt.lengths()) != len(kjt.keys()) * kjt.stride():
            raise ValueError(f"features were found at {self}, but in this batch its keys have different batch sizes")
        return dict(zip(kjt.keys(), by_key(kjt), strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """A tensor of a batch, or one of its columns: number `index` of dimension `dim`."""

    path: Path
    dim: int = 0
    index: int | None = None

    def __str__(self) -> str:
        return str(self.path) if self.index is None else f"{self.path}[{':, ' * self.dim}{self.index}]"

    def read(self, batch: Any) -> Tensor:
        found = as_plain(self.path.part(batch, is_countable, "tensor of integers"))
        try:
            return found if self.index is None else found.select(self.dim, self.index)
        except IndexError as error:
            shape = list(found.shape)
            raise ValueError(f"features were found in the first batch at {self}, but this one has {shape}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensors:
    """Keys 0 to `keys` - 1 of `values`, whose lengths `by` gives, as their `layout` says."""

    values: Slice
    by: Slice | None = None
    layout: str = "rows"
    keys: int = 1

    def __str__(self) -> str:
        return f"{self.values} ({self.layout}{'' if self.by is None else f' {self.by}'})"

    def read(self, batch: Any) -> Mapping[Any, Jagged]:
        values = self.values.read(batch)
        return self.decode(values, values if self.by is None else self.by.read(batch))

    def decode(self, values: Tensor, by: Tensor) -> Mapping[Any, Jagged]:
        """Raises ValueError where the tensors do not go together."""
        try:
            flat, lengths = LAYOUTS[self.layout](values, by)
            of_keys = lengths.reshape(self.keys, -1)
        except (RuntimeError, IndexError) as error:
            shapes = f"{list(values.shape)} and {list(by.shape)}"
            raise ValueError(f"features were found at {self}, but these tensors are now {shapes}") from error
        if self.keys == 1:
            return {0: Jagged(values=flat, lengths=of_keys[0], weights=None)}
        return dict(enumerate(_cut(flat, of_keys, None)))


Seen = dict[Whole | Tensors, Mapping[Any, Jagged]]  # what was read of a batch already


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where in a batch one key comes from."""

    source: Whole | Tensors
    key: Key

    def __str__(self) -> str:
        return f"{self.source}[{self.key!r}]" if self.key else str(self.source)

    @property
    def place(self) -> Key | None:
        """The key, or the number of the row or column, where one KJT or tensor has several keys."""
        if isinstance(self.source, Whole) or self.source.keys > 1:
            return self.key
        return self.source.values.index

    @property
    def tensors(self) -> list[Slice]:
        """Those that it is made of; of a key of a KJT none."""
        given = () if isinstance(self.source, Whole) else (self.source.values, self.source.by)
        return [each for each in given if each is not None]

    def read(self, batch: Any, seen: Seen) -> Jagged:
        """Raises ValueError where the batch does not have it."""
        if self.source not in seen:
            seen[self.source] = self.source.read(batch)
        if self.key not in seen[self.source]:
            raise ValueError(f"features were found in the first batch at {self}, but this one has no such key there")
        return seen[self.source][self.key]

    def fits(self, batch: Any, seen: Seen, wanted: Jagged) -> bool:
        try:
            return self.read(batch, seen).equals(wanted)
        except ValueError:
            return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How to build the KJT of a module from a batch.

    Attributes:
        keys: [F].
        origins: [F] for each key those that have fitted so far, best first; none is empty.
        values_type, lengths_type: of the KJT that the module got.
        weighted: the KJT has weights.
        make: gives a KJT.
    """

    keys: tuple[str, ...]
    origins: tuple[tuple[Origin, ...], ...]
    values_type: torch.dtype
    lengths_type: torch.dtype
    weighted: bool
    make: Make = field(repr=False, compare=False)

    def __str__(self) -> str:
        return ", ".join(f"{key}: {fitting[0]}" for key, fitting in zip(self.keys, self.origins, strict=True))

    def read(self, batch: Any, *, checked: bool = False) -> KJT:
        """The KJT as the model would build it. Raises ValueError where the batch is built otherwise. checked: lengths
        and values match, as those of the same batch in host memory do; else, off the CPU, it waits for the device."""
        seen: Seen = {}
        found = [fitting[0].read(batch, seen) for fitting in self.origins]
        strides = {len(each.lengths) for each in found}
        if len(strides) > 1:
            raise ValueError(f"features were found at {self}, but in this batch they are of {sorted(strides)} samples")
        values = torch.cat([each.values.to(self.values_type) for each in found])
        lengths = torch.cat([each.lengths.to(self.lengths_type) for each in found])
        # A KJT that contradicts itself would fail on the way to the owners, on all ranks.
        if not checked and (int(lengths.sum()) != len(values) or bool((lengths < 0).any())):
            raise ValueError(f"features were found at {self}, but in this batch lengths and values do not go together")
        weights = torch.cat([each.weights for each in found]) if self.weighted else None  # type: ignore[misc]
        made: KJT = self.make(list(self.keys), values, lengths, weights, strides.pop())
        return made

    def narrowed(self, batch: Any, kjt: KJT) -> "Recipe | None":
        """With those origins that fit another batch, too; None where a key has none of them."""
        fitting = self._fitting(batch, kjt)
        return replace(self, origins=fitting) if all(fitting) else None

    def completed(self, known: Sequence[Any], batch: Any, kjt: KJT) -> "Recipe":
        """With the origins of `known` recipes where these fit: a key without ids in this batch fits everywhere, but an
        earlier batch may have had some."""
        made = self
        for other in known:
            if isinstance(other, Recipe) and other.keys == self.keys:
                left = other._fitting(batch, kjt)
                made = replace(made, origins=tuple(a or b for a, b in zip(left, made.origins, strict=True)))
        return made

    def _fitting(self, batch: Any, kjt: KJT) -> tuple[tuple[Origin, ...], ...]:
        """[F] the origins that fit the batch."""
        if tuple(kjt.keys()) != self.keys:
            return ((),) * len(self.keys)
        seen: Seen = {}
        return tuple(
            tuple(origin for origin in fitting if origin.fits(batch, seen, wanted))
            for fitting, wanted in zip(self.origins, by_key(kjt), strict=True)
        )


def by_key(kjt: KJT) -> Iterator[Jagged]:
    """[F] the keys of a KJT whose keys have equally many samples."""
    keys = kjt.keys()
    if not keys:
        return
    yield from _cut(kjt.values(), kjt.lengths().view(len(keys), -1), kjt.weights_or_none())


def _cut(values: Tensor, lengths: Tensor, weights: Tensor | None) -> Iterator[Jagged]:
    """values [N], key by key; lengths [F, B]."""
    ends = [0, *lengths.sum(1).cumsum(0).tolist()]
    for row, (start, end) in zip(lengths, pairwise(ends), strict=True):
        yield Jagged(values=values[start:end], lengths=row, weights=None if weights is None else weights[start:end])


# Layouts of plain tensors: values and what gives their lengths -> values [N], lengths [F * B] of the keys.


def _rows(values: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return values.reshape(-1), values.new_full((len(values),), values[0].numel() if len(values) else 0)


def _starts(values: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    flat = by.long().reshape(-1)
    return values.reshape(-1), torch.cat([flat, flat.new_tensor([values.numel()])]).diff()


def _first(values: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    return _chosen(values, torch.arange(values.shape[1], device=by.device) < by[:, None])


def _last(values: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    length = values.shape[1]
    return _chosen(values, torch.arange(length, device=by.device) >= length - by.long()[:, None])


def _chosen(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Both [B, L]."""
    if values.shape != mask.shape:
        raise IndexError(f"a mask of {list(mask.shape)} for {list(values.shape)}")
    return values[mask], mask.sum(1)


LAYOUTS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "rows": _rows,  # values [B, ...]: the lists of all samples are equally long
    "lengths": lambda values, by: (values.reshape(-1), by.reshape(-1)),  # values [N], by [F * B]
    "offsets": lambda values, by: (values.reshape(-1), by.long().reshape(-1).diff()),  # values [N], by [F * B + 1]
    "starts": _starts,  # values [N], by [F * B]: where the lists begin
    "the first": _first,  # values [B, L], by [B]: how many of each row are no padding
    "the last": _last,
    "where": lambda values, by: _chosen(values, by != 0),  # both [B, L]
    "where not": lambda values, by: _chosen(values, by == 0),
    "but 0": lambda values, _: _chosen(values, values != 0),  # values [B, L]: one id is padding
    "but -1": lambda values, _: _chosen(values, values != -1),
}


def is_countable(value: Any) -> bool:
    """Whether it may be a tensor of ids, lengths or a mask: of integers, with strided memory."""
    with torch._C.DisableTorchFunctionSubclass():
        return (
            isinstance(value, Tensor)
            and type(value).__torch_dispatch__ is Tensor.__torch_dispatch__  # those that a class wraps are leaves, too
            and value.layout is torch.strided
            and value.dtype in (*INTEGERS, torch.bool)
            and not value.is_nested
            and not value.is_meta
            and value.dim() > 0
        )
