"""The timeline of one training step: which part waits for which, for every way (paper, section 2 and 4).

The simulation schedules the slowest rank, which all others wait for, over some steps until they repeat. The
bubbles are those of the mean rank: the straggler share says how much less it computes, and it waits for the
rest.

Lanes: `compute` and `network` of a GPU, `memory` (look-ups and updates of exclusive rows), `host` (sizes of
the ID exchange), `data` (the loader).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from freescale_tools.simulate.schedule.lanes import Key, Run, Task, schedule, within

PARTS = 4  # of the backward pass, each followed by its share of the dense all-reduce
_STEPS = 8
_SHOWN = 5  # the step that is shown: steady, with steps after it
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


PIPELINED = "sparse dist"
"""The way that gains are measured against: TorchRec's TrainPipelineSparseDist."""

WAYS = (
    Way(name="plain"),
    Way(name=PIPELINED, ids_ahead=True),
    Way(name="balanced", balanced=True),
    Way(name="prioritized", ids_ahead=True, prioritized=True),
    Way(name="sm-free", ids_ahead=True, prioritized=True, sm_free=True),
    Way(name="all", balanced=True, ids_ahead=True, prioritized=True, sm_free=True),
)


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


def timeline(work: Work, way: Way) -> dict[str, Any]:
    """One steady step: {step_ms, compute_ms, data_wait_ms, bubbles, timeline} as in simulation.json.

    step_ms = compute_ms + data_wait_ms + the bubbles. compute_ms: of the mean rank without contention, with
    the optimizer.
    """
    tasks = list(_tasks(work, way))
    runs = schedule(tasks, contention=work.contention)
    start, end = runs["optimizer", _SHOWN - 1].end, runs["optimizer", _SHOWN].end
    dense = sum(last - first for key in _dense(_SHOWN) for first, last in runs[key].pieces)
    nominal = work.forward + work.backward
    waited = min(max(runs["data", _SHOWN].end - start, 0.0), runs["begin", _SHOWN].start - start)
    return {
        "step_ms": end - start,
        "compute_ms": nominal * (1 - work.straggler) + work.optimizer,
        "data_wait_ms": waited,
        "bubbles": {
            "straggler_ms": dense * work.straggler,
            "exposed_ms": max(end - start - dense - work.optimizer - waited, 0.0),
            "contention_ms": max(dense - nominal, 0.0) * (1 - work.straggler),
        },
        "timeline": _drawn(tasks, runs, start, end, work.straggler),
    }


def _dense(step: int) -> list[Key]:
    return [("forward", step), *((f"backward {part}", step) for part in range(PARTS))]


def _tasks(work: Work, way: Way) -> Iterator[Task]:
    """All tasks of all steps. Tasks do not wait for steps before the first."""
    for step in range(_STEPS):
        for task in (
            *_loader(work, step),
            *_compute(work, way, step),
            *_ids(work, way, step),
            *(_prioritized(work, way, step) if way.prioritized else _whole(work, step)),
        ):
            yield dataclasses.replace(task, after=tuple(key for key in task.after if 0 <= key[1] < _STEPS))


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
    yield Task(key=("begin", n), lane="compute", ms=0.0, after=(("optimizer", n - 1), ("data", n), *rows))
    before: Key = ("begin", n)
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
            slows=True,
        )
    reduced = tuple((f"all-reduce {part}", n) for part in range(PARTS))
    yield Task(key=("optimizer", n), lane="compute", ms=work.optimizer, after=(before, *reduced, *updated))


def _ids(work: Work, way: Way, n: int) -> Iterator[Task]:
    turn: Key = ("begin", n - 1) if way.ids_ahead else ("optimizer", n - 1)
    yield Task(key=("id metadata", n), lane="host", ms=work.id_metadata, after=(("data", n), turn))
    yield Task(
        key=("ids", n),
        lane="network",
        ms=work.ids,
        after=(("id metadata", n),),
        urgency=IDS,
        slows=not way.sm_free,
    )


def _whole(work: Work, n: int) -> Iterator[Task]:
    moves, last = work.whole, (f"backward {PARTS - 1}", n)
    yield Task(key=("lookup", n), lane="memory", ms=moves.lookup, after=(("ids", n), ("optimizer", n - 1)))
    yield _foreground(("rows", n), moves.rows, ("lookup", n))
    yield _foreground(("gradients", n), moves.gradients, last)
    yield Task(key=("apply", n), lane="memory", ms=moves.apply, after=(("gradients", n),))


def _foreground(key: Key, ms: float, *after: Key, slows: bool = True) -> Task:
    """A task on the network that is sent before everything but dense gradients."""
    return Task(key=key, lane="network", ms=ms, after=after, urgency=COLLISION, slows=slows)


def _prioritized(work: Work, way: Way, n: int) -> Iterator[Task]:
    """The paper's Algorithm 2.

    A collision exchange holds the network from its look-up to its update. No exclusive byte moves until it
    ends.
    """
    first, last = work.collision, (f"backward {PARTS - 1}", n)
    yield _foreground(("collision lookup", n), first.lookup, ("ids", n), ("collision apply", n - 1), slows=False)
    yield _foreground(("collision rows", n), first.rows, ("collision lookup", n))
    # The ids of the next step decide which gradients belong to collisions.
    yield _foreground(("collision gradients", n), first.gradients, last, ("ids", n + 1))
    yield _foreground(("collision apply", n), first.apply, ("collision gradients", n), slows=False)
    yield from _exclusive(work.exclusive, n, slows=not way.sm_free)


def _exclusive(moves: Moves, n: int, *, slows: bool) -> Iterator[Task]:
    # The exclusive gradients of step n - 2 may update a row that step n reads.
    yield Task(
        key=("exclusive lookup", n),
        lane="memory",
        ms=moves.lookup,
        after=(("ids", n), ("exclusive apply", n - 2), ("begin", n - 1)),
        urgency=EXCLUSIVE,
    )
    yield Task(
        key=("exclusive rows", n),
        lane="network",
        ms=moves.rows,
        after=(("exclusive lookup", n),),
        urgency=EXCLUSIVE,
        slows=slows,
    )
    yield Task(
        key=("exclusive gradients", n),
        lane="network",
        ms=moves.gradients,
        after=((f"backward {PARTS - 1}", n), ("collision rows", n + 1)),
        urgency=EXCLUSIVE,
        slows=slows,
    )
    yield Task(
        key=("exclusive apply", n),
        lane="memory",
        ms=moves.apply,
        after=(("exclusive gradients", n),),
        urgency=EXCLUSIVE,
    )


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
