"""In how many parts steps are computed, where `enable` was given several numbers: the fastest of those tried.

The numbers take turns, some steps each, until all of them have enough measured steps. The largest one is first, so that
what cannot be computed in parts is an error in the first step. How long a part takes on its own depends on model and
device (kernels get smaller, every part has launches of its own), and what it hides on the links: so whole steps are
measured, and nothing is assumed. All ranks measure, and the time of the slowest one is sent to all, so that all
choose the same number.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from fscomm.report.report import Tried

AUTO = (1, 2, 4, 8)
MOST_PARTS = 64  # twice as many pieces travel
SPAN = 6  # steps in a row in one number of parts; what the first one waits for was sent in another number
ENOUGH = 4  # measured steps of each number
SAME = 0.01  # of the time of a step: by less, more parts are not better


class Took(NamedTuple):
    """A step in so many parts, from when the user got its batch until the next one: how long it took, and how long the
    training thread waited for communication in it. parts: 0 if there was no step to measure."""

    parts: int
    step_us: int
    exposed_us: int


NOTHING = Took(0, 0, 0)


class NumberOfParts:
    """numbers: of parts, at least one.

    Attributes:
        chosen: the number for all steps to come; None while there are several.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = tuple(sorted(numbers, reverse=True))
        self.chosen = numbers[0] if len(numbers) == 1 else None
        self._took: dict[int, list[Took]] = {number: [] for number in sorted(numbers)}

    def of(self, step: int) -> int:
        """For the step of this number, if it is announced now."""
        return self.chosen or self.numbers[step // SPAN % len(self.numbers)]

    def add(self, took: Took) -> None:
        """A step was measured, maybe nothing. The same on all ranks."""
        if self.chosen is None and took.parts:
            self._took[took.parts].append(took)
            if all(len(measured) >= ENOUGH for measured in self._took.values()):
                best = min(each.step_ms for each in self.tried)
                self.chosen = min(each.parts for each in self.tried if each.step_ms <= best * (1 + SAME))

    @property
    def tried(self) -> list[Tried]:
        """Numbers that were measured, in ascending order."""
        return [
            Tried(
                number,
                len(measured),
                statistics.median(each.step_us for each in measured) / 1e3,
                statistics.median(each.exposed_us for each in measured) / 1e3,
            )
            for number, measured in self._took.items()
            if measured
        ]
