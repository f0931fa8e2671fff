"""A module's own forward of a whole step, of which the user gets part after part. Their gradients go back through it
together, when the last one has come: so tables are read once and updated once, as in a step that is not cut.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fscomm.tables.binding import MakePart
from fscomm.tables.lookups import gradient_hook


class WholeCall:
    """Of one module in one step.

    tensors: of the output, [i] with a dimension of samples or ids; parts: [k]. reached: backward is at one of them.
    """

    def __init__(self, tensors: list[torch.Tensor], parts: list[MakePart], reached: Callable[[], None]) -> None:
        self._tensors = tensors
        self._parts = parts
        self._reached = reached
        self._came: dict[int, dict[int, torch.Tensor]] = {}  # by part and tensor

    def output(self, part: int) -> Any:
        """What the module's forward would give for this part."""
        rows, make = self._parts[part]
        cut = [
            gradient_hook(tensor.detach()[of_part], partial(self._deliver, part, i))
            for i, (tensor, of_part) in enumerate(zip(self._tensors, rows, strict=True))
        ]
        return make(cut)

    @property
    def is_complete(self) -> bool:
        """Whether the backward of all parts has come."""
        return len(self._came) == len(self._parts)

    def go_back(self) -> None:
        """The backward of the whole forward, once, with what has come: zeros for parts without a gradient."""
        parts, self._parts = self._parts, []
        reached = sorted({i for of_part in self._came.values() for i in of_part})
        tensors = [self._tensors[i] for i in reached]
        gradients = [torch.zeros_like(tensor) for tensor in tensors]
        for part, of_part in self._came.items():
            for i, gradient in of_part.items():
                gradients[reached.index(i)][parts[part].rows[i]] = gradient
        self._tensors, self._came = [], {}
        if tensors:
            torch.autograd.backward(tensors, gradients)

    def _deliver(self, part: int, i: int, gradient: torch.Tensor) -> None:
        self._reached()
        if not self._parts or i in self._came.get(part, ()):
            raise RuntimeError("a second backward through a part: the tables of a step are updated once")
        self._came.setdefault(part, {})[i] = gradient
