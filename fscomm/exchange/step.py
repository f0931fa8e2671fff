"""The state of one training step while it passes through the engine."""

from dataclasses import dataclass, field
from typing import Any

import torch

from fscomm.exchange.worker import Pending
from fscomm.loop.kjt_paths import Snapshot
from fscomm.plan.routes import Apply, Lookup, Merge, Request, SendGradients, Served
from fscomm.torchrec.shadow_kernels import Hyper


@dataclass(slots=True, kw_only=True)
class GroupAhead:
    """One sharding group of a step whose ids were exchanged ahead.

    Attributes:
        request, served: this rank as requester and as owner.
        merge, exclusive, collision: how the rows of the step travel.
        buffer: [E + C, D] rows received, exclusive ones first.
        colliding: occurrences in the collision class that this owner serves.
    """

    request: Request
    served: Served
    merge: Merge
    exclusive: Lookup
    collision: Lookup
    buffer: torch.Tensor
    colliding: int


@dataclass(slots=True, kw_only=True)
class GroupBack:
    """How the gradients of one group travel, known once the next step's ids are."""

    collision_send: SendGradients
    collision_apply: Apply
    exclusive_send: SendGradients
    exclusive_apply: Apply


@dataclass(slots=True, kw_only=True)
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


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """Step `number`; lists are by module [M] or by group [G].

    Attributes:
        follows: number of the step of the same loop before it; None for the first.
        features: [M] what was announced, to recognise it, or None where a module cannot be served this time.
        parts: [M] the KJTs by group that the module's output needs.
        groups: [G] set by the ids worker; None where the module is not served in this step.
        arrived: the verdict of all ranks on this batch; done when `groups` are set.
        planned: the verdict on the batch after it; done when `back` is set.
        back: [G] how gradients travel.
        next: number of the step of the same loop after it, as soon as that is announced.
        exclusive, collision: [M] the rows of the class are here; None while nobody fetches them, or they became stale.
        plain: [M] why the module has to run plainly in this step, as far as that is known before.
        used: [M] its forward ran, in either way.
        backwards: [M] backward passes that reached rows fetched ahead.
        open: its forward ran, and no backward pass has reached it yet.
        hypers: by group and kernel, taken at the forward.
        nodes: groups whose rows were handed out, and whose gradients come back.
    """

    number: int
    follows: int | None
    features: list[Snapshot | None]
    parts: list[Any]
    groups: list[GroupAhead | None]
    plain: list[str | None]
    exclusive: list[Pending[None] | None]
    collision: list[Pending[None] | None]
    used: list[bool]
    backwards: list[int]
    arrived: Pending[Verdict] | None = None
    planned: Pending[Verdict] | None = None
    back: list[GroupBack | None] = field(default_factory=list)
    next: int | None = None
    open: bool = False
    hypers: dict[int, list[Hyper]] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)

    def fetched(self, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a forward reads of a group: the rows received, and which of them goes where."""
        ahead = self.groups[group]
        assert ahead is not None
        return ahead.buffer, ahead.merge.index
