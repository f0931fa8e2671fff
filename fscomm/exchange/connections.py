"""What an engine works with on all ranks: transports, the workers that use them, and what runs in the workers.

One worker issues to each transport (no two threads may issue to one group), and all are made in the same order on every
rank by the thread that makes the engine. Exclusive rows and gradients have one each: a rank that leaves out a backward
pass sends rows while others send gradients, and gloo ends a process that gets another size than it expects, before the
next control word can say what is wrong.
"""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fscomm.device import Device
from fscomm.exchange.control_word import ControlWords
from fscomm.exchange.id_exchange import IdExchange
from fscomm.exchange.lost_peers import LostPeers
from fscomm.exchange.row_exchange import PlainUpdates, RowExchange
from fscomm.exchange.served_modules import ServedModules
from fscomm.exchange.wire_gate import WireGate
from fscomm.exchange.wire_priority import WirePriority
from fscomm.exchange.worker import Pending, Worker
from fscomm.report.recorder import Recorder
from fscomm.transports.gloo import Channel, channel
from fscomm.transports.opening import open_transport
from fscomm.transports.transport import Transport
from fsranks.rank_context import RankContext

T = TypeVar("T")
Closable = TypeVar("Closable", Channel, Transport)
TRANSPORTS = ("collision", "exclusive rows", "exclusive gradients")
CHUNKS_UNDER_WAY = 2  # of exclusive rows: one follows the other without a pause
WORKERS = ("ids", "collision", "exclusive", "plain")
IN_BACKGROUND = ("ids", "exclusive")


class Connections:
    """Making it is collective. After the first error of a worker all of them are aborted, and `check` raises it.

    Attributes:
        wire_gate: decides which class may use the wire.
        control_words, peers: for the training thread.
        ids, collision, exclusive, plain: for the worker of that name.
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
            self.ids = IdExchange(ids, self.wire_gate, served, device.where)
            self.collision, self.exclusive = (
                RowExchange(
                    kind,
                    layouts,
                    served.tables(),
                    of_rows=rows[of_rows],
                    of_gradients=rows[of_gradients],
                    wire_gate=wire_gate,
                    recorder=recorder,
                )
                for kind, of_rows, of_gradients, wire_gate in (
                    ("collision", "collision", "collision", None),
                    ("exclusive", "exclusive rows", "exclusive gradients", self.wire_gate),
                )
            )
            self.plain = PlainUpdates(served.tables(), recorder)
            self._workers: dict[str, Worker] = {}
            opened.callback(self._close_workers)
            for name in WORKERS:
                self._workers[name] = Worker(
                    name, self._failed, device=device, limit_s=timeout_s, background=name in IN_BACKGROUND
                )
            opened.pop_all()

    def submit(self, worker: str, work: Callable[[], T], *, after: Sequence[Pending[Any]] = ()) -> Pending[T]:
        """Let `worker` do `work` once everything in `after` is done."""

        def in_turn() -> T:
            for each in after:
                each.result()
            return work()

        return self._workers[worker].submit(in_turn)

    def submit_collision(
        self, work: Callable[[], None], *, after: Sequence[Pending[Any]], expecting: Callable[[], bool]
    ) -> Pending[None]:
        """The same in the collision worker; the wire is kept for this work until all ranks have done it.

        The wire is kept at once if neither this work nor earlier work of the worker has to wait for another worker,
        which may need the wire itself. Otherwise it is kept when the waiting is over.
        `expecting`: whether a control word will follow soon.
        """
        at_once = all(each.done() for each in after) and (self._held_up is None or self._held_up.done())
        if at_once:
            self.wire_gate.enter()

        def in_turn() -> None:
            for each in after:
                each.result()
            if not at_once:
                self.wire_gate.enter()
            work()

        def leave() -> None:
            self._device.wait(done.mark, self._limit_s)
            self.collision.meet()
            self.wire_gate.leave(expecting=expecting())

        done = self._workers["collision"].submit(in_turn)
        if not at_once:
            self._held_up = done
        self._workers["collision"].submit(leave)
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

    def _close_workers(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def abort(self, reason: str) -> None:
        """End everything that blocks; the other ranks are told `reason`."""
        self.wire_gate.stop()
        for each in self._all:
            each.abort(reason)

    def _failed(self, error: BaseException) -> None:
        """In a worker."""
        if self._error is None:
            self._error = error
            self.abort(f"lost the others: {error}")
