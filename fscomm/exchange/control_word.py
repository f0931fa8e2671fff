"""The control word of a forward: ranks never guess whether the others use what was fetched ahead."""

import numpy as np

from fscomm.errors import AnnouncementError
from fscomm.report.recorder import Recorder
from fscomm.transports.gloo import Channel
from fsranks.errors import MismatchError, name_ranks

FAST, FETCH, FETCH_ALL, PLAIN, FOREIGN, WRONG = range(6)
"""With the rows fetched ahead; the same, but the collision rows, or all rows, have to be fetched now; plainly; plainly,
with features that were not announced; with features that the user announced otherwise, which is an error. The last of
these that any rank wants is how all run."""
_SAID = ("step", "module", "backward passes")


class Agreement:
    """One all-gather of a few numbers per forward of a module, in the training thread."""

    def __init__(self, channel: Channel, recorder: Recorder) -> None:
        self._channel = channel
        self._recorder = recorder

    def modes(self, name: str, m: int, *, step: int, passes: int, mode: int) -> np.ndarray:
        """int64[W] the modes in which the ranks want to run module m while they hold `step` (-1: none). Blocks for all.

        What it waits is a straggler's: the word itself takes well under a millisecond.

        Raises:
            MismatchError: on all ranks, if they are at different steps, modules or numbers of backward passes.
            AnnouncementError: on all ranks, if one of them got features that it had not announced.
        """
        word = np.array([step, m, passes, mode])
        start = self._recorder.clock()
        with self._recorder.wait("agreement", step=step):
            words = self._channel.all_gather(word)
        self._recorder.straggler(step, 1e3 * (self._recorder.clock() - start))
        for what, column in zip(_SAID, words.T, strict=False):
            if (column != column[0]).any():
                raise MismatchError(
                    f"the ranks do not do the same: {what} by rank is {column.tolist()} at the forward of {name}. "
                    "Every rank must run the same forwards and backwards"
                )
        modes = words[:, len(_SAID)]
        if (modes == WRONG).any():
            ranks = name_ranks(np.nonzero(modes == WRONG)[0].tolist())
            raise AnnouncementError(f"{name}: on {ranks} features= gave other ids than the module got")
        return modes
