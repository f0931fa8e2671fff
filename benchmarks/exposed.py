"""How much embedding communication does a training step still pay for? (The paper's Fig. 9 and 11, in namespaces.)

    python benchmarks/exposed.py [--rounds 4] [--steps 5] [--parts 1,2,4,8 | --dedup] [--only TEXT]

Ranks live in network namespaces whose links are held to a rate. Every mode trains the same model, from the same
weights, on the same batches: short blocks of steps behind a barrier, all modes once per round, the order turned by one
in each. Four measures:

1. exposed: a step minus the step of the same model without embeddings (compute only), in the same round;
2. shaped - unshaped: a step minus the step of the same mode on links that are not held to a rate;
3. blocked, of fscomm: milliseconds in which the thread that trains waits for communication or for other threads, as
   fscomm reports;
4. CPU: milliseconds of processor time of a rank's step, over all of its threads.

Compute is emulated by sleeping (a GPU leaves the CPU idle too) except where a row says otherwise. Needs root.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common.table import argument_parser, emit
from exposure.figures import Blocks, collision_table, cost_notes, headline_table
from exposure.shape import Shape
from network.namespaces import why_not
from network.world import World

MODES = ("compute", "plain", "sparse dist", "pec", "fscomm")
RATE_MBIT = 200.0
COLLISION = 0.12
SWEEP = (0.0, 0.12, 0.25, 0.5)
SWEEP_IN_PARTS = (0.12, 0.3, 0.6, 0.97)
WARM = 4  # steps at the start of a block in which nothing was fetched ahead yet
AUTO_WARM = 32  # of a block with parts="auto": numbers of parts are tried
TAIL = 2  # steps at its end after which pipelines have nothing to fetch
USUAL = Shape(sharding=("row", "row"), rows=100_000, width=128, samples=32, ids_per_sample=112)
MIXED = Shape(sharding=("row", "row", "table", "column"), rows=60_000, width=64, samples=16, ids_per_sample=100)
# One-hot features; cardinalities of a public advertising data set, cut at 200,000. See `pooled.py` for the bytes.
ONE_HOT = (
    1_460, 583, 200_000, 200_000, 305, 24, 12_517, 633, 3, 93_145, 5_683, 200_000, 3_194, 27, 14_992, 200_000, 10,
    5_652, 2_173, 4, 200_000, 18, 15, 200_000, 105, 142_572,
)  # fmt: skip
BAGS = Shape(sharding=("table",) * 26, rows=0, width=64, samples=128, ids_per_sample=1, pooled=ONE_HOT)
WIDE = replace(USUAL, dense_parameters=20_000_000)
# As in a log that is read user by user: 98 % of the ids of a batch are duplicates.
BY_USER = Shape(sharding=("row",), rows=100_000, width=256, samples=256, ids_per_sample=200, users=4)
MANAGED = replace(USUAL, slots=120_000)  # ids are evicted that nobody used since the block before


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Blocks of steps under one condition."""

    name: str
    ranks: int = 4
    shape: Shape = USUAL
    rate_mbit: float | None = RATE_MBIT
    compute_ms: float = 400
    after_ms: float = 0
    real: bool = False
    collision: float = COLLISION
    skew: float = 0.0
    modes: tuple[str, ...] = MODES
    rounds: int = 4
    steps: int = 5


