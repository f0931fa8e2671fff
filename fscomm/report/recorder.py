"""What happens in the engine, written down by every thread as it happens.

An event costs a few microseconds. Memory is bounded: details are kept of the last steps only, sums of all.

The recorder keeps a clock that runs only while the training thread waits. A span of work reads that clock at both ends:
what the clock advanced by was exposed, the rest of the span was hidden behind compute. So spans are never compared
afterwards, and a span may end while the training thread still waits for it.
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

import torch

from fscomm.plan.number_of_parts import NumberOfParts
from fscomm.report.report import ATOMICS, Collisions, Forwards, Managed, Report, StepReport, Traffic
from fsranks.observers import observers

_TOTAL = -1  # the number of the step that sums all
_NOBODY = nullcontext()
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
        self._training = {threading.get_ident()}
        self._waiting = 0
        self._waiting_since = 0.0
        self._waited = 0.0

    def span(self, kind: str, *, step: int | None = None) -> AbstractContextManager[None]:
        """Around work of `kind`: hidden on a thread of the engine, inline on the training thread."""
        return self._timed(kind, step, waiting=False)

    def wait(self, kind: str, *, step: int | None = None) -> AbstractContextManager[None]:
        """Around a wait of the training thread for `kind`: exposed time; 0 inside another wait."""
        return self._timed(kind, step, waiting=True)

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

    def straggler(self, step: int, ms: float) -> None:
        """Add time that this rank waited in `step` for a rank that came later; it is part of some exposed time."""
        with self._lock:
            for sums in self._sums(step):
                self._steps[sums.step] = replace(sums, straggler_ms=sums.straggler_ms + ms)

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
        """How long the training thread has waited so far."""
        with self._lock:
            return self._waited_by(self.clock())

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
                start = self.clock()
                waited = self._waited_by(start)
                nested = self._waiting > 0
                if waiting:
                    self._training.add(threading.get_ident())
                    if not nested:
                        self._waiting_since = start
                    self._waiting += 1
            try:
                yield
            finally:
                with self._lock:
                    now = self.clock()
                    waited_now = self._waited_by(now)
                    taken = (now - start) - (waited_now - waited)
                    if waiting:
                        self._waiting -= 1
                        self._waited, self._waiting_since = waited_now, now
                        taken = 0.0 if nested else now - start
                    inline = threading.get_ident() in self._training
                    for sums in self._sums(step):
                        times = sums.exposed_ms if waiting else sums.inline_ms if inline else sums.hidden_ms
                        times[kind] = times.get(kind, 0.0) + taken * 1e3

    def _waited_by(self, now: float) -> float:
        return self._waited + (now - self._waiting_since if self._waiting else 0.0)

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
