"""The executor on a GPU: one thread issues all operations to streams of the device, in program order, and waits for
none of them there.

The host runs ahead of the device. An operation that waits for another one lets its stream wait for that; so does the
compute stream, where a forward uses what was fetched. All ranks issue in the same order, over all transports. Exclusive
operations wait on the device for the collision operations that were issued before them. What was issued is waited for
by a thread of its own, which finds out if a rank is lost, and keeps what the device still uses.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fscomm.exchange.executor import Executor
from fscomm.exchange.operations import Class, Operation
from fscomm.exchange.rows import Wire
from fscomm.exchange.worker import Pending
from fscomm.transports.transport import Handle, Part, Transport

_URGENT = -1  # the priority of a stream


class Streams(Executor):
    """A stream for each class; that of the collision class has priority. No wire gate holds anything back."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._streams = {
            of_class: self._device.stream(priority=_URGENT if of_class is Class.COLLISION else 0) for of_class in Class
        }
        self._urgent: Pending[None] | None = None  # the last collision operation

    def submit(self, operation: Operation) -> Pending[None]:
        behind = [self._urgent] if operation.of_class is Class.EXCLUSIVE and self._urgent is not None else []
        work = partial(self._issue, operation, behind)
        return self._workers["issue"].submit(work, stream=self._streams[operation.of_class])

    def submit_urgent(self, operations: Sequence[Operation], *, expecting: Callable[[], bool]) -> list[Pending[None]]:
        done = [self.submit(operation) for operation in operations]
        self._urgent = done[-1]
        return done

    def hurry(self) -> None:
        pass

    def _workers_wanted(self) -> Mapping[str, bool]:
        return {"ids": True, "issue": False, "watch": True}

    def _wires(self) -> Mapping[Class, Wire]:
        return dict.fromkeys((Class.COLLISION, Class.EXCLUSIVE), _Issued(self._watch))

    def _issue(self, operation: Operation, behind: Sequence[Pending[None]]) -> None:
        for each in behind:
            each.result()
        self._run(operation)

    def _watch(self, handle: Handle) -> None:
        self._workers["watch"].submit(handle.wait)


class _Issued:
    """All parts are issued at once, and `watch` waits for them."""

    def __init__(self, watch: Callable[[Handle], None]) -> None:
        self._watch = watch

    def wait(self) -> None:
        pass

    def exchange(self, transport: Transport, parts: Iterable[Part]) -> None:
        for part in parts:
            handle = part.over(transport)
            handle.follow()
            self._watch(handle)
