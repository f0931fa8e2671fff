"""How many bytes of pooled tables does a training step still wait for?

    python benchmarks/pooled.py [--steps 12]

Four ranks train the model of `exposed.py` with an `EmbeddingBagCollection` under fscomm, 128 samples each. Exposed are
the bytes of the collision class, as `comm.report()` counts them. TorchRec's TrainPipelineSparseDist waits for all
vectors and all gradients: those bytes are computed from the shapes. Row-wise, gloo's reduce-scatter is an allreduce,
which moves 2 (W - 1) / W of its buffer per rank; the all-gather of the gradients moves (W - 1) / W. Bytes do not depend
on the machine.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from common.ranks import run_ranks
from common.table import argument_parser, emit
from exposed import BAGS
from exposure.model import sharded
from exposure.modes import Trained, fscomm
from exposure.rank import Stream
from exposure.shape import Shape

RANKS = 4
WARM = 4  # steps until everything is fetched ahead
COLLISION = 0.12
SKEW = 1.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One model. skew: ids are drawn evenly, or by Zipf weights k ** -skew."""

    name: str
    shape: Shape
    skew: float = 0.0

    @property
    def sharding(self) -> str:
        return f"{self.shape.sharding[0]}-wise"


def cases() -> Iterator[Case]:
    for kind in ("table", "row"):
        for ids in (1, 2, 5, 10):
            drawn = RANKS * BAGS.samples * ids
            rows = round(drawn / -math.log(1 - COLLISION))  # drawn evenly: that share comes again
            shape = replace(BAGS, sharding=(kind,), pooled=(rows,), ids_per_sample=ids)
            yield Case(name=f"{ids} ids a bag", shape=shape)
        yield Case(name="26 one-hot features", shape=replace(BAGS, sharding=(kind,) * 26), skew=SKEW)


def train(rank: int, size: int, steps: int) -> list[tuple[float, float]]:
    """Of each case: collision bytes that this rank sent in a step, and the share of the ids that collide."""
    return [_train(case, steps) for case in cases()]


def _train(case: Case, steps: int) -> tuple[float, float]:
    model, optimizer = sharded(case.shape)
    batches = Stream(case.shape, rate=0.0, skew=case.skew).batches(0, WARM + steps + 1)
    measured = fscomm(Trained(model=model, optimizer=optimizer), batches, lambda: None)[WARM:-1]
    traffic = [item for step in measured for by_kind in step["bytes"].values() for item in by_kind.items()]
    sent = sum(of["sent"] for kind, of in traffic if kind in ("collision rows", "collision gradients"))
    collisions = [each for step in measured for each in step["collisions"].values()]
    share = sum(each["colliding"] for each in collisions) / max(sum(each["occurrences"] for each in collisions), 1)
    return sent / len(measured), share


def waited_for(case: Case) -> int:
    """Bytes that all ranks of TrainPipelineSparseDist send in a step, and wait for."""
    vectors = RANKS * case.shape.samples * case.shape.width * 4 * len(case.shape.pooled)  # of all ranks
    return (2 if case.sharding == "table-wise" else 3 * RANKS) * vectors * (RANKS - 1) // RANKS


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    rows = []
    for case, *answers in zip(cases(), *run_ranks(RANKS, train, given.steps), strict=True):
        sent, shares = zip(*answers, strict=True)
        exposed, whole = sum(sent), waited_for(case)
        share = sum(shares) / RANKS if case.sharding == "row-wise" else max(shares)
        rows.append([case.sharding, case.name, 100 * share, exposed / 1e3, whole / 1e3, exposed / whole])
    emit(
        "pooled",
        f"Exposed bytes of pooled tables, {RANKS} ranks x {BAGS.samples} samples",
        ["sharding", "model", "ids that collide %", "exposed KB", "SparseDist KB", "ratio"],
        rows,
        ["Bytes that all ranks send in a step, and wait for. Collisions: of the owner with the most."],
        data="random ids, made as it runs",
        results=given.results,
    )


if __name__ == "__main__":
    main()
