"""A module's own forward of a whole step in parts, which the user gets one by one. Their gradients go back through it
together, with the last one: so tables are read once and updated once, as in a step without parts.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fscomm.tables.binding import MakePart
from fscomm.tables.lookups import gradient_hook


class WholeCall:
    """The whole forward of one module in one step.

    tensors: [i] of its output, each with a dimension of samples or ids. parts: [k] what makes the output of each part.
    reached: called when backward reaches a part.
    """

    def __init__(self, tensors: list[torch.Tensor], parts: list[MakePart], reached: Callable[[], None]) -> None:
        self._tensors = tensors
        self._parts = parts
        self._reached = reached
        self._received: dict[int, dict[int, torch.Tensor]] = {}  # gradients, by part and tensor

    def output(self, part: int) -> Any:
        """What the module's forward would return for this part."""
        rows, make = self._parts[part]
        # Detached: backward of one part ends here, and reaches the module's own graph once, in `go_back`.
        cut = [
            gradient_hook(tensor.detach()[of_part], partial(self._deliver, part, i))
            for i, (tensor, of_part) in enumerate(zip(self._tensors, rows, strict=True))
        ]
        return make(cut)

    @property
    def is_complete(self) -> bool:
        """Whether all parts had their backward."""
        return len(self._received) == len(self._parts)

    def go_back(self) -> None:
        """The backward of the whole forward, once, with the gradients so far, and zeros for parts without any."""
        parts, self._parts = self._parts, []
        reached = sorted({i for of_part in self._received.values() for i in of_part})
        tensors = [self._tensors[i] for i in reached]
        gradients = [torch.zeros_like(tensor) for tensor in tensors]
        for part, of_part in self._received.items():
            for i, gradient in of_part.items():
                gradients[reached.index(i)][parts[part].rows[i]] = gradient
        self._tensors, self._received = [], {}
        if tensors:
            torch.autograd.backward(tensors, gradients)

    def _deliver(self, part: int, i: int, gradient: torch.Tensor) -> None:
        self._reached()
        if not self._parts or i in self._received.get(part, ()):
            raise RuntimeError("a second backward through a part: the tables of a step are updated once")
        self._received.setdefault(part, {})[i] = gradient
