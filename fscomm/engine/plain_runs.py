"""Why modules run plainly, in the words of the report, and what becomes of it: one line in the log, or an error."""

import logging
from collections.abc import Sequence
from typing import Any

from fscomm.engine.choice import Decision
from fscomm.engine.step import Step
from fscomm.errors import INSTEAD, NotServedError
from fscomm.loop.lookahead import ASKED_FOR
from fscomm.loop.random_numbers import IN_TURN
from fscomm.report.recorder import Recorder, user_line
from fscomm.tables.binding import Binding

log = logging.getLogger("fscomm")
TWO_THREADS = (
    "two look-aheads of one block are asked for batches in two threads, so their order would be another one on every "
    "rank. Ask both in one thread, or loop over the loader itself in one of them"
)
EVALUATES = "its batch was fetched where gradients are off (torch.no_grad), as an evaluation does"
NOT_LOOKED_FOR = None, IN_TURN, ASKED_FOR, EVALUATES
"""Reasons why features were not looked for in a batch; others say why they were not found."""


class PlainRuns:
    """Of the modules of one block."""

    def __init__(self, modules: Sequence[Binding], recorder: Recorder, *, strict: bool) -> None:
        self._modules = modules
        self._recorder = recorder
        self._strict = strict
        self._noted: set[int] = set()

    def note(self, m: int, why: str, *, here: bool = True) -> None:
        """Module m runs plainly, at least once; stated in the log the first time. here: at the user's line that called
        it."""
        name = self._modules[m].name
        if m in self._noted:
            return
        self._noted.add(m)
        line = user_line() if here else None
        why = why if line is None else f"{why} (called at {line})"
        log.warning("fscomm: %s is not served: %s", name, why)
        self._recorder.fallback(name, why)

    def note_step(self, m: int, step: Step, why: str, *, here: bool = False) -> None:
        self.note(m, f"step {step.number}: {why}", here=here)

    def refuse(self, m: int, why: str) -> None:
        """Module m cannot be served. Raises NotServedError if `strict`."""
        self.note(m, why)
        if self._strict:
            raise NotServedError(f"{self._modules[m].name}: {why}")

    def report(self, decision: Decision) -> None:
        """Why a forward runs plainly."""
        assert decision.why is not None
        if decision.lasting:
            self.refuse(decision.m, decision.why)
        elif decision.step is not None:
            self.note_step(decision.m, decision.step, decision.why, here=True)

    def note_replaced(self, engine: Any) -> None:
        """Report the modules whose forward was replaced by other code than that of `engine`. Their kernels keep the
        order all the same."""
        for m, module in enumerate(self._modules):
            forward = vars(module.module).get("forward")
            if getattr(forward, "engine", None) is not engine:  # of its `ServedForward`
                who = type(forward).__name__
                self.refuse(m, f"its forward was replaced in the block, by {who}. {INSTEAD}")
