"""The numbers of every batch that a loader reports to `on_step`: differences of its counters from batch to batch."""

import time
from collections.abc import Callable
from typing import Any

from fsdata.batch.batch import StepStats
from fsdata.nodes.timing import Timing

OnStep = Callable[[dict[str, float]], object]
"""Receives the numbers of a batch, by name."""


def check_on_step(on_step: object) -> None:
    """Raises TypeError."""
    if on_step is not None and not callable(on_step):
        raise TypeError(f"on_step is a function of a dict of numbers or None, got {on_step!r}")


class StepNumbers:
    """Reports every batch of one loader, in the training thread.

    Args:
        on_step: receives the numbers of each batch. What it returns is ignored.
        timing: that of the loader: the seconds of each activity since the loader was made.
        bytes_read: since the loader was made.
        clock: in seconds.
    """

    def __init__(
        self,
        on_step: OnStep,
        timing: Timing,
        bytes_read: Callable[[], int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._on_step = on_step
        self._timing = timing
        self._bytes_read = bytes_read
        self._clock = clock
        self._counted: dict[str, float] = {}
        self._yielded: tuple[float, int, int] | None = None  # the batch before: when it was yielded, samples, tokens

    def begin_epoch(self) -> None:
        """No rate spans two epochs: evaluation, checkpoints and the first decoding of an epoch are between them."""
        self._yielded = None

    def report(self, stats: StepStats, tokens: int, *, batches: int, waiting: int) -> None:
        """Report the batch that is about to be yielded. Raises what `on_step` raises.

        batches: yielded since the loader was made, with this one. waiting: those that are ready after it.
        """
        # The decoding threads count on while this is read: what they add later belongs to the next batch.
        seconds = self._timing.seconds()
        counted = {
            "wait_s": seconds.get("wait", 0.0),
            "decode_s": seconds.get("decode", 0.0),
            "bytes_read": self._bytes_read(),
        }
        numbers: dict[str, Any] = {
            "batches": batches,
            "epoch": stats.epoch,
            "step": stats.step,
            "samples": stats.samples,
            "tokens": tokens,
            "waiting": waiting,
            **{name: value - self._counted.get(name, 0) for name, value in counted.items()},
        }
        if stats.straggler_after is not None:
            numbers["straggler_share"] = stats.straggler_after
        now = self._clock()
        if self._yielded is not None:
            before, samples, before_tokens = self._yielded
            step_s = max(now - before, 1e-9)
            numbers |= {"step_s": step_s, "samples_per_s": samples / step_s, "tokens_per_s": before_tokens / step_s}
        self._on_step(numbers)
        # Afterwards: a batch whose report raises is not yielded, and its counts belong to the next one.
        self._counted = counted
        self._yielded = now, stats.samples, tokens
