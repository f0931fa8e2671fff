"""One real rank among W - 1 synthetic ones, in one process: what its peers say is made here, in the place of a network.

Row-wise tables of one sharding group. The rank under test is rank 0; all ranks draw ids from the same source, so every
rank asks this one for about 1 / W of its ids.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fscomm.device import Host
from fscomm.exchange.handed_over import ExchangedIds
from fscomm.exchange.id_exchange import BATCH, IdExchange
from fscomm.exchange.wire_gate import WireGate
from fscomm.plan.group_plan import AskedIds
from fscomm.plan.row_plan import RowPlan
from fscomm.plan.sharding_group import GroupLayout
from fscomm.report.recorder import Recorder
from fscomm.tables.forward_guard import ForwardGuard

_WORDS = 4  # of the status, without measured numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Sizes. `ids`: of one rank in one step, over all features. `skew`: how much more often than others one rank asks
    rank 0. `zipf`: few rows are asked for most. `shared`: share of the rows asked for that owners call shared."""

    ranks: int
    features: int
    rows: int
    ids: int
    dim: int = 128
    chunk_bytes: int = 16 << 20
    skew: float = 1.0
    zipf: bool = False
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


def asked(world: World, step: int, *, to_all: bool) -> Asked:
    """What rank 0 asks of all owners, or what all ranks ask of rank 0: the same numbers, as all ranks are alike."""
    random = np.random.default_rng([step, to_all])
    mean = np.full((world.ranks, world.features), world.ids / world.ranks / world.features)
    mean[world.ranks // 2] *= world.skew
    counts = random.poisson(mean)
    rows = world.layout.rows[0]
    ids = random.zipf(1.3, counts.sum()) % rows if world.zipf else random.integers(0, rows, counts.sum())
    return Asked(ids=ids, counts=counts)


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
            words[:, :_WORDS], words[:, _WORDS:] = mine[:_WORDS], self.asked.counts
        elif which == 1:
            out[:] = self.asked.ids
        else:
            random = np.random.default_rng(len(self.sent))
            out[:] = np.packbits(random.random((len(out), 8)) < self.world.shared, axis=1).ravel()
            sides = 1 if len(self.sent) < 3 else 2  # rows of this step, and gradients of the one before
            head = mine[: 8 * (1 + 3 * sides)]  # irregular modules, and the bounds of strips
            out[(np.cumsum(received) - received)[:, None] + np.arange(len(head))] = head

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        return np.stack([mine] * self.world.ranks)

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)

    def close(self, reason: str) -> None:
        del reason


class Planner:
    """The ids worker of rank 0, step after step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.peers = Peers(world)
        self._layout = world.layout
        served: Any = SimpleNamespace(
            layouts=[self._layout],
            module_of=[0],
            same_tables=lambda group: [group],
            modules=[SimpleNamespace(guard=ForwardGuard(), tells_rows=False)],
        )
        self._exchange = IdExchange(self.peers, WireGate(), served, Host(), Recorder())
        self._number = 0
        self._before: ExchangedIds | None = None

    def draw(self) -> tuple[Asked, torch.Tensor]:
        """What the ranks ask in the next step, and some order in which rank 0's model reads its rows."""
        self.peers.asked = asked(self.world, self._number, to_all=False)
        mine = asked(self.world, self._number, to_all=True)
        order = np.random.default_rng(self._number).permutation(len(mine.ids)).astype(np.int32)
        return mine, torch.from_numpy(order)

    def step(self, mine: Asked, order: torch.Tensor) -> ExchangedIds:
        """The plan of rank 0."""
        asked = AskedIds(torch.from_numpy(mine.ids), mine.counts.ravel().tolist(), order)
        asking = RowPlan(self._layout).request([asked])
        self._before = self._exchange.exchange(self._number, self._before, BATCH, [asking])
        self._number += 1
        return self._before
