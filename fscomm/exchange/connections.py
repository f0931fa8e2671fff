"""What an engine works with on all ranks: transports, the workers that use them, and what runs in the workers.

One transport per class, direction and issuing thread (no two threads may issue to one group), made in the same order on
every rank by the thread that makes the engine.
"""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fscomm.device import Device
from fscomm.exchange.control_word import Agreement
from fscomm.exchange.id_exchange import IdExchange
from fscomm.exchange.lost_peers import LostPeers
from fscomm.exchange.row_exchange import PlainUpdates, RowExchange
from fscomm.exchange.wire_gate import WireGate
from fscomm.exchange.wire_priority import WirePriority
from fscomm.exchange.worker import Pending, Worker
from fscomm.plan.sharding_group import GroupLayout
from fscomm.report.recorder import Recorder
from fscomm.torchrec import binding
from fscomm.torchrec.shadow_kernels import Tables
from fscomm.transports.gloo import Channel, channel
from fscomm.transports.opening import open_transport
from fscomm.transports.transport import Transport
from fsranks.rank_context import RankContext

T = TypeVar("T")
Link = TypeVar("Link", Channel, Transport)
OF_ROWS = ("collision gradients", "collision rows", "exclusive gradients", "exclusive rows")
CHUNKS_UNDER_WAY = 2  # of exclusive rows: one follows the other without a pause
WORKERS = ("ids", "collision", "exclusive", "plain")
IN_BACKGROUND = ("ids", "exclusive")


class Connections:
    """Making it is collective. After the first error of a worker all of them are aborted, and `check` raises it.

    Attributes:
        gate: who may use the wire.
        agreement, peers: for the training thread.
        stage: for the ids worker.
        collision, exclusive, plain: for the worker of that name.
    """

    def __init__(
        self,
        modules: Sequence[binding.Binding],
        context: RankContext,
        recorder: Recorder,
        *,
        device: Device,
        transport: str,
        timeout_s: float,
    ) -> None:
        self._recorder = recorder
        self._device = device
        self._error: BaseException | None = None
        self._held_up: Pending[Any] | None = (
            None  # the last work of the collision worker that had to wait for another worker
        )
        layouts = [layout for module in modules for layout in module.layouts]
        chunk_bytes = max(layout.chunk_bytes for layout in layouts)
        self.gate = WireGate(schedule=WirePriority(budget_bytes=CHUNKS_UNDER_WAY * chunk_bytes))
        with contextlib.ExitStack() as opened:  # whatever fails, nothing of it stays open

            def keep(link: Link) -> Link:
                opened.callback(link.close, "could not enter the fscomm block")
                return link

            control, ids = (keep(channel(context, timeout_s=timeout_s)) for _ in range(2))
            # The plans behind all splits were made from the same gathered sizes: nothing is left to verify.
            self._rows = {
                name: keep(open_transport(transport, context, device, timeout_s=timeout_s, verify=False))
                for name in OF_ROWS
            }
            self._all: tuple[Channel | Transport, ...] = (control, ids, *self._rows.values())
            self.agreement = Agreement(control, recorder)
            self.peers = LostPeers([module.process_group for module in modules], device.where, control.group)
            opened.callback(self.peers.close)
            module_of = [m for m, module in enumerate(modules) for _ in module.layouts]
            self.stage = IdExchange(ids, self.gate, layouts, module_of, device.where)
            self.collision = self._traffic("collision", "collision", modules, layouts, None)
            self.exclusive = self._traffic("exclusive", "exclusive", modules, layouts, self.gate)
            self.plain = PlainUpdates(_tables(modules), recorder)
            self._workers: dict[str, Worker] = {}
            opened.callback(self._close_workers)
            for name in WORKERS:
                self._workers[name] = Worker(name, self._failed, device=device, background=name in IN_BACKGROUND)
            opened.pop_all()

    def submit(self, worker: str, work: Callable[[], T], *, after: Sequence[Pending[Any]] = ()) -> Pending[T]:
        """Let `worker` do `work`, once all work `after` which it shall come is done."""

        def in_turn() -> T:
            for each in after:
                each.result()
            return work()

        return self._workers[worker].submit(in_turn)

    def submit_collision(
        self, work: Callable[[], None], *, after: Sequence[Pending[Any]], expecting: Callable[[], bool]
    ) -> Pending[None]:
        """The same in the collision worker; the wire is kept for it until all ranks have done it.

        It is kept from the moment on when neither this work nor any before it in the worker has to wait for something
        else: what they wait for may need the wire itself.
        `expecting`: whether a control word will follow soon.
        """
        at_once = all(each.done() for each in after) and (self._held_up is None or self._held_up.done())
        if at_once:
            self.gate.enter()

        def in_turn() -> None:
            for each in after:
                each.result()
            if not at_once:
                self.gate.enter()
            work()

        def leave() -> None:
            self._device.wait(done.mark)
            self.collision.meet()
            self.gate.leave(expecting=expecting())

        done = self._workers["collision"].submit(in_turn)
        if not at_once:
            self._held_up = done
        self._workers["collision"].submit(leave)
        return done

    def check(self) -> None:
        """Raise the first error of a worker."""
        if self._error is not None:
            raise self._error

    def close(self, reason: str) -> None:
        """End workers and groups; work that is under way ends first, within its deadlines."""
        self.gate.stop()
        self.peers.close()
        try:
            self._close_workers()
        finally:
            with ThreadPoolExecutor(len(self._all)) as closers:  # gloo waits up to 20 ms for each of its own threads
                for closed in [closers.submit(each.close, reason) for each in self._all]:
                    closed.result()

    def _close_workers(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def abort(self, reason: str) -> None:
        """Get everything that blocks out; the other ranks are given `reason`."""
        self.gate.stop()
        for each in self._all:
            each.abort(reason)

    def _failed(self, error: BaseException) -> None:
        """In a worker."""
        if self._error is None:
            self._error = error
            self.abort(f"lost the others: {error}")

    def _traffic(
        self,
        worker: str,
        kind: str,
        modules: Sequence[binding.Binding],
        layouts: Sequence[GroupLayout],
        gate: WireGate | None,
    ) -> RowExchange:
        return RowExchange(
            kind,
            layouts,
            _tables(modules),
            gradients=self._rows[f"{worker} gradients"],
            rows=self._rows[f"{worker} rows"],
            gate=gate,
            recorder=self._recorder,
        )


def _tables(modules: Sequence[binding.Binding]) -> list[Tables]:
    """Of every group, with shadows for one worker."""
    return [module.tables(g) for module in modules for g in range(len(module.layouts))]
