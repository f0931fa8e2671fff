"""Who works operations off: what both executors have in common, transports and what uses them.

No two threads may issue to one transport, and all are made in the same order on every rank by the thread that makes the
engine. Exclusive rows and gradients have one each: a rank that leaves out a backward pass sends rows while others send
gradients, and gloo ends a process that gets another size than it expects, before the next control word can say what is
wrong.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from fscomm.device import Device, Mark
from fscomm.exchange.control_word import ControlWords
from fscomm.exchange.handed_over import ExchangedIds
from fscomm.exchange.id_exchange import IdExchange
from fscomm.exchange.lost_peers import LostPeers
from fscomm.exchange.operations import Class, Operation
from fscomm.exchange.rows import RowExchange, Wire
from fscomm.exchange.wire_gate import WireGate
from fscomm.exchange.wire_priority import WirePriority
from fscomm.exchange.worker import Pending, Worker
from fscomm.report.recorder import Recorder
from fscomm.tables.binding import ServedModules
from fscomm.transports.opening import open_transport
from fscomm.transports.transport import Transport
from fsranks.control_group import AnyGroup, control_group
from fsranks.messages import Signals
from fsranks.rank_context import RankContext

Closable = TypeVar("Closable", AnyGroup, Transport)
TRANSPORTS = ("collision", "exclusive rows", "exclusive gradients")
CHUNKS_UNDER_WAY = 2  # of exclusive rows: one follows the other without a pause


class Executor(ABC):
    """Making it is collective. After the first error of a worker all of them are aborted, and `check` raises it.

    Attributes:
        wire_gate: decides which class may use the wire.
        control_words, peers: for the training thread.
    """

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

            control, ids = (keep(control_group(context, timeout_s=timeout_s)) for _ in range(2))
            self._signals = Signals(control.gloo, control.rank, control.world_size)
            opened.callback(self._signals.close)
            # The plans behind all splits were made from the same gathered sizes: nothing is left to verify.
            collision, rows, gradients = (
                keep(open_transport(transport, context, device, timeout_s=timeout_s, verify=False)) for _ in TRANSPORTS
            )
            self._all: tuple[AnyGroup | Transport, ...] = (control, ids, collision, rows, gradients)
            budget = WirePriority(budget_bytes=CHUNKS_UNDER_WAY * chunk_bytes)
            self.wire_gate = WireGate(schedule=budget, awaited=self._awaited)
            self.control_words = ControlWords(control, recorder)
            self.peers = LostPeers([module.process_group for module in served.modules], device.where, control)
            opened.callback(self.peers.close)
            self._ids = IdExchange(ids, self.wire_gate, served, device, recorder)
            self._workers: dict[str, Worker] = {}
            opened.callback(self._close_workers)
            for name, background in self._workers_wanted().items():
                self._workers[name] = Worker(
                    name, self._failed, device=device, limit_s=timeout_s, background=background
                )
            wires = self._wires()
            self._rows = {
                of_class: RowExchange(
                    of_class,
                    served.layouts,
                    served.tables(),
                    of_rows=of_rows,
                    of_gradients=of_gradients,
                    wire=wires[of_class],
                    recorder=recorder,
                )
                for of_class, of_rows, of_gradients in (
                    (Class.COLLISION, collision, collision),
                    (Class.EXCLUSIVE, rows, gradients),
                )
            }
            self._plain = served.tables()
            opened.pop_all()

    @abstractmethod
    def submit(self, operation: Operation) -> Pending[None]:
        """Let it be done, once all that it waits for is done. Does not block."""

    @abstractmethod
    def submit_urgent(self, operations: Sequence[Operation], *, expecting: Callable[[], bool]) -> list[Pending[None]]:
        """The same of collision operations, one after the other: nothing exclusive begins on any rank meanwhile.

        expecting: whether a control word will follow soon.
        """

    @abstractmethod
    def _workers_wanted(self) -> Mapping[str, bool]:
        """By name, whether it works in the background. One is called ids."""

    @abstractmethod
    def _wires(self) -> Mapping[Class, Wire]:
        """For the operations of each class."""

    def exchange_ids(
        self,
        number: int,
        before: Pending[ExchangedIds] | None,
        status: int,
        given: Sequence[tuple[Any, Any]],
        moved: Mark = None,
    ) -> Pending[ExchangedIds]:
        """As `IdExchange.run`, in the ids worker. It runs behind the copies that `moved` features to the device, and
        behind all that the device has to do until now only where the ids have to come from there."""
        from_device = any(features is not None and on_host is None for features, on_host in given)
        work = partial(self._ids.run, number, before, status, given)
        return self._workers["ids"].submit(work, behind=self._device.mark() if from_device else moved)

    def await_ids(self, arrived: Pending[ExchangedIds]) -> ExchangedIds:
        """For the training thread. Nothing holds them back meanwhile."""
        with self.wire_gate.awaiting_ids():
            return arrived.result()

    @abstractmethod
    def hurry(self) -> None:
        """A thread of the user is about to wait for all that was submitted: no rank holds it back. Does not block."""

    def check(self) -> None:
        """Raise the first error of a worker."""
        if self._error is not None:
            raise self._error

    def close(self, reason: str, *, at_exit: bool = False) -> None:
        """End workers and groups; work that is under way ends first, within its deadlines.

        at_exit: Python is ending, and starts no thread any more.
        """
        self.wire_gate.stop()
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
        """End everything that blocks; the other ranks are told `reason`."""
        self.wire_gate.stop()
        for each in self._all:
            each.abort(reason)

    def _awaited(self) -> int:
        """The number of the last exclusive operation that another rank began to wait for just now; 0 if none did."""
        return 0

    def _run(self, operation: Operation) -> None:
        """In a worker."""
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
        if self._error is None:
            self._error = error
            self.abort(f"lost the others: {error}")
