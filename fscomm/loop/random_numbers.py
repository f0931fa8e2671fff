"""The random numbers that loader and training draw from: the global generators of torch (CPU), numpy and Python.

`Draws` keeps what both draw in the order of the plain loop, or gives the loader a stream of its own.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

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
    """Where the global generators stand at one moment. Taking and comparing it costs some 20 microseconds."""

    __slots__ = ("_numpy", "_python", "_torch")

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        numpy = sys.modules.get("numpy.random")
        self._numpy: Any = None if numpy is None else numpy.get_state()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Generators):
            return NotImplemented
        return (
            torch.equal(self._torch, other._torch)
            and self._python == other._python
            and _same_numpy(self._numpy, other._numpy)
        )

    __hash__ = None  # type: ignore[assignment]

    def restore(self) -> None:
        """Set the global generators back to this moment."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)


def _same_numpy(one: Any, other: Any) -> bool:
    """States of numpy's legacy generator; None: numpy.random was not imported."""
    if one is None or other is None:
        return one is other
    return bool(one[2] == other[2] and one[3:] == other[3:] and (one[1] == other[1]).all())


class Draws:
    """Keeps what loader and training step draw from common random numbers in the order of the plain loop.

    What both draw depends on their order, so no batch is pulled early then. Where one of them begins to draw later, it
    is noticed before anything was trained on that the plain loop would not have: a batch that was pulled early leaves
    the random numbers to the training step as it found them.

    own: the loader draws from a stream of its own instead, which begins where the common one is at its first use. What
    it draws leaves the common one as it was.

    Attributes:
        early: batches may be pulled early; None while that is not known.
        both: the loader drew for the batch pulled last, or may draw again, and the training step before it drew, too.
    """

    def __init__(self, *, own: bool) -> None:
        self._own = own
        self._loaders: Generators | None = None  # where the loader's own stream is
        self._handed_out: Generators | None = None
        self._elsewhere = False
        self._user_drew = False
        self._loader_drew = False
        self._after_early: Generators | None = None  # where the loader left the numbers that the training step has now
        self.early: bool | None = None
        self.both = False

    def hand_out(self) -> None:
        """The user gets a batch; the next pull tells whether the user draws."""
        self._handed_out = Generators()

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
            self._user_drew = not elsewhere and self._handed_out != Generators()
        if self._after_early is not None:
            if self._user_drew:
                raise RuntimeError(DREW_EARLY)
            self._after_early.restore()
            self._after_early = None

    def begin(self) -> None:
        """A new loop begins: in the plain loop the batch that was pulled early was never made."""
        if self._handed_out is not None:
            self._user_drew = self._handed_out != Generators()
            self._handed_out = None
        self._after_early = None

    @contextmanager
    def of_loader(self, *, early: bool = False, again: bool = False) -> Iterator[None]:
        """The loader makes an iterator or a batch inside. again: if it drew before, it may do so in any batch."""
        before = Generators()
        if self._loaders is not None:
            self._loaders.restore()
        try:
            yield
        finally:
            after = Generators()
            if self._own:
                self._loaders = after
                before.restore()
            else:
                drew = before != after
                self.both = self._user_drew and (drew or (again and self._loader_drew))
                self._loader_drew |= drew
                if early and drew and not self._elsewhere:
                    self._after_early = after
                    before.restore()
