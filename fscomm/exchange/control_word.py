"""The control word of a forward: ranks never guess whether the others use what was fetched ahead."""

from enum import IntEnum

import numpy as np

from fscomm.errors import AnnouncementError
from fscomm.report.recorder import Recorder
from fsranks.control_group import AnyGroup
from fsranks.errors import MismatchError, name_ranks

_COLUMNS = ("step", "module", "backward passes")


class Mode(IntEnum):
    """How a forward runs. Of the modes that the ranks want, the last in this order is the mode of all ranks."""

    FAST = 0  # with the rows that were fetched ahead
    FETCH = 1  # collision rows are fetched now, exclusive rows were fetched ahead
    FETCH_ALL = 2  # all rows are fetched now
    STALE = 3  # the module's own forward, of what was announced: ids were mapped to rows from another state of its maps
    PLAIN = 4  # the module's own forward
    FOREIGN = 5  # the same, with features that were not announced
    WRONG = 6  # an error: the user's `features=` announced other features

    @property
    def served(self) -> bool:
        return self < Mode.STALE


class ControlWords:
    """One all-gather of a few numbers per forward of a module, in the training thread."""

    def __init__(self, group: AnyGroup, recorder: Recorder) -> None:
        self._group = group
        self._recorder = recorder

    def exchange(self, name: str, m: int, *, step: int, passes: int, mode: Mode) -> list[Mode]:
        """[W] the modes in which the ranks want to run module m while they hold `step` (-1: none). Blocks for all.

        The wait counts as straggler time: the exchange itself takes well under a millisecond.

        Raises:
            MismatchError: on all ranks, if they are at different steps, modules or numbers of backward passes.
            AnnouncementError: on all ranks, if one of them got features that it had not announced.
        """
        control_word = np.array([step, m, passes, mode])
        start = self._recorder.clock()
        with self._recorder.wait("agreement", step=step):
            by_rank = self._group.all_gather(control_word)
        self._recorder.straggler(step, 1e3 * (self._recorder.clock() - start))
        for what, column in zip(_COLUMNS, by_rank.T, strict=False):
            if (column != column[0]).any():
                raise MismatchError(
                    f"the ranks do not do the same: {what} by rank is {column.tolist()} at the forward of {name}. "
                    "Every rank must run the same forwards and backwards"
                )
        modes = [Mode(given) for given in by_rank[:, len(_COLUMNS)].tolist()]
        if Mode.WRONG in modes:
            ranks = name_ranks([rank for rank, given in enumerate(modes) if given == Mode.WRONG])
            raise AnnouncementError(f"{name}: on {ranks} features= gave other ids than the module got")
        return modes
