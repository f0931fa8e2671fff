"""The random numbers that loader and training share: the global generators of torch (CPU), numpy and Python."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Streams:
    """Where the global generators stand at one moment. Taking and comparing it costs some 20 microseconds."""

    __slots__ = ("_numpy", "_python", "_torch")

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        numpy = sys.modules.get("numpy.random")
        self._numpy: Any = None if numpy is None else numpy.get_state()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Streams):
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


class OwnStream:
    """A stream of random numbers for the loader alone, which begins where the global one is at its first use."""

    def __init__(self) -> None:
        self._state: Streams | None = None

    @contextmanager
    def use(self) -> Iterator[None]:
        """Draw from this stream inside; the global generators are left as they were."""
        outside = Streams()
        if self._state is not None:
            self._state.restore()
        try:
            yield
        finally:
            self._state = Streams()
            outside.restore()


def _same_numpy(one: Any, other: Any) -> bool:
    """States of numpy's legacy generator; None: numpy.random was not imported."""
    if one is None or other is None:
        return one is other
    return bool(one[2] == other[2] and one[3:] == other[3:] and (one[1] == other[1]).all())
