"""What ranks tell each other on the host before an operation: that all are there, and how much each of them sends.

It must come before the operation. On a GPU, a kernel or a copy that waits for a rank which never comes blocks its
stream, and sizes that disagree end the process inside NCCL or overwrite the rows of other operations.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from fscomm.transports.transport import row_bytes
from fsranks.control_group import ControlGroup
from fsranks.errors import MismatchError
from fsranks.rank_context import RankContext

_OPERATIONS = ("all_to_all_v", "all_gather", "meet")
_SAME = ("operation", "dtype", "bytes per row")


class Handshake:
    """One exchange of a few numbers over gloo per operation; making it is collective.

    With `verify` every rank learns all splits and compares them (2 W numbers per rank). Without it only the largest
    size travels, and callers must derive splits from the same gathered lengths, as fscomm's engine does.
    """

    def __init__(self, context: RankContext, *, verify: bool, timeout_s: float) -> None:
        self.rank = context.rank
        self.world_size = context.world_size
        self.timeout_s = timeout_s
        self.group = ControlGroup(context, timeout_s=timeout_s)
        self._verify = verify

    @property
    def one_host(self) -> bool:
        """Whether all ranks are processes of this machine."""
        return self.group.one_host

    def agree(
        self, operation: str, like: torch.Tensor, out_splits: Sequence[int] = (), in_splits: Sequence[int] = ()
    ) -> int:
        """The bytes of the largest piece that any rank sends to any rank. Blocks for all ranks.

        Raises:
            MismatchError: on all ranks, if they are not at the same operation or, with `verify`, splits disagree.
            PeerError: a rank is dead, has left, or is later than the time limit.
        """
        size = row_bytes(like)
        word = [_OPERATIONS.index(operation), _digest(str(like.dtype)), size]
        largest = size * max([*out_splits, *in_splits], default=0)
        of_all = self.group.all_gather(np.array([*word, largest, *self._splits(out_splits, in_splits)], np.int64))
        for what, column in zip(_SAME, of_all.T, strict=False):
            if (column != column[0]).any():
                shown = [_OPERATIONS[c] for c in column] if what == "operation" else column.tolist()
                raise MismatchError(f"the ranks do not exchange the same: {what} by rank is {shown}")
        if self._verify:
            self._compare(of_all[:, len(word) + 1 :])
        return int(of_all[:, len(word)].max())

    def gone(self) -> list[int]:
        """The ranks of this machine whose process has ended."""
        return self.group.gone()

    def _splits(self, out_splits: Sequence[int], in_splits: Sequence[int]) -> list[int]:
        """As many numbers for every operation: so ranks that are at different operations can still exchange them."""
        if not self._verify:
            return []
        return [*out_splits, *in_splits] if out_splits else [0] * (2 * self.world_size)

    def _compare(self, splits: np.ndarray) -> None:
        expected, sent = splits[:, : self.world_size], splits[:, self.world_size :].T
        wrong = np.argwhere(expected != sent)
        if len(wrong):
            receiver, sender = wrong[0]
            raise MismatchError(
                f"rank {sender} sends {sent[receiver, sender]} rows to rank {receiver}, which expects "
                f"{expected[receiver, sender]} ({len(wrong)} pairs of ranks disagree): in_splits of one rank must be "
                "the out_splits of the other"
            )


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")
