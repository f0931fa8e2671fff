"""The timeline of one training step: which part waits for which, for every way (paper, section 2 and 4).

The simulation schedules the slowest rank, which all others wait for, over some steps until they repeat. The
bubbles are those of the mean rank: the straggler share says how much less it computes, and it waits for the
rest.

Lanes: `compute` and `network` of a GPU, `memory` (look-ups and updates of exclusive rows), `host` (sizes of
the ID exchange), `data` (the loader).
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from freescale_tools.model.lanes import Key, Run, Task, schedule, within

PARTS = 4  # of the backward pass, each followed by its share of the dense all-reduce
_STEPS = (8, 32)  # more where steps do not repeat: a network that cannot keep up, with exchanges put off
_WARM, _AFTER = 3, 2  # steps before and after those that are counted
_ALIKE = 1e-3
_BUFFERED = 2  # batches that the loader keeps ready
# Urgency on the network. Dense gradients are ready before the gradients of the embeddings.
DENSE, COLLISION, IDS, EXCLUSIVE = range(4)


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


def timeline(work: Work, way: Way) -> dict[str, Any]:
    """The mean of steady steps: {step_ms, compute_ms, data_wait_ms, bubbles, timeline} as in simulation.json.

    step_ms = compute_ms + data_wait_ms + the bubbles. compute_ms: of the mean rank without contention, with
    the optimizer.
    """
    for steps in _STEPS:
        tasks = list(_tasks(work, way, steps))
        runs = schedule(tasks)
        counted = range(_WARM, steps - _AFTER)
        ends = {n: runs["optimizer", n].end for n in (_WARM - 1, *counted)}
        lengths = [ends[n] - ends[n - 1] for n in counted]
        if max(lengths) - min(lengths) <= _ALIKE * max(lengths):
            break
    step_ms = sum(lengths) / len(lengths)
    dense = sum(last - first for n in counted for key in _dense(n) for first, last in runs[key].pieces) / len(lengths)
    nominal = work.forward + work.backward
    waited = sum(_waited(runs, n) for n in counted) / len(lengths)
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


def _waited(runs: Mapping[Key, Run], n: int) -> float:
    """Milliseconds for which the loader alone held up step `n`."""
    start = runs["optimizer", n - 1].end
    return min(max(runs["data", n].end - start, 0.0), runs["own work", n].start - start)


def _dense(step: int) -> list[Key]:
    return [("forward", step), *((f"backward {part}", step) for part in range(PARTS))]


def _tasks(work: Work, way: Way, steps: int) -> Iterator[Task]:
    """All tasks of all steps. Tasks do not wait for steps before the first."""
    for step in range(steps):
        for task in (
            *_loader(work, step),
            *_compute(work, way, step),
            *_ids(work, way, step),
            *(_prioritized(work, way, step) if way.prioritized else _whole(work, step)),
        ):
            yield dataclasses.replace(task, after=tuple(key for key in task.after if 0 <= key[1] < steps))


def _loader(work: Work, n: int) -> Iterator[Task]:
    yield Task(key=("read", n), lane="data", ms=work.data, after=(("data", n - 1), ("optimizer", n - 1 - _BUFFERED)))
    yield Task(key=("data", n), lane="data", ms=work.redistribute, after=(("read", n),))


def _compute(work: Work, way: Way, n: int) -> Iterator[Task]:
    if way.prioritized:
        rows: tuple[Key, ...] = (("collision rows", n), ("exclusive rows", n))
        # Autograd hands the gradients over. The optimizer does not wait for their exchange.
        updated: tuple[Key, ...] = ()
    else:
        rows, updated = (("rows", n),), (("apply", n),)
    yield Task(key=("own work", n), lane="compute", ms=work.own, after=(("optimizer", n - 1), ("data", n), *rows))
    before: Key = ("own work", n)
    for key in _dense(n):
        ms = work.forward if key[0] == "forward" else work.backward / PARTS
        yield Task(key=key, lane="compute", ms=ms, after=(before,), slowed=True)
        before = key
    for part in range(PARTS):
        yield Task(
            key=(f"all-reduce {part}", n),
            lane="network",
            ms=work.all_reduce / PARTS,
            after=((f"backward {part}", n),),
            urgency=DENSE,
            slows=work.contention,
        )
    reduced = tuple((f"all-reduce {part}", n) for part in range(PARTS))
    yield Task(key=("optimizer", n), lane="compute", ms=work.optimizer, after=(before, *reduced, *updated))


def _ids(work: Work, way: Way, n: int) -> Iterator[Task]:
    turn: Key = ("own work", n - 1) if way.ids_ahead else ("optimizer", n - 1)
    yield Task(key=("id metadata", n), lane="host", ms=work.id_metadata, after=(("data", n), turn))
    yield Task(
        key=("ids", n),
        lane="network",
        ms=work.ids,
        after=(("id metadata", n),),
        urgency=IDS,
        slows=0.0 if way.sm_free else work.contention,
    )


def _whole(work: Work, n: int) -> Iterator[Task]:
    moves, last = work.whole, (f"backward {PARTS - 1}", n)
    yield _memory(work, ("lookup", n), moves.lookup, ("ids", n), ("optimizer", n - 1))
    yield _foreground(("rows", n), moves.rows, ("lookup", n), slows=work.contention)
    yield _foreground(("gradients", n), moves.gradients, last, slows=work.contention)
    yield _memory(work, ("apply", n), moves.apply, ("gradients", n))


def _memory(work: Work, key: Key, ms: float, *after: Key) -> Task:
    """A look-up or update beside which compute may run."""
    return Task(key=key, lane="memory", ms=ms, after=after, urgency=EXCLUSIVE, slows=work.memory_contention)


def _foreground(key: Key, ms: float, *after: Key, slows: float) -> Task:
    """A task on the network that is sent before everything but dense gradients."""
    return Task(key=key, lane="network", ms=ms, after=after, urgency=COLLISION, slows=slows)


def _prioritized(work: Work, way: Way, n: int) -> Iterator[Task]:
    """The paper's Algorithm 2.

    A collision exchange holds the network from its look-up to its update. No exclusive byte moves until it
    ends.
    """
    first, last = work.collision, (f"backward {PARTS - 1}", n)
    nccl, memory = work.contention, work.memory_contention
    yield _foreground(("collision lookup", n), first.lookup, ("ids", n), ("collision apply", n - 1), slows=memory)
    yield _foreground(("collision rows", n), first.rows, ("collision lookup", n), slows=nccl)
    # The ids of the next step decide which gradients belong to collisions.
    yield _foreground(("collision gradients", n), first.gradients, last, ("ids", n + 1), slows=nccl)
    yield _foreground(("collision apply", n), first.apply, ("collision gradients", n), slows=memory)
    yield from _exclusive(work, n, slows=0.0 if way.sm_free else nccl)


def _exclusive(work: Work, n: int, *, slows: float) -> Iterator[Task]:
    moves, last = work.exclusive, (f"backward {PARTS - 1}", n)
    # The exclusive gradients of step n - 2 may update a row that step n reads.
    before = (("ids", n), ("exclusive apply", n - 2), ("own work", n - 1))
    yield _memory(work, ("exclusive lookup", n), moves.lookup, *before)
    yield _background(("exclusive rows", n), moves.rows, ("exclusive lookup", n), slows=slows)
    yield _background(("exclusive gradients", n), moves.gradients, last, ("collision rows", n + 1), slows=slows)
    yield _memory(work, ("exclusive apply", n), moves.apply, ("exclusive gradients", n))


def _background(key: Key, ms: float, *after: Key, slows: float) -> Task:
    return Task(key=key, lane="network", ms=ms, after=after, urgency=EXCLUSIVE, slows=slows)


def _drawn(tasks: list[Task], runs: dict[Key, Run], start: float, end: float, straggler: float) -> list[dict[str, Any]]:
    """The pieces between `start` and `end`. The compute lane shows the mean rank."""
    pieces = [
        {"lane": task.lane, "what": task.key[0].rstrip("0123456789 "), **piece}
        for task in tasks
        for piece in within(runs[task.key], start, end)
    ]
    dense = [piece for piece in pieces if piece["what"] in ("forward", "backward")]
    others = [piece for piece in pieces if piece not in dense]
    first, last = dense[0]["start_ms"], dense[-1]["start_ms"] + dense[-1]["ms"]
    drawn, at = [], first
    for what in ("forward", "backward"):
        ms = sum(piece["ms"] for piece in dense if piece["what"] == what) * (1 - straggler)
        drawn.append({"lane": "compute", "what": what, "start_ms": at, "ms": ms})
        at += ms
    if last - at > 0:
        drawn.append({"lane": "compute", "what": "wait for the slowest", "start_ms": at, "ms": last - at})
    return sorted([*others, *drawn], key=lambda piece: (piece["lane"], piece["start_ms"]))
