"""A small HSTU-style recommender on a TorchRec `EmbeddingCollection`.

The sparse half looks up every id of the batch: large tables are sharded, small ones are replicated like any
dense weight, because nearly all of their rows are used and updated in every step. The dense half
(`SequenceTower`) reads the history and predicts each next item against a few sampled ones. Letters: B
samples, T events of all of them, E embedding width, N negatives of a sample.

The forward pass of a sample does not read other samples: its negatives are hashed from its own ids. So the
loss of a sample is the same on every rank, and a balanced run can be compared with a plain run.

Batches may share histories (`Sequence(share=...)`): embeddings are then looked up once for all samples that see
an event, and expanded before the dense half reads them.
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torchrec import EmbeddingCollection, EmbeddingConfig, JaggedTensor, KeyedJaggedTensor

from freescale_tools.demo.model.attention import attention
from freescale_tools.demo.model.features import HISTORY, Feature, ModelSpec
from fsdata import expand

NEGATIVES = "negatives"
_HASH = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, as a signed 64-bit number


class SequenceModel(nn.Module):
    """Batch -> loss of every sample, float32 [B]; 0 for histories of less than two events."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embeddings = EmbeddingCollection(tables=_tables(spec), device=torch.device("meta"))
        self.small = nn.ModuleDict()
        for feature in (*spec.history, *spec.context):
            if feature.small:
                table = nn.Embedding(feature.rows, spec.width)
                nn.init.normal_(table.weight, std=spec.width**-0.5)
                self.small[f"table_{feature.name}"] = table
        self.tower = SequenceTower(spec)

    def forward(self, batch: Any) -> torch.Tensor:
        found = self.embeddings(encode(batch, self.spec))
        shared = batch.shared.get(HISTORY)

        def looked_up(feature: Feature) -> torch.Tensor:
            if feature.small:
                return self.small[f"table_{feature.name}"](rows_of(seen(batch, feature, self.spec), feature))
            values = found[feature.name].values()
            return expand(values, shared) if shared is not None and feature in self.spec.history else values

        offsets = seen(batch, self.spec.item, self.spec).offsets().to(torch.int64).cpu()
        events = torch.stack([looked_up(feature) for feature in self.spec.history])
        sample = torch.cat([*map(looked_up, self.spec.context), batch.dense], dim=1)
        return self.tower(events, sample, found[NEGATIVES].values(), offsets)


def _tables(spec: ModelSpec) -> list[EmbeddingConfig]:
    def spread(weight: torch.Tensor) -> torch.Tensor:
        return nn.init.normal_(weight, std=spec.width**-0.5)

    return [
        EmbeddingConfig(
            name=f"table_{feature.name}",
            num_embeddings=feature.rows,
            embedding_dim=spec.width,
            feature_names=[feature.name, NEGATIVES] if feature.kind == "item" else [feature.name],
            init_fn=spread,
        )
        for feature in (*spec.history, *spec.context)
        if not feature.small
    ]


def seen(batch: Any, feature: Feature, spec: ModelSpec) -> JaggedTensor:
    """The raw ids of a feature that each sample sees: int64, all of them also where samples share events."""
    shared = batch.shared.get(HISTORY) if feature in spec.history else None
    ids = batch.features[feature.name]
    return ids if shared is None else JaggedTensor(values=expand(ids.values(), shared), lengths=shared.length)


def encode(batch: Any, spec: ModelSpec) -> KeyedJaggedTensor:
    """Raw ids -> rows of the large tables, int64, keys in the order of the spec, then the negatives.

    Events that samples share are there once.
    """
    order = [feature for feature in (*spec.context, *spec.history) if not feature.small]
    values, lengths = [], []
    for feature in order:
        raw = batch.features[feature.name]
        values.append(rows_of(raw, feature))
        lengths.append(raw.lengths().to(torch.int64))
    items = seen(batch, spec.item, spec)
    values.append(_negatives(items, spec))
    lengths.append(torch.full_like(items.lengths(), spec.negatives, dtype=torch.int64))
    return KeyedJaggedTensor(
        keys=[*(feature.name for feature in order), NEGATIVES],
        values=torch.cat(values),
        lengths=torch.cat(lengths),
        stride=batch.features.stride(),
    )


