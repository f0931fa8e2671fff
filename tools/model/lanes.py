"""Schedules tasks on lanes, deterministically, the most urgent task first.

A lane runs one task at a time. A task is ready when all tasks that it waits for are done. A ready task
interrupts a less urgent task on its lane. Tasks marked `slowed` take longer while a task that `slows` runs.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

Key = tuple[str, int]
"""Name of the task, number of the step."""
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece of work of one lane."""

    key: Key
    lane: str
    ms: float
    """How long it takes alone; 0 is allowed."""
    after: tuple[Key, ...] = ()
    urgency: int = 0
    """Lower runs first. Tasks of equal urgency run in the given order."""
    slows: float = 0.0
    """How much longer `slowed` tasks take beside it, as a share. Of several, the largest counts."""
    slowed: bool = False


@dataclasses.dataclass(slots=True, kw_only=True)
class Run:
    """When a task ran, and in which pieces."""

    start: float
    end: float
    pieces: list[tuple[float, float]]


def schedule(tasks: Sequence[Task]) -> dict[Key, Run]:
    """When each task runs.

    Raises ValueError if a task waits for an unknown task, or for itself.
    """
    known = {task.key for task in tasks}
    for task in tasks:
        if missing := set(task.after) - known:
            raise ValueError(f"task {task.key} waits for {sorted(missing)}, which no task is")
    left = {task.key: task.ms for task in tasks}
    awaited = {task.key: set(task.after) for task in tasks}
    waiting: dict[Key, list[int]] = {task.key: [] for task in tasks}  # numbers of the tasks that wait for this one
    for number, task in enumerate(tasks):
        for key in awaited[task.key]:
            waiting[key].append(number)
    ready = [task for task in tasks if not task.after]
    runs: dict[Key, Run] = {}
    done: set[Key] = set()
    now = 0.0
    while len(done) < len(tasks):
        running = _chosen(ready)
        if not running:
            raise ValueError(f"tasks wait for each other in a circle: {sorted(key for key in awaited if awaited[key])}")
        slower = 1 + max(task.slows if left[task.key] > 0 else 0.0 for task in running)
        rates = {task.key: 1 / slower if task.slowed else 1.0 for task in running}
        length = min(left[task.key] / rates[task.key] for task in running)
        free: list[int] = []
        for task in running:
            _advance(runs, task.key, now, now + length)
            left[task.key] -= length * rates[task.key]
            if left[task.key] <= _ROUNDING:
                left[task.key] = 0.0
                done.add(task.key)
                for number in waiting[task.key]:
                    awaited[tasks[number].key].remove(task.key)
                    if not awaited[tasks[number].key]:
                        free.append(number)
        ready = [task for task in ready if task.key not in done] + [tasks[number] for number in sorted(free)]
        now += length
    return runs


def _chosen(ready: Sequence[Task]) -> list[Task]:
    """The most urgent ready task of every lane. Of equally urgent tasks, the one that was ready first."""
    lanes: dict[str, Task] = {}
    for task in ready:
        if task.lane not in lanes or task.urgency < lanes[task.lane].urgency:
            lanes[task.lane] = task
    return list(lanes.values())


def _advance(runs: dict[Key, Run], key: Key, start: float, end: float) -> None:
    run = runs.setdefault(key, Run(start=start, end=end, pieces=[]))
    run.end = end
    if run.pieces and start - run.pieces[-1][1] <= _ROUNDING:
        run.pieces[-1] = (run.pieces[-1][0], end)
    elif end > start or not run.pieces:
        run.pieces.append((start, end))


def within(run: Run, start: float, end: float) -> list[dict[str, Any]]:
    """The pieces between `start` and `end` as {start_ms, ms}; start_ms counts from `start`."""
    clipped = [(max(first, start), min(last, end)) for first, last in run.pieces]
    return [{"start_ms": first - start, "ms": last - first} for first, last in clipped if last - first > _ROUNDING]
