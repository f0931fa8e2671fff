"""The demo's model: a small transformer over histories, on a TorchRec `EmbeddingCollection`.

It predicts of every event to which of 256 groups the next item belongs. Letters: B samples, T events of all of them, E
embedding width, H heads.

The forward pass of a sample does not read other samples. So the loss of a sample is the same on every rank, and a
balanced run can be compared with an unbalanced run.

Behind managed collision (MPZCH) the tables have fewer rows than there are ids. A new id takes a free row, or one whose
id has expired; if it finds neither, it shares a row.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.modules.hash_mc_evictions import HashZchEvictionConfig, HashZchEvictionPolicyName
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import ManagedCollisionCollection

from freescale_tools.demo.data import HISTORY, DemoData
from fsdata import Batch, expand

GROUPS = 256
WIDTH, HEADS, LAYERS = 64, 2, 2
_IDS_PER_ROW = 8  # behind managed collision
_PROBES = 8  # rows that an id may have


def encode(batch: Batch, data: DemoData) -> Batch:
    """The batch with rows of the embedding tables in place of raw ids.

    The loader calls it (`adapt=`), in the thread that makes batches ahead: so fscomm finds the rows in the batch.
    """
    raw = batch.features
    rows = [raw[each.name].values() // each.divide % each.rows for each in (*data.context, *data.history)]
    encoded = KeyedJaggedTensor(
        keys=raw.keys(), values=torch.cat(rows), lengths=raw.lengths().long(), stride=raw.stride()
    )
    return dataclasses.replace(batch, features=encoded)


def seen(values: Tensor, batch: Batch) -> Tensor:
    """Values of the events that each sample sees [T, ...]. Where samples share events, `values` has these once."""
    shared = batch.shared.get(HISTORY)
    return values if shared is None else expand(values, shared)


def lengths(batch: Batch, data: DemoData) -> Tensor:
    """Events that each sample sees: int64 [B]."""
    shared = batch.shared.get(HISTORY)
    return batch.features[data.history[0].name].lengths() if shared is None else shared.length


class SequenceModel(nn.Module):
    """Encoded batch -> loss of every sample, float32 [B]; 0 for histories of less than two events.

    buckets: into which the rows of a table behind managed collision are cut, a multiple of the ranks; 0: every id has
    a row.
    """

    def __init__(self, data: DemoData, *, buckets: int = 0) -> None:
        super().__init__()
        self.data = data
        self.buckets = buckets
        self.tables = [
            EmbeddingConfig(
                name=f"table_{feature.name}",
                num_embeddings=-(-feature.rows // (_IDS_PER_ROW * buckets)) * buckets if buckets else feature.rows,
                embedding_dim=WIDTH,
                feature_names=[feature.name],
                init_fn=lambda weight: nn.init.normal_(weight, std=WIDTH**-0.5),
            )
            for feature in (*data.context, *data.history)
        ]
        collection = EmbeddingCollection(tables=self.tables, device=torch.device("meta"))
        self.embeddings = _managed(collection, buckets) if buckets else collection
        self.transformer = Transformer(data)

    def forward(self, batch: Batch) -> Tensor:
        found = self.embeddings(batch.features)
        if self.buckets:
            found, _ = found  # without the features that it remapped
        return self.transformer(batch, {table.name: found[table.feature_names[0]].values() for table in self.tables})


class Transformer(nn.Module):
    """All but the tables: (batch, rows of each table) -> losses as `SequenceModel`.

    A module of its own, because TorchRec's pipeline traces the module that has the tables, and calls others unchanged.
    """

    def __init__(self, data: DemoData) -> None:
        super().__init__()
        self.data = data
        inputs = len(data.context) * WIDTH + len(data.dense)
        self.sample = nn.Linear(inputs, WIDTH) if inputs else None
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.predict = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, GROUPS))

    def forward(self, batch: Batch, rows: dict[str, Tensor]) -> Tensor:
        events = lengths(batch, self.data)
        x = torch.stack([seen(rows[f"table_{field.name}"], batch) for field in self.data.history]).sum(0)
        if self.sample is not None:
            context = [rows[f"table_{field.name}"] for field in self.data.context]
            x = x + self.sample(torch.cat([*context, torch.asinh(batch.dense)], dim=1)).repeat_interleave(events, 0)
        for block in self.blocks:
            x = block(x, events)
        items = seen(batch.features[self.data.history[0].name].values(), batch)
        return next_item_loss(self.predict(x), items % GROUPS, events)


def _managed(collection: EmbeddingCollection, buckets: int) -> ManagedCollisionEmbeddingCollection:
    """An id expires when the hour is over in which it came last."""
    maps = {
        table.name: HashZchManagedCollisionModule(
            zch_size=table.num_embeddings,
            device=torch.device("cpu"),
            total_num_buckets=buckets,
            max_probe=_PROBES,
            eviction_policy_name=HashZchEvictionPolicyName.SINGLE_TTL_EVICTION,
            eviction_config=HashZchEvictionConfig(features=table.feature_names, single_ttl=0),
        )
        for table in collection.embedding_configs()
    }
    return ManagedCollisionEmbeddingCollection(
        collection, ManagedCollisionCollection(maps, collection.embedding_configs())
    )


class Block(nn.Module):
    """Causal attention and a feed-forward layer, both with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, events: Tensor) -> Tensor:
        """x [T, E] -> [T, E]; an event sees itself and what came before it in its own sample."""
        heads = self.project(x).unflatten(1, (3, 1, HEADS, -1)).permute(1, 2, 3, 0, 4)
        # Each sample alone: nothing is padded. With four dimensions PyTorch takes a kernel that keeps no score matrix.
        samples = heads.split([length for length in events.tolist() if length], dim=3)
        read = [F.scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in samples]
        joined = torch.cat([heads[0, :, :, :0], *read], dim=2)
        x = x + self.out(joined[0].transpose(0, 1).flatten(1))
        return x + self.feed(x)


def next_item_loss(scores: Tensor, groups: Tensor, events: Tensor) -> Tensor:
    """Cross entropy of the event after each event, averaged over each sample: [B].

    scores [T, GROUPS], groups int64 [T] of the events themselves, events int64 [B].
    """
    loss = F.cross_entropy(scores, groups.roll(-1), reduction="none")
    has_next = torch.ones_like(loss)
    has_next[events.cumsum(0)[events > 0] - 1] = 0
    sample = torch.arange(len(events)).repeat_interleave(events)
    total = torch.zeros(len(events)).index_add(0, sample, loss * has_next)
    return total / (events - 1).clamp(min=1)
