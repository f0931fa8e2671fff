"""What the ranks of a played job do: one program for each protocol of fsdata and fscomm.

A program is called once per rank, `program(job, rank, seed, slip)`. It yields after every step what the step gave here;
`slip(step)` is called where the user's code runs, and raises or says that this rank leaves.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from played_network import Job
from samples import SPEC, lengths_of, read, rows_of, sample

from fscomm.exchange.control_word import NO_STEP, ControlWords, Mode
from fscomm.report.recorder import Recorder
from fsdata.balance.exchange import StepExchange, StepResult
from fsdata.balance.step_plan import Assignment, GlobalBatch
from fsdata.growing.followed import Followed
from fsdata.growing.segment import FileAt
from fsdata.growing.watcher import News
from fsdata.nodes.node import First
from fsdata.order.status_word import StatusWord
from fsranks.control_group import ControlGroup
from fsranks.meeting import Meeting
from fsranks.rank_context import RankContext

LIMIT_S = 10.0
STEPS = 4
FILES = 3  # that come one after another, in the program that follows a folder

Slip = Callable[[int], bool]
"""Raises where the user's code of this step fails; whether the rank leaves the loop before it."""


def draw(*seeds: int) -> np.random.Generator:
    return np.random.default_rng(seeds)


def move_rows(job: Job, rank: int, seed: int, slip: Slip) -> Iterator[StepResult]:
    """The loader: every step has rows of ranks that have not ended, which a plan moves between all of them."""
    with Meeting(job.context(rank), what="job", timeout_s=LIMIT_S) as meeting:
        slip(-1)
        meeting.agree({"seed": str(seed)})
    exchange = StepExchange(job.context(rank), timeout_s=LIMIT_S)
    try:
        lasts = _last_steps(seed, job.ranks.size)
        for step in range(max(lasts) + 1):
            job.ranks.wait(job.ranks.random.random() * 0.2)  # trains
            counts = _counts(seed, step, job.ranks.size)
            rows = rows_of(step, rank, counts[rank], lengths_of(step, rank, counts[rank])) if counts[rank] else None
            if slip(step):
                return _leave(job, exchange)

            def plan(batch: GlobalBatch, step: int = step) -> Assignment:
                slip(STEPS + step)
                return Assignment(rank=_plan(seed, step, job.ranks.size, len(batch.home)))

            status = StatusWord(epoch=0, step=step, ended=step >= lasts[rank])
            yield exchange.step(rows, SPEC, plan, status)
    finally:
        exchange.close()  # at the end of its process at the latest


def _leave(job: Job, exchange: StepExchange) -> None:
    """The rank goes on with other work, its loader open: only its word tells the others that they need not wait."""
    exchange.leave()
    job.ranks.wait(3 * LIMIT_S)


def check_moved(steps: list[list[StepResult]], seed: int, size: int) -> None:
    """Every rank has the rows that the plan gives it, to the bit, in the steps that it made."""
    for rank, made in enumerate(steps):
        for step, result in enumerate(made):
            counts = _counts(seed, step, size)
            home = np.repeat(np.arange(size), counts)
            rows = np.concatenate([np.arange(count) for count in counts])
            here = np.flatnonzero(_plan(seed, step, size, counts.sum()) == rank)
            assert result.origin.tolist() == np.stack([home[here], rows[here]], axis=1).tolist()
            for i, (origin, row) in enumerate(result.origin):
                assert read(result.rows, i) == sample(step, origin, row, lengths_of(step, origin, counts[origin]))


def steps_of_moving(seed: int, size: int) -> int:
    return max(_last_steps(seed, size)) + 1


def _last_steps(seed: int, size: int) -> list[int]:
    """By rank, the last step for which it has rows: the ranks end at different steps."""
    return draw(seed, 4).integers(STEPS, size=size).tolist()


def _counts(seed: int, step: int, size: int) -> np.ndarray:
    """Rows of every rank for a step."""
    return draw(seed, step).integers(0, 4, size) * (step <= np.array(_last_steps(seed, size)))


def _plan(seed: int, step: int, size: int, total: int) -> np.ndarray:
    return draw(seed, step, 1).integers(0, size, total)


def tell_modes(job: Job, rank: int, seed: int, slip: Slip) -> Iterator[list[Mode]]:
    """fscomm: the ranks connect while they meet; then, before every forward, they tell how they want to run it."""
    recorder = Recorder(clock=job.ranks.now)
    with contextlib.ExitStack() as opened:
        with Meeting(job.context(rank), what="enable", timeout_s=LIMIT_S) as meeting:
            group = ControlGroup(job.context(rank), timeout_s=LIMIT_S)
            opened.callback(group.close, "left the block")
            slip(-1)
            meeting.agree({"seed": str(seed)})
        words = ControlWords(group, recorder)
        for step in range(STEPS):
            job.ranks.wait(job.ranks.random.random() * 0.2)  # computes
            if slip(step):
                return
            modes = {step: _mode(seed, step, rank), NO_STEP: Mode.FOREIGN}
            yield words.exchange("module", 0, held=step, passes=step, newest=step, modes=modes).modes


