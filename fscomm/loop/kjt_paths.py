"""Where in a batch the features of a module are, and whether they are still those that were announced.

A KJT here is whatever has the reading methods of TorchRec's KeyedJaggedTensor; TorchRec is not imported. Batches are
walked by what they store (items, instance attributes, slots): no property or `__getattr__` of the user runs.
"""

import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fscomm.loop.tensors import all_equal, contents, equal, inner, stored

DEEPEST = 6
_MOST_NODES = 10_000
_TENSORS = ("values", "lengths", "weights")
_METHODS = ("keys", "values", "lengths", "weights_or_none", "stride")
NOT_ENTERED = (type(None), torch.nn.Module, ModuleType, FunctionType, MethodType, type, str, bytes, int, float)


class KJT(Protocol):
    """The part of a KeyedJaggedTensor that is read here."""

    def keys(self) -> list[str]: ...
    def values(self) -> Tensor: ...
    def lengths(self) -> Tensor: ...
    def weights_or_none(self) -> Tensor | None: ...
    def stride(self) -> int: ...


Make = Callable[[list[str], Tensor, Tensor, Tensor | None, int], Any]
"""Gives a KJT of keys, values, lengths, weights and a stride."""


class Access(NamedTuple):
    """From a container to one of its items, or from an object to one of its attributes."""

    key: Any
    is_item: bool

    def __str__(self) -> str:
        return f"[{self.key!r}]" if self.is_item else f".{self.key}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """The way from a batch to something in it; `str` gives it as Python would: batch.features, batch['x'][0].y."""

    steps: tuple[Access, ...] = ()

    def __str__(self) -> str:
        return "batch" + "".join(map(str, self.steps))

    def read(self, batch: Any, *, checked: bool = False) -> KJT:
        """As `Source.read`."""
        found: KJT = self.part(batch, is_kjt, "KeyedJaggedTensor")
        return found

    def narrowed(self, batch: Any, kjt: KJT) -> "Path | None":
        """As `Source.narrowed`."""
        try:
            return self if same(self.read(batch), kjt) else None
        except ValueError:
            return None

    def part(self, batch: Any, fits: Callable[[Any], bool], kind: str) -> Any:
        """The object at this path, which has to be a `kind`. Raises ValueError, naming path and step, if it is not."""
        value = batch
        for depth, step in enumerate(self.steps):
            try:
                value = value[step.key] if step.is_item else getattr(value, step.key)
            except (AttributeError, LookupError, TypeError) as error:
                at = Path(steps=self.steps[:depth])
                raise ValueError(
                    f"features were found at {self} in the first batch, but in this one {at}, a "
                    f"{type(value).__name__}, has no {step}: every batch must have the structure of the first"
                ) from error
        if not fits(value):
            raise ValueError(
                f"features were found at {self}, a {kind}, in the first batch, but in this one a "
                f"{type(value).__name__} lies there: every batch must have the structure of the first"
            )
        return value


def leaves(batch: Any) -> Iterator[tuple[Path, Any]]:
    """Every KJT in a batch, and every tensor outside of KJTs, with its path, nearest first: at most six steps deep and
    the first 10,000 objects.

    Enters mappings, lists, tuples and what instances store; not modules, functions, classes. Of a tensor that consists
    of others, those follow. A container that is met again, cycles included, is entered once.
    """
    # Breadth first, as a model more often reads what is near. An object at several paths is given with each of them:
    # only later batches show which one is meant.
    entered: set[int] = set()
    queue = deque([(Path(), batch)])
    for _ in range(_MOST_NODES):
        if not queue:
            return
        path, value = queue.popleft()
        if isinstance(value, Tensor) or is_kjt(value):
            yield path, value
        if not is_kjt(value) and len(path.steps) < DEEPEST and id(value) not in entered:
            entered.add(id(value))
            # Numbers and strings count for nothing: a list of a million of them must not hide what is beside it.
            within = ((step, child) for step, child in _children(value) if not isinstance(child, NOT_ENTERED))
            queue.extend((Path(steps=(*path.steps, step)), child) for step, child in islice(within, _MOST_NODES))


def walk(batch: Any) -> Iterator[tuple[Path, KJT]]:
    """Those of the `leaves` that are KJTs."""
    return ((path, value) for path, value in leaves(batch) if not isinstance(value, Tensor))


def tensors_of(batch: Any) -> list[Tensor | None]:
    """All tensors in a batch, including those of its KJTs."""
    found = (value for _, value in leaves(batch))
    return [each for value in found for each in ((value,) if isinstance(value, Tensor) else _tensors(value))]


def find(batch: Any, kjt: KJT) -> list[Path]:
    """Where `kjt` is in the batch, nearest first: paths to the same object, else to KJTs of the same tensors, else to
    those of equal contents. Two that are equal in one batch may differ in the next.

    Off the CPU, comparing contents waits for the device.
    """
    held = list(walk(batch))
    # A model may wrap tensors of the batch in a new KJT, and equal contents may be a coincidence: surest first.
    for alike in (operator.is_, partial(same, alike=operator.is_), same):
        if found := [path for path, other in held if alike(other, kjt)]:
            return found
    return []


def same(a: KJT, b: KJT, *, alike: Callable[[Tensor | None, Tensor | None], bool] = equal) -> bool:
    """Do two KJTs hold the same keys, strides, and values, lengths and weights that are `alike`."""
    return a is b or (_shape(a) == _shape(b) and all(map(alike, _tensors(a), _tensors(b))))


class Snapshot:
    """The contents of a KJT when it was announced, to recognise it, or a change to it, when a module gets it.

    Keeps the tensors, not copies: a write in place since then is found by their `contents`. If torch counted the write,
    a tensor that has its old values again is still a changed one.
    """

    __slots__ = ("_contents", "_shape", "_tensors")

    def __init__(self, kjt: KJT) -> None:
        self._shape = _shape(kjt)
        self._tensors = _tensors(kjt)
        self._contents = [contents(tensor) for tensor in self._tensors]

    def difference(self, kjt: KJT) -> str | None:
        """The tensor or attribute that is not as announced, or was written to since; None if there is none."""
        for name, was, now in zip(("keys", "stride", "strides"), self._shape, _shape(kjt), strict=True):
            if was != now:
                return name
        now = _tensors(kjt)
        same = all_equal(list(zip(self._tensors, now, strict=True)))  # by one wait for a device in most steps
        for name, was, held, other in zip(_TENSORS, self._tensors, self._contents, now, strict=True):
            if not (same or equal(was, other)) or held != contents(was):
                return name
        return None

    def matches(self, kjt: KJT) -> bool:
        return self.difference(kjt) is None


class BatchSnapshot:
    """The contents of all tensors of a batch at one moment, including those of its KJTs."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._tensors = tensors_of(batch)
        self._contents = [contents(tensor) for tensor in self._tensors]

    def changed(self) -> bool:
        """Whether the batch has other tensors since then, or they hold something else."""
        now = tensors_of(self._batch)
        same = len(now) == len(self._tensors) and all(map(operator.is_, now, self._tensors))
        return not same or self._contents != [contents(tensor) for tensor in now]


def _children(value: Any) -> Iterator[tuple[Access, Any]]:
    if isinstance(value, Mapping):
        yield from ((Access(key, True), child) for key, child in value.items())
    elif isinstance(value, tuple) and (names := getattr(type(value), "_fields", None)):
        yield from ((Access(name, False), child) for name, child in zip(names, value, strict=True))
    elif isinstance(value, list | tuple):
        yield from ((Access(index, True), child) for index, child in enumerate(value))
    found = inner(value) if isinstance(value, Tensor) else stored(value)
    yield from ((Access(name, False), child) for name, child in found)


def is_kjt(value: Any) -> bool:
    # By its type: an instance may answer any name by a `__getattr__` of the user.
    return all(callable(getattr(type(value), method, None)) for method in _METHODS)


def _shape(kjt: KJT) -> tuple[list[str], int, list[int]]:
    """Keys and strides; strides per key where they vary."""
    per_key = getattr(kjt, "stride_per_key", None)
    return list(kjt.keys()), kjt.stride(), list(per_key()) if per_key is not None else []


def _tensors(kjt: KJT) -> tuple[Tensor, Tensor, Tensor | None]:
    return kjt.values(), kjt.lengths(), kjt.weights_or_none()
