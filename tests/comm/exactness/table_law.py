"""Holds the engine to the law of `fscomm/engine/table_order.py`: conflicting accesses happen in program order.

`watch` writes down every real access to a fused kernel: which rows, from when to when by the vector clocks of
`clocks.Clocks`, and its place in program order: for an update when backward reached its forward, for a look-up when
the forward that uses it was called. `Watch.broken` compares all pairs. Nothing is taken from the engine's own notion
of what conflicts. Also noted: waits for a worker inside backward, other than in a forward or in a look at tables.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from clocks import Clocks, Moment
from torchrec.distributed.mc_embedding import ShardedManagedCollisionEmbeddingCollection

from fscomm import comm
from fscomm.engine import engine
from fscomm.engine.choice import in_backward
from fscomm.engine.program import Program
from fscomm.exchange.operations import EXCLUSIVE, REASSIGNED
from fscomm.exchange.rows import RowExchange
from fscomm.exchange.worker import Pending, Worker
from fscomm.tables import lookups, shadow_kernels

Row = tuple[int, int]  # table, id


@dataclass(slots=True, eq=False)
class Access:
    what: str
    rows: set[Row] | None  # None: all
    begin: Moment
    end: Moment
    place: int | None  # in program order; None: nobody has used it
    update: bool
    work: Any = None  # that did it

    def conflicts(self, other: "Access") -> bool:
        if not (self.update or other.update):
            return False
        return self.rows is None or other.rows is None or not self.rows.isdisjoint(other.rows)


@dataclass(slots=True)
class Counts:
    """Forwards of each module that were served, and that ran plainly with gradients; evicted rows."""

    served: Counter[str] = field(default_factory=Counter)
    plain: Counter[str] = field(default_factory=Counter)
    evicted: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.served + other.served, self.plain + other.plain, self.evicted + other.evicted)


@dataclass(slots=True)
class Watch:
    device: Clocks
    accesses: dict[int, list[Access]] = field(default_factory=dict)  # by kernel
    fetched: dict[tuple[int, int, Any, int], Access] = field(default_factory=dict)  # by group: last look-up ahead
    places: dict[Any, int] = field(default_factory=dict)  # of the updates, by their work
    count: int = 0
    counts: Counts = field(default_factory=Counts)
    waits: list[str] = field(default_factory=list)

    def place(self) -> int:
        self.count += 1
        return self.count

    def note(
        self, kernel: Any, what: str, rows: set[Row] | None, begin: Moment, place: int | None, **more: Any
    ) -> Access:
        access = Access(what, rows, begin, self.device.now(), place, **more)
        self.accesses.setdefault(id(kernel), []).append(access)
        return access

    def broken(self) -> list[str]:
        """Pairs that conflict and are not ordered as the plain loop orders them; waits that may not be."""
        found = list(self.waits)
        for accesses in self.accesses.values():
            placed = [access for access in accesses if self._settle(access)]
            placed.sort(key=lambda access: access.place or 0)
            for i, first in enumerate(placed):
                for second in placed[i + 1 :]:
                    if first.conflicts(second) and not first.end.is_before(second.begin):
                        found.append(f"{first.what} at {first.place} is not before {second.what} at {second.place}")
        return found

    def _settle(self, access: Access) -> bool:
        if access.place is None and access.work is not None:
            access.place = self.places.get(access.work)
        return access.place is not None


def watch(patch: pytest.MonkeyPatch, device: Clocks, delay: Callable[[], None] = lambda: None) -> Watch:
    """Let everything that touches a fused kernel say so, until `patch` is undone. Workers call `delay` before work."""
    seen = Watch(device)
    if find_spec("fscomm.verify") is not None:  # its trial steps have no place in the program's order
        patch.setattr("fscomm.verify.trial.problems", lambda *_, **options: {})
    own = threading.local()
    lookup, update = shadow_kernels.Shadow.lookup, shadow_kernels.Shadow.update
    fetch, run, class_forward = RowExchange.fetch, Worker._run, lookups.class_forward
    updated, flush = Program._note_updated, engine.Engine.flush
    run_served, run_plainly = engine.Engine._run_served, engine.Engine.run_plainly
    result = Pending.result
    evict = ShardedManagedCollisionEmbeddingCollection._evict

    def looked_up(self: Any, ids: torch.Tensor, offsets: torch.Tensor, *weights: Any) -> torch.Tensor:
        begin = device.now()
        found = lookup(self, ids, offsets, *weights)
        of_step, piece, groups = own.fetching
        rows = _rows(self._kernel, ids, offsets)
        what = f"rows of step {of_step.number}, piece {piece}"
        access = seen.note(self._kernel, what, rows, begin, None, update=False)
        seen.fetched[groups[id(self)], id(self._kernel), of_step, piece] = access
        return found

    def was_updated(self: Any, hyper: Any, gradient: torch.Tensor, *args: Any, **options: Any) -> None:
        begin = device.now()
        update(self, hyper, gradient, *args, **options)
        ids, offsets = args[:2] if args else (options["indices"], options["offsets"])
        seen.note(self._kernel, "update", _rows(self._kernel, ids, offsets), begin, None, update=True, work=own.work)

    def fetched(self: Any, of_step: Any, groups: Any, piece: int) -> None:
        own.fetching = of_step, piece, {id(shadow): g for g in groups for shadow in self._tables[g].shadows}
        fetch(self, of_step, groups, piece)

    def ran(self: Any, future: Any, *rest: Any) -> Any:
        own.work = future
        delay()
        return run(self, future, *rest)

    def submitted(self: Any, rows: Any, future: Any) -> None:
        seen.places[future] = seen.place()
        updated(self, rows, future)

    def forward_of(kernel: Any) -> Any:
        def forward(*args: Any, **options: Any) -> Any:
            begin = device.now()
            found = class_forward(kernel)(*args, **options)
            if args:
                return found  # a look-up without a kernel
            rows = _rows(kernel, options["indices"], options["offsets"])
            seen.note(kernel, "plain look-up", rows, begin, seen.place(), update=False)
            return found

        return forward

    def flushed(self: Any, modules: Iterable[int] | None = None) -> None:
        served = self.served
        chosen = list(range(len(served.modules)) if modules is None else modules)
        flush(self, chosen)
        for m in chosen:
            for g in served.groups[m]:
                for kernel in served.kernels[g]:
                    seen.note(kernel, "state", None, device.now(), seen.place(), update=False)

    def ran_served(self: Any, m: int, step: Any, *rest: Any) -> Any:
        found = run_served(self, m, step, *rest)
        seen.counts.served[self.modules[m].name] += 1
        place = seen.place()
        for g in self.served.groups[m]:
            for kernel in self.served.kernels[g]:
                for piece in (EXCLUSIVE, 0) if self.modules[m].guard.reassigns is None else (EXCLUSIVE, 0, REASSIGNED):
                    if (access := seen.fetched.get((g, id(kernel), step.ids, piece))) is not None:
                        access.place = place
        return found

    def may_wait(function: Any) -> Any:
        def called(*args: Any) -> Any:
            own.depth = getattr(own, "depth", 0) + 1
            try:
                return function(*args)
            finally:
                own.depth -= 1

        return called

    def waited(self: Any, timeout: float | None = None) -> Any:
        if in_backward() and not getattr(own, "depth", 0):
            seen.waits.append("waited for a worker inside backward")
        return result(self, timeout)

    def plainly(self: Any, m: int, *args: Any, **options: Any) -> Any:
        seen.counts.plain[self.modules[m].name] += torch.is_grad_enabled()
        return run_plainly(self, m, *args, **options)

    def evicts(self: Any, evictions: dict[str, torch.Tensor | None]) -> None:
        begin, place = device.now(), seen.place()
        evict(self, evictions)
        for table, rows in evictions.items():
            if rows is not None:
                kernel, number = self._table_to_tbe_and_index[table]
                found = {(int(number), row) for row in rows.tolist()}
                seen.note(kernel, "eviction", found, begin, place, update=True)
                seen.counts.evicted += len(found)

    patch.setattr(comm, "device_of", lambda where: device)
    for owner, name, function in (
        (shadow_kernels.Shadow, "lookup", looked_up),
        (shadow_kernels.Shadow, "update", was_updated),
        (RowExchange, "fetch", fetched),
        (Worker, "_run", ran),
        (Program, "_note_updated", submitted),
        (lookups, "class_forward", forward_of),
        (engine.Engine, "flush", flushed),
        (engine.Engine, "_run_served", ran_served),
        (engine.Engine, "run_plainly", plainly),
        (engine.Engine, "forward", may_wait(engine.Engine.forward)),
        (engine.Engine, "_before_look", may_wait(engine.Engine._before_look)),
        (engine.Engine, "pass_is_over", may_wait(engine.Engine.pass_is_over)),  # while memory is handed out
        (Pending, "result", waited),
        (ShardedManagedCollisionEmbeddingCollection, "_evict", evicts),
    ):
        patch.setattr(owner, name, function)
    return seen


def _rows(kernel: Any, ids: torch.Tensor, offsets: torch.Tensor) -> set[Row]:
    """The rows that a call of `kernel` touches; `offsets` are of every feature and sample."""
    table_of = kernel.feature_table_map
    samples = (len(offsets) - 1) // len(table_of)
    found: set[Row] = set()
    for f, table in enumerate(table_of):
        start, end = int(offsets[f * samples]), int(offsets[(f + 1) * samples])
        found.update((table, row) for row in ids[start:end].tolist())
    return found
