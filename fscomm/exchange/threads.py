"""The executor on the host: one worker for each class of operations, one for ids, and the transports that they use.

One worker issues to each transport (no two threads may issue to one group), and all are made in the same order on every
rank by the thread that makes the engine. Exclusive rows and gradients have one each: a rank that leaves out a backward
pass sends rows while others send gradients, and gloo ends a process that gets another size than it expects, before the
next control word can say what is wrong.
"""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from fscomm.device import Device
from fscomm.exchange.control_word import ControlWords
from fscomm.exchange.handed_over import ExchangedIds
from fscomm.exchange.id_exchange import IdExchange
from fscomm.exchange.lost_peers import LostPeers
from fscomm.exchange.operations import Class, Operation
from fscomm.exchange.rows import RowExchange
from fscomm.exchange.served_modules import ServedModules
from fscomm.exchange.wire_gate import WireGate
from fscomm.exchange.wire_priority import WirePriority
from fscomm.exchange.worker import Pending, Worker
from fscomm.report.recorder import Recorder
from fscomm.transports.gloo import Channel, channel
from fscomm.transports.opening import open_transport
from fscomm.transports.transport import Transport
from fsranks.rank_context import RankContext

Closable = TypeVar("Closable", Channel, Transport)
TRANSPORTS = ("collision", "exclusive rows", "exclusive gradients")
CHUNKS_UNDER_WAY = 2  # of exclusive rows: one follows the other without a pause
WORKERS = ("ids", "collision", "exclusive", "plain")
IN_BACKGROUND = ("ids", "exclusive")


class Threads:
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
        self._held_up: Pending[Any] | None = None  # last work of the collision worker that had to wait for a worker
        layouts = served.layouts
        chunk_bytes = max(layout.chunk_bytes for layout in layouts)
        self.wire_gate = WireGate(schedule=WirePriority(budget_bytes=CHUNKS_UNDER_WAY * chunk_bytes))
        with contextlib.ExitStack() as opened:  # if anything fails, all that was opened is closed

            def keep(connection: Closable) -> Closable:
                opened.callback(connection.close, "could not enter the fscomm block")
                return connection

            control, ids = (keep(channel(context, timeout_s=timeout_s)) for _ in range(2))
            # The plans behind all splits were made from the same gathered sizes: nothing is left to verify.
            rows = {
                name: keep(open_transport(transport, context, device, timeout_s=timeout_s, verify=False))
                for name in TRANSPORTS
            }
            self._all: tuple[Channel | Transport, ...] = (control, ids, *rows.values())
            self.control_words = ControlWords(control, recorder)
            self.peers = LostPeers([module.process_group for module in served.modules], device.where, control.group)
            opened.callback(self.peers.close)
            self._ids = IdExchange(ids, self.wire_gate, served, device.where, recorder)
            self._rows = {
                of_class: RowExchange(
                    of_class,
                    layouts,
                    served.tables(),
                    of_rows=rows[of_rows],
                    of_gradients=rows[of_gradients],
                    wire_gate=wire_gate,
                    recorder=recorder,
                )
                for of_class, of_rows, of_gradients, wire_gate in (
                    (Class.COLLISION, "collision", "collision", None),
                    (Class.EXCLUSIVE, "exclusive rows", "exclusive gradients", self.wire_gate),
                )
            }
            self._plain = served.tables()
            self._workers: dict[str, Worker] = {}
            opened.callback(self._close_workers)
            for name in WORKERS:
                self._workers[name] = Worker(
                    name, self._failed, device=device, limit_s=timeout_s, background=name in IN_BACKGROUND
                )
            opened.pop_all()

    def exchange_ids(
        self, number: int, before: Pending[ExchangedIds] | None, status: int, given: Sequence[Any]
    ) -> Pending[ExchangedIds]:
        """As `IdExchange.run`, in the ids worker."""
        return self._workers["ids"].submit(partial(self._ids.run, number, before, status, given))

    def submit(self, operation: Operation) -> Pending[None]:
        """Let the worker of its class do it, once all that it waits for is done."""
        return self._workers[operation.of_class.value].submit(partial(self._run, operation))

    def submit_urgent(self, operations: Sequence[Operation], *, expecting: Callable[[], bool]) -> list[Pending[None]]:
        """Collision operations, one after the other; the wire is kept for them until all ranks have done them.

        The wire is kept at once if neither they nor earlier work of the worker have to wait for another worker, which
        may need the wire itself. Otherwise it is kept when the waiting is over.
        `expecting`: whether a control word will follow soon.
        """
        after = [each for operation in operations for each in operation.after]
        worker = self._workers[Class.COLLISION.value]
        if all(each.done() for each in after) and (self._held_up is None or self._held_up.done()):
            self.wire_gate.enter()
        else:
            self._held_up = worker.submit(partial(self._enter_after, after))
        done = [self.submit(operation) for operation in operations]
        worker.submit(partial(self._leave, done[-1], expecting))
        return done

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

    def _run(self, operation: Operation) -> None:
        for each in operation.after:
            each.result()
        if operation.plainly is None:
            self._rows[operation.of_class].run(operation)
            return
        group, kernel, update = operation.plainly
        with self._recorder.span("plain apply"):
            update(lambda: self._plain[group].shadows[kernel])

    def _enter_after(self, after: Sequence[Pending[Any]]) -> None:
        for each in after:
            each.result()
        self.wire_gate.enter()

    def _leave(self, last: Pending[None], expecting: Callable[[], bool]) -> None:
        self._device.wait(last.mark, self._limit_s)
        self._rows[Class.COLLISION].meet()
        self.wire_gate.leave(expecting=expecting())

    def _close_workers(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def _failed(self, error: BaseException) -> None:
        """In a worker."""
        if self._error is None:
            self._error = error
            self.abort(f"lost the others: {error}")
