"""The timeline of one training step: which part waits for which, for every way (paper, section 2 and 4).

The simulation schedules the slowest rank, which all others wait for, over some steps until they repeat. The
bubbles are those of the mean rank: the straggler share says how much less it computes, and it waits for the
rest.

Lanes: `compute` and `network` of a GPU, `memory` (look-ups and updates of exclusive rows), `host` (sizes of
the ID exchange), `data` (the loader). A lane runs one task at a time, the most urgent first, and it is interrupted
by more urgent ones.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

PARTS = 4  # of the backward pass, each followed by its share of the dense all-reduce
_STEPS = (8, 32)  # more where steps do not repeat: a network that cannot keep up, with exchanges put off
_WARM, _AFTER = 3, 2  # steps before and after those that are counted
_ALIKE = 1e-3
_BUFFERED = 2  # batches that the loader keeps ready
_ROUNDING = 1e-9
# Urgency on the network. Dense gradients are ready before the gradients of the embeddings.
_DENSE, _COLLISION, _IDS, _EXCLUSIVE = range(4)

Key = tuple[str, int]
"""Name of the task, number of the step."""
Pieces = list[tuple[float, float]]
"""(start, end) of every time for which a task ran without being interrupted."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to train a step."""

    name: str
    balanced: bool = False
    ids_ahead: bool = False
    prioritized: bool = False
    sm_free: bool = False
    """Exchanges that overlap with compute use no streaming multiprocessors. Other exchanges run over NCCL."""
    dedup: bool = False
    """A rank adds up the gradients of a row and sends one, as with TorchRec's index deduplication."""


PIPELINED = "sparse dist"
"""The way that gains are measured against: TorchRec's TrainPipelineSparseDist."""

BALANCED = "balanced + sparse dist"
"""What everybody can have without fscomm: the way that gains of communication are measured against."""

WAYS = (
    Way(name="plain"),
    Way(name=PIPELINED, ids_ahead=True),
    Way(name="balanced", balanced=True),
    Way(name=BALANCED, balanced=True, ids_ahead=True),
    Way(name="prioritized", ids_ahead=True, prioritized=True),
    Way(name="sm-free", ids_ahead=True, prioritized=True, sm_free=True),
    Way(name="all", balanced=True, ids_ahead=True, prioritized=True, sm_free=True),
    Way(name="all + dedup", balanced=True, ids_ahead=True, prioritized=True, sm_free=True, dedup=True),
)
"""The ways that a simulation shows."""

BY_NAME = {
    way.name: way
    for way in (*WAYS, Way(name="balanced + prioritized", balanced=True, ids_ahead=True, prioritized=True))
}
"""All ways that are known."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Milliseconds of a class of rows: look-up, sending rows, sending gradients back, update."""

    lookup: float
    rows: float
    gradients: float
    apply: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Milliseconds of each part of a step when it runs alone.

    `forward` and `backward`: of the slowest rank.
    """

    data: float
    redistribute: float
    forward: float
    backward: float
    optimizer: float
    id_metadata: float
    ids: float
    all_reduce: float
    whole: Moves
    """All rows at once, for ways that are not prioritized."""
    collision: Moves
    exclusive: Moves
    straggler: float
    """1 - mean / slowest rank's time of forward and backward, 0 to below 1."""
    contention: float
    """How much longer dense kernels take while NCCL kernels run, as a share."""
    memory_contention: float = 0.0
    """The same while rows are looked up or updated."""
    own: float = 0.0
    """What balancing and prioritized communication themselves take of the training thread."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece of work of one lane. It is ready when all tasks that it waits for are done."""

    key: Key
    lane: str
    ms: float
    """How long it takes alone; 0 is allowed."""
    after: tuple[Key, ...] = ()
    urgency: int = 0
    """Lower runs first, and interrupts others. Tasks of equal urgency run in the given order."""
    slows: float = 0.0
    """How much longer `slowed` tasks take beside it, as a share. Of several, the largest counts."""
    slowed: bool = False


