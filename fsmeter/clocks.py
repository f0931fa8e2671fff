"""The clocks a meter marks time with, and the meeting in which ranks compare them.

On CPU time is the host's. On CUDA it is the compute stream's: a wait for another stream costs the host nothing, but
leaves the compute stream idle between the event before it and the event after it.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fsmeter.intervals import Exchange, Pass, Timeline, Wait, align
from fsranks.control_group import ControlGroup
from fsranks.rank_context import RankContext

_ROUNDS = 32


class HostClock:
    """Marks are taken in the step, and turned into seconds later. `source` gives seconds."""

    def __init__(self, source: Callable[[], float] = time.perf_counter) -> None:
        self.mark: Callable[[], Any] = source
        """This instant; never blocks."""
        self.now = source
        """The host's seconds."""

    def reached(self, mark: Any) -> bool:
        """Whether `mark` and all before it can be turned into seconds."""
        return True

    def reader(self, begin: Any) -> Callable[[Any], float]:
        """What turns the marks of the step that began at `begin` into seconds of the host; call it step by step."""
        return lambda mark: mark

    def settle(self) -> None:
        """Wait until every mark is reached."""


class StreamClock(HostClock):
    """Marks are events on the stream of `device` that is current there. Making it synchronises the device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self.mark = self._event
        self._base = self._event()
        self._base.synchronize()
        self._base_s = self.now()

    def reached(self, mark: torch.cuda.Event) -> bool:
        return mark.query()

    def reader(self, begin: torch.cuda.Event) -> Callable[[torch.cuda.Event], float]:
        # Events give float32 milliseconds: measured from the start of a long run they would be too coarse.
        begin_s = self._base_s + self._base.elapsed_time(begin) / 1e3
        self._base, self._base_s = begin, begin_s
        return lambda mark: begin_s + begin.elapsed_time(mark) / 1e3

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def compare(
    context: RankContext, mine: Sequence[Timeline], clock: HostClock, *, timeout_s: float
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
        text = np.frombuffer(json.dumps([dataclasses.astuple(line) for line in mine]).encode(), np.uint8)
        sizes = group.all_gather(np.array([len(text)]))[:, 0]
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: len(text)] = text
        texts = group.all_gather(padded)
    finally:
        group.close("compared its clock")
    found = {rank: _timelines(texts[rank, :size].tobytes()) for rank, size in enumerate(sizes)}
    return found, offsets


def _timelines(text: bytes) -> list[Timeline]:
    lines = [Timeline(*fields) for fields in json.loads(text)]
    for line in lines:
        line.waits = [Wait(*fields)._replace(exchange=Exchange(*fields[1])) for fields in line.waits]
        line.passes = [Pass(*one) for one in line.passes]
    return lines
