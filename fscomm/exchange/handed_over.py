"""What threads hand to each other: the ids worker `ExchangedIds`, a backward pass `Gradients`. All of it is frozen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fscomm.plan.ways import Back, ByClass, Fetch, Merge
from fscomm.tables.shadow_kernels import Hyper


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAhead:
    """How the rows of one sharding group travel in a step whose ids were exchanged ahead.

    Attributes:
        request, served: this rank as requester and as owner, as the group's `GroupPlan` knows them.
        merge, fetch: how the rows of the step travel.
        buffer: [E + C, D] strips received, exclusive ones first; written by the exclusive and the collision worker.
        occurrences, colliding: ids that this owner serves, and those of them on shared rows.
        rows: distinct rows that it serves, and how many of them are shared.
        id_bytes: sent to and received from other ranks to learn all this.
    """

    request: Any
    served: Any
    merge: Merge
    fetch: ByClass[Fetch]
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
    back: Sequence[ByClass[Back] | None]
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
        came: by group, those that came to this owner and are not applied yet, by class; the worker of the class writes
            and takes them.
        kept: by group of pooled tables, the gradients of collision bags that came. The collision worker keeps them for
            the exclusive worker, which begins after it.
    """

    number: int
    by_group: Mapping[int, torch.Tensor]
    hypers: Mapping[int, list[Hyper]]
    came: Mapping[str, dict[int, torch.Tensor]] = field(default_factory=lambda: {"collision": {}, "exclusive": {}})
    kept: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def groups(self) -> list[int]:
        """All groups whose gradients travel, in the same order on every rank."""
        return list(self.hypers)
