"""What is done with tables and wire: one kind of record for all of it, made in program order and handed to an executor.

| operation | what | class |
|---|---|---|
| fetch | owners look rows of a step up and send them to ranks that asked for them | collision, reassigned, exclusive |
| send back | requesters send gradients to the owners | collision, exclusive |
| update | owners apply gradients that came, or that TorchRec brought (plain) | collision, exclusive, plain |

An operation waits for those in `after`, and for nothing else: `fscomm/engine/table_order.py` is the law behind that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar

from fscomm.exchange.handed_over import ExchangedIds, Gradients
from fscomm.exchange.worker import Pending
from fscomm.tables.lookups import ApplyUpdate

EXCLUSIVE = -1
"""The number of what is exclusive, among pieces and among classes of rows."""
REASSIGNED = 1
"""That of rows that a forward reassigns, in steps that may have such rows."""


class Kind(Enum):
    FETCH = "fetch"
    SEND_BACK = "send back"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Class:
    """Which rows an operation is about, and so how urgent it is. Operations of one class run one after the other.

    Attributes:
        name: of its worker, in spans and in the report.
        urgent: a forward waits for it first.
    """

    name: str
    urgent: bool = False
    COLLISION: ClassVar["Class"]
    EXCLUSIVE: ClassVar["Class"]
    PLAIN: ClassVar["Class"]
    """Rows of a module that runs plainly."""


Class.COLLISION = Class("collision", urgent=True)
Class.EXCLUSIVE = Class("exclusive")
Class.PLAIN = Class("plain")


def class_of_reassigned(name: str) -> Class:
    """Of rows that a forward has just made new; name: `ForwardGuard.reassigns`. They wait for no collision rows."""
    return Class(name, urgent=True)


@dataclass(frozen=True, slots=True)
class FirstPart:
    """Of a step; all of it, if it has one part."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows that lie in all of the steps `within` and in none of the steps `without`: int for a step, `FirstPart` for
    what the first part of a step uses, or `Reassigned`. What a forward reassigns is in its step, too."""

    within: frozenset[object] = frozenset()
    without: frozenset[object] = frozenset()

    def may_meet(self, other: "Rows") -> bool:
        """Whether both may hold a common row."""
        return self.within.isdisjoint(other.without) and self.without.isdisjoint(other.within)


@dataclass(frozen=True, slots=True)
class Reassigned:
    """Rows whose id is another one from the forward of a step on."""

    step: int


ANY = Rows()


def whole(step: int) -> Rows:
    return Rows(within=frozenset({step}))


def exclusive(step: int, neighbour: int | None) -> Rows:
    """Rows of `step` that its neighbour (the step before for fetches, the step after for updates) does not use."""
    return Rows(within=frozenset({step}), without=frozenset() if neighbour is None else frozenset({neighbour}))


def collision(step: int, neighbour: int | None) -> Rows:
    """Rows of `step` that its neighbour uses, too."""
    return Rows(within=frozenset({step} if neighbour is None else {step, neighbour}))


def used_first(rows: Rows, step: int | None) -> Rows:
    """Those of them that the first part of `step` uses; step: None if there is none."""
    return rows if step is None else replace(rows, within=rows.within | {FirstPart(step)})


def used_later(rows: Rows, step: int | None) -> Rows:
    """Those of them that the first part of `step` does not use."""
    return rows if step is None else replace(rows, without=rows.without | {FirstPart(step)})


def reassigned(step: int) -> Rows:
    """Rows that the forward of `step` makes new."""
    return Rows(within=frozenset({step, Reassigned(step)}))


def not_reassigned(rows: Rows, step: int) -> Rows:
    """Those of them that the forward of `step` does not make new."""
    return replace(rows, without=rows.without | {Reassigned(step)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """One operation on this rank; all ranks make the same ones in the same order.

    Attributes:
        rows: by module, which rows of its tables are read or updated; nothing for gradients on the wire.
        groups: of these modules, those that take part.
        after: what it waits for.
        ids: whose plan says what travels: of a fetch, its own step; else the step after that of the gradients.
        gradients: sent back, or applied.
        piece: which piece of the plan travels; of an update, which class of rows.
        plainly: the update of one kernel of a module that runs plainly: the group, the kernel's number, and what to do.
    """

    kind: Kind
    of_class: Class
    rows: Mapping[int, Rows] = field(default_factory=dict)
    groups: Sequence[int] = ()
    after: Sequence[Pending[Any]] = ()
    ids: Pending[ExchangedIds] | None = None
    gradients: Gradients | None = None
    piece: int = EXCLUSIVE
    plainly: tuple[int, int, ApplyUpdate] | None = None

    def __str__(self) -> str:
        return f"{self.kind.value} {self.of_class.name}"
