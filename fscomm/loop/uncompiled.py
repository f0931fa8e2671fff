"""What `torch.compile` leaves alone: it breaks its graphs at the calls where a user's program comes into fscomm.

A look-up waits for other ranks and for workers, and which rows are fetched ahead is known when it runs: no graph can
hold that. Code behind such a call runs as it is written, whatever is compiled around it.
"""

import torch

not_compiled = torch.compiler.disable(
    reason="fscomm serves it, and waits in it for other ranks, which no graph can do. Compile without fullgraph=True, "
    "or only parts of the model that look nothing up"
)
"""Decorates a function. With `fullgraph=True` torch raises its own error at a call of it, and says this reason."""


def is_traced() -> bool:
    """Whether `torch.compile` traces in this thread. It asks for the memory of tensors then, but for nothing in it."""
    return torch._guards.TracingContext.try_get() is not None
