"""The autograd node between what was fetched ahead and the user's graph."""

from collections.abc import Callable
from typing import Any

import torch

from fscomm.step import GroupAhead


class MergeRows(torch.autograd.Function):
    """The rows of one group, [N, D], from what was received in both classes; `deliver` gets their gradient.

    `anchor` is a leaf that requires a gradient and never gets one: it makes this a node of the graph.
    """

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, ahead: GroupAhead, deliver: Callable[[torch.Tensor], None]
    ) -> torch.Tensor:
        ctx.deliver = deliver
        return ahead.buffer.index_select(0, ahead.merge.index)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.deliver(gradient)
        return None, None, None
