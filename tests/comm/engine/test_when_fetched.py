"""When operations are issued: what these tests see changes no result, but how long a step takes."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from exact import Run, compare
from exact_configs import CONFIGS
from exact_model import Config
from worlds import shared_world

from fscomm.device import Host
from fscomm.engine.program import Program
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


def fetches(rank: int, size: int, config: Config) -> tuple[list[str], Counter[int]]:
    """What differs from the plain loop, and how often exclusive rows of each step were fetched."""
    found: Counter[int] = Counter()
    fetch = Program.fetch_exclusive

    def counted(self: Program, step: Any, modules: Any) -> None:
        found[step.number] += 1
        fetch(self, step, modules)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "fetch_exclusive", counted)
        return compare(rank, size, config, late_backward)[0], found


def test_exclusive_rows_are_fetched_when_no_update_comes_before_their_use() -> None:
    """After the first steps, whose updates may be of any rows: they run plainly."""
    config = CONFIGS["row"].but(steps=8)
    for found, times in shared_world(2).run(fetches, config):
        assert found == []
        assert [times[step] for step in range(4, 8)] == [1] * 4


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
