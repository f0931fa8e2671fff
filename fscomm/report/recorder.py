"""Records the events of the engine, on all its threads.

An event costs a few microseconds, and memory is bounded: `step_table.py` keeps the last steps, and the sums of all.
`event_times.py` finds which times are exposed, inline or hidden.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch

from fscomm.device import Device
from fscomm.report.event_times import EventTimes
from fscomm.report.report import ATOMICS, Collisions, Forwards, Managed, OnStep, Report, Tried
from fscomm.report.step_table import STEP, StepTable
from fsranks.observers import observers

_NOT_OBSERVED = nullcontext()
_OURS = "fscomm"
_NOT_THE_USERS = (_OURS, "torch", "torchrec", "fbgemm_gpu")
# Exclusive gradients of a step are applied before the exclusive rows of the second step after it are looked up, for
# which the forward of that step waits.
_UNDER_WAY = 2  # steps before a forward in training, that work may still be recorded of


class _Numbers(Protocol):
    """In how many parts steps are: see `Report.parts` and `Report.tried`."""

    @property
    def chosen(self) -> int | None: ...

    @property
    def tried(self) -> Sequence[Tried]: ...


class Recorder:
    """Events of one rank. Any thread may call its methods; the thread that creates it is the training thread.

    keep: the number of last steps that are kept one by one. clock: returns seconds. on_step: see `fscomm.enable`.
    """

    def __init__(
        self,
        *,
        rank: int = 0,
        keep: int = 1000,
        clock: Callable[[], float] = time.perf_counter,
        on_step: OnStep | None = None,
    ) -> None:
        self.rank = rank
        self._on_step = on_step
        self._newest = self._training = -1  # the step that was handed out last; that of the last forward in training
        self._reported = -1  # the last step that `on_step` got
        self.clock = clock
        self._lock = threading.Lock()
        self._table = StepTable(keep)
        self._held: int | None = None  # the step whose batch the loop has
        self._held_since = 0.0
        self._trained = False  # it had a forward in training
        self._fallbacks: dict[str, str] = {}
        self._late_ms: dict[int, float] = {}
        self._forwards: dict[str, Forwards] = {}
        self._transport: str | None = None
        self._not_repeated: str | None = None
        self._parts: _Numbers | None = None
        self._one_part: str | None = None
        self._buffers = self._most_buffers = 0
        self._times = EventTimes(clock, self._add)

    def begin_loop(self) -> None:
        """A loop begins, or resumes after another one: the time until its first batch belongs to no step."""
        with self._lock:
            self._held = None

    def begin_step(self, step: int) -> None:
        """The loop gets the batch of `step`, which ends the step that it had before."""
        now = self.clock()
        with self._lock:
            if self._held is not None and self._trained:
                self._table.add(self._held, STEP, 1e3 * (now - self._held_since))
            self._held, self._held_since, self._trained = step, now, False
            self._newest = max(self._newest, step)

    def trains(self, step: int) -> None:
        """A forward in training belongs to `step`."""
        self._training = max(self._training, step)

    def report_steps(self, *, over: bool = False) -> None:
        """Report the steps to `on_step` of which nothing more will be recorded, each once, in order. Raises its errors.

        Called between two steps, by the thread that asks for batches. On a device, a step is reported after all of its
        waits and work have been reached. over: report all of them, as the block is over.
        """
        if self._on_step is None:
            return
        with self._lock:
            self._times.settle()
            last = self._newest if over else int(min(self._training - _UNDER_WAY, self._times.oldest_step() - 1))
            snapshot = self._table.snapshot(range(self._reported + 1, last + 1))
        _, *steps = snapshot.reports()
        for step in steps:
            self._reported = step.step  # first: a step whose report raises is not reported again
            self._on_step(step.numbers())
        self._reported = max(self._reported, last)

    def span(self, kind: str, *, step: int | None = None) -> AbstractContextManager[None]:
        """Around work of `kind`: hidden on a thread of the engine, inline on the training thread."""
        return self._timed(kind, step, waiting=False)

    def wait(self, kind: str, *, step: int | None = None) -> AbstractContextManager[None]:
        """Around a wait of the training thread for `kind`: exposed time, but 0 inside another wait."""
        return self._timed(kind, step, waiting=True)

    def runs_on(self, device: Device) -> None:
        """Tables are on `device`. To be called before anything is timed."""
        if device.runs_ahead:
            self._times = EventTimes(self.clock, self._add, device)

    def count(self, module: str, step: int, found: Collisions) -> None:
        """Add the rows that this rank owns and `step` uses."""
        with self._lock:
            self._table.add_counts(step, "collisions", module, found)

    def managed(self, table: str, step: int, found: Managed) -> None:
        """Add what the maps of a table behind managed collision did with the ids of `step`."""
        with self._lock:
            self._table.add_counts(step, "managed", table, found)

    def bytes(self, module: str, step: int, kind: str, sent: int, received: int) -> None:
        """Add the bytes of an exchange with other ranks."""
        for observer in tuple(observers):
            observer.sent(kind, sent)
        with self._lock:
            self._table.add(step, ("bytes", module, kind, "sent"), sent)
            self._table.add(step, ("bytes", module, kind, "received"), received)

    def late(self, rank: int, ms: float) -> None:
        """Add what this rank waited for another one that began its forward later."""
        with self._lock:
            self._late_ms[rank] = self._late_ms.get(rank, 0.0) + ms

    def buffers(self, nbytes: int) -> None:
        """Note the buffers for the rows of one more step. Those of the step before are still in use."""
        with self._lock:
            self._most_buffers = max(self._most_buffers, self._buffers + nbytes)
            self._buffers = nbytes

    def forward(self, module: str, ids: int, nbytes: int, why: str | None) -> None:
        """Count a forward in training: served, or plain because of `why`."""
        if why is None:
            one = Forwards(served=1, ids=ids, nbytes=nbytes)
        else:
            one = Forwards(plain={why: 1}, plain_ids=ids, plain_bytes=nbytes)
        with self._lock:
            self._trained = True
            self._forwards[module] = self._forwards.get(module, Forwards()) + one

    def fallback(self, module: str, reason: str) -> None:
        """Note why `module` runs plainly. The first reason is kept."""
        with self._lock:
            self._fallbacks.setdefault(module, reason)

    @property
    def waited_s(self) -> float:
        """Exposed time so far; on a device, up to the work that it has done."""
        with self._lock:
            self._times.settle()
            return self._times.waited_s

    def travels_by(self, transport: str, where: torch.device) -> None:
        """Note how rows are sent, `where` the tables are, and whether the plain loop repeats itself bitwise there."""
        self._transport = transport
        if where.type == "cuda" and not torch.are_deterministic_algorithms_enabled():  # fbgemm asks for this setting
            self._not_repeated = ATOMICS

    def in_parts(self, numbers: "_Numbers", why: str | None) -> None:
        """Note how many parts steps are computed in, and why there is only one."""
        self._parts, self._one_part = numbers, why

    def report(self) -> Report:
        """All events so far, but for spans that are still open."""
        with self._lock:
            self._times.settle()
            snapshot = self._table.snapshot()
            num_steps = self._table.num_steps
            forwards, fallbacks, late_ms = dict(self._forwards), dict(self._fallbacks), dict(self._late_ms)
        total, *steps = snapshot.reports()
        return Report(
            rank=self.rank,
            num_steps=num_steps,
            total=total,
            steps=tuple(steps),
            fallbacks=fallbacks,
            forwards=forwards,
            transport=self._transport,
            not_repeated=self._not_repeated,
            buffer_bytes=self._most_buffers,
            parts=self._parts.chosen if self._parts is not None else 1,
            tried=tuple(self._parts.tried) if self._parts is not None else (),
            one_part=self._one_part,
            late_ms=late_ms,
        )

    @contextmanager
    def _timed(self, kind: str, step: int | None, *, waiting: bool) -> Iterator[None]:
        with _observed(kind, step, waiting=waiting):
            with self._lock:
                begun = self._times.begin(kind, step, waiting=waiting)
            try:
                yield
            finally:
                with self._lock:
                    self._times.end(begun)

    def _add(self, what: str, kind: str, step: int | None, seconds: float) -> None:
        """what: "exposed", "inline" or "hidden". The caller holds the lock."""
        ms = 1e3 * seconds
        self._table.add(step, (what, kind), ms)
        # A flush waits for the updates of several steps. It is in none of them, but the verdict counts it all the same.
        if what == "exposed" and (step is None or step < 0) and self._held is not None:
            self._table.add(self._held, ("unassigned", kind), ms)


def _observed(kind: str, step: int | None, *, waiting: bool) -> AbstractContextManager[object]:
    """Shows the event to the observers of this process, and to torch's profiler, while it lasts."""
    profiled = torch.autograd._profiler_enabled()  # on this thread
    if not observers and not profiled:
        return _NOT_OBSERVED
    entered = ExitStack()
    for observer in tuple(observers):
        entered.enter_context(observer.doing(kind, step=step, waiting=waiting))
    if profiled:
        entered.enter_context(torch.profiler.record_function(f"fscomm: {'wait for ' if waiting else ''}{kind}"))
    return entered


def user_line() -> str | None:
    """The user's line that called the forward which fscomm replaces, such as "model.py:71". None elsewhere."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (frame.f_code.co_name == "__call__" and _package(frame) == _OURS):
        frame = frame.f_back
    while frame is not None and _package(frame) in _NOT_THE_USERS:
        frame = frame.f_back
    return None if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