def plan(rounds: int, steps: int) -> list[Section]:
    """All that a full run measures. Sections of the same ranks and shape, one after another, share a world."""
    usual = Section(name="", rounds=rounds, steps=steps)
    few = max(2, rounds // 2)
    fast = replace(usual, rate_mbit=None, rounds=few)
    own, loops = ("compute", "fscomm"), ("compute", "plain", "fscomm")
    return [
        replace(usual, name="400 ms"),
        replace(usual, name="270 ms", compute_ms=270),
        replace(fast, name="400 ms, unshaped"),
        replace(fast, name="270 ms, unshaped", compute_ms=270),
        replace(usual, name="400 ms, 20 after the backward", after_ms=20, modes=loops, rounds=few),
        *(replace(usual, name=f"collision {share:.0%}", collision=share, modes=own, rounds=few) for share in SWEEP),
        Section(name="real compute, 2 ranks", ranks=2, real=True, rounds=few, steps=steps),
        Section(
            name="8 ranks, 3 groups, skewed ids", ranks=8, shape=MIXED, skew=0.8,
            modes=("compute", "plain", "sparse dist", "fscomm"), rounds=few, steps=steps,
        ),
        *(
            Section(
                name=f"26 one-hot features, {kind}-wise", shape=replace(BAGS, sharding=(kind,) * 26), skew=1.05,
                modes=("compute", "plain", "sparse dist", "fscomm"), rounds=few, steps=steps,
            )
            for kind in ("table", "row")
        ),
        replace(usual, name="behind MPZCH", shape=MANAGED, modes=loops, rounds=max(rounds, 4)),  # until ids are evicted
        Section(name="20 M under DDP, 1 Gbit", shape=WIDE, rate_mbit=1000, modes=loops, rounds=1, steps=4),
    ]  # fmt: skip


def plan_in_parts(rounds: int, steps: int, parts: Sequence[str]) -> list[Section]:
    """Steps that are computed in parts, over the share of collisions. Of "auto" alone: with compute only."""
    usual = Section(name="", rounds=rounds, steps=steps)
    several = [number for number in parts if number != "1"]
    modes = ("compute", "plain", "sparse dist", *(f"plain in {number} parts" for number in several[-1:]))
    ours = ("fscomm" if number == "1" else f"fscomm in {number} parts" for number in parts)
    usual = replace(usual, modes=("compute", *ours) if parts == ["auto"] else (*modes, *ours))
    return [replace(usual, name=f"collision {share:.0%}", collision=share) for share in SWEEP_IN_PARTS]


def plan_dedup(rounds: int, steps: int) -> list[Section]:
    """Batches of a few users, with and without index dedup, and in four parts."""
    modes = ("compute", "plain", "sparse dist", "fscomm")
    in_parts = (*modes, "plain in 4 parts", "fscomm in 4 parts")
    usual = Section(name="", shape=BY_USER, rounds=rounds, steps=steps, modes=modes)
    with_dedup = replace(usual, shape=replace(BY_USER, dedup=True), modes=in_parts)
    return [
        replace(usual, name="without dedup, collision 97 %", collision=0.97, rounds=1),
        *(replace(with_dedup, name=f"dedup, collision {share:.0%}", collision=share) for share in (0.3, 0.97)),
    ]


def measure(sections: Sequence[Section]) -> tuple[list[Blocks], dict[str, list[str]]]:
    """The blocks of sections that share a world, and per mode the ranks whose tables are not the plain loop's."""
    first = sections[0]
    modes = tuple(dict.fromkeys(mode for section in sections for mode in section.modes))
    found, different = [], {}
    with World(ranks=first.ranks, module="exposure.rank") as world:
        world.call("prepare", shape=asdict(first.shape), modes=modes)
        comparable = True
        for section in sections:
            # Tables stay comparable while every mode has trained on the same batches.
            comparable = comparable and section.modes == first.modes
            found.append(_section(world, section))
            if comparable and "plain" in modes:
                different = _different(world.call("digests"))
    return found, different


def _section(world: World, section: Section) -> Blocks:
    start = time.monotonic()
    world.network.shape(section.rate_mbit)
    steps = section.rounds * (WARM + section.steps + TAIL)
    data = world.call("data", rate=section.collision, skew=section.skew, steps=steps)[0]
    products = world.call("pace")[0] if section.real else 0.0
    blocks = Blocks(condition=asdict(section) | {"shape": asdict(section.shape)}, data=data)
    for number in range(section.rounds):
        turn = number % len(section.modes)
        for mode in section.modes[turn:] + section.modes[:turn]:
            answers = world.call(
                "block", mode=mode, **_length(mode, section.steps), compute_s=section.compute_ms / 1e3,
                after_s=section.after_ms / 1e3, products=products,
            )  # fmt: skip
            blocks.add(number, mode, answers)
    print(f"[{time.monotonic() - start:4.0f} s] {section.name}: {blocks.line()}", file=sys.stderr, flush=True)
    return blocks


def _length(mode: str, steps: int) -> dict[str, int]:
    """Steps of a block. Compute alone needs no others around them, and trains no tables that are compared."""
    if mode == "compute":
        return {"warm": 1, "steps": steps, "tail": 0}
    return {"warm": AUTO_WARM if "auto" in mode else WARM, "steps": steps, "tail": TAIL}


def _different(digests: Sequence[dict[str, str]]) -> dict[str, list[str]]:
    """By mode, the ranks whose tables are not those of the plain loop in as many parts, if there is one."""
    found = {}
    for mode in digests[0]:
        like = mode.replace("fscomm", "plain") if " in " in mode else "plain"
        if mode != like and like in digests[0]:
            found[mode] = [str(rank) for rank, mine in enumerate(digests) if mine[mode] != mine[like]]
    return found


def memory() -> dict[str, int]:
    """Bytes that training takes on rank 0 at its peak, in worlds that run one mode each."""
    found = {}
    for mode in ("plain", "fscomm"):
        with World(ranks=4, module="exposure.rank") as world:
            world.network.shape(RATE_MBIT)
            world.call("prepare", shape=asdict(USUAL), modes=[mode])
            world.call("data", rate=COLLISION, skew=0, steps=WARM + 10)
            world.call("forget_peak")
            world.call("block", mode=mode, **_length(mode, 8), compute_s=0.2)
            found[mode] = world.call("peak")[0]
    return found


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="measured steps of a block")
    parser.add_argument("--parts", help="such as 1,2,4,8, or auto: only steps that are computed in so many parts")
    parser.add_argument("--dedup", action="store_true", help="only batches of a few users, with and without it")
    parser.add_argument("--only", default="", help="sections whose name contains this; not for the record")
    given = parser.parse_args()
    if given.dedup:
        name, sections = "exposed_dedup", plan_dedup(given.rounds, given.steps)
    elif given.parts is None:
        name, sections = "exposed", plan(given.rounds, given.steps)
    else:
        name = "exposed_auto" if given.parts == "auto" else "exposed_parts"
        sections = plan_in_parts(given.rounds, given.steps, given.parts.split(","))
    chosen = [section for section in sections if given.only in section.name]
    if not chosen:
        parser.error(f"--only {given.only!r} leaves nothing")
    with_memory = given.parts is None and not given.dedup and not given.only
    run(chosen, name=f"{name}-partial" if given.only else name, with_memory=with_memory, results=given.results)


