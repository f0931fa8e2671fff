"""The rows of fscomm on a played job: its executor with its workers, wire gate and transports, on rows of the seed."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from played_network import Job
from played_threads import queue_of, result_of, threading_of

from fscomm.device import Host
from fscomm.exchange import executor, wire_gate, worker
from fscomm.exchange.control_word import NO_STEP, Mode
from fscomm.exchange.operations import Class, Due, Kind, Operation
from fscomm.report.recorder import Recorder
from fscomm.transports.transport import Chunk
from fsranks.meeting import Meeting

LIMIT_S = 10.0
STEPS = 4
CHUNKS = 3  # of one exchange
WIDTH = 5  # bytes of a row
CLASSES = (Class.COLLISION, Class.EXCLUSIVE)


def _splits(seed: int, step: int, of_class: Class, chunk: int, size: int) -> np.ndarray:
    """int64 [W, W], rows from each rank to each."""
    return np.random.default_rng([seed, step, CLASSES.index(of_class), chunk]).integers(0, 3, (size, size))


def _rows(source: int, to: int, step: int, chunk: int, count: int) -> torch.Tensor:
    """uint8 [count, WIDTH] that tell from where, to where, and of what they are."""
    mark = torch.tensor([source, to, step, chunk, 0], dtype=torch.uint8)
    rows = mark.repeat(count, 1)
    rows[:, -1] = torch.arange(count)
    return rows


class PlayedRows:
    """In the place of `RowExchange`: moves rows of the seed, as large as it says, by the wire of its class."""

    def __init__(self, of_class: Class, layouts: list[Any], *_: Any, of_rows: Any, policy: Any, **__: Any) -> None:
        self._class, self._seed, self._transport, self._policy = of_class, layouts[0].seed, of_rows, policy

    def run(self, operation: Operation) -> None:
        self._policy.wait()
        self._policy.exchange(self._transport, self._parts(operation.number, operation.gradients))  # type: ignore[arg-type]

    def barrier(self) -> None:
        self._transport.barrier()

    def _parts(self, step: int, received: list[torch.Tensor]) -> Iterator[Chunk]:
        rank, size = self._transport.rank, self._transport.world_size
        for chunk in range(CHUNKS):
            splits = _splits(self._seed, step, self._class, chunk, size)
            mine = [_rows(rank, to, step, chunk, count) for to, count in enumerate(splits[rank].tolist())]
            out = torch.full((int(splits[:, rank].sum()), WIDTH), 255, dtype=torch.uint8)
            received.append(out)
            yield Chunk(out, torch.cat(mine), splits[:, rank].tolist(), splits[rank].tolist(), 3 * WIDTH)


@contextlib.contextmanager
def around(job: Job) -> Iterator[None]:
    """fscomm's threads are those of the played ranks."""
    ranks = job.ranks
    with contextlib.ExitStack() as patched:
        for module, name, value in (
            (worker, "threading", threading_of(ranks)),
            (worker, "queue", queue_of(ranks)),
            (worker.Pending, "result", result_of(ranks)),
            (wire_gate, "threading", threading_of(ranks)),
            (executor, "WireGate", partial(wire_gate.WireGate, ranks.now)),
            (executor, "RowExchange", PlayedRows),
            (executor, "IdExchange", mock.Mock()),
        ):
            patched.enter_context(mock.patch.object(module, name, value))
        yield


def exchange_rows(job: Job, rank: int, seed: int, slip: Callable[[int], bool]) -> Iterator[list[torch.Tensor]]:
    """Gives the chunks of the collision rows of a step, and of the exclusive rows of the step before."""
    layout = SimpleNamespace(chunk_bytes=4 * WIDTH, seed=seed)
    served: Any = SimpleNamespace(layouts=[layout], modules=[], tables=list)
    recorder = Recorder(clock=job.ranks.now)
    with contextlib.ExitStack() as opened:
        with Meeting(job.context(rank), what="enable", timeout_s=LIMIT_S) as meeting:
            made = executor.Threads(
                served, job.context(rank), recorder, device=Host(), transport="gloo", timeout_s=LIMIT_S
            )
            opened.callback(made.close, "left the block", at_exit=True)
            meeting.agree({"seed": str(seed)})
        before, before_rows = None, []
        for step in range(STEPS):
            job.ranks.wait(job.ranks.random.random() * 0.2)  # computes
            if slip(step):
                return
            modes = {step: Mode.FAST, NO_STEP: Mode.FOREIGN}
            made.control_words.exchange("module", 0, held=step, passes=step, newest=step, modes=modes)
            shared, own = [], []
            last = step == STEPS - 1
            urgent = made.submit([_fetch(Class.COLLISION, step, shared)], Due.NOW, expecting=lambda last=last: not last)
            later = made.submit([_fetch(Class.EXCLUSIVE, step, own)])[0]
            urgent[0].result()
            if before is not None:
                made.release_up_to([before])
                before.result()
            yield [*shared, *before_rows]
            before, before_rows = later, own


def _fetch(of_class: Class, step: int, received: list[torch.Tensor]) -> Operation:
    return Operation(kind=Kind.FETCH, of_class=of_class, number=step, gradients=received)  # type: ignore[arg-type]


def check_rows(steps: list[list[list[torch.Tensor]]], seed: int, size: int) -> None:
    """Every rank has the rows that were sent to it, to the bit, in the steps that it made."""
    for rank, made in enumerate(steps):
        for step, chunks in enumerate(made):
            expected = _expected(seed, rank, step, Class.COLLISION, size)
            if step:
                expected += _expected(seed, rank, step - 1, Class.EXCLUSIVE, size)
            assert all(torch.equal(*pair) for pair in zip(chunks, expected, strict=True)), f"rank {rank}, step {step}"


def _expected(seed: int, rank: int, step: int, of_class: Class, size: int) -> list[torch.Tensor]:
    chunks = []
    for chunk in range(CHUNKS):
        counts = _splits(seed, step, of_class, chunk, size)[:, rank].tolist()
        chunks.append(torch.cat([_rows(source, rank, step, chunk, count) for source, count in enumerate(counts)]))
    return chunks
