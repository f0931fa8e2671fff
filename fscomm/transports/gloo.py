"""Over TCP by gloo, for CPU tensors. Every instance has connections of its own."""

from collections.abc import Sequence

import numpy as np
import torch

from fscomm.transports.transport import Chunk, Done, Handle
from fsranks.control_group import ControlGroup, control_group
from fsranks.errors import MismatchError
from fsranks.rank_context import RankContext


class GlooTransport:
    """Collective to make. Sizes that disagree with those of another rank end the process.

    In a world of one rank it copies `inp` to `out`, also on a GPU.
    """

    name = "gloo"

    def __init__(self, context: RankContext, *, timeout_s: float) -> None:
        self.rank = context.rank
        self.world_size = context.world_size
        self._group = control_group(context, timeout_s=timeout_s)

    def all_to_all_v(
        self,
        out: torch.Tensor,
        inp: torch.Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        *,
        largest_bytes: int,
    ) -> Handle:
        chunk = Chunk(out, inp, list(out_splits), list(in_splits), largest_bytes)
        chunk.check(self.world_size)
        if isinstance(self._group, ControlGroup):
            return self._group.begin(chunk[:4])
        if len(out) != len(inp):
            raise MismatchError(f"the only rank sends {len(inp)} rows to itself, but expects {len(out)}")
        out.copy_(inp)
        return Done()

    def barrier(self) -> None:
        self._group.all_gather(np.zeros(1, np.int8))

    def abort(self, reason: str) -> None:
        self._group.abort(reason)

    def close(self, reason: str) -> None:
        self._group.close(reason)
