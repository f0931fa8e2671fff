"""How many bytes of pooled tables does a training step still wait for?

    python benchmarks/pooled.py [--steps 12]

Four ranks train one `EmbeddingBagCollection` under fscomm, 128 samples each. Exposed are the bytes of the collision
class, as `comm.report()` counts them. TorchRec's TrainPipelineSparseDist waits for all vectors and all gradients:
those bytes are computed from the shapes. Row-wise, gloo's reduce-scatter is an allreduce, which moves
2 (W - 1) / W of its buffer per rank; the all-gather of the gradients moves (W - 1) / W. Bytes do not depend on the
machine.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from common.ranks import run_ranks
from common.table import add_results_option, emit
from exposed import ONE_HOT
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

import fscomm

RANKS, SAMPLES, WIDTH = 4, 128, 64
WARM = 4  # steps until everything is fetched ahead
COLLISION = 0.12
SKEW = 1.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One model; `rows` of each table, of one feature each, with `ids` in every bag."""

    name: str
    sharding: str
    rows: tuple[int, ...]
    ids: int
    skew: float = 0.0


def cases() -> list[Case]:
    found = []
    for sharding in ("table-wise", "row-wise"):
        for ids in (1, 2, 5, 10):
            drawn = RANKS * SAMPLES * ids
            rows = round(drawn / -torch.tensor(1 - COLLISION).log().item())  # drawn evenly: that share comes again
            found.append(Case(name=f"{ids} ids a bag", sharding=sharding, rows=(rows,), ids=ids))
        found.append(Case(name="26 one-hot features", sharding=sharding, rows=ONE_HOT, ids=1, skew=SKEW))
    return found


class Model(torch.nn.Module):
    def __init__(self, rows: tuple[int, ...]) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(name=f"t{n}", num_embeddings=of_table, embedding_dim=WIDTH, feature_names=[f"f{n}"])
            for n, of_table in enumerate(rows)
        ]
        self.bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        return self.bags(features).values().square().mean()


def batches(case: Case, rank: int, steps: int) -> list[KeyedJaggedTensor]:
    """Every id drawn for itself: evenly, or by Zipf weights k ** -skew."""
    draw = torch.Generator().manual_seed(rank)
    size = SAMPLES * case.ids
    weights = [torch.arange(1, rows + 1, dtype=torch.float64) ** -case.skew for rows in case.rows]
    return [
        KeyedJaggedTensor(
            keys=[f"f{n}" for n in range(len(case.rows))],
            values=torch.cat([of_table.multinomial(size, replacement=True, generator=draw) for of_table in weights]),
            lengths=torch.full((len(case.rows) * SAMPLES,), case.ids, dtype=torch.int32),
        )
        for _ in range(steps)
    ]


def train(rank: int, size: int, case: Case, steps: int) -> tuple[int, float]:
    """Bytes of the collision class that this rank sent, and the share of the ids that collide."""
    torch.manual_seed(0)
    model = Model(case.rows)
    apply_optimizer_in_backward(RowWiseAdagrad, model.bags.parameters(), {"lr": 0.02})
    ways: dict[str, Any] = {
        f"t{n}": row_wise() if case.sharding == "row-wise" else table_wise(rank=n % size) for n in range(len(case.rows))
    }
    plan = construct_module_sharding_plan(model.bags, ways, local_size=size, world_size=size, device_type="cpu")
    parallel = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=ShardingPlan({"bags": plan}), init_data_parallel=False
    )
    with fscomm.enable(parallel, strict=True) as comm:
        for batch in comm.lookahead(batches(case, rank, WARM + steps + 1)):
            parallel(batch).backward()
    measured = comm.report().steps[WARM:-1]
    kinds = ("collision rows", "collision gradients")
    sent = sum(step.traffic(kind).sent for step in measured for kind in kinds)
    collisions = [each for step in measured for each in step.collisions.values()]
    share = sum(each.colliding for each in collisions) / max(sum(each.occurrences for each in collisions), 1)
    return sent // len(measured), share


def train_all(rank: int, size: int, steps: int) -> list[tuple[int, float]]:
    return [train(rank, size, case, steps) for case in cases()]


def waited_for(case: Case) -> int:
    """Bytes that all ranks of TrainPipelineSparseDist send in a step, and wait for."""
    vectors = RANKS * SAMPLES * WIDTH * 4 * len(case.rows)  # of all ranks
    if case.sharding == "table-wise":
        return 2 * vectors * (RANKS - 1) // RANKS
    return RANKS * 3 * vectors * (RANKS - 1) // RANKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    add_results_option(parser)
    options = parser.parse_args()
    rows = []
    for case, *answers in zip(cases(), *run_ranks(RANKS, train_all, options.steps), strict=True):
        exposed, whole = sum(sent for sent, _ in answers), waited_for(case)
        share = (
            sum(share for _, share in answers) / RANKS if case.sharding == "row-wise" else max(s for _, s in answers)
        )
        rows.append([case.sharding, case.name, 100 * share, exposed / 1e3, whole / 1e3, exposed / whole])
    emit(
        "pooled",
        f"Exposed bytes of pooled tables, {RANKS} ranks x {SAMPLES} samples",
        ["sharding", "model", "ids that collide %", "exposed KB", "SparseDist KB", "ratio"],
        rows,
        ["Bytes that all ranks send in a step, and wait for. Collisions: of the owner with the most."],
        data="random ids, made as it runs",
        results=options.results,
    )


if __name__ == "__main__":
    main()
