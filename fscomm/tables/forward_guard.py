"""What the engine and the ids worker ask of a module whose own forward may *reassign* rows: give a row to another id.

Rows of a batch are fetched before its forward, so such a forward needs care: which row an id has is known ahead of it
by a copy of what decides that, and reassigned rows must have all updates of their old id before they are made new.
The extension that knows such modules derives its guard from this class. As it is, the class is the guard of all other
modules: their ids are rows, and nothing is asked for.

One forward that is served, in order: `announce` (training thread), `begin` and `assign` (ids worker), `decide` and
`before_rows` (training thread). What the ids worker did with a batch is in its *record*, which only the guard reads.

N ids and T tables of a sharding group.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np

from fscomm.report.report import Managed


class ForwardGuard:
    """Of one module.

    Attributes:
        reassigns: how rows that a forward reassigns are called; they are a class of operations of this name, with a
            worker and a transport of its own. None: no forward reassigns any.
    """

    reassigns: ClassVar[str | None] = None

    # For the training thread.

    def why_not_ahead(self, *, prefetched: bool) -> str | None:
        """Why nothing can be fetched ahead for a batch that is announced now, or None.

        prefetched: the user asked for it before the batch before it was trained on.
        """
        return None

    def announce(self, step: int) -> Any:
        """The batch of `step` is announced. The state that the ids worker has to begin with; None: it has the right
        one, that after the batch before."""
        return None

    def decide(self, step: int, record: Any) -> str | None:
        """Why what `assign` did with the batch of `step` does not fit its forward any more, or None."""
        return None

    def reassigns_rows(self, record: Any) -> bool:
        """Whether the forward of this batch reassigns rows of this rank."""
        return False

    def before_rows(self, record: Any) -> None:
        """A forward runs with what was fetched ahead: the module, and the rows that are reassigned, become what its own
        forward would make of them. These rows have all updates of their old ids."""

    def around_own_forward(self, *, as_announced: bool) -> AbstractContextManager[None]:
        """Around the module's own forward. as_announced: it is of the batch that was announced."""
        return nullcontext()

    def leave_batch(self) -> None:
        """The user asks for the next batch: the one that was handed out has had all of its forwards."""

    def leave_loop(self) -> None:
        """The user asks for a batch of another loop: what was announced is forgotten."""

    # For the ids worker.

    def begin(self, before: Any, state: Any) -> Any:
        """The record of a new batch.

        before: that of the batch before it; None: there is none. state: what `announce` returned; if there is one, the
        worker goes back to it and does the batch before once more.
        """
        return None

    def assign(self, record: Any, group: int, ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """int64[N] the row of this rank that each id has from this batch on. Fills `record`.

        group: among those of the module. ids: int64[N] by feature, and inside a feature by rank; counts: int64[F].
        """
        raise NotImplementedError

    def reassigned(self, record: Any, group: int) -> list[np.ndarray]:
        """[T] int64 the rows of this rank that the forward reassigns, whether the batch looks them up or not."""
        raise NotImplementedError

    def first_rows(self, group: int) -> np.ndarray:
        """int64[T] the first row of each table that this rank owns."""
        raise NotImplementedError

    def counts(self, record: Any) -> Mapping[str, Managed]:
        """By table, what the report adds up."""
        return {}
