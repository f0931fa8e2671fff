"""What the ranks of `two_levels.py` do when called."""

import hashlib
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from exposure.model import Batch
from network.namespaces import DEVICE
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import fscomm
from fscomm.exchange import rows

SENT = Path("/sys/class/net", DEVICE, "statistics", "tx_bytes")


class Model(nn.Module):
    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        table = EmbeddingConfig(name="t", num_embeddings=rows, embedding_dim=dim, feature_names=["f"])
        self.embeddings = EmbeddingCollection([table])
        self.last = nn.Linear(dim, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.last(self.embeddings(batch.features)["f"].values()).square().mean()


def prepare(state: dict[str, Any], *, ids: str, rows: int, dim: int, samples: int, steps: int, per_host: int) -> None:
    """Consecutive requests make a step, and are dealt to the ranks in turn, much as a balanced loader does."""
    given = np.load(ids)
    histories = np.split(given["values"], np.cumsum(given["lengths"])[:-1])
    world_size, rank = dist.get_world_size(), dist.get_rank()
    state.update(rows=rows, dim=dim, per_host=per_host, batches=[])
    for step in range(steps):
        first = step * world_size * samples + rank
        mine = histories[first : first + world_size * samples : world_size][:samples]
        kjt = KeyedJaggedTensor(
            keys=["f"],
            values=torch.from_numpy(np.concatenate(mine)),
            lengths=torch.tensor(list(map(len, mine))),
            stride=samples,
        )
        state["batches"].append(Batch(features=kjt, labels=torch.zeros(samples)))


def block(state: dict[str, Any], *, ranks_per_host: int | None) -> dict[str, Any]:
    """Train on all batches from the same weights; None: without fscomm."""
    model = _sharded(state["rows"], state["dim"])
    parts, moved = rows.RowExchange._parts, {"rows": 0, "in_host": 0}
    rank, per_host = dist.get_rank(), state["per_host"]
    host = slice(rank - rank % per_host, rank - rank % per_host + per_host)

    def counted(self: Any, step: int, group: int, what: str, *args: Any) -> Any:
        for out, mine, received, sent in parts(self, step, group, what, *args):
            if what == "rows":
                size = mine.shape[1] * mine.element_size()
                moved["rows"] += size * (sum(sent) - sum(sent[host]))
                moved["in_host"] += size * (sum(sent[host]) - sent[rank])
            yield out, mine, received, sent

    losses, optimizer = [], torch.optim.SGD([p for n, p in model.named_parameters() if "last" in n], lr=0.02)
    served = fscomm.enable(model, ranks_per_host=ranks_per_host, strict=True) if ranks_per_host else nullcontext()
    with mock.patch.object(rows.RowExchange, "_parts", counted), served as comm:
        dist.barrier()
        before, start = int(SENT.read_text()), time.perf_counter()
        for batch in comm.lookahead(state["batches"]) if comm else state["batches"]:
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        dist.barrier()
        seconds, after = time.perf_counter() - start, int(SENT.read_text())
    weights = model.state_dict()["embeddings.embeddings.t.weight"].local_shards()[0].tensor
    return {
        "step_ms": 1e3 * seconds / len(state["batches"]),
        "link": after - before,
        "rows_sent": moved["rows"],
        "in_host": moved["in_host"],
        "losses": [each.hex() for each in losses],
        "tables": hashlib.sha256(weights.numpy().tobytes()).hexdigest(),
    }


def _sharded(rows: int, dim: int) -> Any:
    torch.manual_seed(0)
    model, sharder, ranks = Model(rows, dim), EmbeddingCollectionSharder(), dist.get_world_size()
    apply_optimizer_in_backward(RowWiseAdagrad, model.embeddings.parameters(), {"lr": 0.02})
    plan = construct_module_sharding_plan(
        model.embeddings, {"t": row_wise()}, sharder=sharder, local_size=ranks, world_size=ranks, device_type="cpu"
    )
    assert dist.group.WORLD is not None
    return DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=ShardingPlan({"embeddings": plan}),
        sharders=[sharder],  # type: ignore[list-item]
    )
