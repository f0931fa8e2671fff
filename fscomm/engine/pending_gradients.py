"""The gradients that a backward pass has brought and that are not sent yet, by forward."""

from collections.abc import Callable, Sequence

import torch

from fscomm.exchange.step import Step


class PendingGradients:
    """Gradients of one forward are sent together: when all of its groups have theirs, or when they must wait no longer.

    `module_of[g]` is the module of group g. Gradients of one module are sent in the order in which autograd reaches its
    forwards, which is the order in which the plain loop updates its tables.
    """

    def __init__(self, module_of: Sequence[int], send: Callable[[Step, dict[int, torch.Tensor]], None]) -> None:
        self._module_of = module_of
        self._send = send
        self._came: dict[Step, dict[int, torch.Tensor]] = {}

    def take(self, step: Step, group: int, gradient: torch.Tensor) -> None:
        """Autograd has reached a group of the forward of `step`."""
        self.send_before(self._module_of[group], but=step)
        if group in self._came.get(step, ()):
            self._send_one(step)
        came = self._came.setdefault(step, {})
        came[group] = gradient
        if len(came) == len(step.hypers):
            self._send_one(step)

    def send_before(self, m: int, *, but: Step | None = None) -> None:
        """Autograd has reached another forward of module m: send what it brought for the forwards before."""
        for step, came in list(self._came.items()):
            if step is not but and any(self._module_of[g] == m for g in came):
                self._send_one(step)

    def send_rest(self) -> None:
        """The pass is over: outputs that the loss did not use get no gradient."""
        for step in list(self._came):
            self._send_one(step)

    def _send_one(self, step: Step) -> None:
        self._send(step, self._came.pop(step))
