"""The gradients that a backward pass has brought and that are not sent yet, by forward."""

from collections.abc import Callable

import torch

from fscomm.exchange.served_modules import ServedModules
from fscomm.exchange.step import Step

Forward = tuple[Step, int]  # the step, and which calls in it: see `ServedModules.sent_with`


class PendingGradients:
    """Gradients of one forward are sent together: when all of its groups have theirs, or when they must wait no longer.

    Gradients of one module are sent in the order in which autograd reaches its forwards, which is the order in which
    the plain loop updates its tables. The first calls of all modules in a step are one forward, each later call is one.
    """

    def __init__(self, served: ServedModules, send: Callable[[Step, int, dict[int, torch.Tensor]], None]) -> None:
        self._served = served
        self._send = send
        self._came: dict[Forward, dict[int, torch.Tensor]] = {}

    def take(self, step: Step, group: int, gradient: torch.Tensor) -> None:
        """Autograd has reached a group of the forward of `step`."""
        forward = step, self._served.sent_with(group)
        self.send_before(self._served.module_of[group], but=forward)
        if group in self._came.get(forward, ()):
            self._send_one(forward)
        came = self._came.setdefault(forward, {})
        came[group] = gradient
        if len(came) == sum(self._served.sent_with(g) == forward[1] for g in step.hypers):
            self._send_one(forward)

    def send_before(self, m: int, *, but: Forward | None = None) -> None:
        """Autograd has reached another forward of module m: send what it brought for the forwards before."""
        calls = self._served.calls[m]
        for forward, came in list(self._came.items()):
            if forward != but and any(self._served.module_of[g] in calls for g in came):
                self._send_one(forward)

    def send_rest(self) -> None:
        """The pass is over: outputs that the loss did not use get no gradient."""
        for forward in list(self._came):
            self._send_one(forward)

    def _send_one(self, forward: Forward) -> None:
        self._send(*forward, self._came.pop(forward))
