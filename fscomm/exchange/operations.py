"""What is done with tables and wire: one kind of record for all of it, made in program order and handed to an executor.

| operation | what | class |
|---|---|---|
| fetch | owners look rows of a step up and send them to ranks that asked for them | collision, reassigned, exclusive |
| send back | requesters send gradients to the owners | collision, exclusive |
| update | owners apply gradients that came, or that TorchRec brought (plain) | collision, exclusive, plain |

An operation waits for those in `after`, and for nothing else: `fscomm/engine/table_order.py` is the law behind that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar

from fscomm.exchange.handed_over import ExchangedIds, Gradients
from fscomm.exchange.worker import Pending
from fscomm.tables.lookups import ApplyUpdate

EXCLUSIVE = -1
"""The number of what is exclusive, among classes of strips and of units."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows that lie in all of the sets `within` and in none of the sets `without`. A set is what a step uses (its
    number), or some of that, such as `Reassigned`. What a forward reassigns is in its step, too."""

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


def reassigned(step: int) -> Rows:
    """Rows that the forward of `step` makes new."""
    return Rows(within=frozenset({step, Reassigned(step)}))


def not_reassigned(rows: Rows, step: int) -> Rows:
    """Those of them that the forward of `step` does not make new."""
    return replace(rows, without=rows.without | {Reassigned(step)})


class Due(Enum):
    """When the operations of a class of rows may use the link."""

    NOW = "before the next control word: a forward waits for these rows first"
    NEXT = "once no control word is expected"
    BACKGROUND = "while nothing else needs the link"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowClass:
    """Rows of a step that are fetched together before it, or updated together after it.

    Attributes:
        number: in the plan: of strips before the step, of units after it.
        of_class: whose worker and transport it has.
        rows: of a step and its neighbour (the step before for fetches, the step after for updates).
        narrowed: those of such rows that are in this class; with the later one of the two steps.
        sends: the number of the strips whose gradients are sent just before the update.
    """

    number: int
    of_class: Class
    due: Due
    rows: Callable[[int, int | None], Rows]
    narrowed: Callable[[Rows, int | None], Rows] = lambda rows, _: rows
    sends: int = EXCLUSIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class RowClasses:
    """Of one step, the most urgent ones first: `ahead` of it, and on the way `back`."""

    ahead: tuple[RowClass, ...]
    back: tuple[RowClass, ...]


EXCLUSIVE_ROWS = RowClass(number=EXCLUSIVE, of_class=Class.EXCLUSIVE, due=Due.BACKGROUND, rows=exclusive)
SHARED_ROWS = RowClass(number=0, of_class=Class.COLLISION, due=Due.NOW, rows=collision, sends=0)
TWO_CLASSES = RowClasses(ahead=(SHARED_ROWS, EXCLUSIVE_ROWS), back=(SHARED_ROWS, EXCLUSIVE_ROWS))
"""Of a step that each module runs in one forward (Algorithm 2 of the paper)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """One operation on this rank; all ranks make the same ones in the same order.

    Attributes:
        rows: by module, which rows of its tables are read or updated; nothing for gradients on the wire.
        groups: of these modules, those that take part.
        after: what it waits for.
        ids: whose plan says what travels: of a fetch, its own step; else the step after that of the gradients.
        gradients: sent back, or applied.
        number: of the strips that travel, in the plan; of an update, of the units whose rows are updated.
        plainly: the update of one kernel of a module that runs plainly: the group, the kernel's number, and what to do.
    """

    kind: Kind
    of_class: Class
    rows: Mapping[int, Rows] = field(default_factory=dict)
    groups: Sequence[int] = ()
    after: Sequence[Pending[Any]] = ()
    ids: Pending[ExchangedIds] | None = None
    gradients: Gradients | None = None
    number: int = EXCLUSIVE
    plainly: tuple[int, int, ApplyUpdate] | None = None

    def __str__(self) -> str:
        return f"{self.kind.value} {self.of_class.name}"
