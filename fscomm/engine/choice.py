"""Which step a forward belongs to, as far as this rank can see, and how it would run then: with rows fetched ahead, or
plainly. All ranks then agree by their control words (`fscomm/exchange/control_word.py`).

The features of a forward identify its step: the tensors of a batch themselves, or tensors of equal contents.
Where two batches hold the same ids on this rank, both are named, and all ranks choose together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from fscomm.engine.step import Step
from fscomm.engine.steps_in_loop import TOO_MANY, Steps
from fscomm.exchange.control_word import NO_STEP, Mode
from fscomm.exchange.operations import EXCLUSIVE
from fscomm.loop.feature_finder import TRIES, FeatureFinder
from fscomm.tables.binding import ServedModules

IRREGULAR = "an id lies outside its table, or gets two rows in one batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How a forward would run, if it belongs to `step` (None: to none), and as which call of its module: m.

    why: it would run plainly, if the user should know it. lasting: no batch will ever be served in this place of the
    program: an error with `strict`. If not, `why` is about this step.
    """

    step: Step | None
    m: int
    mode: Mode
    why: str | None = None
    lasting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What autograd does in this thread while a forward is called."""

    training: bool
    inside_backward: bool
    tensors_hooked: bool

    @property
    def trains(self) -> bool:
        """Whether it begins a step, or continues one."""
        return self.training and not self.inside_backward


def this_call() -> Call:
    return Call(
        training=torch.is_grad_enabled(),
        inside_backward=in_backward(),
        tensors_hooked=torch._C._autograd._top_saved_tensors_default_hooks(False) is not None,
    )


def in_backward() -> bool:
    """Whether this thread is running a backward pass."""
    return torch._C._current_graph_task_id() != -1


def compare(
    m: int,
    step: Step,
    call: Call,
    features: Any,
    finder: FeatureFinder,
    *,
    served: bool,
    looked: bool,
    corrects: bool,
) -> tuple[str | None, bool]:
    """What of the features that module m gets is not as announced, in words; and whether `finder`, which then looks
    again if it `corrects` itself, finds them in such batches from now on.

    served: they were announced, on all ranks. looked: they were not found in the batch.
    """
    module, batch, what = step.modules[m], step.batch, None
    if served:
        what = "features" if module.features is None else module.features[0].difference(features)
    again = call.inside_backward or module.used  # a second call may get other features than the first one
    differs = what is not None or looked
    corrected = differs and corrects and batch is not None and not again and finder.correct(m, batch, features)
    if what is None:
        return None, corrected
    where = finder.where(m)
    found = f"those of {where}, but others were announced" if corrected else f"not those of {where}"
    return f"its {what} are {found}", corrected


def decide(
    m: int,
    step: Step | None,
    call: Call,
    *,
    calls: int,
    served: bool,
    differs: str | None,
    explicit: bool,
    handed_out: bool,
    stale: str | None = None,
    too_many: str | None = None,
) -> Decision:
    """For a forward of module m in training that belongs to `step`: the first of the rules that holds.

    calls: how often in a step the user said that a module is called.
    served: all ranks announced what module m gets in this step. differs: they did, and it gets something else: what.
    explicit: the user said where its features are. handed_out: the user has a numpy array of its tables, or the like.
    stale: why the rows of its ids, as they were known ahead, are not those of the forward; None: they are.
    too_many: why the batch may be one that waits no longer.
    """
    of_step = partial(Decision, step=step, m=m)
    if step is None:
        why = "no batch was announced for it: use comm.lookahead(loader)"
        return of_step(mode=Mode.FOREIGN, why=why, lasting=True)
    module = step.modules[m]
    plain = Mode.PLAIN if differs is None else Mode.FOREIGN
    again = "it is called again inside backward (activation checkpointing)"
    hooked = "hooks on saved tensors are active (activation checkpointing)"
    other = too_many or f"it got other features than the batch holds: {differs}"
    elsewhere = None if step.modules[m].warms_up else "another rank could not announce its features"
    outside = "its tables may be read or written through a numpy array, or other memory that torch does not watch"
    often = f"it is called more often for one batch than enable(calls={calls}) says"
    # From what ends the service of a module for good to what only makes this forward fetch more: the first reason is
    # the one that the user should act on.
    rules = (
        (call.inside_backward, of_step(mode=plain, why=again, lasting=True)),
        (module.used, of_step(mode=plain, why=often, lasting=True)),
        (call.tensors_hooked, of_step(mode=plain, why=hooked, lasting=True)),
        (module.missing is not None, of_step(mode=Mode.PLAIN, why=module.missing, lasting=True)),
        (handed_out, of_step(mode=Mode.PLAIN, why=outside)),
        (module.features is None, of_step(mode=Mode.PLAIN)),
        (not served, of_step(mode=Mode.PLAIN, why=elsewhere)),
        (differs is not None, of_step(mode=Mode.WRONG if explicit else Mode.FOREIGN, why=other)),
        (served and m in step.ids.irregular, of_step(mode=Mode.PLAIN, why=IRREGULAR)),
        (stale is not None, of_step(mode=Mode.STALE, why=stale)),
        (EXCLUSIVE not in module.fetched, of_step(mode=Mode.FETCH_ALL)),
        (0 not in module.fetched, of_step(mode=Mode.FETCH)),
    )
    return next((decision for holds, decision in rules if holds), of_step(mode=Mode.FAST))


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
