"""The random numbers that loader and training draw from: the global generators of torch (CPU), numpy and Python, and
generators that the loader holds, which the training step may hold, too.

`Draws` keeps what both draw in the order of the plain loop, or gives the loader a stream of its own.
"""

import gc
import random
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

import torch

IN_TURN = (
    "on some rank, loader and training step draw from the same generator of random numbers, or the loader reads served "
    "tables. So no batch is pulled early, and steps run plainly. Give the loader a generator of its own, or pass "
    "rng='own' to lookahead() where it is a global one: the results then differ from those of the loop without fscomm"
)
DREW_EARLY = (
    "the training step drew random numbers after the loader had drawn some for the next batch, which was pulled early: "
    "in the loop without fscomm the step draws first. All steps so far are those of that loop; this batch is not. Pass "
    "rng='own' to lookahead() to give the loader random numbers of its own"
)
OWN_ELSEWHERE = (
    "rng='own' sets the global random numbers to those of the loader while it makes a batch, and the training step in "
    "another thread would draw from them. Ask for batches in the thread that trains, or leave rng='own' out"
)


class Generators:
    """Where the global generators, and `private` ones, stand at one moment. Taking and comparing it costs some 20
    microseconds, and a few for each private one."""

    __slots__ = ("_states",)

    def __init__(self, private: Iterable[Any] = ()) -> None:
        self._states = {id(each): (each, _state(each)) for each in (*private, *_global_generators())}

    def drawn(self, later: "Generators") -> frozenset[int]:
        """The generators that stand elsewhere `later`."""
        common = self._states.keys() & later._states.keys()
        return frozenset(each for each in common if not _same(self._states[each][1], later._states[each][1]))

    def restore(self, some: frozenset[int] | None = None) -> None:
        """Set `some` generators back to this moment; None: all."""
        for number, (generator, state) in self._states.items():
            if some is None or number in some:
                _restore(generator, state)


def _global_generators() -> list[Any]:
    """Those behind the global functions of torch (CPU), of Python and, once it is imported, of numpy."""
    numpy = sys.modules.get("numpy.random")
    return [torch.default_generator, random._inst, *([] if numpy is None else [numpy.mtrand._rand])]


def _state(generator: Any) -> Any:
    """A copy, of a generator of torch, Python or numpy (also a legacy one)."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if hasattr(generator, "get_state"):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state  # numpy makes it anew at every call


def _restore(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def _same(one: Any, other: Any) -> bool:
    """States of one generator."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one is other or (one == other if not hasattr(one, "shape") else (one == other).all()))


MOST_LOOKED_AT = 20_000  # objects of a loader
_LEAVES = (str, bytes, int, float, complex, type(None), ModuleType, type, torch.Tensor, torch.nn.Module)


def private_generators(*roots: Any) -> list[Any]:
    """The generators that can be reached from a loader: by attributes, closures, locals of generators that wait, and
    containers; nearest first, of at most 20,000 objects. Not those of the global functions. None where the loader
    holds a thread: what that draws beside the training step has no order in the plain loop either."""
    numpy = sys.modules.get("numpy.random")
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    if numpy is not None:
        kinds += (numpy.Generator, numpy.RandomState)
    seen = {id(each) for each in _global_generators()} | {id(sys.modules), id(vars(sys.modules["builtins"]))}
    found: list[Any] = []
    level = list(roots)
    while level and len(seen) < MOST_LOOKED_AT:
        following: list[Any] = []
        for each in level:
            if id(each) in seen or isinstance(each, _LEAVES):
                continue
            seen.add(id(each))
            if isinstance(each, threading.Thread):
                return []
            if isinstance(each, kinds):
                found.append(each)
            else:
                following += _held_by(each)
        level = following[:MOST_LOOKED_AT]
    return found


def _held_by(value: Any) -> Sequence[Any]:
    """What an object refers to. Of a function only what it has closed over, its defaults and attributes: what else its
    module has is everybody's."""
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *vars(value).values()]
    if isinstance(value, GeneratorType):
        return [] if value.gi_frame is None else [*value.gi_frame.f_locals.values(), value.gi_yieldfrom]
    return gc.get_referents(value)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


class Draws:
    """Keeps what loader and training step draw from common random numbers in the order of the plain loop.

    What both draw depends on their order, so no batch is pulled early then. Where one of them begins to draw later, it
    is noticed before anything was trained on that the plain loop would not have: a batch that was pulled early leaves
    the random numbers to the training step as it found them.

    own: the loader draws from a stream of its own instead, which begins where the common one is at its first use. What
    it draws leaves the common one as it was.

    Attributes:
        early: batches may be pulled early; None while that is not known.
        both: the loader drew for the batch pulled last, or may draw again, from a generator from which the training
            step before it drew, too.
    """

    def __init__(self, *, own: bool) -> None:
        self._own = own
        self._private: list[Any] = []
        self._loaders: Generators | None = None  # where the loader's own stream is
        self._handed_out: Generators | None = None
        self._elsewhere = False
        self._user_drew: frozenset[int] = frozenset()
        self._loader_drew: frozenset[int] = frozenset()
        self._after_early: Generators | None = None  # where the loader left the numbers that the training step has now
        self._drew_early: frozenset[int] = frozenset()
        self.early: bool | None = None
        self.both = False

    def look_at(self, *loaders: Any) -> None:
        """Find the generators that these hold, which the training step may hold, too."""
        if not self._own:
            found = {id(each): each for each in [*self._private, *private_generators(*loaders)]}
            self._private = list(found.values())

    def _now(self) -> Generators:
        return Generators(self._private)

    def hand_out(self) -> None:
        """The user gets a batch; the next pull tells whether the user draws."""
        self._handed_out = self._now()

    def resume(self, *, elsewhere: bool = False) -> None:
        """The user asks for a batch. elsewhere: in a thread that only pulls. What the training step draws meanwhile has
        no order in the plain loop either, and what it draws from stays as it is.

        Raises:
            RuntimeError: the batch was pulled too early.
            ValueError: own random numbers are asked for in a thread that only pulls.
        """
        if elsewhere and self._own and self._handed_out is not None:
            raise ValueError(OWN_ELSEWHERE)
        self._elsewhere = elsewhere
        if self._handed_out is not None:
            self._user_drew = frozenset() if elsewhere else self._handed_out.drawn(self._now())
        if self._after_early is not None:
            if self._user_drew & self._drew_early:
                raise RuntimeError(DREW_EARLY)
            self._after_early.restore(self._drew_early)
            self._after_early = None

    def begin(self) -> None:
        """A new loop begins: in the plain loop the batch that was pulled early was never made."""
        if self._handed_out is not None:
            self._user_drew = self._handed_out.drawn(self._now())
            self._handed_out = None
        self._private = []
        self._after_early = None

    @contextmanager
    def of_loader(self, *, early: bool = False, again: bool = False) -> Iterator[None]:
        """The loader makes an iterator or a batch inside. again: if it drew before, it may do so in any batch."""
        before = self._now()
        if self._loaders is not None:
            self._loaders.restore()
        try:
            yield
        finally:
            after = self._now()
            if self._own:
                self._loaders = after
                before.restore()
            else:
                drew = before.drawn(after)
                self.both = bool(self._user_drew & (drew | self._loader_drew if again else drew))
                self._loader_drew |= drew
                if early and drew and not self._elsewhere:
                    self._after_early, self._drew_early = after, drew
                    before.restore(drew)
