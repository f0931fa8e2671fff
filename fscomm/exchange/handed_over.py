"""What threads hand to each other: the ids worker `ExchangedIds`, a backward pass `Gradients`.

The former is frozen. To the latter parts of a step are added, each before the operation that sends it is submitted.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fscomm.device import Mark
from fscomm.exchange.worker import Pending
from fscomm.plan.group_plan import Back, Fetch, Merge
from fscomm.report.report import Collisions
from fscomm.tables.shadow_kernels import Hyper


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAhead:
    """How the rows of one sharding group travel in a step whose ids were exchanged ahead.

    Attributes:
        request, served: this rank as requester and as owner, as the group's `GroupPlan` knows them.
        merge, fetch: how the rows of the step travel.
        buffer: [n, D] strips received, class after class; written by the workers of all classes.
        collisions: of the rows that this owner serves.
        id_bytes: sent to and received from other ranks to learn all this.
    """

    request: Any
    served: Any
    merge: Merge
    fetch: Sequence[Fetch]
    buffer: torch.Tensor
    collisions: Collisions
    id_bytes: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What all ranks said of one batch.

    Attributes:
        stop: why there is no batch that all can train on, though some have one.
        served: bits of the modules that every rank can serve.
        ended: no rank has one.
        depends: on some rank the loader depends on the training step.
        us_per_mb: of the slowest rank's link; 0: not known.
        measured: by the schedule of the steps, the largest of all ranks.
    """

    stop: str | None = None
    served: int = 0
    ended: bool = False
    depends: bool = False
    us_per_mb: int = 0
    measured: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExchangedIds:
    """What the ids worker knows of step `number` after the exchange; lists are by module [M] or by group [G].

    Attributes:
        groups: [G] how the rows of the step travel; None where the module is not served in it.
        back: [G] how the gradients of the step before it travel; None where its module is not served in that step.
        irregular: modules with an id that lies outside its table.
        given: [M][k] what the module's output of each of its forwards in the step needs.
        records: [M] what its guard did with the ids of a module; None where forwards reassign no rows.
        mapped: [G] int64[N] the row of each local output, as its owner gave it; None where no forward returns it.
    """

    number: int
    verdict: Verdict
    groups: Sequence[GroupAhead | None]
    back: Sequence[Back | None]
    irregular: frozenset[int] = frozenset()
    given: Sequence[Any] = ()
    records: Sequence[Any] = ()
    mapped: Sequence[np.ndarray | None] = ()

    def ahead(self, group: int) -> GroupAhead:
        """Of a group that is served."""
        found = self.groups[group]
        assert found is not None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """What backward passes brought for a forward of step `number`.

    Attributes:
        by_forward: [k] the gradients of each forward of the step by group; an output that the loss did not use has
            none.
        hypers: by group and kernel, as taken at the forward.
        sent: what brings those that travel before the others.
    """

    number: int
    by_forward: Sequence[dict[int, torch.Tensor]]
    hypers: Mapping[int, list[Hyper]]
    sent: list[Pending[None]] = field(default_factory=list)
    _received: dict[int, tuple[torch.Tensor, Mark]] = field(default_factory=dict)
    _making: threading.Lock = field(default_factory=threading.Lock)

    @property
    def groups(self) -> list[int]:
        """All groups whose gradients travel, in the same order on every rank."""
        return list(self.hypers)

    def used(self, group: int) -> bool:
        """Whether any part has a gradient of the group: without one its tables stay as they are."""
        return any(group in of_part for of_part in self.by_forward)

    def strips(self, group: int, back: Back, number: int, dim: int) -> torch.Tensor | None:
        """[n, dim] the gradient of the part that a class of strips is of, or of all parts; None if there is none."""
        parts = range(back.parts) if number < 0 else [number % back.parts]
        given = {part: self.by_forward[part] for part in parts}
        found = {part: of_part[group].reshape(-1, dim) for part, of_part in given.items() if group in of_part}
        if len(parts) == 1 or not found:
            return next(iter(found.values()), None)
        some, lengths = next(iter(found.values())), np.diff(back.ends, prepend=0).tolist()
        return torch.cat([found[part] if part in found else some.new_zeros(lengths[part], dim) for part in parts])

    def received(self, group: int, make: Callable[[], tuple[torch.Tensor, Mark]]) -> tuple[torch.Tensor, Mark]:
        """The strips that this owner receives, class after class; made when the first of them travel, and the mark of
        that. From any worker, which writes what its own operations receive, behind the mark."""
        with self._making:
            if group not in self._received:
                self._received[group] = make()
            return self._received[group]
