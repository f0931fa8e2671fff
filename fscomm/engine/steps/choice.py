"""Which step a forward belongs to, as far as this rank can see, and how it would run then.

The module says it by what it gets: the very tensors of a batch first, then tensors of equal contents. Where two batches
hold the same ids on this rank, both are named, and all ranks choose together (`fscomm/exchange/control_word.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fscomm.engine.modes import Call, Decision, compare, decide
from fscomm.engine.step import Step
from fscomm.engine.steps.in_loop import TOO_MANY, Steps
from fscomm.exchange.control_word import NO_STEP, Mode
from fscomm.loop.feature_finder import TRIES, FeatureFinder
from fscomm.tables.binding import ServedModules


class Choices:
    """stale: why the rows of a module's ids in a step, as they were known ahead, are not those of its forward."""

    def __init__(
        self,
        served: ServedModules,
        steps: Steps,
        finder: FeatureFinder,
        *,
        rank: int,
        stale: Callable[[int, Step], str | None],
    ) -> None:
        self._served = served
        self._steps = steps
        self._finder = finder
        self._rank = rank
        self._stale = stale
        self._looked_for = [0] * len(served.modules)

    def of(self, m: int, call: Call, features: Any, *, handed_out: bool) -> dict[int, Decision]:
        """By the number of each step that a forward of module m may belong to, the likeliest first; m: its first
        call. handed_out: whether the user has memory of its tables."""
        begun = self._steps.begun
        steps = [begun] if call.inside_backward and begun is not None else self._steps.candidates(m)
        calls = [self._call(m, step, call) for step in steps]
        same = [step for step, of in zip(steps, calls, strict=True) if step.modules[of].is_given(features)]
        if not same and call.trains:
            same = self._holding(m, steps, features)
        choices = {}
        for step, of in zip(steps, calls, strict=True):
            another, oldest = bool(same) and step not in same, step is steps[0]
            choices[step.number] = self._decide(
                of, step, call, features, another=another, corrects=oldest, handed_out=handed_out
            )
        none = self._decide(m, None, call, features, another=bool(steps), corrects=False, handed_out=handed_out)
        return {**choices, NO_STEP: none}

    def _call(self, m: int, step: Step, call: Call) -> int:
        """Which call of module m a forward is, if it belongs to `step`."""
        calls = self._served.calls[m]
        return calls[min(step.modules[m].calls + 1, len(calls)) - 1] if call.trains else m

    def _holding(self, m: int, steps: Sequence[Step], features: Any) -> list[Step]:
        """The first of several steps whose batch holds the features, while none was announced: it is not known where
        they are in a batch."""
        known = any(step.modules[m].features is not None for step in steps)
        if len(steps) < 2 or known or self._looked_for[m] == TRIES:
            return []
        self._looked_for[m] += 1
        return [step for step in steps if step.batch is not None and self._finder.holds(step.batch, features)][:1]

    def _decide(
        self,
        m: int,
        step: Step | None,
        call: Call,
        features: Any,
        *,
        another: bool,
        corrects: bool,
        handed_out: bool,
    ) -> Decision:
        """another: the forward belongs to another step. corrects: otherwise, where its features are is looked for
        again if they are not as announced."""
        served = step is not None and not step.unserved(self._served.groups[m])
        if not call.training:
            known = served and step is not None and step.modules[m].matches(features)
            return Decision(step=step, m=m, mode=Mode.PLAIN if known else Mode.FOREIGN)
        differs, corrected = ("they are those of another batch" if another else None), False
        if step is not None and not another:
            looked = step.modules[m].not_found
            differs, corrected = compare(
                m, step, call, features, self._finder, served=served, looked=looked, corrects=corrects
            )
        calls, full = len(self._served.calls[m]), self._steps.is_full
        stale = None
        if step is not None and served and differs is None and not step.modules[m].used:
            stale = self._stale(m, step)
        decision = decide(
            m,
            step,
            call,
            calls=calls,
            served=served,
            differs=None if differs is None else f"on rank {self._rank} {differs}",
            explicit=(step is not None and step.must_match and not corrected)
            or (m in self._finder.explicit and not full),
            handed_out=handed_out,
            stale=stale,
            too_many=TOO_MANY if full else None,
        )
        used = step is not None and step.modules[m].used
        if not served and (calls > 1 or differs is not None or used):
            # Another call is served, and its rows are not those of this; or another step fits as well.
            return replace(decision, mode=Mode.FOREIGN)
        return decision
