"""The autograd node between rows that fscomm looked up and the user's graph."""

from collections.abc import Callable
from typing import Any

import torch


class GradientTap(torch.autograd.Function):
    """`rows` as part of the graph; `deliver` gets their gradient and the tensors `saved`.

    `anchor` is a leaf that requires a gradient and never gets one: it makes this a node of the graph. `saved` passes
    through hooks on saved tensors: under activation checkpointing the forward runs again to give it.
    """

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, rows: torch.Tensor, deliver: Callable[..., None], *saved: torch.Tensor
    ) -> torch.Tensor:
        ctx.deliver = deliver
        ctx.save_for_backward(*saved)
        return rows.data  # not a view of `rows`: the user may write into what a forward gives

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.deliver(gradient, *ctx.saved_tensors)
        return (None,) * len(ctx.needs_input_grad)
