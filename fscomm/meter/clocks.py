"""The clocks a meter marks time with, and the meeting in which ranks compare them.

On CPU time is the host's. On CUDA it is the compute stream's: a wait for another stream costs the host nothing, but
leaves the compute stream idle between the event before it and the event after it.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from fscomm.meter.intervals import Pass, Timeline, Wait, align
from fsranks.control_group import ControlGroup
from fsranks.rank_context import RankContext

_ROUNDS = 32


class Clock(Protocol):
    """Marks are taken in the step, and turned into seconds later."""

    def mark(self) -> Any:
        """This instant; never blocks."""
        ...

    def reached(self, mark: Any) -> bool:
        """Whether `seconds` can be asked for it and all before it."""
        ...

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Marks of one step in the host's seconds; earlier steps are asked for first."""
        ...

    def settle(self) -> None:
        """Wait until every mark is reached."""
        ...

    def now(self) -> float:
        """The host's seconds."""
        ...


class HostClock:
    """`source` gives seconds."""

    def __init__(self, source: Callable[[], float] = time.perf_counter) -> None:
        self.mark = self.now = source

    def reached(self, mark: float) -> bool:
        return True

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return list(marks)

    def settle(self) -> None:
        pass


class StreamClock:
    """Events on the stream of `device` that is current where the mark is taken. Making it synchronises the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._base = self.mark()
        self._base.synchronize()
        self._base_s = time.perf_counter()

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def reached(self, mark: torch.cuda.Event) -> bool:
        return mark.query()

    def seconds(self, marks: Sequence[torch.cuda.Event]) -> list[float]:
        # Events give float32 milliseconds: measured from the start of a long run they would be too coarse.
        first = marks[0]
        self._base_s += self._base.elapsed_time(first) / 1e3
        self._base = first
        return [self._base_s + first.elapsed_time(mark) / 1e3 for mark in marks]

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def now(self) -> float:
        return time.perf_counter()


def compare(
    context: RankContext, mine: Sequence[Timeline], clock: Clock, *, timeout_s: float
) -> tuple[dict[int, list[Timeline]], list[float]]:
    """The timelines of all ranks, and the offsets of their clocks to rank 0's. Collective over `context.group`; blocks.

    Raises PeerError if a rank does not take part within `timeout_s`.
    """
    group = ControlGroup(context, timeout_s=timeout_s)
    try:
        begins, ends = np.zeros(_ROUNDS), np.zeros(_ROUNDS)
        for i in range(_ROUNDS):
            begins[i] = clock.now()
            group.all_gather(np.zeros(1, np.uint8))
            ends[i] = clock.now()
        offsets = align(group.all_gather(begins), group.all_gather(ends))
        text = np.frombuffer(json.dumps(mine).encode(), np.uint8)
        sizes = group.all_gather(np.array([len(text)]))[:, 0]
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: len(text)] = text
        texts = group.all_gather(padded)
    finally:
        group.close("compared its clock")
    found = {rank: _timelines(texts[rank, :size].tobytes()) for rank, size in enumerate(sizes)}
    return found, offsets


def _timelines(text: bytes) -> list[Timeline]:
    return [
        Timeline(
            step, begin, pulled, end, tuple(Wait(*wait) for wait in waits), tuple(Pass(*one) for one in passes),
            lengths, tuple(map(tuple, sent)),
        )
        for step, begin, pulled, end, waits, passes, lengths, sent in json.loads(text)
    ]  # fmt: skip
