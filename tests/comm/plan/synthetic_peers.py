"""One real rank among W - 1 synthetic ones, in one process: what its peers say is made here, in the place of a network.

Row-wise tables of one sharding group. The rank under test is rank 0; all ranks draw ids from the same source, so every
rank asks this one for about 1 / W of its ids.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fscomm.device import Host
from fscomm.exchange.handed_over import ExchangedIds
from fscomm.exchange.id_exchange import BATCH, WORDS, IdExchange
from fscomm.exchange.wire_gate import WireGate
from fscomm.plan.routes import Part, request
from fscomm.plan.sharding_group import GroupLayout
from fscomm.report.recorder import Recorder

Draw = Callable[[int, int], np.ndarray]
"""(feature, step) -> int64 row numbers of the feature's table, as many as all ranks together look up there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Sizes. `ids`: of one rank in one step, over all features. `skew`: how much more often than others one rank asks
    rank 0. `shared`: share of the rows asked for that owners call shared."""

    ranks: int
    features: int
    rows: int
    ids: int
    dim: int = 128
    chunk_bytes: int = 16 << 20
    skew: float = 1.0
    shared: float = 0.3

    @property
    def layout(self) -> GroupLayout:
        return GroupLayout(
            module="scale",
            sharding="row_wise",
            rank=0,
            world_size=self.ranks,
            dim=self.dim,
            dtype=torch.float32,
            runs=((1,) * self.features,) * self.ranks,
            rows=(-(-self.rows // self.ranks),) * self.features,
            chunk_bytes=self.chunk_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """ids in wire order: int64, by peer, then feature; counts: int64[W, F]."""

    ids: np.ndarray
    counts: np.ndarray


def uniform(world: World, step: int, *, to_all: bool) -> Asked:
    """What rank 0 asks of all owners, or what all ranks ask of rank 0: the same numbers, as all ranks are alike."""
    random = np.random.default_rng([step, to_all])
    mean = np.full((world.ranks, world.features), world.ids / world.ranks / world.features)
    mean[world.ranks // 2] *= world.skew
    counts = random.poisson(mean)
    return Asked(ids=random.integers(0, world.layout.rows[0], counts.sum()), counts=counts)


def in_time_order(events: np.ndarray) -> Callable[..., Asked]:
    """The same with real items: every rank looks up other consecutive `events`, int64; each feature has its own
    table, in which items lie by hash."""

    def asked(world: World, step: int, *, to_all: bool) -> Asked:
        per_feature = world.ids // world.features
        ids, counts = [], np.zeros((world.features, world.ranks), np.int64)
        for f in range(world.features):
            start = (step * world.ranks * per_feature + f * 7919) % len(events)
            rows = _hashed(events.take(np.arange(start, start + per_feature * (1 if to_all else 16)), mode="wrap"), f)
            owner, row = rows % world.ranks, rows // world.ranks % world.layout.rows[0]
            if not to_all:  # sixteen ranks' worth of events, of which those on rank 0 are dealt out to all ranks
                row = np.resize(row[owner == 0], per_feature)
                owner = np.arange(per_feature) * world.ranks // per_feature
            order = np.argsort(owner, kind="stable")
            ids.append(row[order])
            counts[f] = np.bincount(owner, minlength=world.ranks)
        starts = np.cumsum(counts, axis=1) - counts + (np.arange(world.features) * per_feature)[:, None]
        flat, lengths, firsts = np.concatenate(ids), counts.T.ravel(), starts.T.ravel()
        index = (firsts - (np.cumsum(lengths) - lengths)).repeat(lengths) + np.arange(lengths.sum())
        return Asked(ids=flat[index], counts=np.ascontiguousarray(counts.T))

    return asked


def _hashed(items: np.ndarray, salt: int) -> np.ndarray:
    mixed = (items.astype(np.uint64) + np.uint64(salt << 32)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed ^ (mixed >> np.uint64(29))) >> np.uint64(3)).astype(np.int64)


@dataclass(slots=True)
class Peers:
    """A `Channel`: the peers' sizes, ids and masks.

    Attributes:
        sent: bytes that rank 0 sent in each exchange.
    """

    world: World
    asked: Asked | None = None
    sent: list[int] = field(default_factory=list)

    def all_to_all(self, out: torch.Tensor, mine: torch.Tensor, received: list[int], sent: list[int]) -> None:
        self._fill(out.numpy(), mine.numpy(), np.array(received))
        self.sent.append(mine.nbytes - sent[0] * mine.element_size())

    def _fill(self, out: np.ndarray, mine: np.ndarray, received: np.ndarray) -> None:
        assert self.asked is not None
        which = len(self.sent) % 3
        if which == 0:
            words = out.reshape(self.world.ranks, -1)
            words[:, :WORDS], words[:, WORDS:] = mine[:WORDS], self.asked.counts
        elif which == 1:
            out[:] = self.asked.ids
        else:
            random = np.random.default_rng(len(self.sent))
            out[:] = np.packbits(random.random((len(out), 8)) < self.world.shared, axis=1).ravel()
            sides = 1 if len(self.sent) < 3 else 2  # rows of this step, and gradients of the one before
            head = mine[: 8 * (1 + 5 * sides)]  # irregular modules, and numbers of strips
            out[(np.cumsum(received) - received)[:, None] + np.arange(len(head))] = head

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        return np.stack([mine] * self.world.ranks)

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)

    def close(self, reason: str) -> None:
        del reason


class Planner:
    """The ids worker of rank 0, step after step."""

    def __init__(self, world: World, asked: Callable[..., Asked]) -> None:
        self.world = world
        self.peers = Peers(world)
        self._asked = asked
        self._layout = world.layout
        served: Any = SimpleNamespace(
            layouts=[self._layout],
            module_of=[0],
            same_tables=lambda group: [group],
            modules=[SimpleNamespace(maps=None, tells_rows=False)],
        )
        self._exchange = IdExchange(self.peers, WireGate(), served, Host(), Recorder())
        self._number = 0
        self._before: ExchangedIds | None = None

    def draw(self) -> tuple[Asked, torch.Tensor]:
        """What the ranks ask in the next step, and the order in which rank 0's model reads its rows: by feature."""
        self.peers.asked = self._asked(self.world, self._number, to_all=False)
        mine = self._asked(self.world, self._number, to_all=True)
        lengths, features = mine.counts.ravel(), np.tile(np.arange(self.world.features), self.world.ranks)
        local = np.argsort(features.repeat(lengths), kind="stable")
        shuffled = np.random.default_rng(self._number).random(len(local))  # samples of all owners take turns
        of_feature = features.repeat(lengths)[local]
        turns = np.lexsort((shuffled, of_feature))
        owners = np.arange(self.world.ranks).repeat(self.world.features).repeat(lengths)[local][turns]
        by_wire = np.lexsort((np.arange(len(owners)), of_feature[turns], owners))
        order = np.empty(len(owners), np.int32)
        order[by_wire] = np.arange(len(owners), dtype=np.int32)
        return mine, torch.from_numpy(order)

    def step(self, mine: Asked, order: torch.Tensor) -> ExchangedIds:
        """The plan of rank 0."""
        asking = request([Part(torch.from_numpy(mine.ids), mine.counts.ravel().tolist(), order)], self._layout)
        self._before = self._exchange.exchange(self._number, self._before, BATCH, [asking])
        self._number += 1
        return self._before