def rows_of(raw: Any, feature: Feature) -> torch.Tensor:
    """Raw ids -> rows of their table: int64, as many."""
    return _time_gaps(raw) if feature.kind == "time" else raw.values() % feature.rows


def _time_gaps(times: Any) -> torch.Tensor:
    """log2 of the seconds since the event before, 0 for the first: int64 [T]."""
    values = times.values()
    gaps = torch.diff(values, prepend=values[:1])
    starts = times.offsets()[:-1].to(torch.int64)
    gaps[starts[times.lengths() > 0]] = 0
    return torch.log2(gaps.clamp(min=0).double() + 1).to(torch.int64)


def _negatives(items: Any, spec: ModelSpec) -> torch.Tensor:
    """Rows of the item table hashed from the sum of a sample's items: int64 [B * N]."""
    offsets = items.offsets().to(torch.int64)
    total = F.pad(torch.cumsum(items.values(), 0), (1, 0))
    seed = total[offsets[1:]] - total[offsets[:-1]]
    steps = torch.arange(1, spec.negatives + 1, device=seed.device)
    mixed = (seed[:, None] * _HASH + steps * steps * _HASH) >> 20
    return (mixed % spec.item.rows).flatten()


class SequenceTower(nn.Module):
    """The dense half: embeddings of a batch -> loss per sample."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        inputs = len(spec.context) * spec.width + spec.dense
        self.sample = nn.Linear(inputs, spec.width) if inputs else None
        self.blocks = nn.ModuleList(HstuBlock(spec.width, spec.heads) for _ in range(spec.layers))
        self.norm = nn.RMSNorm(spec.width)
        self.predict = nn.Linear(spec.width, spec.width)

    def forward(
        self, events: torch.Tensor, sample: torch.Tensor, negatives: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        """events [fields, T, E], sample [B, features], negatives [B * N, E], CPU offsets int64 [B + 1]."""
        lengths = torch.diff(offsets)
        x = events.sum(0)
        if self.sample is not None:
            x = x + torch.repeat_interleave(self.sample(torch.asinh(sample)), lengths.to(sample.device), dim=0)
        for block in self.blocks:
            x = block(x, offsets)
        return next_item_loss(self.predict(self.norm(x)), events[0], negatives, offsets)


class HstuBlock(nn.Module):
    """Pointwise attention, gated, with a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_in = nn.RMSNorm(width)
        self.project = nn.Linear(width, 4 * width)
        # A large eps keeps tiny values small. Scaled to unit size, their rounding errors would grow, and runs
        # that only differ in the order of additions would drift apart.
        self.norm_out = nn.RMSNorm(width, eps=1e-2)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """x [T, E] -> [T, E]; an event sees itself and what came before it in its own sequence."""
        gate, q, k, v = F.silu(self.project(self.norm_in(x))).chunk(4, dim=1)
        q, k, v = (part.unflatten(1, (self.heads, -1)).transpose(0, 1).contiguous() for part in (q, k, v))
        seen = attention(q * q.shape[-1] ** -0.5, k, v, offsets).transpose(0, 1).flatten(1)
        return x + self.out(self.norm_out(seen / _position(offsets, x)) * gate)


def _position(offsets: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """How many events each event sees: 1, 2, ... in every sequence, [T, 1]."""
    starts = torch.repeat_interleave(offsets[:-1], torch.diff(offsets))
    return (torch.arange(1, len(like) + 1) - starts)[:, None].to(like)


def next_item_loss(
    state: torch.Tensor, items: torch.Tensor, negatives: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """Sampled softmax of the event after each event, averaged over each sample: [B].

    state, items [T, E]: what the tower predicts after an event, and the event's own item.
    """
    lengths = torch.diff(offsets)
    others = negatives.view(len(lengths), len(negatives) // max(len(lengths), 1), items.shape[1])
    losses = []
    for row, (start, end) in enumerate(pairwise(offsets.tolist())):
        if end - start < 2:
            losses.append(state[start:end].sum() * 0)
            continue
        before = state[start : end - 1]
        right = (before * items[start + 1 : end]).sum(1, keepdim=True)
        scores = torch.cat([right, before @ others[row].T], dim=1)
        losses.append((torch.logsumexp(scores, 1) - right[:, 0]).mean())
    return torch.stack(losses) if losses else state.sum(1) + negatives.sum() * 0