def check_modes(steps: list[list[list[Mode]]], seed: int, size: int) -> None:
    for made in steps:
        for step, modes in enumerate(made):
            assert modes == [_mode(seed, step, rank) for rank in range(size)]


def _mode(seed: int, step: int, rank: int) -> Mode:
    return Mode(draw(seed, step, rank).integers(Mode.WRONG))


@dataclass(frozen=True)
class _Place:
    """What `Followed` knows of a place in the data."""

    epoch: int = 0
    step: int = 0
    segment: int | None = None


class _Data:
    """In the place of `FollowedData`: a segment is the number of its file."""

    def __init__(self, watcher: "_Watcher | None") -> None:
        self._watcher = watcher

    def watcher(self, seen: object) -> "_Watcher | None":
        return self._watcher

    def extended(self, progress: _Place, files: tuple[FileAt, ...], seen: object, world_size: int) -> _Place:
        return replace(progress, segment=int(files[0].name))

    def enter(self, progress: _Place, world_size: int) -> None:
        pass


class _Steps(First[Any]):
    """The steps of one segment, as a node and the nodes before it. Every rank takes one row of each."""

    defer_short_step = False

    def __init__(self, data: _Data, context: RankContext, of: Callable[[_Place, bool], Iterator[Any]]) -> None:
        super().__init__()
        self.data, self.context = data, context
        self.source = self
        self._of = of

    def on_begin(self, progress: Any) -> None:
        self._steps = self._of(progress, self.defer_short_step)

    def next(self) -> Any:
        made, self._place = next(self._steps)
        return made

    def place(self) -> Any:
        return self._place


class _Watcher:
    """Rank 0's: files come at times of the seed; in the end, none."""

    def __init__(self, job: Job, seed: int, slip: Slip) -> None:
        self._job = job
        self._slip = slip
        self._at_s = list(np.cumsum(draw(seed, 2).exponential(2.0, FILES + 1)))
        self._given = 0

    def poll(self, timeout_s: float, stopped: threading.Event) -> News | None:
        at_s = self._at_s[self._given]
        self._job.ranks.wait(min(timeout_s, at_s - self._job.ranks.now()))
        if self._job.ranks.now() < at_s:
            return None
        self._slip(STEPS + self._given)
        self._given += 1
        files = (FileAt(str(self._given - 1), "digest"),) if self._given <= FILES else ()
        return News(files, {})

    def prefetch(self) -> None:
        pass

    def close(self) -> None:
        pass


def follow(job: Job, rank: int, seed: int, slip: Slip) -> Iterator[tuple[int, int]]:
    """`Follow`: rank 0 finds files, and all ranks begin each of them together. Gives (file, row)."""
    size = job.ranks.size
    exchange = StepExchange(job.context(rank), timeout_s=LIMIT_S)

    def make(place: _Place, hold: bool) -> Iterator[tuple[tuple[int, int], _Place]]:
        at = place
        rows = _rows(seed, place.segment, size) if hold else 0  # at the end: those that steps left over, here none
        for number in range(rows // size):
            job.ranks.wait(job.ranks.random.random() * 0.2)  # reads
            exchange.agree(StatusWord(epoch=0, step=at.step))
            at = replace(at, step=at.step + 1)
            yield (place.segment, number * size + rank), at

    watcher = _Watcher(job, seed, slip) if rank == 0 else None
    of_segments = _Steps(_Data(watcher), job.context(rank), make)
    of_segments.job.exchange = exchange
    steps = Followed(of_segments)
    steps.job.begin(_Place())  # type: ignore[arg-type]
    try:
        for number, made in enumerate(iter(_next(steps), None)):
            yield made
            if slip(number):
                return _leave(job, exchange)
    finally:
        steps.close()
        exchange.close()


def _next(steps: Any) -> Callable[[], Any]:
    def made() -> Any:
        try:
            return steps.next()
        except StopIteration:
            return None

    return made


def check_followed(steps: list[list[tuple[int, int]]], seed: int, size: int) -> None:
    """Every rank took its rows once, in order, as far as it came."""
    for rank, made in enumerate(steps):
        whole = [(file, row) for file in range(FILES) for row in range(rank, _rows(seed, file, size), size)]
        assert made == whole[: len(made)]


def steps_of_follow(seed: int, size: int) -> int:
    return sum(_rows(seed, file, size) // size for file in range(FILES))


def _rows(seed: int, file: int | None, size: int) -> int:
    return size * int(draw(seed, 3, file or 0).integers(1, 4))
