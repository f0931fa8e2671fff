"""What is played in place of other parts of fscomm and of TorchRec where one thread plays all of them (`schedules.py`):
a module of one table, worker threads, and what moves rows between ranks.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from sanitizer import Sanitizer

from fscomm.exchange.operations import Operation
from fscomm.exchange.wire_gate import WireGate
from fscomm.exchange.worker import Pending, Worker
from fscomm.plan.group_plan import AskedIds
from fscomm.tables.binding import Binding, MakePart
from fscomm.tables.lookups import gradient_hook
from fscomm.transports.staged import host_staged as staged
from fscomm.transports.transport import Done

SAMPLES = 4


@dataclass(eq=False)
class Ids:
    """A KeyedJaggedTensor of one feature, with one id a sample."""

    ids: torch.Tensor

    def keys(self) -> list[str]:
        return ["f"]

    def values(self) -> torch.Tensor:
        return self.ids

    def lengths(self) -> torch.Tensor:
        return self.ids

    def weights_or_none(self) -> None:
        return None

    def stride(self) -> int:
        return len(self.ids)


@dataclass(eq=False)
class Batch:
    """of: by module. played: how ids are put on the device."""

    of: list[Ids]
    put: Callable[[torch.Tensor], torch.Tensor]

    def to(self, where: torch.device, non_blocking: bool) -> "Batch":
        del where, non_blocking
        return Batch([Ids(self.put(each.ids)) for each in self.of], self.put)

    def parts(self, number: int) -> list["Batch"]:
        cut = [each.ids.split(SAMPLES // number) for each in self.of]
        return [Batch([Ids(ids) for ids in of_part], self.put) for of_part in zip(*cut, strict=True)]


class Kernel:
    """A fused kernel and its shadow: tables of numbers, to which gradients are added."""

    def __init__(self, tables: torch.Tensor) -> None:
        self.tables = tables
        self.pooling_mode, self.dims, self.feature_table_map = SimpleNamespace(name="SUM"), [1], [0]

    def lookup(self, ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        del offsets, weights  # one id a bag: its sum is its row
        return self.tables.index_select(0, ids)

    def update(self, hyper: Any, gradient: torch.Tensor, ids: torch.Tensor, *_: Any) -> None:
        self.tables.index_add_(0, ids, gradient)


@dataclass(slots=True, kw_only=True)
class Module(Binding):
    """One table. engine: that serves it. number: its own."""

    engine: Any = None
    number: int = 0

    def prepare(self, features: Any, on_host: Any) -> tuple[list[Any], list[AskedIds]]:
        """What its output needs is made of the features on the device; ids come from the host if they are there."""
        given = [self.engine.device.named("features", features.ids + 0.0)]
        ids = (on_host or features).ids.clone()
        return given, [AskedIds(ids, [len(ids)], None, torch.ones(1, len(ids), dtype=torch.int32))]

    def output(self, features: Any, given: list[Any], rows: list[torch.Tensor]) -> Any:
        return rows[0].view(-1) + 0.0 * (given[0] + features.ids)

    def run_plainly(self, features: Any) -> torch.Tensor:
        """As TorchRec's forward over a `LookupProxy`."""
        read, (kernel,) = self.engine.may_read(self.number), self.kernels[0]
        ids = self.engine.device.named("gradients", features.ids + 0)  # it is kept for the update
        rows = kernel.lookup(ids, ids)

        def deliver(gradient: torch.Tensor) -> None:
            update = partial(_update, ids=ids, gradient=self.engine.device.named("gradients", gradient))
            self.engine.take_plain_update(self.number, 0, read, update)

        return gradient_hook(rows, deliver).view(-1) + 0.0

    def cut(self, output: Any, ends: Sequence[int]) -> tuple[list[torch.Tensor], list[MakePart]]:
        parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        return [output], [MakePart([part], lambda tensors: tensors[0]) for part in parts]

    def forward_sizes(self, features: Any) -> list[Any]:
        return []

    def on_gradient(self, output: Any, then: Callable[[], None]) -> None:
        output.register_hook(lambda _: then())

    def around_wait(self, output: Any, guard: Any) -> None:
        pass


def _update(shadow: Any, *, ids: torch.Tensor, gradient: torch.Tensor) -> None:
    shadow().update(None, gradient, ids)


class Quiet:
    """In the place of the recorder, and of what reports plain runs."""

    clock, waited_s = staticmethod(lambda: 0.0), 0.0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def span(self, kind: str, *, step: int | None = None) -> Any:
        return nullcontext()

    wait = span

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class OpenGate(WireGate):
    """Never closed: on the host alone it says what goes first, which is drawn here."""

    def _wait(self, until: Callable[[], float]) -> None: ...

    def _is_open(self) -> bool:
        return True


