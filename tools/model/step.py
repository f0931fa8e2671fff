"""The timeline of one training step: which part waits for which, for every way (paper, section 2 and 4).

The simulation schedules the slowest rank, which all others wait for, over some steps until they repeat. The
bubbles are those of the mean rank: the straggler share says how much less it computes, and it waits for the
rest.

Lanes: `compute` and `network` of a GPU, `memory` (look-ups and updates of exclusive rows), `host` (sizes of
the ID exchange), `data` (the loader). A lane runs one task at a time, the most urgent first, and it is interrupted
by more urgent ones.

A step in parts (`Way.parts`) is computed forward and backward part after part, and updated once. Collision rows travel
in as many pieces: those that the first part needs as in a step of one part, the others while earlier parts compute.
Gradients of a part travel back while the next one computes. Rows that some rank's first part needs next are updated
first. This is the order of fscomm's collision worker (architecture page, "Steps in parts").
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

BUCKETS = 4  # of a backward pass; behind each of the last one goes its share of the dense all-reduce
_STEPS = (8, 32)  # more where steps do not repeat: a network that cannot keep up, with exchanges put off
_WARM, _AFTER = 3, 2  # steps before and after those that are counted
_ALIKE = 1e-3
_BUFFERED = 2  # batches that the loader keeps ready
_ROUNDING = 1e-9
# Urgency on the network. Dense gradients are ready before the gradients of the embeddings. _LATER: collision rows that
# the first part of a step can do without, and gradients that no first part waits for.
_DENSE, _COLLISION, _IDS, _LATER, _EXCLUSIVE = range(5)

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
    """TorchRec's index dedup: a rank sends each distinct id once, receives its row once, and sends one gradient."""
    pageable: bool = False
    """The training thread copies each batch to the GPU from memory that is not pinned."""
    parts: int = 1
    """So many parts of a step are computed one after another."""


PIPELINED = "sparse dist"
"""The way that gains are measured against: TorchRec's TrainPipelineSparseDist."""

BALANCED = "balanced + sparse dist"
"""What everybody can have without fscomm: the way that gains of communication are measured against."""

DEDUP = "balanced + sparse dist + dedup"
"""The same with index dedup, which TorchRec has: what fscomm adds to where ids repeat within a batch."""

PAGEABLE = "balanced + sparse dist, pageable"
PLAIN_DEDUP = "plain + dedup"

WAYS = (
    Way(name="plain"),
    Way(name=PIPELINED, ids_ahead=True),
    Way(name="balanced", balanced=True),
    Way(name=BALANCED, balanced=True, ids_ahead=True),
    Way(name=DEDUP, balanced=True, ids_ahead=True, dedup=True),
    Way(name="prioritized", ids_ahead=True, prioritized=True),
    Way(name="sm-free", ids_ahead=True, prioritized=True, sm_free=True),
    Way(name="all", balanced=True, ids_ahead=True, prioritized=True, sm_free=True),
    Way(name="all + dedup", balanced=True, ids_ahead=True, prioritized=True, sm_free=True, dedup=True),
)
"""The ways that a simulation shows."""

BY_NAME = {
    way.name: way
    for way in (
        *WAYS,
        Way(name=PLAIN_DEDUP, dedup=True),
        Way(name=PAGEABLE, balanced=True, ids_ahead=True, pageable=True),
        Way(name="balanced + prioritized", balanced=True, ids_ahead=True, prioritized=True),
    )
}
"""All ways that are known."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Milliseconds of a class of rows: look-up, sending rows, sending gradients back, update."""

    lookup: float
    rows: float
    gradients: float
    apply: float


