"""How much of a training loop's time is not compute, and why: any loop, with or without fscomm.

    with BubbleMeter(model) as meter:
        for batch in meter.watch(loader):
            ...
    print(meter.report())          # on every rank: they compare when each of them arrived

Within the block, every wait of the training thread is noted; results stay the same to the bit, and nothing is sent.
Only `report` exchanges, after the fact, what each rank noted. With fscomm, watch what the loop iterates:
`meter.watch(comm.lookahead(loader))`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch

from fsmeter.calls import told_of_calls
from fsmeter.clocks import HostClock, StreamClock, compare
from fsmeter.intervals import BubbleReport, Timeline, attribute
from fsmeter.lengths import Lengths, batch_lengths, copied, counted
from fsmeter.notes import Notes
from fsranks.observers import observed_by
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
        self._model = model
        self._timeout_s = timeout_s
        self._clock = _clock_for(model, clock)
        self._notes = Notes(self._clock.mark)
        self._undo: ExitStack | None = None  # inside the block
        self._step = 0
        self._line: Timeline | None = None  # the step that is under way, or that its loop was left in
        self._open: deque[Timeline] = deque()
        self._done: deque[Timeline] = deque(maxlen=keep)

    def __enter__(self) -> Self:
        if self._undo is not None:
            raise RuntimeError("this BubbleMeter is already entered: make another one")
        with ExitStack() as undo:
            undo.enter_context(told_of_calls(self._notes))
            undo.enter_context(observed_by(self._notes))
            self._notes.hook(self._model, undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._undo is not None
        undo, self._undo = self._undo, None
        with undo:
            if error is None:
                self._end(self._clock.mark())
            else:
                self._drop()

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
        if self._undo is None:
            raise RuntimeError("meter.watch(...) is iterated outside `with BubbleMeter(model) as meter:`")
        now = self._clock.mark()
        self._end(now)
        self._line = Timeline(self._step, now)
        self._notes.begin(self._line)

    def _got(self, lengths: Lengths) -> None:
        if self._line is not None:
            self._line.pulled = self._clock.mark()
            self._line.lengths = lengths

    def _leave(self) -> None:
        """The loop was left in mid-step: on purpose, or by an error, which the block's end will tell."""
        if self._line is not None:
            self._line.end = self._clock.mark()
        self._notes.line = None

    def _end(self, now: Any) -> None:
        """The current step, if its batch came, is complete."""
        line = self._line
        self._drop()
        if line is not None and line.pulled is not None:
            line.end = now if line.end is None else line.end
            self._open.append(line)
            self._step += 1
        self._resolve()

    def _drop(self) -> None:
        self._line = self._notes.line = None

    def _resolve(self) -> None:
        """Steps that the clock has reached: their marks become seconds, and their lengths are counted."""
        while self._open and self._clock.reached(self._open[0].end):
            line = self._open.popleft()
            _to_seconds(line, self._clock.reader(line.begin))
            line.lengths = counted(line.lengths)
            self._done.append(line)


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
        fetched: deque[Lengths] = deque()
        try:
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    meter._drop()
                    return
                fetched.append(copied(self._lengths(batch)))
                meter._got(fetched.popleft() if len(fetched) > self._ahead else {})
                yield batch
                meter._ask()
        except GeneratorExit:
            meter._leave()
            raise


def _clock_for(model: torch.nn.Module, clock: Callable[[], float] | None) -> HostClock:
    if clock is not None:
        return HostClock(clock)
    parameter = next(model.parameters(), None)
    if parameter is not None and parameter.is_cuda:
        return StreamClock(parameter.device)
    return HostClock()


def _to_seconds(line: Timeline, read: Callable[[Any], float]) -> None:
    line.begin, line.pulled, line.end = read(line.begin), read(line.pulled), read(line.end)
    line.waits = [
        wait._replace(
            exchange=wait.exchange._replace(issued=read(wait.exchange.issued)),
            begin=read(wait.begin),
            end=read(wait.end),
        )
        for wait in line.waits
    ]
    line.passes = [one._replace(begin=read(one.begin), end=read(one.end)) for one in line.passes]
