"""How long does entering a fscomm block take, and how much of it is the trial of the installed versions?

    python benchmarks/enable.py [--runs 5]

Ranks are new processes in every run. Each enters a block around a model with one `EmbeddingCollection` and one
`EmbeddingBagCollection` three times: the first block after it trained one step without fscomm, as a program that loads
its checkpoint has done something, too. Without the trial is with `fscomm.engine.trial` told that nothing is new. Times
are those of the slowest rank, medians over the runs.
"""

import argparse
import statistics
import time

import torch
from common.ranks import run_ranks, slowest
from common.table import emit
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

import fscomm
from fscomm.engine import trial

SIZES = (1, 2)
KINDS = ("ShardedEmbeddingCollection", "ShardedEmbeddingBagCollection")
ROWS, WIDTH = 1000, 32


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        common = {"num_embeddings": ROWS, "embedding_dim": WIDTH, "feature_names": ["ids"]}
        meta = torch.device("meta")
        self.rows = EmbeddingCollection(tables=[EmbeddingConfig(name="rows", **common)], device=meta)
        self.bags = EmbeddingBagCollection(tables=[EmbeddingBagConfig(name="bags", **common)], device=meta)

    def forward(self, ids: KeyedJaggedTensor) -> torch.Tensor:
        return self.rows(ids)["ids"].values().sum() + self.bags(ids).values().sum()


def entered(rank: int, size: int, with_trial: bool) -> list[float]:
    """Seconds that the first, the second and the third block took to enter."""
    model = Model()
    apply_optimizer_in_backward(RowWiseAdagrad, model.parameters(), {"lr": 0.1})
    parallel = DistributedModelParallel(model, device=torch.device("cpu"), init_data_parallel=False)
    parallel(
        KeyedJaggedTensor(keys=["ids"], values=torch.arange(8), lengths=torch.ones(8, dtype=torch.int32))
    ).backward()
    if not with_trial:
        trial._tried.update(dict.fromkeys(KINDS))
    seconds = []
    for _ in range(3):
        torch.distributed.barrier()
        start = time.perf_counter()
        with fscomm.enable(parallel, strict=True):
            seconds.append(time.perf_counter() - start)
    return slowest(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    rows, raw = [], {}
    for size in SIZES:
        for with_trial in (False, True):
            runs = [run_ranks(size, entered, with_trial)[0] for _ in range(options.runs)]
            rows.append([size, "with" if with_trial else "without", *map(statistics.median, zip(*runs, strict=True))])
            raw[f"{size} ranks, {rows[-1][1]} the trial"] = runs
    emit(
        "enable",
        "Seconds to enter a fscomm block",
        ["ranks", "trial", "first", "second", "third"],
        rows,
        ["Medians over new processes, of the slowest rank. Kernels were compiled before."],
        extra={"runs": raw},
        data="no data",
    )


if __name__ == "__main__":
    main()
