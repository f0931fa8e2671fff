"""What is known of one training step, by the thread that it belongs to.

A `Step` belongs to the training thread. What threads hand to each other is frozen: the ids worker hands out
`ExchangedIds`, a backward pass hands `Gradients` to the workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fscomm.exchange.worker import Pending
from fscomm.loop.kjt_paths import Snapshot
from fscomm.plan.group_plan import WayBack
from fscomm.plan.ways import Lookup, Merge, PassOn
from fscomm.tables.shadow_kernels import Hyper


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAhead:
    """How the rows of one sharding group travel in a step whose ids were exchanged ahead.

    Attributes:
        request, served: this rank as requester and as owner, as the group's `GroupPlan` knows them.
        merge, exclusive, collision: how the rows of the step travel; exclusive_passed, collision_passed: what of them
            this rank passes on inside its host, if rows go in two levels.
        buffer: [E + C, D] strips received, exclusive ones first; written by the exclusive and the collision worker.
        occurrences, colliding: ids that this owner serves, and those of them on shared rows.
        rows: distinct rows that it serves, and how many of them are shared.
        id_bytes: sent to and received from other ranks to learn all this.
    """

    request: Any
    served: Any
    merge: Merge
    exclusive: Lookup
    collision: Lookup
    exclusive_passed: PassOn | None
    collision_passed: PassOn | None
    buffer: torch.Tensor
    occurrences: int
    colliding: int
    rows: tuple[int, int]
    id_bytes: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What all ranks said of one batch.

    Attributes:
        stop: why there is no batch that all can train on, though some have one.
        served: bits of the modules that every rank can serve.
        ended: no rank has one.
        draws: on some rank the loader draws the random numbers of the training step.
    """

    stop: str | None = None
    served: int = 0
    ended: bool = False
    draws: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExchangedIds:
    """What the ids worker knows of step `number` after the exchange; lists are by module [M] or by group [G].

    Attributes:
        groups: [G] how the rows of the step travel; None where the module is not served in it.
        back: [G] how the gradients of the step before it travel; None where its module is not served in that step.
        irregular: modules with an id that lies outside its table.
        parts: [M] the KJTs by group that the module's output needs.
    """

    number: int
    verdict: Verdict
    groups: Sequence[GroupAhead | None]
    back: Sequence[WayBack | None]
    irregular: frozenset[int] = frozenset()
    parts: Sequence[Any] = ()

    def ahead(self, group: int) -> GroupAhead:
        """Of a group that is served."""
        found = self.groups[group]
        assert found is not None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """What one backward pass brought for the forward of step `number`.

    Attributes:
        by_group: the gradients; an output that the loss did not use has none.
        hypers: by group and kernel, as taken at the forward.
        kept: by group of pooled tables, the gradients of collision bags that came. The collision worker keeps them for
            the exclusive worker, which begins after it.
    """

    number: int
    by_group: Mapping[int, torch.Tensor]
    hypers: Mapping[int, list[Hyper]]
    kept: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def groups(self) -> list[int]:
        """All groups whose gradients travel, in the same order on every rank."""
        return list(self.hypers)


@dataclass(slots=True, kw_only=True)
class ModuleInStep:
    """What the training thread knows of one module in one step.

    Attributes:
        features: what was announced, to recognise it, or None if the module cannot be served this time.
        missing: why nothing was announced, if there is a reason that the user should know.
        exclusive, collision: the rows of the class are here; None while nobody fetches them, or if they became stale.
        used: its forward ran, in either way.
        backwards: backward passes that reached rows fetched ahead.
    """

    features: Snapshot | None
    missing: str | None
    exclusive: Pending[None] | None = None
    collision: Pending[None] | None = None
    used: bool = False
    backwards: int = 0


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Step:
    """Step `number` as the training thread knows it. No worker gets it.

    A backward pass also uses it, in a thread of autograd, while the training thread waits for that pass.

    Attributes:
        follows: number of the step of the same loop before it; None for the first.
        modules: [M].
        arrived: the ids of this batch; done before the user gets the batch.
        planned: the ids of the batch after it; `back` in them is the way of this step's gradients.
        next: number of the step of the same loop after it, as soon as that is announced.
        open: its forward ran, and no backward pass has reached it yet.
        hypers: by group and kernel, for the groups whose rows a forward handed out, and whose gradients come back.
    """

    number: int
    follows: int | None
    modules: Sequence[ModuleInStep]
    arrived: Pending[ExchangedIds]
    planned: Pending[ExchangedIds] | None = None
    next: int | None = None
    open: bool = False
    hypers: dict[int, list[Hyper]] = field(default_factory=dict)

    @property
    def ids(self) -> ExchangedIds:
        """Those of this batch, once the user holds it."""
        return self.arrived.now()
