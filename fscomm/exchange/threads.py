"""The executor on the host: one worker for each class of operations. What a worker has done is done."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fscomm.exchange.executor import Executor
from fscomm.exchange.operations import Class, Operation
from fscomm.exchange.rows import Wire
from fscomm.exchange.wire_gate import OpenWire
from fscomm.exchange.worker import Pending


class Threads(Executor):
    """While collision operations run, or wait for their turn, no exclusive chunk begins: the wire is kept for them."""

    _held_up: Pending[Any] | None = None  # the last collision operations that had to wait for another worker
    _exclusive = 0  # operations that were submitted

    def submit(self, operation: Operation) -> Pending[None]:
        work = partial(self._run, operation)
        if operation.of_class is Class.EXCLUSIVE:
            self._exclusive += 1
            work = partial(self._run_exclusive, self._exclusive, operation)
        return self._workers[operation.of_class.value].submit(work)

    def hurry(self) -> None:
        self.wire_gate.let_go(self._exclusive)
        self._signals.send(self._exclusive)

    def submit_urgent(self, operations: Sequence[Operation], *, expecting: Callable[[], bool]) -> list[Pending[None]]:
        """The wire is kept at once if neither they nor earlier work of the worker have to wait for another worker,
        which may need the wire itself. Otherwise it is kept when the waiting is over.
        """
        self.wire_gate.let_go(self._awaited())
        after = [each for operation in operations for each in operation.after]
        worker = self._workers[Class.COLLISION.value]
        if all(each.done() for each in after) and (self._held_up is None or self._held_up.done()):
            self.wire_gate.enter()
        else:
            self._held_up = worker.submit(partial(self._enter_after, after))
        done = [self.submit(operation) for operation in operations]
        worker.submit(partial(self._leave, done[-1], expecting))
        return done

    def _workers_wanted(self) -> Mapping[str, bool]:
        return {"ids": True, "collision": False, "exclusive": True, "plain": False}

    def _wires(self) -> Mapping[Class, Wire]:
        return {Class.COLLISION: OpenWire(), Class.EXCLUSIVE: self.wire_gate}

    def _awaited(self) -> int:
        """All that were submitted are let go: a rank that left out a backward pass has other numbers than this one."""
        others = self._signals.received()
        return max(*others, self._exclusive) if others else 0

    def _run_exclusive(self, number: int, operation: Operation) -> None:
        self.wire_gate.begin(number)
        self._run(operation)

    def _enter_after(self, after: Sequence[Pending[Any]]) -> None:
        for each in after:
            each.result()
        self.wire_gate.enter()

    def _leave(self, last: Pending[None], expecting: Callable[[], bool]) -> None:
        self._device.wait(last.mark, self._limit_s)
        self._rows[Class.COLLISION].meet()
        self.wire_gate.leave(expecting=expecting())
