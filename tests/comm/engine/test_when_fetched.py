"""When operations are issued: what these tests see changes no result, but how long a step takes."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from exact import Run, compare
from exact_configs import CONFIGS
from exact_loops import base
from worlds import shared_world

from fscomm.device import Host
from fscomm.exchange.executor import Streams
from fscomm.exchange.operations import Class, Kind, Operation
from fscomm.exchange.worker import Pending


def late_backward(run: Run) -> None:
    """The next batch is asked for before the backward pass through the one before it."""
    with run.enable() as comm:
        before: torch.Tensor | None = None
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if before is not None:
                before.backward()
            before = run.loss(step, batch)
        assert before is not None
        before.backward()


def moved(rank: int, size: int, loop: Callable[[Run], None]) -> tuple[list[str], list[Any]]:
    """What differs from the plain loop, and the bytes that travelled in each step, by module and kind."""
    found, said = compare(rank, size, CONFIGS["row"].but(steps=8), loop)
    return found, [step["bytes"] for step in said["report"]["steps"]]


def test_exclusive_rows_travel_once_when_no_update_comes_before_their_use() -> None:
    """As where backward passes are in time. In the first steps updates may be of any rows: they run plainly."""
    late, in_time = (shared_world(2).run(moved, loop) for loop in (late_backward, base))
    for (found, by_step), (_, expected) in zip(late, in_time, strict=True):
        assert found == []
        assert by_step[4:] == expected[4:]
        assert any(of["embeddings.a"]["exclusive rows"]["sent"] for of in by_step[4:])


class Issuing:
    """In the place of the worker that issues operations."""

    def __init__(self) -> None:
        self.issued: list[Operation] = []

    def submit(self, work: Callable[[], None], *, stream: Any) -> Pending[None]:
        del stream
        self.issued.append(work.args[0])  # type: ignore[attr-defined]
        return Pending(Host())


def test_on_streams_exclusive_operations_are_behind_the_collision_operations_before_them() -> None:
    worker = Issuing()
    streams: Any = SimpleNamespace(_workers={"issue": worker}, _streams=dict.fromkeys(Class), _run=print, _urgent={})
    streams.submit = lambda operation: Streams.submit(streams, operation)
    of = {each: Operation(kind=Kind.FETCH, of_class=each) for each in Class}
    streams.submit(of[Class.EXCLUSIVE])
    *_, urgent = Streams.submit_urgent(streams, [of[Class.COLLISION]] * 2, expecting=lambda: True)
    for of_class in (Class.EXCLUSIVE, Class.COLLISION, Class.PLAIN):
        streams.submit(of[of_class])
    (late,) = Streams.submit_urgent(streams, [of[Class.EVICTED]], expecting=lambda: True)
    streams.submit(of[Class.EXCLUSIVE])
    after = [list(each.after) for each in worker.issued]
    assert after == [[], [], [], [urgent], [], [], [], [urgent, late]]
