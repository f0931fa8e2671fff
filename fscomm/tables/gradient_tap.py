"""The autograd node between rows that fscomm looked up and the user's graph."""

from collections.abc import Callable
from typing import Any

import torch

from fscomm.device import not_compiled


def tap(rows: torch.Tensor, deliver: Callable[..., None], *saved: torch.Tensor) -> torch.Tensor:
    """`rows` as part of the graph; `deliver` gets their gradient and the tensors `saved`."""
    anchor = rows.new_zeros(0).requires_grad_()  # not shared: compiled autograd adds up what a leaf gets, even nothing
    result: torch.Tensor = GradientTap.apply(anchor, rows, deliver, *saved)
    return result


class GradientTap(torch.autograd.Function):
    """The node of `tap`.

    A graph that a loss still holds after its backward keeps nothing of the step, unless it is retained for another one.
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
    @not_compiled
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        deliver, saved = ctx.deliver, ctx.saved_tensors
        if deliver is None:
            raise RuntimeError("a second backward through a graph: call the first one with retain_graph=True")
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.deliver = None
        deliver(gradient, *saved)
        return (None,) * len(ctx.needs_input_grad)