def timeline(work: Work, way: Way) -> dict[str, Any]:
    """The mean of steady steps: {step_ms, compute_ms, data_wait_ms, bubbles, timeline} as in simulation.json.

    step_ms = compute_ms + data_wait_ms + the bubbles. compute_ms: of the mean rank without contention, with
    the optimizer.
    """
    for steps in _STEPS:
        tasks = [task for n in range(steps) for task in _tasks(work, way, n, steps)]
        runs = schedule(tasks)
        counted = range(_WARM, steps - _AFTER)
        ends = {n: runs["optimizer", n][-1][1] for n in (_WARM - 1, *counted)}
        lengths = [ends[n] - ends[n - 1] for n in counted]
        if max(lengths) - min(lengths) <= _ALIKE * max(lengths):
            break
    step_ms = sum(lengths) / len(lengths)
    dense = sum(end - start for n in counted for key in _dense(n) for start, end in runs[key]) / len(lengths)
    nominal = work.forward + work.backward
    # The loader alone holds a step up from the end of the step before until data are there, or work begins.
    waited = sum(
        min(max(runs["data", n][-1][1] - ends[n - 1], 0.0), runs["own work", n][0][0] - ends[n - 1]) for n in counted
    ) / len(lengths)
    shown = min(counted, key=lambda n: (abs(ends[n] - ends[n - 1] - step_ms), -n))
    return {
        "step_ms": step_ms,
        "compute_ms": nominal * (1 - work.straggler) + work.optimizer,
        "data_wait_ms": waited,
        "bubbles": {
            "straggler_ms": dense * work.straggler,
            "exposed_ms": max(step_ms - dense - work.optimizer - waited, 0.0),
            "contention_ms": max(dense - nominal, 0.0) * (1 - work.straggler),
        },
        "timeline": _drawn(tasks, runs, ends[shown - 1], ends[shown], work.straggler),
    }


def _drawn(
    tasks: Sequence[Task], runs: dict[Key, Pieces], start: float, end: float, straggler: float
) -> list[dict[str, Any]]:
    """The pieces between `start` and `end`, as {lane, what, start_ms, ms}. The compute lane shows the mean rank."""
    dense: list[dict[str, Any]] = []
    drawn: list[dict[str, Any]] = []
    for task in tasks:
        what = task.key[0].rstrip("0123456789 ")
        for first, last in runs[task.key]:
            first, last = max(first, start), min(last, end)
            if last - first > _ROUNDING:
                piece = {"lane": task.lane, "what": what, "start_ms": first - start, "ms": last - first}
                (dense if task.slowed else drawn).append(piece)
    at, last = dense[0]["start_ms"], dense[-1]["start_ms"] + dense[-1]["ms"]
    for what in ("forward", "backward"):
        ms = sum(piece["ms"] for piece in dense if piece["what"] == what) * (1 - straggler)
        drawn.append({"lane": "compute", "what": what, "start_ms": at, "ms": ms})
        at += ms
    if last - at > 0:
        drawn.append({"lane": "compute", "what": "wait for the slowest", "start_ms": at, "ms": last - at})
    return sorted(drawn, key=lambda piece: (piece["lane"], piece["start_ms"]))


def _dense(n: int) -> list[Key]:
    return [("forward", n), *((f"backward {part}", n) for part in range(PARTS))]