NOTHING = Moves(lookup=0.0, rows=0.0, gradients=0.0, apply=0.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Milliseconds of each piece of a step when it runs alone.

    `forward` and `backward`: of the slowest rank, all parts of the step together.
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
    """What first parts wait for: rows that the first part of the step needs; gradients that the last part has of rows
    that the first part of the next step needs, and the update of these rows. Without parts, all that collides."""
    exclusive: Moves
    straggler: float
    """1 - mean / slowest rank's time of forward and backward, 0 to below 1."""
    contention: float
    """How much longer dense kernels take while NCCL kernels run, as a share."""
    memory_contention: float = 0.0
    """The same while rows are looked up or updated."""
    own: float = 0.0
    """What balancing and prioritized communication themselves take of the training thread."""
    later: Moves = NOTHING
    """Of a step in parts: rows of one later part; all collision gradients of one part; the update of all collision rows
    that no first part waits for."""
    part: float = 0.0
    """What every part but the first takes of the training thread."""


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
    passes = [key for n in counted for part in range(way.parts) for key in _passes(n, part)]
    dense = sum(end - start for key in passes for start, end in runs[key]) / len(lengths)
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
    dense: dict[str, list[dict[str, Any]]] = {}  # by part of the step
    drawn: list[dict[str, Any]] = []
    for task in tasks:
        what = task.key[0].rstrip("0123456789 ")
        for first, last in runs[task.key]:
            first, last = max(first, start), min(last, end)
            if last - first > _ROUNDING:
                piece = {"lane": task.lane, "what": what, "start_ms": first - start, "ms": last - first}
                (dense.setdefault(task.key[0].split()[1], []) if task.slowed else drawn).append(piece)
    for part in dense.values():
        at, last = part[0]["start_ms"], part[-1]["start_ms"] + part[-1]["ms"]
        for what in ("forward", "backward"):
            ms = sum(piece["ms"] for piece in part if piece["what"] == what) * (1 - straggler)
            drawn.append({"lane": "compute", "what": what, "start_ms": at, "ms": ms})
            at += ms
        if last - at > 0:
            drawn.append({"lane": "compute", "what": "wait for the slowest", "start_ms": at, "ms": last - at})
    return sorted(drawn, key=lambda piece: (piece["lane"], piece["start_ms"]))


def _passes(n: int, part: int) -> list[Key]:
    """The forward pass of a part, and its backward pass in buckets."""
    return [(f"forward {part}", n), *((f"backward {part} {bucket}", n) for bucket in range(BUCKETS))]


def _tasks(work: Work, way: Way, n: int, steps: int) -> Iterator[Task]:
    """The tasks of step `n` of `steps`. Of prioritized ways, the paper's Algorithm 2."""

    def task(
        name: str, lane: str, ms: float, *after: Key, urgency: int = 0, slows: float = 0.0, slowed: bool = False
    ) -> Task:
        there = tuple(key for key in after if 0 <= key[1] < steps)  # nothing waits for steps that are not simulated
        return Task(key=(name, n), lane=lane, ms=ms, after=there, urgency=urgency, slows=slows, slowed=slowed)

    nccl, memory = work.contention, work.memory_contention
    beside = 0.0 if way.sm_free else nccl
    ends = [_passes(n, part)[-1] for part in range(way.parts)]
    yield task("read", "data", work.data, ("data", n - 1), ("optimizer", n - 1 - _BUFFERED))
    yield task("data", "data", work.redistribute, ("read", n))

    # Of prioritized ways, autograd hands the gradients over, and the optimizer does not wait for their exchange.
    rows = [("collision rows 0", n), ("exclusive rows", n)] if way.prioritized else [("rows", n)]
    updated = [] if way.prioritized else [("apply", n)]
    yield task("own work", "compute", work.own, ("optimizer", n - 1), ("data", n), *rows)
    for part in range(way.parts):
        (forward, _), *backward = _passes(n, part)
        needed = [("own work", n)]
        if part > 0:
            yield task(f"own work {part}", "compute", work.part, ends[part - 1])
            needed = [(f"own work {part}", n), *([(f"collision rows {part}", n)] if way.prioritized else [])]
        yield task(forward, "compute", work.forward / way.parts, *needed, slowed=True)
        for before, (name, _) in itertools.pairwise([(forward, n), *backward]):
            yield task(name, "compute", work.backward / BUCKETS / way.parts, before, slowed=True)
    # Dense gradients of parts add up: they are exchanged with the last one.
    reduced = [(f"all-reduce {bucket}", n) for bucket in range(BUCKETS)]
    for (name, _), ready in zip(reduced, _passes(n, way.parts - 1)[1:], strict=True):
        yield task(name, "network", work.all_reduce / BUCKETS, ready, urgency=_DENSE, slows=nccl)
    yield task("optimizer", "compute", work.optimizer, ends[-1], *reduced, *updated)

    turn = ("own work", n - 1) if way.ids_ahead else ("optimizer", n - 1)
    yield task("id metadata", "host", work.id_metadata, ("data", n), turn)
    yield task("ids", "network", work.ids, ("id metadata", n), urgency=_IDS, slows=beside)

    if way.prioritized:
        yield from _prioritized(work, way, n, task)
        return
    whole = work.whole
    yield task("lookup", "memory", whole.lookup, ("ids", n), ("optimizer", n - 1), slows=memory)
    yield task("rows", "network", whole.rows, ("lookup", n), urgency=_COLLISION, slows=nccl)
    yield task("gradients", "network", whole.gradients, ends[-1], urgency=_COLLISION, slows=nccl)
    yield task("apply", "memory", whole.apply, ("gradients", n), slows=memory)


def _prioritized(work: Work, way: Way, n: int, task: Callable[..., Task]) -> Iterator[Task]:
    """Look-ups, exchanges and updates of collision and exclusive rows. `task`: makes one of step `n`."""
    nccl, memory = work.contention, work.memory_contention
    beside = 0.0 if way.sm_free else nccl
    ends = [_passes(n, part)[-1] for part in range(way.parts)]

    def colliding(name: str, ms: float, *after: Key, slows: float, urgency: int = _COLLISION) -> Task:
        """Look-ups and updates hold the network, too: no exclusive byte moves before the collision exchange ends."""
        return task(f"collision {name}", "network", ms, *after, urgency=urgency, slows=slows)

    first, later, rest = work.collision, work.later, work.exclusive
    yield colliding("lookup 0", first.lookup, ("ids", n), ("collision apply 0", n - 1), slows=memory)
    yield colliding("rows 0", first.rows, ("collision lookup 0", n), slows=nccl)
    for part in range(1, way.parts):
        before_part = (f"collision rows {part - 1}", n), ("collision apply 1", n - 1)
        yield colliding(f"lookup {part}", later.lookup, *before_part, slows=memory, urgency=_LATER)
        yield colliding(f"rows {part}", later.rows, (f"collision lookup {part}", n), slows=nccl, urgency=_LATER)
    # The ids of the next step decide which gradients belong to collisions. Rows are sent before gradients of any part.
    known = ("ids", n + 1), (f"collision rows {way.parts - 1}", n)
    for part in range(way.parts - 1):
        yield colliding(f"gradients {part}", later.gradients, ends[part], *known, slows=nccl, urgency=_LATER)
    yield colliding(f"gradients {way.parts - 1}", first.gradients, ends[-1], *known, slows=nccl)
    sent = [(f"collision gradients {part}", n) for part in range(way.parts)]
    yield colliding("apply 0", first.apply, *sent, slows=memory)
    if way.parts > 1:
        left = max(later.gradients - first.gradients, 0.0)
        # What no first part waits for is behind the first forward of the next step, and so behind its exclusive rows.
        yield colliding("gradients", left, *known, ("own work", n + 1), slows=nccl, urgency=_LATER)
        yield colliding("apply 1", later.apply, *sent, ("collision gradients", n), slows=memory, urgency=_LATER)
    # The exclusive gradients of step n - 2 may update a row that step n reads.
    before_rows = ("ids", n), ("exclusive apply", n - 2), ("own work", n - 1)
    yield task("exclusive lookup", "memory", rest.lookup, *before_rows, slows=memory)
    yield task("exclusive rows", "network", rest.rows, ("exclusive lookup", n), urgency=_EXCLUSIVE, slows=beside)
    after_rows = ends[-1], ("collision rows 0", n + 1)
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
