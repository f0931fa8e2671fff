"""Training loops of one rank on a device of streams (`sanitizer.py`), played in one thread: a seed draws the program,
which worker goes on when, and what the device has done when it is asked.

The engine, its executors, workers and transports are those of the product. Doubles are the module (tables of a few rows
of one number each, which an update counts up), the threads, and what crosses the wire: it comes back.
"""

import gc
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from patience import PATIENCE_S
from sanitizer import ELSEWHERE, Sanitizer
from stream_doubles import (
    SAMPLES,
    Backend,
    Batch,
    Ids,
    Kernel,
    Module,
    OpenGate,
    Play,
    PlayedStaged,
    PlayedWorker,
    Quiet,
)

from fscomm.engine import engine
from fscomm.engine.schedule import StepSchedule
from fscomm.exchange import executor
from fscomm.exchange.id_exchange import IdExchange
from fscomm.exchange.worker import Pending
from fscomm.loop import moving
from fscomm.loop.feature_finder import FeatureFinder
from fscomm.parts.number_of_parts import NumberOfParts
from fscomm.parts.schedule import PartSchedule
from fscomm.plan.sharding_group import GroupLayout, Pooling
from fscomm.tables import group_tables
from fscomm.tables.group_tables import as_they_are
from fscomm.transports import nccl, watch
from fscomm.transports.staged import host_staged as staged
from fsranks.machine.clock import MACHINE_CLOCK
from fsranks.rank_context import RankContext

ROWS, PARTS = 6, 2
KINDS = ("host-staged", "nccl", "nccl-ce")
HERE = torch.device("cpu")


def _until_done(is_done: Callable[[], bool], *_: Any) -> bool:
    while not is_done():
        pass
    return True


class Epoch:
    """Something that a weak reference can point to."""


class Loop(engine.Engine):
    def _handles(self, m: int) -> Any:
        return SimpleNamespace(handed_out=lambda: False)


