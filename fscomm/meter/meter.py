"""How much of a training loop's time is not compute, and why: any loop, with or without fscomm.

    with fscomm.BubbleMeter(model) as meter:
        for batch in meter.watch(loader):
            ...
    print(meter.report())          # on every rank: they compare when each of them arrived

Within the block, every wait of the training thread is noted (see meter_waits); results stay the same to the bit, and
nothing is sent. Only `report` exchanges, after the fact, what each rank noted. With fscomm, watch what the loop
iterates: `meter.watch(comm.lookahead(loader))`.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch

from fscomm.meter.clocks import Clock, HostClock, StreamClock, compare
from fscomm.meter.intervals import BubbleReport, Timeline, attribute
from fscomm.meter.lengths import Lengths, Noted, batch_lengths
from fscomm.meter.passes import Passes
from fscomm.meter.waits import Waits
from fsranks.rank_context import resolve

T = TypeVar("T")


class BubbleMeter:
    """Measures the steps of one loop, inside `with`. Works without a process group, too.

    Args:
        model: the model that the loop trains; its DistributedDataParallel parts are watched for dense gradients. A
            model on CUDA is timed on its compute stream.
        keep: steps that are kept, the last ones.
        clock: gives seconds, in place of the host's or the stream's.
        timeout_s: how long `report` waits for the other ranks.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        keep: int = 1000,
        clock: Callable[[], float] | None = None,
        timeout_s: float = 300,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"BubbleMeter needs the torch.nn.Module that the loop trains, got {type(model).__name__}")
        if keep < 1:
            raise ValueError(f"keep must be at least 1 step, got {keep}")
        self._timeout_s = timeout_s
        self._clock = _clock_for(model, clock)
        self._waits = Waits(model, self._clock.mark)
        self._passes = Passes(model, self._clock.mark, self._waits.here)
        self._inside = False
        self._step = 0
        self._begin: Any = None
        self._pulled: Any = None
        self._left: Any = None
        self._lengths: Noted | None = None
        self._open: deque[tuple[Timeline, Noted | None]] = deque()
        self._done: deque[Timeline] = deque(maxlen=keep)

    def __enter__(self) -> Self:
        if self._inside:
            raise RuntimeError("this BubbleMeter is already entered: make another one")
        self._passes.install()
        try:
            self._waits.install()
        except BaseException:
            self._passes.remove()
            raise
        self._inside = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = False
        if error is None:
            self._end(self._clock.mark())
        else:
            self._drop()
        try:
            self._waits.remove()
        finally:
            self._passes.remove()

    def watch(
        self, loader: Iterable[T], *, lengths: Callable[[T], Lengths] = batch_lengths, ahead: int = 0
    ) -> "Watched[T]":
        """The same batches; a step lasts from asking for its batch until asking for the next.

        Of a pipeline that fetches ahead, too: `pipeline.progress(iter(meter.watch(loader)))`, but for the batches that
        it still works on after the last was fetched.

        `lengths`: from a batch to {sequence: integers [B]}, how many events each sample has. By default they are those
        of the KeyedJaggedTensors in the batch, by key; of keys with equal lengths, the first alone.
        `ahead`: how many batches the loop has fetched beyond the one it trains on, 2 for TrainPipelineSparseDist: the
        lengths are those of the batch that is trained on.
        """
        if ahead < 0:
            raise ValueError(f"ahead must be 0 or more batches, got {ahead}")
        return Watched(self, loader, lengths, ahead)

    def report(self, *, local: bool = False, skip: int = 0) -> BubbleReport:
        """The complete steps of all ranks, without the first `skip` of each.

        Collective where there is a process group: every rank must call it, outside the steps. With `local`, only this
        rank's steps, at once, and stragglers are not told from slow links.

        Raises PeerError if a rank does not come within `timeout_s`.
        """
        self._clock.settle()
        self._resolve()
        context = resolve()
        ranks: dict[int, list[Timeline]] = {context.rank: list(self._done)}
        offsets: list[float] | None = [0.0]
        if context.world_size > 1:
            offsets = None
            if context.group is not None and not local:
                ranks, offsets = compare(context, ranks[context.rank], self._clock, timeout_s=self._timeout_s)
        shown = {rank: [line for line in lines if line.step >= skip] for rank, lines in ranks.items()}
        return BubbleReport(world_size=context.world_size, steps=tuple(attribute(shown, offsets)))

    def save(self, path: str | Path, *, skip: int = 0) -> None:
        """Write the report of all ranks as JSON, on rank 0 alone: what `freescale calibrate` reads. Collective, as
        `report`, and with its `skip` and its errors.
        """
        report = self.report(skip=skip)
        if resolve().rank == 0:
            report.save(path)

    def _ask(self) -> None:
        """The loop asks for a batch: a step ends and the next begins."""
        if not self._inside:
            raise RuntimeError("meter.watch(...) is iterated outside `with BubbleMeter(model) as meter:`")
        now = self._clock.mark()
        self._end(now)
        self._begin = now
        self._waits.enter_step(self._step)

    def _got(self, lengths: Noted | None) -> None:
        self._waits.pulled()
        self._pulled = self._clock.mark()
        self._lengths = lengths

    def _end(self, now: Any) -> None:
        """The current step, if its batch came, is complete."""
        if self._pulled is not None:
            end = now if self._left is None else self._left
            waits, passes, sent = tuple(self._waits.found), tuple(self._passes.found), tuple(self._waits.sent)
            line = Timeline(self._step, self._begin, self._pulled, end, waits, passes, {}, sent)
            self._open.append((line, self._lengths))
            self._step += 1
        self._drop()
        self._resolve()

    def _leave(self) -> None:
        """The loop was left in mid-step: on purpose, or by an error, which the block's end will tell."""
        self._waits.leave_step()
        self._left = self._clock.mark()

    def _drop(self) -> None:
        self._waits.leave_step()
        self._waits.found.clear()
        self._waits.sent.clear()
        self._passes.found.clear()
        self._pulled = self._left = None

    def _resolve(self) -> None:
        while self._open and self._clock.reached(self._open[0][0].end):
            line, lengths = self._open.popleft()
            counted = lengths.counted() if lengths is not None else {}
            self._done.append(_in_seconds(line, self._clock)._replace(lengths=counted))


