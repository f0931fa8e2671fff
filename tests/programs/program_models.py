"""Models of the kinds that others train, small and in our words: from a batch to (loss, logits)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from program_data import ACTIONS, ASKED, CATEGORIES, DENSE, ITEMS, KEYS, ONE_HOT, USERS, Inputs
from torch import Tensor, nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    KeyedTensor,
)
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import column_wise, construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import PoolingType
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

WIDTH = 8
META = torch.device("meta")


def rows_of(**tables: tuple[int, Sequence[str]]) -> EmbeddingCollection:
    """name -> (rows, features)."""
    configs = [
        EmbeddingConfig(name=f"of_{name}", num_embeddings=rows, embedding_dim=WIDTH, feature_names=list(features))
        for name, (rows, features) in tables.items()
    ]
    return EmbeddingCollection(tables=configs, device=META)


def bags_of(pooling: PoolingType = PoolingType.SUM, **tables: tuple[int, Sequence[str]]) -> EmbeddingBagCollection:
    configs = [
        EmbeddingBagConfig(
            name=f"of_{name}", num_embeddings=rows, embedding_dim=WIDTH, feature_names=list(features), pooling=pooling
        )
        for name, (rows, features) in tables.items()
    ]
    return EmbeddingBagCollection(tables=configs, device=META)


def picked(ids: KeyedJaggedTensor, *keys: str) -> KeyedJaggedTensor:
    return ids.permute([KEYS.index(key) for key in keys])


def attended(events: Tensor, lengths: Tensor, asked: Tensor) -> Tensor:
    """Each candidate looks at its sample's history: [B * ASKED, WIDTH]."""
    looked = [
        F.softmax(of_sample @ part.T, dim=1) @ part
        for part, of_sample in zip(events.split(lengths.tolist()), asked.split(ASKED), strict=True)
    ]
    return torch.cat(looked)


class Program(nn.Module):
    """A model with its collections in `embeddings`. The rest of it stands in a module of its own, as where TorchRec's
    pipelines trace a model: they do not look into that."""

    batch_class: type = Inputs
    optimizers: tuple[tuple[type[torch.optim.Optimizer], float], ...] = ((RowWiseAdagrad, 0.05),)

    def __init__(self, rest: nn.Module, **collections: EmbeddingCollection | EmbeddingBagCollection) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(collections)
        self.rest = rest


class Hstu(Program):
    """Merges the histories' and the candidates' KJTs and looks both up in one call."""

    def __init__(self) -> None:
        tables = rows_of(items=(ITEMS, ["item", "candidate"]), actions=(ACTIONS, ["action"]))
        super().__init__(HstuRest(), all=tables)

    def forward(self, batch: Inputs) -> tuple[Tensor, Tensor]:
        history, candidates = picked(batch.ids, "action", "item"), picked(batch.ids, "candidate")
        merged = KeyedJaggedTensor(
            keys=["action", "item", "candidate"],
            values=torch.cat([history.values(), candidates.values()]),
            lengths=torch.cat([history.lengths(), candidates.lengths()]),
        )
        return self.rest(batch, self.embeddings["all"](merged))


class HstuRest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: Inputs, found: Any) -> tuple[Tensor, Tensor]:
        asked = found["candidate"].values()
        events = found["item"].values() + found["action"].values()
        read = attended(events, found["item"].lengths(), asked)
        logits = (self.mix(read) * asked).sum(1)
        return F.binary_cross_entropy_with_logits(logits, batch.clicked), logits.detach()


class Listed(Program):
    """Its batch is a bare list; it predicts what was done with each item of a history."""

    batch_class = list

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, ACTIONS), all=rows_of(items=(ITEMS, ["item"])))

    def forward(self, batch: list[Any]) -> tuple[Tensor, Tensor]:
        ids, _, _, _ = batch
        found = self.embeddings["all"](picked(ids, "item"))["item"]
        logits = self.rest(found.values())
        return F.cross_entropy(logits, ids["action"].values()), logits.detach()


class TwoTower(Program):
    """Pooled towers; the other samples' items are the negatives."""

    def __init__(self) -> None:
        bags = bags_of(PoolingType.MEAN, items=(ITEMS, ["item", "candidate"]), users=(USERS, ["user"]))
        super().__init__(TwoTowerRest(), all=bags)

    def forward(self, batch: Inputs) -> tuple[Tensor, Tensor]:
        return self.rest(batch, self.embeddings["all"](batch.ids))


class TwoTowerRest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, batch: Inputs, pooled: KeyedTensor) -> tuple[Tensor, Tensor]:
        found = pooled.to_dict()
        user = self.user(torch.cat([found["item"], found["user"]], dim=1))
        scores = F.normalize(user) @ F.normalize(found["candidate"]).T / 0.1
        return F.cross_entropy(scores, torch.arange(len(batch.bought))), scores.detach()