def run(sections: Sequence[Section], *, name: str, results: Path, with_memory: bool = False) -> None:
    """Measure, print the tables, write `<name>*.json` into the folder `results`; nothing where that is impossible."""
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    blocks: list[Blocks] = []
    different: dict[str, dict[str, list[str]]] = {}
    worlds: dict[tuple[int, Shape, bool], list[Section]] = {}
    for section in sections:
        worlds.setdefault((section.ranks, section.shape, section.real), []).append(section)
    for shared in worlds.values():
        found, unlike = measure(shared)
        blocks += found
        different[shared[0].name] = unlike
    peaks = memory() if with_memory else {}
    raw: dict[str, Any] = {"blocks": [block.raw() for block in blocks], "peak_bytes": peaks}
    costs, data = cost_notes(blocks, different, peaks), "random ids, made as it runs"
    by_collisions = [block.condition["name"].startswith("collision") for block in blocks]
    if not all(by_collisions):
        emit(name, *headline_table(blocks), notes=costs, extra=raw, data=data, results=results)
    if any(by_collisions):
        title, columns, rows, notes = collision_table(blocks)
        if all(by_collisions):
            emit(name, title, columns, rows, [*notes, *costs], raw, data=data, results=results)
        else:
            emit(f"{name}_collisions", title, columns, rows, notes, data=data, results=results)


if __name__ == "__main__":
    main()
