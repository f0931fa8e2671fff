"""The control word of a forward: ranks never guess whether the others use what was fetched ahead."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from fscomm.errors import AnnouncementError
from fscomm.report.recorder import Recorder
from fscomm.report.verdict import AGREEMENT
from fsranks.control_group import AnyGroup
from fsranks.errors import MismatchError, name_ranks

_COLUMNS = ("step", "module", "backward passes")
MOST_STEPS = 6  # that a forward may belong to
NO_STEP = -1
_LATE_US = 1_000  # a shorter wait is that for the link


class Mode(IntEnum):
    """How a forward runs. Of the modes that the ranks want, the last in this order is the mode of all ranks."""

    FAST = 0  # with the rows that were fetched ahead
    FETCH = 1  # collision rows are fetched now, exclusive rows were fetched ahead
    FETCH_ALL = 2  # all rows are fetched now
    STALE = 3  # the module's own forward, of what was announced: the rows of its ids, known ahead, are others now
    PLAIN = 4  # the module's own forward
    FOREIGN = 5  # the same, with features that were not announced
    WRONG = 6  # an error: the user's `features=` announced other features

    @property
    def served(self) -> bool:
        return self < Mode.STALE


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """The same on all ranks.

    Attributes:
        step: that the forward belongs to; NO_STEP if to none.
        modes: [W] in which the ranks want to run it.
        newest: the last step that all ranks have announced.
    """

    step: int
    modes: list[Mode]
    newest: int

    @property
    def mode(self) -> Mode:
        return max(self.modes)


class ControlWords:
    """One all-gather of a few numbers per forward of a module, in the training thread."""

    def __init__(self, group: AnyGroup, recorder: Recorder) -> None:
        self._group = group
        self._recorder = recorder
        self._waited_us = 0  # for the last control word

    def exchange(self, name: str, m: int, *, held: int, passes: int, newest: int, modes: Mapping[int, Mode]) -> Agreed:
        """How all ranks run a forward of module m. Blocks for all.

        held: the step handed out last. newest: the step announced last. modes: by step that the forward may belong to,
        the mode for that one; steps are in the same order on all ranks, the likeliest first. With NO_STEP
        (always there) it belongs to none of them.

        Raises:
            MismatchError: on all ranks, if they are at different steps, modules or numbers of backward passes.
            AnnouncementError: on all ranks, if one of them got features that it had not announced.
        """
        pairs = [(NO_STEP, modes[NO_STEP]), *((step, mode) for step, mode in modes.items() if step != NO_STEP)]
        # All ranks send equally many numbers, whatever they hold; a pair that is sent twice changes nothing.
        pairs += [pairs[0]] * (MOST_STEPS + 1 - len(pairs))
        numbers = (number for pair in pairs for number in pair)
        control_word = np.array([held, m, passes, newest, self._waited_us, *numbers])
        begin = self._recorder.clock()
        with self._recorder.wait(AGREEMENT, step=held):
            by_rank = self._group.all_gather(control_word)
        self._note_late(by_rank[:, len(_COLUMNS) + 1])
        self._waited_us = round(1e6 * (self._recorder.clock() - begin))
        for what, column in zip(_COLUMNS, by_rank.T, strict=False):
            if (column != column[0]).any():
                raise MismatchError(
                    f"the ranks do not do the same: {what} by rank is {column.tolist()} at the forward of {name}. "
                    "Every rank must run the same forwards and backwards"
                )
        first = len(_COLUMNS) + 2
        step, agreed = choose(list(modes), [dict(rank.reshape(-1, 2).tolist()) for rank in by_rank[:, first:]])
        if Mode.WRONG in agreed:
            ranks = name_ranks([rank for rank, given in enumerate(agreed) if given == Mode.WRONG])
            raise AnnouncementError(f"{name}: on {ranks} features= gave other ids than the module got")
        return Agreed(step=step, modes=agreed, newest=int(by_rank[:, first - 2].min()))

    def _note_late(self, waited_us: np.ndarray) -> None:
        """The rank that waited least for the last control word came last. waited_us: by rank. An all-gather has no
        order of arrival, so this is known one control word later."""
        late = int(waited_us.argmin())
        longer_us = self._waited_us - int(waited_us[late])
        if longer_us > _LATE_US:
            self._recorder.late(late, longer_us / 1e3)


def choose(steps: list[int], by_rank: list[dict[int, int]]) -> tuple[int, list[Mode]]:
    """The step that all ranks take, and the modes [W] that they want for it: the first one that all can serve, else the
    one that fits best; NO_STEP only where they have no other in common. by_rank: [W] modes by step.

    Where two batches hold the same ids on this rank, the others tell which one it is.
    """
    # `steps` is this rank's list, but those common to all are in the same order everywhere: so all choose the same.
    common = [step for step in steps if step != NO_STEP and all(step in modes for modes in by_rank)]

    def fit(step: int) -> int:
        mode = Mode(max(modes[step] for modes in by_rank))
        # The order of steps counts more than what a served forward still has to fetch.
        return Mode.FAST if mode.served else mode

    step = min(common, key=fit, default=NO_STEP)
    return step, [Mode(modes[step]) for modes in by_rank]