class Schedule:
    """One program: a loop, over one of the transports.

    Attributes:
        races: memory that was used or freed too early, once it `run`.
        device: what it saw.
    """

    def __init__(self, seed: int) -> None:
        self.random = draws = random.Random(seed)
        self.kind = draws.choice(KINDS)
        self.parts = draws.choice([1, 1, PARTS])
        self.device = Sanitizer(draws)
        self.play = Play(self.device, draws)
        self.races: list[str] = []

    def run(self) -> "Schedule":
        gc.disable()  # what it frees would be freed by whatever thread acts just then
        try:
            with self._doubles(), self.device:
                self._run()
        finally:
            gc.enable()
        return self

    def _doubles(self) -> ExitStack:
        """What is patched, and whose memory gets its name."""
        stack = ExitStack()
        kind = executor.Threads if self.kind == "host-staged" else executor.Streams
        result, ahead = Pending.result, IdExchange._group_ahead
        received, follow = executor.RowExchange._received, staged.Transfer.follow
        take = engine.Backward.take_gradient
        play, device = self.play, self.device

        def waited(pending: Any, timeout: float | None = None) -> Any:
            play.until(pending.done)
            return result(pending, timeout)

        def planned(self: Any, side: Any, *args: Any) -> Any:
            found = ahead(self, side, *args)
            device.named("rows", found.buffer, side.plan.layout.module)
            return found

        def followed(transfer: Any) -> None:
            play.until(transfer._over.is_set)
            follow(transfer)

        def taken(self: Any, step: Any, part: int, group: int, gradient: torch.Tensor) -> None:
            take(self, step, part, group, device.named("gradients", gradient))

        for owner, name, double in (
            (threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None)),
            (engine, "executor_of", lambda *_: kind),
            (engine, "PlainRuns", Quiet),
            (engine, "take_hyper", lambda kernel: None),
            (executor, "open_transport", lambda *_, **__: self._transport()),
            (executor, "Worker", partial(PlayedWorker, play)),
            (executor, "WireGate", OpenGate),
            (group_tables, "Shadow", lambda kernel, turns: kernel),
            (moving, "device_of", lambda _: device),
            (nccl, "_SMALLEST", 16),
            (watch, "poll", _until_done),
            (staged, "poll", _until_done),
            (Pending, "result", waited),
            (staged.Transfer, "follow", followed),
            (IdExchange, "_group_ahead", planned),
            (executor.RowExchange, "_received", lambda *args: device.named("received gradients", received(*args))),
            (engine.Backward, "take_gradient", taken),
        ):
            stack.enter_context(patch.object(owner, name, double))
        return stack

    def _transport(self) -> Any:
        group: Any = SimpleNamespace(
            rank=0,
            world_size=1,
            timeout_s=PATIENCE_S,
            clock=MACHINE_CLOCK,
            all_gather=lambda mine: mine[None],
            gone=list,
            abort=lambda reason: None,
            close=lambda reason: None,
        )
        if self.kind == "host-staged":
            return PlayedStaged(self.play, group)
        backend = Backend(self.device)
        if self.kind == "nccl":
            return nccl.NcclTransport(backend, group, HERE)
        made = nccl.PaddedTransport(backend, group, SimpleNamespace(**_of(self.device), where=HERE))
        self.device.roles |= {stream.name: "wire" for stream in made._streams}
        return made

    def _module(self, number: int, name: str) -> Module:
        """b is pooled."""
        pooling = Pooling(strips=((1,),), owners=1, mean=False) if name == "b" else None
        layout = GroupLayout(
            module=name,
            sharding="table_wise",
            rank=0,
            world_size=1,
            dim=1,
            dtype=torch.float32,
            runs=((1,),),
            rows=(ROWS,),
            chunk_bytes=4,
            pooling=pooling,
        )
        kernel = Kernel(self.device.named("tables", torch.zeros(ROWS, 1), name))
        codecs = [as_they_are(torch.float32, 1)]
        owner, plain = SimpleNamespace(), lambda features: module.run_plainly(features)
        module = Module(
            name=name,
            module=owner,
            device=ELSEWHERE,
            process_group=None,
            layouts=[layout],
            codecs=codecs,
            divide_by=[[1]],
            kernels=[[kernel]],
            proxied=[[]],
            plain=plain,
            number=number,
        )
        return module

    def _run(self) -> None:
        names = self.random.choice(["a", "b", "ab"])
        modules = [self._module(number, name) for number, name in enumerate(names)]
        in_parts = partial(
            PartSchedule,
            numbers=NumberOfParts([self.parts]),
            averaged=[],
            recorder=Quiet(),
            device=self.device,
            limit_s=PATIENCE_S,
        )
        readers: Any = {module.name: partial(_ids_of, module.number) for module in modules}
        finder = FeatureFinder([each.name for each in modules], readers, problem=lambda _: None, make=lambda *_: None)
        self.loop = loop = Loop(
            modules,
            RankContext(rank=0, world_size=1),
            Quiet(),
            finder=finder,
            device=self.device,
            transport=self.kind,
            strict=False,
            timeout_s=PATIENCE_S,
            schedule=in_parts if self.parts > 1 else StepSchedule,
        )
        for module in modules:
            module.engine = loop
        if self.kind != "host-staged":
            streams = loop._executor._streams
            self.device.roles |= {stream.name: of.name for of, stream in streams.items()}
        self.modules = modules
        self.expected = [np.zeros(ROWS, np.float32) for _ in modules]
        moves = self.random.random() < 0.8
        self.moving = moving.Moving(HERE if moves else None)
        if moves:
            self.device.roles[self.moving._stream.name] = "copy"
        for batch in self.batches(self.random.randint(3, 4)):
            self.train(batch)
        loop.flush()
        for module, expected in zip(modules, self.expected, strict=True):
            assert module.kernels[0][0].tables[:, 0].tolist() == expected.tolist()
        self.play.until(lambda: not any(each.is_ready() for each in self.play.workers))
        self.races = self.device.broken()

    def batches(self, number: int) -> Iterator[Any]:
        """As the look-ahead gives them: one ahead."""
        epoch = Epoch()
        ahead = None
        for left in range(number, 0, -1):
            resumed = self.loop.resume(epoch)
            if ahead is None:
                ahead = self._pull()
            elif resumed:
                self.loop.announce(ahead, depends=False, in_turn=None)
            moved, ahead = ahead, None
            if left > 1:
                ahead = self._pull()
            else:
                self.loop.end()
            self.play.pause()
            yield self.loop.hold(self.moving.end(moved))
        self.loop.resume(epoch)
        self.loop.finish()

    def _pull(self) -> Any:
        batch = self._draw()
        if self.moving._where is None:  # the loader gives them on the device
            batch = batch.to(HERE, non_blocking=True)
        moved = self.moving.begin(batch)
        self.loop.announce(moved, depends=False, in_turn=None)
        return moved

    def _draw(self) -> Batch:
        ids = [np.array(self.random.choices(range(ROWS), k=SAMPLES)) for _ in self.modules]

        def put(ids: torch.Tensor) -> torch.Tensor:
            return self.device.named("batch", ids.clone())

        return Batch([Ids(torch.from_numpy(each)) for each in ids], put)

    def train(self, batch: Any) -> None:
        chance = self.random.random
        if chance() < 0.15:
            self.loop.flush()
        if self.parts == 1 and chance() < 0.1:
            self.write()
        if self.parts == 1 and chance() < 0.1:
            with torch.no_grad():
                self.forward(batch)
        losses: list[Any] = []
        read: list[list[int]] = [[] for _ in self.modules]
        before = [each.copy() for each in self.expected]
        for part in batch.parts() if self.parts > 1 else [batch]:
            outs = self.forward(part, before)
            for m, ids in enumerate(part.of):
                read[m] += ids.ids.tolist()
            losses.append(sum(out.sum() for out in outs))
            self.play.pause()
        passes = self.random.choice([0, 0, 1, 1, 1, 2 if self.parts == 1 else 1])
        if passes and self.parts == 1 and chance() < 0.15:  # a second forward, maybe of what was not announced
            other = batch if chance() < 0.5 else self._draw().to(HERE, non_blocking=True)
            losses.append(sum(out.sum() for out in self.forward(other)))
            for m, ids in enumerate(other.of):
                read[m] += ids.ids.tolist()
        for number in range(passes):
            for loss in losses:
                loss.backward(retain_graph=number + 1 < passes)
                self.play.pause()
            for m, of_module in enumerate(read):
                np.add.at(self.expected[m], of_module, 1)
        if self.parts == 1 and chance() < 0.15:
            self.evaluate()

    def forward(self, batch: Any, expected: Any = None) -> list[torch.Tensor]:
        outs = []
        for m, ids in enumerate(batch.of):
            outs.append(self.loop.call(m, ids))
            found = (expected or self.expected)[m][ids.ids.numpy()]
            assert outs[-1].tolist() == found.tolist(), "a forward read other rows than in the plain loop"
            self.play.pause()
        return outs

    def evaluate(self) -> None:
        with torch.no_grad():
            for batch in self.batches(2):
                self.forward(batch)

    def write(self) -> None:
        """The user writes into tables."""
        m = self.random.randrange(len(self.modules))
        self.loop._before_look(m)
        self.modules[m].kernels[0][0].tables.add_(1)
        self.expected[m] += 1
        self.loop.written([m])


def _ids_of(m: int, batch: Any) -> Ids:
    found: Ids = batch.of[m]
    return found


def _of(device: Sanitizer) -> dict[str, Any]:
    return {name: getattr(device, name) for name in ("stream", "mark", "after", "is_done", "wait", "reads")}
