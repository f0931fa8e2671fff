"""What happens in the engine, written down by every thread as it happens.

An event costs a few microseconds. Memory is bounded: details are kept of the last steps only, sums of all.

What was exposed, inline or hidden is found by `host_times.py`, or by `stream_times.py` for a device that the host runs
ahead of.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from fscomm.device import Device
from fscomm.plan.number_of_parts import NumberOfParts
from fscomm.report.host_times import HostTimes
from fscomm.report.report import ATOMICS, Collisions, Forwards, Managed, Report, StepReport, Traffic
from fscomm.report.stream_times import StreamTimes
from fsranks.observers import observers

_TOTAL = -1  # the number of the step that sums all
_NOBODY = nullcontext()
AGREEMENT = "agreement"
"""The exchange of a control word: it takes well under a millisecond. What a rank waits longer, another one is late."""
_OURS = "fscomm"
_NOT_THE_USERS = (_OURS, "torch", "torchrec", "fbgemm_gpu")


class Recorder:
    """Events of one rank. Methods may be called from any thread; the thread that makes it is the one that trains.

    Keeps the details of the last `keep` steps, and the sums of all. `clock` gives seconds.
    """

    def __init__(self, *, rank: int = 0, keep: int = 1000, clock: Callable[[], float] = time.perf_counter) -> None:
        self.rank = rank
        self.clock = clock
        self._keep = keep
        self._lock = threading.Lock()
        self._steps: dict[int, StepReport] = {_TOTAL: StepReport(step=_TOTAL)}
        self._num_steps = 0
        self._oldest = 0
        self._fallbacks: dict[str, str] = {}
        self._forwards: dict[str, Forwards] = {}
        self._transport: str | None = None
        self._not_repeated: str | None = None
        self._parts: NumberOfParts | None = None
        self._one_part: str | None = None
        self._buffers = self._most_buffers = 0
        self._times: Any = HostTimes(clock, self._add)

    def span(self, kind: str, *, step: int | None = None) -> AbstractContextManager[None]:
        """Around work of `kind`: hidden on a thread of the engine, inline on the training thread."""
        return self._timed(kind, step, waiting=False)

    def wait(self, kind: str, *, step: int | None = None) -> AbstractContextManager[None]:
        """Around a wait of the training thread for `kind`: exposed time; 0 inside another wait. For `AGREEMENT` it is
        straggler time, too."""
        return self._timed(kind, step, waiting=True)

    def runs_on(self, device: Device) -> None:
        """Tables lie on `device`. Before anything is timed."""
        if device.runs_ahead:
            self._times = StreamTimes(device, self.clock, self._add)

    def count(self, module: str, step: int, found: Collisions) -> None:
        """Add rows that this rank owns and `step` uses."""
        with self._lock:
            for sums in self._sums(step):
                sums.collisions[module] = sums.collisions.get(module, Collisions()) + found

    def managed(self, table: str, step: int, found: Managed) -> None:
        """Add what the maps of a table behind managed collision did with ids of `step`."""
        with self._lock:
            for sums in self._sums(step):
                sums.managed[table] = sums.managed.get(table, Managed()) + found

    def bytes(self, module: str, step: int, kind: str, sent: int, received: int) -> None:
        """Add bytes of an exchange with other ranks."""
        for observer in tuple(observers):
            observer.sent(kind, sent)
        moved = Traffic(sent=sent, received=received)
        with self._lock:
            for sums in self._sums(step):
                by_kind = sums.bytes.setdefault(module, {})
                by_kind[kind] = by_kind.get(kind, Traffic()) + moved

    def buffers(self, nbytes: int) -> None:
        """Note the buffers for the rows of one more step. Those of the step before are still in use."""
        with self._lock:
            self._most_buffers = max(self._most_buffers, self._buffers + nbytes)
            self._buffers = nbytes

    def forward(self, module: str, ids: int, nbytes: int, why: str | None) -> None:
        """Count a forward in training: it was served, or ran plainly because of `why`."""
        if why is None:
            one = Forwards(served=1, ids=ids, nbytes=nbytes)
        else:
            one = Forwards(plain={why: 1}, plain_ids=ids, plain_bytes=nbytes)
        with self._lock:
            self._forwards[module] = self._forwards.get(module, Forwards()) + one

    def fallback(self, module: str, reason: str) -> None:
        """Note why `module` runs plainly; the first reason stands."""
        with self._lock:
            self._fallbacks.setdefault(module, reason)

    @property
    def waited_s(self) -> float:
        """How long the training thread has waited so far; on a device compute, up to where that has come."""
        with self._lock:
            self._times.settle()
            waited: float = self._times.waited_s
            return waited

    def travels_by(self, transport: str, where: torch.device) -> None:
        """Note how rows travel, `where` the tables are, and whether the plain loop is sure to repeat itself there."""
        self._transport = transport
        if where.type == "cuda" and not torch.are_deterministic_algorithms_enabled():  # which fbgemm asks, too
            self._not_repeated = ATOMICS

    def in_parts(self, numbers: NumberOfParts, why: str | None) -> None:
        """Steps are computed in so many parts; why: only one part is served."""
        self._parts, self._one_part = numbers, why

    def report(self) -> Report:
        """All that is known now; spans that are still open are not in it."""
        with self._lock:
            self._times.settle()
            total, *steps = [_copied(self._steps[step]) for step in sorted(self._steps)]
            return Report(
                rank=self.rank,
                num_steps=self._num_steps,
                total=total,
                steps=tuple(steps),
                fallbacks=dict(self._fallbacks),
                forwards=dict(self._forwards),
                transport=self._transport,
                not_repeated=self._not_repeated,
                buffer_bytes=self._most_buffers,
                parts=self._parts.chosen if self._parts is not None else 1,
                tried=tuple(self._parts.tried) if self._parts is not None else (),
                one_part=self._one_part,
            )

    @contextmanager
    def _timed(self, kind: str, step: int | None, *, waiting: bool) -> Iterator[None]:
        with _told(kind, step, waiting=waiting):
            with self._lock:
                begun = self._times.begin(kind, step, waiting=waiting)
            try:
                yield
            finally:
                with self._lock:
                    self._times.end(begun)

    def _add(self, what: str, kind: str, step: int | None, seconds: float) -> None:
        """In `what` of the report: exposed, inline or hidden. The caller holds the lock."""
        ms = 1e3 * seconds
        for sums in self._sums(step):
            times = getattr(sums, f"{what}_ms")
            times[kind] = times.get(kind, 0.0) + ms
            if kind == AGREEMENT:
                self._steps[sums.step] = replace(sums, straggler_ms=sums.straggler_ms + ms)

    def _sums(self, step: int | None) -> tuple[StepReport, ...]:
        """Where an event of `step` is added; one without a step, or of one long past, counts in the total only."""
        if step is None or step < self._oldest:
            return (self._steps[_TOTAL],)
        if step not in self._steps:
            self._steps[step] = StepReport(step=step)
            self._num_steps += 1
            if len(self._steps) > self._keep + 1:  # of the total
                first = next(islice(self._steps, 1, None))
                del self._steps[first]
                self._oldest = first + 1
        return (self._steps[_TOTAL], self._steps[step])


def _told(kind: str, step: int | None, *, waiting: bool) -> AbstractContextManager[object]:
    """Tells those who listen; is left when what they are told of has ended."""
    profiled = torch.autograd._profiler_enabled()  # on this thread
    if not observers and not profiled:
        return _NOBODY
    told = ExitStack()
    for observer in tuple(observers):
        told.enter_context(observer.doing(kind, step=step, waiting=waiting))
    if profiled:
        told.enter_context(torch.profiler.record_function(f"fscomm: {'wait for ' if waiting else ''}{kind}"))
    return told


def user_line() -> str | None:
    """Such as "model.py:71": the user's line that called the forward for which fscomm stands in. None elsewhere."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (frame.f_code.co_name == "__call__" and _package(frame) == _OURS):
        frame = frame.f_back
    while frame is not None and _package(frame) in _NOT_THE_USERS:
        frame = frame.f_back
    return None if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _copied(sums: StepReport) -> StepReport:
    """As it is now: the recorder goes on adding to its own."""
    return replace(
        sums,
        collisions=dict(sums.collisions),
        managed=dict(sums.managed),
        bytes={module: dict(by_kind) for module, by_kind in sums.bytes.items()},
        exposed_ms=dict(sums.exposed_ms),
        inline_ms=dict(sums.inline_ms),
        hidden_ms=dict(sums.hidden_ms),
    )
