"""Executes operations: owns the transports, and the threads, or on a GPU the streams, that use them.

No two threads may issue to one transport, and all are made in the same order on every rank by the thread that makes the
engine. Exclusive rows and gradients have one each: a rank that leaves out a backward pass sends rows while others send
gradients, and gloo ends a process that gets another size than it expects, before the next control word can say what is
wrong. Rows that a forward reassigns have one where a module has such forwards: they wait for no collision rows.

For tables on the CPU, and on a GPU over a transport that goes through the host, there is one worker for each class of
operations: an exchange of one class waits concurrently with those of the others, and the wire gate gives priority. On
the CPU the work of a worker is done when it returns; a GPU may still have to do it, in the worker's own stream.

Where the GPU itself orders exchanges (NCCL, copy engines), one thread issues all operations to streams of the device,
in program order, and waits for none of them there.
The host runs ahead of the device. An operation that waits for another one lets its stream wait for that; so does the
compute stream, where a forward uses what was fetched. All ranks issue in the same order, over all transports. Exclusive
operations wait on the device for the collision operations that were issued before them. A second thread waits for
issued work: so it detects a lost rank, and keeps what the device still uses.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from fscomm.device import Device, Mark
from fscomm.exchange.control_word import ControlWords
from fscomm.exchange.handed_over import ExchangedIds
from fscomm.exchange.id_exchange import IdExchange, Parts
from fscomm.exchange.lost_peers import LostPeers
from fscomm.exchange.operations import Class, Due, Operation, class_of_reassigned
from fscomm.exchange.rows import RowExchange, SendPolicy
from fscomm.exchange.wire_gate import CHUNKS_UNDER_WAY, OpenWire, WireGate
from fscomm.exchange.worker import BACKGROUND, NORMAL, URGENT, Pending, Worker
from fscomm.report.recorder import Recorder
from fscomm.tables.binding import ServedModules
from fscomm.transports.opening import ORDERED_BY_THE_DEVICE, open_transport
from fscomm.transports.transport import Chunk, Transport
from fsranks.control_group import AnyGroup, control_group
from fsranks.messages import Signals
from fsranks.rank_context import RankContext

Closable = TypeVar("Closable", AnyGroup, Transport)


def _never() -> bool:
    return False


class Executor(ABC):
    """Making it is collective. After the first error of a worker all of them are aborted, and `check` raises it.

    Attributes:
        wire_gate: decides which class may use the wire.
        control_words, peers: for the training thread.
        WORKERS: by name, the priority of each. One is called ids.
        PER_CLASS: whether each class of reassigned rows has a worker, too.
    """

    WORKERS: ClassVar[Mapping[str, int]]
    PER_CLASS: ClassVar[bool]

    def __init__(
        self,
        served: ServedModules,
        context: RankContext,
        recorder: Recorder,
        *,
        device: Device,
        transport: str,
        timeout_s: float,
    ) -> None:
        self._device = device
        self._limit_s = timeout_s
        self._recorder = recorder
        self._error: BaseException | None = None
        chunk_bytes = max(layout.chunk_bytes for layout in served.layouts)
        with contextlib.ExitStack() as opened:  # if anything fails, all that was opened is closed

            def keep(connection: Closable) -> Closable:
                opened.callback(connection.close, "could not enter the fscomm block")
                return connection

            # A group for each thread: control words are sent by the training thread, ids by their worker.
            control, ids = (keep(control_group(context, timeout_s=timeout_s)) for _ in range(2))
            self._signals = Signals(control.gloo, control.rank, control.world_size)
            opened.callback(self._signals.close)
            # The plans behind all splits were made from the same gathered sizes: the ranks need not compare them.
            names = dict.fromkeys(module.guard.reassigns for module in served.modules)  # in the order of all ranks
            reassigned = [class_of_reassigned(name) for name in names if name is not None]
            self._classes = classes = [Class.COLLISION, Class.EXCLUSIVE, *reassigned]
            open_rows = partial(open_transport, transport, context, device, timeout_s=timeout_s)
            of_rows = {each: keep(open_rows(urgent=each is not Class.EXCLUSIVE)) for each in classes}
            gradients = keep(open_rows())
            self._all: tuple[AnyGroup | Transport, ...] = (control, ids, *of_rows.values(), gradients)
            self.wire_gate = WireGate(budget_bytes=CHUNKS_UNDER_WAY * chunk_bytes, awaited=self._awaited)
            self.control_words = ControlWords(control, recorder)
            self.peers = LostPeers([module.process_group for module in served.modules], device.where, control)
            opened.callback(self.peers.close)
            self._ids = IdExchange(ids, self.wire_gate, served, device, recorder)
            self._workers: dict[str, Worker] = {}
            opened.callback(self._close_workers)
            workers = {**self.WORKERS, **{each.name: URGENT for each in reassigned if self.PER_CLASS}}
            for name, priority in workers.items():
                self._workers[name] = Worker(name, self._failed, device=device, limit_s=timeout_s, priority=priority)
            self._rows = {
                of_class: RowExchange(
                    of_class,
                    served.layouts,
                    served.tables(),
                    of_rows=of_rows[of_class],
                    of_gradients=gradients if of_class is Class.EXCLUSIVE else of_rows[of_class],
                    policy=self._policy(of_class),
                    device=device,
                    recorder=recorder,
                )
                for of_class in classes
            }
            self._plain = served.tables()  # shadows of the kernels belong to one thread, here the plain worker
            opened.pop_all()

    @abstractmethod
    def submit(
        self, operations: Sequence[Operation], due: Due = Due.BACKGROUND, *, expecting: Callable[[], bool] = _never
    ) -> list[Pending[None]]:
        """Let each be done, once all that it waits for is done. Does not block.

        due: of all of them. Nothing in the background begins on any rank while others run, which are of one class.
        expecting: whether a control word will follow soon on what is due now, or rows that a forward reassigns.
        """

    @abstractmethod
    def _policy(self, of_class: Class) -> SendPolicy:
        """For the operations of this class."""

    def exchange_ids(
        self,
        number: int,
        before: Pending[ExchangedIds] | None,
        status: int,
        given: Sequence[Parts | None],
        moved: Mark = None,
        parts: int = 1,
        measured: Sequence[int] = (),
        states: Mapping[int, Any] = MappingProxyType({}),
    ) -> Pending[ExchangedIds]:
        """As `IdExchange.run`, in the ids worker. It runs behind the copies that `moved` features to the device, and
        behind all that the device has to do until now only where the ids have to come from there."""
        from_device = any(on_host is None for features in given if features is not None for _, on_host in features)
        work = partial(self._ids.run, number, before, status, given, parts, measured, states)
        return self._workers["ids"].submit(work, behind=self._device.mark() if from_device else moved)

    def await_ids(self, arrived: Pending[ExchangedIds]) -> ExchangedIds:
        """For the training thread. Nothing holds them back meanwhile."""
        with self.wire_gate.awaiting_ids():
            return arrived.result()

    @abstractmethod
    def release_all(self) -> None:
        """A thread of the user is about to wait for all that was submitted: no rank holds it back. Does not block."""

    @abstractmethod
    def release_up_to(self, awaited: Sequence[Pending[None]]) -> None:
        """All ranks are about to wait for this: it is no longer held back. Does not block."""

    def check(self) -> None:
        """Raise the first error of a worker."""
        if self._error is not None:
            raise self._error

    def close(self, reason: str, *, at_exit: bool = False) -> None:
        """End workers and groups; work that is under way ends first, within its deadlines.

        at_exit: Python is ending, and starts no thread any more.
        """
        self.wire_gate.stop()  # first: a worker that waits at the gate would never end
        self.peers.close()
        try:
            self._close_workers()
        finally:
            self._signals.close()
            if at_exit:
                for each in self._all:
                    each.close(reason)
            else:
                with ThreadPoolExecutor(len(self._all)) as closers:  # gloo waits 20 ms for each of its own threads
                    for closed in [closers.submit(each.close, reason) for each in self._all]:
                        closed.result()

    def abort(self, reason: str) -> None:
        """End everything that blocks; the other ranks are sent `reason`."""
        self.wire_gate.stop()
        for each in self._all:
            each.abort(reason)

    def _awaited(self) -> int:
        """The number of the last exclusive operation that another rank began to wait for just now; 0 if none did."""
        return 0

    def _run(self, operation: Operation, number: int = 0) -> None:
        """In a worker. number: of an exclusive operation, for the gate."""
        if number:
            self.wire_gate.begin(number)
        # `after` holds only what was submitted earlier, on all ranks in the same order: so these waits cannot form a
        # circle, though each may block its worker.
        for each in operation.after:
            each.result()
        if operation.plainly is None:
            self._rows[operation.of_class].run(operation)
            return
        group, kernel, update = operation.plainly
        with self._recorder.span("plain apply"):
            update(lambda: self._plain[group].shadows[kernel])

    def _close_workers(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def _failed(self, error: BaseException) -> None:
        """In a worker."""
        # The first error is the cause. Aborting ends the exchanges of the other workers, whose errors only follow.
        if self._error is None:
            self._error = error
            self.abort(f"lost the others: {error}")


class Threads(Executor):
    """A worker for each class. While collision operations run, or are about to, no exclusive chunk begins: the link is
    kept for them.
    """

    WORKERS: ClassVar = {"ids": BACKGROUND, "collision": URGENT, "exclusive": BACKGROUND, "plain": NORMAL}
    PER_CLASS: ClassVar = True

    _exclusive = 0  # operations that were submitted

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # By class, the last entry to the gate that had to wait for other work. Later operations of the class must not
        # enter before it: they would keep the link while that work still needs it.
        self._held_up: dict[Class, Pending[Any]] = {}

    def submit(
        self, operations: Sequence[Operation], due: Due = Due.BACKGROUND, *, expecting: Callable[[], bool] = _never
    ) -> list[Pending[None]]:
        if due is not Due.BACKGROUND:
            self._keep_link(operations, due)
        done = []
        for operation in operations:
            is_exclusive = operation.of_class is Class.EXCLUSIVE
            self._exclusive += is_exclusive
            number = self._exclusive if is_exclusive else 0
            done.append(self._workers[operation.of_class.name].submit(partial(self._run, operation, number)))
            done[-1].number = number
        if due is not Due.BACKGROUND:
            of_class = operations[-1].of_class
            leave = partial(self._leave, done[-1], of_class, expecting if due is Due.NOW else _never)
            self._workers[of_class.name].submit(leave)
        return done

    def release_all(self) -> None:
        self.wire_gate.release_up_to(self._exclusive)
        self._signals.send(self._exclusive)

    def release_up_to(self, awaited: Sequence[Pending[None]]) -> None:
        self.wire_gate.release_up_to(max((each.number for each in awaited), default=0))

    def _policy(self, of_class: Class) -> SendPolicy:
        return self.wire_gate if of_class is Class.EXCLUSIVE else OpenWire()

    def _keep_link(self, operations: Sequence[Operation], due: Due) -> None:
        """The link is kept at once if neither the operations nor earlier work of the worker have to wait for another
        worker, which may need the link itself, or for a device, which has to compute the gradients first. Otherwise it
        is kept when the waiting is over.
        """
        of_class = operations[-1].of_class
        worker, held_up = self._workers[of_class.name], self._held_up.get(of_class)
        after = [each for operation in operations for each in operation.after]
        if due is Due.NOW:
            self.wire_gate.release_up_to(self._awaited())
        waits = due is Due.NEXT or self._device.runs_ahead or not all(each.done() for each in after)
        if waits or not (held_up is None or held_up.done()):
            self._held_up[of_class] = worker.submit(partial(self._enter_after, after, less_urgent=due is Due.NEXT))
        else:
            self.wire_gate.enter()

    def _awaited(self) -> int:
        """Releases all that were submitted: a rank that left out a backward pass has other numbers than this one."""
        others = self._signals.received()
        return max(*others, self._exclusive) if others else 0

    def _enter_after(self, after: Sequence[Pending[Any]], *, less_urgent: bool) -> None:
        for each in after:
            each.result()
        # `result` only orders the worker's stream. Before the link is kept, the device must have computed what is sent.
        self._device.wait(self._device.mark(), self._limit_s)
        if less_urgent:
            self.wire_gate.wait_while_expecting()
            self._rows[Class.COLLISION].barrier()  # until the last rank is ready, exclusive rows may use the link
        self.wire_gate.enter()

    def _leave(self, last: Pending[None], of_class: Class, expecting: Callable[[], bool]) -> None:
        self._device.wait(last.mark, self._limit_s)
        # A rank that is done earlier must not fill the link with exclusive rows while others still exchange.
        self._rows[of_class].barrier()
        self.wire_gate.leave(expecting=expecting())


class Streams(Executor):
    """A stream of the GPU for each class; those that a forward waits for have priority. The wire gate stays open."""

    WORKERS: ClassVar = {"ids": BACKGROUND, "issue": NORMAL, "watch": BACKGROUND}
    PER_CLASS: ClassVar = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._streams = {
            of_class: self._device.stream(priority=URGENT if of_class.urgent else NORMAL)
            for of_class in (*self._classes, Class.PLAIN)
        }
        self._urgent: dict[
            Class, Pending[None]
        ] = {}  # by class, the last operation that was more urgent than exclusive ones

    def submit(
        self, operations: Sequence[Operation], due: Due = Due.BACKGROUND, *, expecting: Callable[[], bool] = _never
    ) -> list[Pending[None]]:
        done = []
        for operation in operations:
            # In place of the gate: on the device, exclusive rows start only behind the collision rows issued before.
            if operation.of_class is Class.EXCLUSIVE:
                operation = replace(operation, after=[*operation.after, *self._urgent.values()])
            stream = self._streams[operation.of_class]
            done.append(self._workers["issue"].submit(partial(self._run, operation), stream=stream))
        if due is not Due.BACKGROUND:
            self._urgent[operations[-1].of_class] = done[-1]
        return done

    def release_all(self) -> None:
        pass

    def release_up_to(self, awaited: Sequence[Pending[None]]) -> None:
        pass

    def _policy(self, of_class: Class) -> SendPolicy:
        return _Issued(self._workers["watch"])


class _Issued:
    """All chunks are issued at once, and the worker `watch` waits for them."""

    def __init__(self, watch: Worker) -> None:
        self._watch = watch

    def wait(self) -> None:
        pass

    def exchange(self, transport: Transport, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            handle = chunk.over(transport)
            handle.follow()
            # Nothing else waits on the host for the device, so only this wait finds out that a rank is lost.
            self._watch.submit(handle.wait)


def executor_of(device: Device, transport: str) -> type[Executor]:
    """The kind for tables on `device` whose rows travel by `transport`."""
    return Streams if device.runs_ahead and transport in ORDERED_BY_THE_DEVICE else Threads
