"""The generators of random numbers that loader and training step share: the global ones of torch (CPU), numpy and
Python, and those that the loader refers to, as the training step may, too.

`Draws` keeps their draws in the order of the plain loop, or gives the loader a stream of its own.
"""

import builtins
import gc
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
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
    """The states of the global generators, and of `private` ones, at one moment. Reading and comparing them costs some
    20 microseconds, and a few for each private one."""

    __slots__ = ("_states",)

    def __init__(self, private: Iterable[Any] = ()) -> None:
        accessors = ((id(each), *_accessors(each)) for each in (*private, *_global_generators()))
        self._states = {number: (put, get()) for number, get, put in accessors}

    def drawn(self, later: "Generators") -> frozenset[int]:
        """The generators whose state is another one `later`."""
        common = self._states.keys() & later._states.keys()
        return frozenset(each for each in common if not _same(self._states[each][1], later._states[each][1]))

    def restore(self, some: frozenset[int] | None = None) -> None:
        """Set `some` generators back to this moment; None: all."""
        for number, (put, state) in self._states.items():
            if some is None or number in some:
                put(state)


def _global_generators() -> list[Any]:
    """Those behind the global functions of torch (CPU), Python and numpy."""
    return [torch.default_generator, random._inst, np.random.mtrand._rand]


def _accessors(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """The functions that give a copy of its state, and that set it. They keep the generator alive, and so its `id`."""
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if isinstance(generator, torch.Generator):
        return generator.get_state, generator.set_state
    if isinstance(generator, np.random.RandomState):
        return partial(generator.get_state, legacy=False), generator.set_state
    bits = generator.bit_generator  # numpy makes a new dict at every read of its state
    return lambda: bits.state, partial(setattr, bits, "state")


def _same(one: Any, other: Any) -> bool:
    """States of one generator."""
    if isinstance(one, dict):
        return all(_same(one[key], other[key]) for key in one)
    same = one == other
    return bool(same.all() if hasattr(same, "all") else same)


_KINDS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_LEAVES = (str, bytes, int, float, complex, type(None), ModuleType, type, torch.Tensor, torch.nn.Module)
MOST_LOOKED_AT = 20_000  # objects of a loader


def private_generators(*roots: Any) -> list[Any]:
    """The generators that can be reached from a loader: by attributes, closures, locals of generators that wait, and
    containers; nearest first, of at most 20,000 objects. Not those of the global functions. None where the loader
    holds a thread: what that draws beside the training step has no order in the plain loop either."""
    seen = {id(each) for each in _global_generators()} | {id(sys.modules), id(vars(builtins))}
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
            if isinstance(each, _KINDS):
                found.append(each)
                continue
            if isinstance(each, FunctionType):  # it refers to its module, which is not the loader's alone
                seen.add(id(each.__globals__))
            # Unlike attributes, these include what a generator that waits holds in its frame, and run no code of users.
            following += gc.get_referents(each)
        level = following[:MOST_LOOKED_AT]
    return found


class Draws:
    """Keeps the draws of loader and training step from common generators in the order of the plain loop.

    If both draw from one, no batch is pulled early. If one of them begins to draw later, this is noticed before a step
    that differs from the plain loop's: after a batch was pulled early, the generators are reset to their states before
    it, until the training step is over.

    own: the loader draws from a stream of its own instead, which starts from the state of the common generators at its
    first use. Its draws leave those unchanged.

    Attributes:
        early: batches may be pulled early; None while that is not known.
        both: the loader drew for the batch pulled last, or may draw again, from a generator from which the training
            step before it drew, too.
    """

    def __init__(self, *, own: bool) -> None:
        self._own = own
        self._private: dict[int, Any] = {}  # by `id`
        self._loaders: Generators | None = None  # states of the loader's own stream
        self._handed_out: Generators | None = None
        self._elsewhere = False
        self._user_drew: frozenset[int] = frozenset()
        self._loader_drew: frozenset[int] = frozenset()
        self._after_early: Generators | None = None  # states after a batch was pulled early, until the step is over
        self._drew_early: frozenset[int] = frozenset()
        self.early: bool | None = None
        self.both = False

    def look_at(self, *loaders: Any) -> None:
        """Find the generators that these refer to, as the training step may, too."""
        if not self._own:
            self._private |= {id(each): each for each in private_generators(*loaders)}

    def _now(self) -> Generators:
        return Generators(self._private.values())

    def hand_out(self) -> None:
        """The user gets a batch; draws until the next `resume` are the training step's."""
        self._handed_out = self._now()

    def resume(self, *, elsewhere: bool = False) -> None:
        """The user asks for a batch. elsewhere: in a thread that only pulls. Draws of the training step have no order
        in the plain loop either then, and no generator is reset.

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
            # From one generator the order matters, and this time the loader was first. From different ones it does not:
            # then each is set to where its last user left it.
            if self._user_drew & self._drew_early:
                raise RuntimeError(DREW_EARLY)
            self._after_early.restore(self._drew_early)
            self._after_early = None

    def begin(self) -> None:
        """A new loop begins: in the plain loop the batch that was pulled early would not have been made."""
        if self._handed_out is not None:
            self._user_drew = self._handed_out.drawn(self._now())
            self._handed_out = None
        self._private = {}
        self._after_early = None

    @contextmanager
    def of_loader(self, *, early: bool = False, again: bool = False) -> Iterator[None]:
        """Around the loader's work on an iterator or a batch. again: if it drew before, it may draw for any batch."""
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
                # The training step that comes next draws what it draws in the plain loop: before this batch was made.
                if early and drew and not self._elsewhere:
                    self._after_early, self._drew_early = after, drew
                    before.restore(drew)