def _tasks(work: Work, way: Way, n: int, steps: int) -> Iterator[Task]:
    """The tasks of step `n` of `steps`. Of prioritized ways, the paper's Algorithm 2."""

    def task(
        name: str, lane: str, ms: float, *after: Key, urgency: int = 0, slows: float = 0.0, slowed: bool = False
    ) -> Task:
        there = tuple(key for key in after if 0 <= key[1] < steps)  # nothing waits for steps that are not simulated
        return Task(key=(name, n), lane=lane, ms=ms, after=there, urgency=urgency, slows=slows, slowed=slowed)

    nccl, memory = work.contention, work.memory_contention
    beside = 0.0 if way.sm_free else nccl
    last: Key = (f"backward {PARTS - 1}", n)
    yield task("read", "data", work.data, ("data", n - 1), ("optimizer", n - 1 - _BUFFERED))
    yield task("data", "data", work.redistribute, ("read", n))

    # Of prioritized ways, autograd hands the gradients over, and the optimizer does not wait for their exchange.
    rows = [("collision rows", n), ("exclusive rows", n)] if way.prioritized else [("rows", n)]
    updated = [] if way.prioritized else [("apply", n)]
    yield task("own work", "compute", work.own, ("optimizer", n - 1), ("data", n), *rows)
    yield task("forward", "compute", work.forward, ("own work", n), slowed=True)
    for before, (name, _) in itertools.pairwise(_dense(n)):
        yield task(name, "compute", work.backward / PARTS, before, slowed=True)
    reduced = [(f"all-reduce {part}", n) for part in range(PARTS)]
    for part, (name, _) in enumerate(reduced):
        yield task(name, "network", work.all_reduce / PARTS, (f"backward {part}", n), urgency=_DENSE, slows=nccl)
    yield task("optimizer", "compute", work.optimizer, last, *reduced, *updated)

    turn = ("own work", n - 1) if way.ids_ahead else ("optimizer", n - 1)
    yield task("id metadata", "host", work.id_metadata, ("data", n), turn)
    yield task("ids", "network", work.ids, ("id metadata", n), urgency=_IDS, slows=beside)

    if not way.prioritized:
        whole = work.whole
        yield task("lookup", "memory", whole.lookup, ("ids", n), ("optimizer", n - 1), slows=memory)
        yield task("rows", "network", whole.rows, ("lookup", n), urgency=_COLLISION, slows=nccl)
        yield task("gradients", "network", whole.gradients, last, urgency=_COLLISION, slows=nccl)
        yield task("apply", "memory", whole.apply, ("gradients", n), slows=memory)
        return

    def colliding(name: str, ms: float, *after: Key, slows: float) -> Task:
        """Look-ups and updates hold the network, too: no exclusive byte moves before the collision exchange ends."""
        return task(f"collision {name}", "network", ms, *after, urgency=_COLLISION, slows=slows)

    first, rest = work.collision, work.exclusive
    yield colliding("lookup", first.lookup, ("ids", n), ("collision apply", n - 1), slows=memory)
    yield colliding("rows", first.rows, ("collision lookup", n), slows=nccl)
    # The ids of the next step decide which gradients belong to collisions.
    yield colliding("gradients", first.gradients, last, ("ids", n + 1), slows=nccl)
    yield colliding("apply", first.apply, ("collision gradients", n), slows=memory)
    # The exclusive gradients of step n - 2 may update a row that step n reads.
    before_rows = ("ids", n), ("exclusive apply", n - 2), ("own work", n - 1)
    yield task("exclusive lookup", "memory", rest.lookup, *before_rows, slows=memory)
    yield task("exclusive rows", "network", rest.rows, ("exclusive lookup", n), urgency=_EXCLUSIVE, slows=beside)
    after_rows = last, ("collision rows", n + 1)
    yield task("exclusive gradients", "network", rest.gradients, *after_rows, urgency=_EXCLUSIVE, slows=beside)
    yield task("exclusive apply", "memory", rest.apply, ("exclusive gradients", n), slows=memory)


def schedule(tasks: Sequence[Task]) -> dict[Key, Pieces]:
    """When each task runs, in milliseconds. Of equally urgent tasks of a lane, the one that was ready first runs.

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
    runs: dict[Key, Pieces] = {}
    done: set[Key] = set()
    now = 0.0
    while len(done) < len(tasks):
        running: dict[str, Task] = {}  # lane -> task
        for task in ready:
            if task.lane not in running or task.urgency < running[task.lane].urgency:
                running[task.lane] = task
        if not running:
            raise ValueError(f"tasks wait for each other in a circle: {sorted(key for key in awaited if awaited[key])}")
        slower = 1 + max(task.slows if left[task.key] > 0 else 0.0 for task in running.values())
        rates = {task.key: 1 / slower if task.slowed else 1.0 for task in running.values()}
        length = min(left[key] / rate for key, rate in rates.items())
        end = now + length
        free: list[int] = []
        for key, rate in rates.items():
            pieces = runs.setdefault(key, [])
            if pieces and now - pieces[-1][1] <= _ROUNDING:
                pieces[-1] = (pieces[-1][0], end)
            elif end > now or not pieces:
                pieces.append((now, end))
            left[key] -= length * rate
            if left[key] <= _ROUNDING:
                left[key] = 0.0
                done.add(key)
                for number in waiting[key]:
                    awaited[tasks[number].key].remove(key)
                    if not awaited[tasks[number].key]:
                        free.append(number)
        ready = [task for task in ready if task.key not in done] + [tasks[number] for number in sorted(free)]
        now = end
    return runs
