"""The state of one training step: all that the training thread knows of it. No worker gets it.

A backward pass also uses it, in a thread of autograd, while the training thread waits for that pass.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fscomm.exchange.handed_over import ExchangedIds
from fscomm.exchange.operations import TWO_CLASSES, RowClasses, Rows
from fscomm.exchange.worker import Pending
from fscomm.loop.kjt_paths import Snapshot
from fscomm.tables.shadow_kernels import Hyper


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Rows of one class are here when `done` is. rows: which ones; an update of one of them makes them stale."""

    done: Pending[None]
    rows: Rows


@dataclass(slots=True, kw_only=True)
class ModuleInStep:
    """One module in one step; a later call of it is a module of its own.

    Attributes:
        features: [k] what was announced for each of its forwards, to recognise it, or None if the module cannot be
            served this time.
        missing: why nothing was announced, if there is a reason that the user should know.
        not_found: its features were looked for in the batch, and not found.
        warms_up: another rank may have announced nothing only because its thread that pulls batches was further ahead
            of its first forward.
        given: the KeyedJaggedTensor that was announced for the first one.
        fetched: by class; empty while they are not fetched, or if they became stale.
        called: its forward ran, maybe without gradients. calls: how often in training, over all calls of the module.
        used: its forward ran in training, in either way.
        backwards: backward passes that reached rows fetched ahead.
    """

    features: Sequence[Snapshot] | None
    missing: str | None
    not_found: bool = False
    warms_up: bool = False
    given: Any = None
    fetched: dict[int, Fetched] = field(default_factory=dict)
    called: bool = False
    calls: int = 0
    used: bool = False
    backwards: int = 0

    def matches(self, features: Any) -> bool:
        """Whether these features were announced."""
        return self.features is not None and self.features[0].matches(features)

    def is_given(self, features: Any) -> bool:
        """Whether these are the very tensors that were announced. Waits for no device."""
        given = self.given
        return given is not None and (
            given is features or (given.values() is features.values() and given.lengths() is features.lengths())
        )


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Step:
    """Step `number`.

    Attributes:
        follows: number of the step of the same loop before it; None for the first.
        modules: [M].
        arrived: the ids of this batch; done before the user gets the batch.
        planned: the ids of the batch after it; `back` in them is the way of this step's gradients.
        next: number of the step of the same loop after it, as soon as that is announced.
        open: its forward ran, and no backward pass has reached it yet.
        fetches_reassigned: a forward that runs is about to fetch rows that it reassigns.
        hypers: by group and kernel, for the groups whose rows a forward handed out, and whose gradients come back.
        batch: what its first forward computes, until the step is over.
        fetching: its exclusive rows were asked for, or there was no time to.
        evaluated: it had a forward without gradients.
        classes: of its rows.
        must_match: a forward that gets something else than was announced is an error.
        progress: what only the schedule knows.
    """

    number: int
    follows: int | None
    modules: Sequence[ModuleInStep]
    arrived: Pending[ExchangedIds]
    planned: Pending[ExchangedIds] | None = None
    next: int | None = None
    open: bool = False
    fetches_reassigned: bool = False
    batch: Any = None
    fetching: bool = False
    evaluated: bool = False
    hypers: dict[int, list[Hyper]] = field(default_factory=dict)
    classes: RowClasses = TWO_CLASSES
    must_match: bool = False
    progress: Any = None

    @property
    def ids(self) -> ExchangedIds:
        """Those of this batch, once the user holds it."""
        return self.arrived.now()

    def unserved(self, groups: Iterable[int]) -> bool:
        """Whether some rank announced nothing for these groups."""
        return any(self.ids.groups[g] is None for g in groups)

    def hypers_of(self, groups: Iterable[int]) -> dict[int, list[Hyper]]:
        """A copy: another module's forward may come before a worker gets to it."""
        return {g: self.hypers[g] for g in groups if g in self.hypers}