class Dlrm(Program):
    """26 one-hot features and dense ones, all pairs of them."""

    def __init__(self) -> None:
        super().__init__(DlrmRest(), all=bags_of(**{name: (CATEGORIES, [name]) for name in ONE_HOT}))

    def forward(self, batch: Inputs) -> tuple[Tensor, Tensor]:
        return self.rest(batch, self.embeddings["all"](batch.ids))


class DlrmRest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(len(DENSE), WIDTH)
        self.over = nn.Linear(27 * 27, 1)

    def forward(self, batch: Inputs, pooled: KeyedTensor) -> tuple[Tensor, Tensor]:
        found = pooled.to_dict()
        vectors = torch.stack([self.dense(batch.dense), *(found[name] for name in ONE_HOT)], dim=1)
        logits = self.over((vectors @ vectors.transpose(1, 2)).flatten(1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, batch.bought), logits.detach()


class Din(Program):
    """Candidates attend to the history; what is known of the user is pooled: two kinds of collections."""

    def __init__(self) -> None:
        super().__init__(
            DinRest(),
            sequence=rows_of(items=(ITEMS, ["item", "candidate"])),
            pooled=bags_of(users=(USERS, ["user"]), first=(CATEGORIES, ["c0"]), second=(CATEGORIES, ["c1"])),
        )

    def forward(self, batch: Inputs) -> tuple[Tensor, Tensor]:
        found = self.embeddings["sequence"](picked(batch.ids, "candidate", "item"))
        known = self.embeddings["pooled"](picked(batch.ids, "user", "c0", "c1"))
        return self.rest(batch, found, known)


class DinRest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.over = nn.Sequential(nn.Linear(5 * WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, batch: Inputs, found: Any, known: KeyedTensor) -> tuple[Tensor, Tensor]:
        asked = found["candidate"].values()
        read = attended(found["item"].values(), found["item"].lengths(), asked)
        joined = [asked, read, known.values().repeat_interleave(ASKED, 0)]
        logits = self.over(torch.cat(joined, dim=1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, batch.clicked), logits.detach()


class MultiTask(Program):
    """Two tasks, two collections with an optimizer each."""

    optimizers = ((RowWiseAdagrad, 0.05), (torch.optim.SGD, 0.1))

    def __init__(self) -> None:
        super().__init__(
            MultiTaskRest(),
            shown=rows_of(items=(ITEMS, ["candidate"])),
            known=bags_of(PoolingType.MEAN, read=(ITEMS, ["item"]), users=(USERS, ["user"])),
        )

    def forward(self, batch: Inputs) -> tuple[Tensor, Tensor]:
        known = self.embeddings["known"](batch.ids)
        return self.rest(batch, known, self.embeddings["shown"](batch.ids))


class MultiTaskRest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.clicks = nn.Linear(2 * WIDTH, WIDTH)
        self.buys = nn.Linear(2 * WIDTH, 1)

    def forward(self, batch: Inputs, pooled: KeyedTensor, found: Any) -> tuple[Tensor, Tensor]:
        known, shown = pooled.values(), found["candidate"].values()
        clicked = (self.clicks(known).repeat_interleave(ASKED, 0) * shown).sum(1)
        bought = self.buys(known).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(clicked, batch.clicked)
        return loss + F.binary_cross_entropy_with_logits(bought, batch.bought), clicked.detach()


PROGRAMS: dict[str, Callable[[], Program]] = {
    "HSTU": Hstu,
    "list batches": Listed,
    "two-tower": TwoTower,
    "DLRM": Dlrm,
    "DIN": Din,
    "multi-task": MultiTask,
}


def build(program: str, size: int) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """Tables in turn by rows, whole and by columns."""
    model = PROGRAMS[program]()
    plan = {}
    for at, (name, collection) in enumerate(model.embeddings.items()):
        pooled = isinstance(collection, EmbeddingBagCollection)
        kind, rate = model.optimizers[at % len(model.optimizers)]
        apply_optimizer_in_backward(kind, collection.parameters(), {"lr": rate})
        configs = collection.embedding_bag_configs() if pooled else collection.embedding_configs()
        ways = (row_wise(), table_wise(rank=size - 1), column_wise(ranks=[0, size - 1]))
        plan[f"embeddings.{name}"] = construct_module_sharding_plan(
            collection,
            {config.name: ways[number % 3] for number, config in enumerate(configs)},
            sharder=EmbeddingBagCollectionSharder() if pooled else EmbeddingCollectionSharder(),
            local_size=size,
            world_size=size,
            device_type="cpu",
        )
    assert dist.is_initialized()
    parallel = DistributedModelParallel(model, device=torch.device("cpu"), plan=ShardingPlan(plan))
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(parallel.named_parameters())), lambda given: torch.optim.Adam(given, lr=1e-3)
    )
    return parallel, CombinedOptimizer([("fused", parallel.fused_optimizer), ("dense", dense)])
