"""The state of one training step: all that the training thread knows of it. No worker gets it.

A backward pass also uses it, in a thread of autograd, while the training thread waits for that pass.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fscomm.exchange.handed_over import ExchangedIds, Gradients
from fscomm.exchange.operations import Rows
from fscomm.exchange.worker import Pending
from fscomm.loop.kjt_paths import Snapshot
from fscomm.tables.shadow_kernels import Hyper
from fscomm.tables.whole_call import WholeCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Rows of one class are here when `done` is. rows: which ones; an update of one of them makes them stale."""

    done: Pending[None]
    rows: Rows


@dataclass(slots=True, kw_only=True)
class ModuleInStep:
    """One module in one step; a later call of it is a module of its own.

    Attributes:
        features: [k] what was announced, to recognise it, or None if the module cannot be served this time.
        missing: why nothing was announced, if there is a reason that the user should know.
        not_found: its features were looked for in the batch, and not found.
        warms_up: another rank may have announced nothing only because its thread that pulls batches was further ahead
            of its first forward.
        given: the KeyedJaggedTensor of the first part that was announced.
        fetched: by piece; empty while they are not fetched, or if they became stale.
        called: its forward ran, maybe without gradients. calls: how often in training, over all calls of the module.
        used: its forward ran in training, in either way.
        backwards: backward passes that reached rows fetched ahead.
        part: of a step in parts, the last one whose forward was called; whole: what is left of its own forward of the
            whole step, if it runs plainly.
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
    part: int = -1
    whole: WholeCall | None = None

    def matches(self, features: Any) -> bool:
        """Whether these features were announced."""
        return self.features is not None and self.features[0].matches(features)

    def is_given(self, features: Any) -> bool:
        """Whether these are the very tensors that were announced. Waits for no device."""
        given = self.given
        return given is not None and (
            given is features or (given.values() is features.values() and given.lengths() is features.lengths())
        )


@dataclass(slots=True, kw_only=True)
class Returning:
    """The gradients of a forward that travel part by part; None when all do. received: parts that have theirs; sent: so
    many parts travel; under_way: what brings them."""

    gradients: Gradients | None
    received: set[int] = field(default_factory=set)
    sent: int = 0
    under_way: list[Pending[None]] = field(default_factory=list)


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
        batch: what the user got, until the step is over.
        fetching: its exclusive rows were asked for, or there was no time to.
        evaluated: it had a forward without gradients.
        parts: [k] what the user computes one after the other; empty in a block without parts.
        returning: by module, in steps with parts.
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
    parts: Sequence[Any] = ()
    returning: dict[int, Returning] = field(default_factory=dict)

    @property
    def num_parts(self) -> int:
        """k, at least 1."""
        return max(len(self.parts), 1)

    @property
    def ids(self) -> ExchangedIds:
        """Those of this batch, once the user holds it."""
        return self.arrived.now()

    def unserved(self, groups: Iterable[int]) -> bool:
        """Whether some rank announced nothing for these groups."""
        return any(self.ids.groups[g] is None for g in groups)

    def go_back_whole(self, *, in_any_case: bool = False) -> None:
        """Modules of a step in parts that ran plainly, as a whole, go back if all parts have come; or in any case."""
        for module in self.modules:
            if module.whole is not None and (in_any_case or module.whole.is_complete):
                whole, module.whole = module.whole, None
                whole.go_back()
