"""The order of all table accesses: who may read or update which rows when. This file is the law, and enforces it.

The *program order* of a module's tables is that of the plain loop: a forward reads its rows when it is called, a
backward pass updates them when autograd reaches the forward's node. Two accesses *conflict* if they may touch a common
row and one of them is an update. The law: **conflicting accesses happen in program order.** Accesses that do not
conflict may run at the same time, in any thread.

R_n are the rows that all ranks use in step n, in all calls of the module that are known ahead. They are known before
the step runs, and so is which of them the steps before and after it use, too. The rows of an access are given by the
steps that they all lie *within*, and by the steps that they are *without*, because none of the rows lies in those
(`Rows` in `fscomm/exchange/operations.py`):

| access | place in program order | rows | runs in |
|---|---|---|---|
| exclusive rows of n are fetched | forward of n, or earlier (below) | within n, without n-1 | exclusive worker |
| collision rows of n are fetched | forward of n, or earlier (below) | within n and n-1 | collision worker |
| collision bags of n are fetched | forward of n, or earlier (below) | within n | collision worker |
| rows that n's forward reassigns are made new | forward of n | within n and `Reassigned` of n | the calling thread |
| these rows are fetched | forward of n | within n and `Reassigned` of n | a worker for these |
| collision gradients of n update | each backward pass through n | within n and n+1 | collision worker |
| exclusive gradients of n update | each backward pass through n | within n, without n+1 | exclusive worker |
| the module's own forward reads | that forward, in training or not | any | the calling thread |
| its update | each backward pass through it | within n if it read R_n, else any | plain worker |
| the user reads or writes the state | there | any | the calling thread |

From this follows all else:
- An access waits for the updates before it that it conflicts with, and for no others: `before`. So the engine need not
  know the user's loop: a late, a repeated or a missing backward pass only changes which updates are before an access.
- An update need not wait for reads. The module's own forward has read when it returns. Rows that were fetched ahead of
  their place in program order are right if no conflicting update comes between the fetch and that place. Otherwise they
  are *stale*: `Program` drops them, and that forward reads again.
- Every wait is for something that was submitted earlier, and all ranks submit in program order. So no wait goes in a
  circle. (The wire may hold work back for what was submitted later: for a while only, see `wire_gate.py`.)

A bag of a pooled table is fetched whole, with its collision rows: so that fetch reads other rows of n, too. Exclusive
bags have exclusive rows only, and updates go row by row, as they do without pooling.

The forward of some modules *reassigns* rows: gives them to another id (`fscomm/tables/forward_guard.py`). These rows
are within n, whether n looks them up or not, and what is fetched ahead is without `Reassigned` of n. So they wait for
all updates of the id before, and no other row does.

A schedule may compute a step in several forwards of a module (`fscomm/parts/row_classes.py`). Then the place of all
reads is the first of them, and that of the update the backward pass that is the last one. Rows for later forwards may
still be looked up meanwhile: so whoever looks at the tables by hand, maybe to write, waits for these look-ups, too.

A step whose neighbours were not announced to all ranks has one class only. The table holds for it, too: all of its
rows, or none of them, are then "within n" or "without n".
"""

from collections.abc import Callable

from fscomm.exchange.operations import ANY, Rows
from fscomm.exchange.worker import Pending

PendingUpdate = Pending[None]


class TableOrder:
    """The updates of the tables of one module on this rank.

    Methods are called in program order, by one thread at a time; `pending` may be called by any thread.
    """

    def __init__(self, is_done: Callable[[PendingUpdate], bool]) -> None:
        self._is_done = is_done
        self._updates: tuple[tuple[Rows, PendingUpdate], ...] = ()  # replaced, never changed: other threads may read it

    def before(self, rows: Rows) -> list[PendingUpdate]:
        """The updates that an access to `rows` has to wait for."""
        return [update for of_update, update in self._updates if of_update.may_meet(rows)]

    def updated(self, rows: Rows, update: PendingUpdate) -> None:
        """An update was submitted."""
        self._updates = (*(each for each in self._updates if not self._is_done(each[1])), (rows, update))

    def pending(self) -> list[PendingUpdate]:
        """All updates that may not be complete."""
        return self.before(ANY)