class Watched(Generic[T]):
    """What `BubbleMeter.watch` returns: iterable like the loader, as often."""

    def __init__(self, meter: BubbleMeter, loader: Iterable[T], lengths: Callable[[T], Lengths], ahead: int) -> None:
        self._meter = meter
        self._loader = loader
        self._lengths = lengths
        self._ahead = ahead

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        meter = self._meter
        meter._ask()  # a loader may well do its work in iter()
        iterator = iter(self._loader)
        fetched: deque[Noted] = deque()
        try:
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    meter._drop()
                    return
                fetched.append(Noted(batch, self._lengths))
                meter._got(fetched.popleft() if len(fetched) > self._ahead else None)
                yield batch
                meter._ask()
        except GeneratorExit:
            meter._leave()
            raise


def _clock_for(model: torch.nn.Module, clock: Callable[[], float] | None) -> Clock:
    if clock is not None:
        return HostClock(clock)
    parameter = next(model.parameters(), None)
    if parameter is not None and parameter.is_cuda:
        return StreamClock(parameter.device)
    return HostClock(time.perf_counter)


def _in_seconds(line: Timeline, clock: Clock) -> Timeline:
    """`line` with its marks as seconds."""
    marks = [
        line.begin, line.pulled, line.end,
        *(mark for wait in line.waits for mark in (wait.issued, wait.begin, wait.end)),
        *(mark for one in line.passes for mark in (one.begin, one.end)),
    ]  # fmt: skip
    begin, pulled, end, *rest = clock.seconds(marks)
    runs = rest[3 * len(line.waits) :]
    waits = [
        wait._replace(issued=rest[i], begin=rest[i + 1], end=rest[i + 2])
        for i, wait in zip(range(0, 3 * len(line.waits), 3), line.waits, strict=True)
    ]
    passes = [
        one._replace(begin=runs[i], end=runs[i + 1]) for i, one in zip(range(0, len(runs), 2), line.passes, strict=True)
    ]
    return line._replace(begin=begin, pulled=pulled, end=end, waits=tuple(waits), passes=tuple(passes))