@dataclass(eq=False)
class Play:
    """Workers, and the thread of each, whose turn a seed draws."""

    device: Sanitizer
    random: random.Random
    workers: list[Any] = field(default_factory=list)

    def until(self, is_over: Callable[[], bool]) -> None:
        """Let workers go on, but for those that wait themselves."""
        while not is_over():
            assert self.go_on(), "all threads wait"

    def go_on(self) -> bool:
        ready = [each for each in self.workers if each.is_ready()]
        if ready:
            self.random.choice(ready).go_on()
        return bool(ready)

    def pause(self) -> None:
        """The training thread is not always the fastest."""
        for _ in range(self.random.choice([0, 0, 1, 3, 10])):
            self.go_on()


class Turns:
    """A queue whose thread gets one thing in each of its turns."""

    def __init__(self) -> None:
        self.queue: deque[Any] = deque()
        self.left = 0

    def put(self, item: Any) -> None:
        self.queue.append(item)

    def get(self) -> Any:
        self.left -= 1
        return self.queue.popleft() if self.left >= 0 and self.queue else None

    def empty(self) -> bool:
        return not self.queue


class PlayedWorker(Worker):
    """Without a thread: its turn does one piece of work, once all that this waits for is done."""

    def __init__(self, play: Play, name: str, on_error: Any, **options: Any) -> None:
        super().__init__(name, on_error, **options)
        self._play, self._queue = play, Turns()  # type: ignore[assignment]
        self._player, self._runs = play.device.thread(name), False
        play.workers.append(self)

    def is_ready(self) -> bool:
        queue: Any = self._queue
        return bool(queue.queue) and not self._runs and all(each.done() for each in _awaited(queue.queue[0][2]))

    def go_on(self) -> None:
        queue: Any = self._queue
        self._runs, queue.left, self._player.work = True, 1, object()
        with self._play.device.on(self._player):
            self._serve()
        self._runs, self._player.work = False, None

    def _enter(self) -> None: ...

    def _await_device(self) -> None: ...

    def close(self) -> None:
        self._under_way.clear()


def _awaited(work: Any) -> Iterator[Pending[Any]]:
    """What a piece of work waits for."""
    if isinstance(work, Pending):
        yield work
    elif isinstance(work, Operation):
        yield from [*work.after, *([work.ids] if work.ids is not None else [])]
    elif isinstance(work, partial):
        for each in work.args:
            yield from _awaited(each)
    elif isinstance(work, list | tuple):
        for each in work:
            yield from _awaited(each)


class Backend:
    """An NCCL of one rank, with a stream of its own."""

    def __init__(self, device: Sanitizer) -> None:
        self._device = device
        self._stream = device.stream()
        device.roles[self._stream.name] = "wire"

    def alltoall_base(self, out: torch.Tensor, inp: torch.Tensor, *_: Any) -> Any:
        before = self._device.mark()
        with self._stream:
            self._device.after(before)
            out.copy_(inp)
            mark = self._device.mark()
        return SimpleNamespace(wait=lambda: self._device.after(mark), is_completed=lambda: self._device.is_done(mark))

    def abort(self) -> None: ...


class PlayedStaged(staged.HostStaged):
    """Its thread's turn takes all that was submitted through the host."""

    def __init__(self, play: Play, group: Any) -> None:
        host: Any = SimpleNamespace(all_to_all_v=self._over_the_host, abort=lambda reason: None)
        super().__init__(host, group, play.device, chunk_bytes=4)
        self._play, self._submitted = play, Turns()  # type: ignore[assignment]
        self._player = play.device.thread(f"staged {len(play.workers)}")
        play.device.roles |= {self._down.name: "wire", self._up.name: "wire", self._player.stream.name: "host"}
        play.workers.append(self)

    def _over_the_host(self, out: torch.Tensor, inp: torch.Tensor, *_: Any, **__: Any) -> Done:
        out.copy_(inp)
        self._play.device.wait(self._play.device.mark(), 0.0)  # the host does what it does at once
        return Done()

    def is_ready(self) -> bool:
        return not self._submitted.empty()

    def go_on(self) -> None:
        queue: Any = self._submitted
        queue.left = len(queue.queue)
        with self._play.device.on(self._player):
            self._run()

    def close(self, reason: str) -> None: ...

    def barrier(self) -> None: ...
