"""What streams of a device hand to each other is ordered, kept until it was used, and declared (`stream_order.py`).

Schedules are programs of `schedules.py`: a seed draws the loop, the transport, which worker goes on when, and what the
device says it has done.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from sanitizer import Sanitizer
from schedules import Schedule

from fscomm.engine.engine import Engine
from fscomm.engine.step import Fetched
from fscomm.exchange import rows, stream_order
from fscomm.exchange.executor import Executor
from fscomm.exchange.handed_over import Gradients
from fscomm.exchange.worker import Pending, Worker
from fscomm.loop.moving import Moving
from fscomm.transports.staged import HostStaged, Transfer

QUICK = 60


def played(seeds: range) -> tuple[list[str], set[tuple[str, str, str]]]:
    """What was used or freed too early, and the edges that were needed."""
    races, edges = [], set()
    for seed in seeds:
        schedule = Schedule(seed).run()
        races += [f"seed {seed}, {schedule.kind}: {race}" for race in schedule.races]
        edges |= schedule.device.edges
    return races, edges


def test_all_uses_are_ordered_by_declared_edges_and_all_of_these_are_needed() -> None:
    races, edges = played(range(QUICK))
    assert races == []
    assert edges == stream_order.pairs()


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 10_000, 1000))
def test_ten_thousand_schedules(first: int) -> None:
    races, edges = played(range(first, first + 1000))
    assert (races, edges - stream_order.pairs()) == ([], set())


# Breaks: what orders two streams, or keeps memory, is left out.


def without_after(patch: pytest.MonkeyPatch) -> None:
    """What the host gets of another thread may be on its way on the device."""
    patch.setattr(Pending, "result", Future.result)


def without_behind(patch: pytest.MonkeyPatch) -> None:
    submit = Worker.submit
    patch.setattr(Worker, "submit", lambda self, work, **options: submit(self, work, **options | {"behind": None}))


def without_collision_rows(patch: pytest.MonkeyPatch) -> None:
    run_part = Engine.run_part

    def run(self: Engine, m: int, step: Any, features: Any, part: int) -> Any:
        fetched = step.modules[m].fetched
        there = fetched[part]
        waited = SimpleNamespace(result=lambda: self._executor.play.until(there.done.done))  # type: ignore[attr-defined]
        fetched[part] = Fetched(done=waited, rows=there.rows)  # type: ignore[arg-type]
        try:
            return run_part(self, m, step, features, part)
        finally:
            fetched[part] = there

    patch.setattr(Engine, "run_part", run)


def freed_early(patch: pytest.MonkeyPatch) -> None:
    """A worker keeps nothing for the device."""
    run = Worker._run

    def ran(self: Worker, *work: Any) -> Any:
        try:
            return run(self, *work)
        finally:
            self._under_way.clear()

    patch.setattr(Worker, "_run", ran)


def without_reads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sanitizer, "reads", lambda *_: None)


def lookups_beside_updates(patch: pytest.MonkeyPatch) -> None:
    """torchrec#4191: one stream prefetches rows while another one writes to the same table."""
    run = Executor._run
    patch.setattr(Executor, "_run", lambda self, operation: run(self, replace(operation, after=[])))


def lookups_beside_ids(patch: pytest.MonkeyPatch) -> None:
    """torchrec#4497: a stream looks up ids that another one still writes."""
    run = rows.RowExchange.run

    def ran(self: Any, operation: Any) -> None:
        ids: Any = operation.ids
        run(self, replace(operation, ids=SimpleNamespace(result=partial(Future.result, ids))))

    patch.setattr(rows.RowExchange, "run", ran)


def features_not_named(patch: pytest.MonkeyPatch) -> None:
    """torchrec#4497: what a look-up still uses, on another stream than that which made it, is freed."""
    reads = Sanitizer.reads

    def named(self: Sanitizer, *tensors: Any) -> None:
        reads(self, *(tensor for tensor in tensors if not self.is_called("features", tensor)))

    patch.setattr(Sanitizer, "reads", named)


def batch_in_use(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Moving, "end", lambda self, moved: moved.batch)


def ids_beside_the_copy(patch: pytest.MonkeyPatch) -> None:
    exchange = Executor.exchange_ids

    def exchanged(self: Any, number: int, before: Any, status: int, given: Any, moved: Any = None, *rest: Any) -> Any:
        return exchange(self, number, before, status, given, None, *rest)

    patch.setattr(Executor, "exchange_ids", exchanged)


def buffer_of_either_class(patch: pytest.MonkeyPatch) -> None:
    """The class that did not make the buffer of received gradients does not wait for the one that did."""
    came = Gradients.came
    patch.setattr(Gradients, "came", lambda *args: (came(*args)[0], None))


def staging_used_again(patch: pytest.MonkeyPatch) -> None:
    go_up = HostStaged._go_up

    def gone(self: Any, piece: Any) -> None:
        go_up(self, piece)
        self._gone_up[piece.buffer] = None

    patch.setattr(HostStaged, "_go_up", gone)


def sent_before_it_is_there(patch: pytest.MonkeyPatch) -> None:
    init = Transfer.__init__

    def made(self: Transfer, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.before = None

    patch.setattr(Transfer, "__init__", made)


@pytest.mark.parametrize(
    ("leave_out", "races"),
    [
        (without_after, ["plan of ids used too early by collision", "rows of wire used too early by compute"]),
        (without_behind, ["gradients of compute used too early by exclusive"]),
        (without_collision_rows, ["rows of wire used too early by compute"]),
        (freed_early, ["plan of ids freed while exclusive may use it", "gradients of compute freed while"]),
        (without_reads, ["rows of ids freed while compute may use it", "batch of copy freed while compute may use it"]),
        (lookups_beside_updates, ["tables of plain used too early by exclusive"]),
        (lookups_beside_ids, ["plan of ids used too early by exclusive"]),
        (features_not_named, ["features of ids freed while compute may use it"]),
        (batch_in_use, ["batch of copy freed while compute may use it"]),
        (ids_beside_the_copy, ["batch of copy used too early by ids"]),
        (buffer_of_either_class, ["received gradients of exclusive used too early by wire"]),
        (staging_used_again, ["staging of wire used too early by host"]),
        (sent_before_it_is_there, ["sent of collision used too early by wire"]),
    ],
)
def test_what_is_left_out_is_found(
    leave_out: Callable[[pytest.MonkeyPatch], None], races: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch)
    found: set[str] = set()
    for seed in range(QUICK):
        found.update(Schedule(seed).run().races)
        if all(any(race in each for each in found) for race in races):
            return
    raise AssertionError(f"not found: {races}, but {sorted(found)}")
