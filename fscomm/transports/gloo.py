"""Over TCP by gloo, for CPU tensors; and whether gloo's own sums have the bits that pooled tables need.

Every class and thread has a connection of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import product
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from fscomm.plan.gloo_order import add, regions
from fscomm.transports.handshake import Handshake
from fscomm.transports.transport import Handle, check_gather, check_splits
from fsranks.control_group import AllToAll, BegunExchange, ControlGroup
from fsranks.errors import PeerError
from fsranks.rank_context import RankContext

IN_FLIGHT = 2
ELEMENTS = (1, 7, 320, 40_000)  # of each rank's result: less than a chunk, chunks that do not fit, many segments
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
UNKNOWN = "gloo adds the parts of its vectors in an order that fscomm does not know (row-wise pooling)"


class Channel(Protocol):
    """Collectives of one class, for one thread at a time. They block until done.

    Raises PeerError if a rank dies, leaves or is later than the time limit; the message names it.
    """

    @property
    def group(self) -> ControlGroup | None:
        """The group it runs over, which knows which rank is lost; None where there is one rank."""

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        """[W, ...] from the same shape and dtype on every rank."""

    def all_to_all_v(self, exchanges: Iterable[AllToAll]) -> None:
        """Make `exchanges` in order; the next one is taken from the iterable just before it is issued."""

    def abort(self, reason: str) -> None:
        """From any thread: end what blocks here; the other ranks' next exchange raises and gives `reason`."""

    def close(self, reason: str) -> None:
        """Leave no connection and no thread."""


class GlooTransport:
    """Collective to make. With `verify`, ranks compare their splits before each operation: one more exchange.

    Without `verify`, both sides must derive them from the same lengths: sizes that disagree end the process.
    """

    name = "gloo"

    def __init__(self, context: RankContext, *, timeout_s: float, verify: bool = True) -> None:
        self.rank = context.rank
        self.world_size = context.world_size
        self._handshake = Handshake(context, verify=True, timeout_s=timeout_s) if verify else None
        self._group = ControlGroup(context, timeout_s=timeout_s)

    def all_to_all_v(
        self,
        out: torch.Tensor,
        inp: torch.Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        *,
        largest_bytes: int | None = None,
    ) -> Handle:
        check_splits(self.world_size, out, inp, out_splits, in_splits, largest_bytes)
        if self._handshake is not None:
            self._handshake.agree("all_to_all_v", out, out_splits, in_splits)
        return self._begin((out, inp, list(out_splits), list(in_splits)))

    def all_gather(self, out: torch.Tensor, inp: torch.Tensor) -> Handle:
        check_gather(self.world_size, out, inp)
        if self._handshake is not None:
            self._handshake.agree("all_gather", out, [len(inp)] * self.world_size, [len(inp)] * self.world_size)
        sent = torch.cat([inp] * self.world_size)
        return self._begin((out, sent, [len(inp)] * self.world_size, [len(inp)] * self.world_size))

    def _begin(self, exchange: AllToAll) -> Handle:
        begun = self._group.begin(exchange)
        return begun if self._handshake is None else _Agreed(begun, self._handshake)

    def meet(self) -> None:
        one = torch.zeros(1, dtype=torch.int8)
        self.all_gather(one.repeat(self.world_size), one).wait()

    def abort(self, reason: str) -> None:
        if self._handshake is not None:
            self._handshake.group.abort(reason)
        self._group.abort(reason)

    def close(self, reason: str) -> None:
        if self._handshake is not None:
            self._handshake.group.close(reason)
        self._group.close(reason)


class _Agreed:
    """An operation that ranks agreed on. If it fails, ranks that wait in the next handshake are told so there."""

    def __init__(self, begun: BegunExchange, handshake: Handshake) -> None:
        self._begun = begun
        self._handshake = handshake

    def done(self) -> bool:
        return self._begun.done()

    def wait(self) -> None:
        try:
            self._begun.wait()
        except PeerError as error:
            self._handshake.group.abort(f"lost an operation: {error}")
            raise

    def follow(self) -> None:
        self.wait()


class GlooChannel:
    def __init__(self, context: RankContext, *, timeout_s: float) -> None:
        self.group = ControlGroup(context, timeout_s=timeout_s)

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        return self.group.all_gather(mine)

    def all_to_all_v(self, exchanges: Iterable[AllToAll]) -> None:
        self.group.all_to_all_many(exchanges, in_flight=IN_FLIGHT)

    def abort(self, reason: str) -> None:
        self.group.abort(reason)

    def close(self, reason: str) -> None:
        self.group.close(reason)


class AloneChannel:
    """The only rank: what it sends to itself."""

    group = None

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        return mine[None].copy()

    def all_to_all_v(self, exchanges: Iterable[AllToAll]) -> None:
        for out, mine, _, _ in exchanges:
            out.copy_(mine)

    def abort(self, reason: str) -> None:
        del reason

    def close(self, reason: str) -> None:
        del reason


def channel(context: RankContext, *, timeout_s: float) -> Channel:
    """Collective: every rank of `context` makes its channels in the same order."""
    if context.world_size == 1:
        return AloneChannel()
    return GlooChannel(context, timeout_s=timeout_s)


def unknown_orders(groups: Mapping[str, Any], *, timeout_s: float) -> dict[str, str]:
    """Why tables cannot be served, since gloo does not add in the order that `plan/gloo_order.py` says.

    groups: by what tables are called: the process group in which their vectors are added up. Collective: it compares
    the order with real reduce-scatters.
    """
    checked = {group: _is_known(group, timeout_s) for group in dict.fromkeys(groups.values())}
    return {name: UNKNOWN for name, group in groups.items() if not checked[group]}


def _is_known(group: Any, timeout_s: float) -> bool:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    known = True
    for elements, dtype in product(ELEMENTS, DTYPES):
        # Every rank knows what all give: numbers whose sum depends on the order.
        given = [_numbers(each, size * elements).to(dtype) for each in range(size)]
        result = torch.empty(elements, dtype=dtype)
        dist.reduce_scatter_tensor(result, given[rank].clone(), group=group, async_op=True).wait(
            timedelta(seconds=timeout_s)
        )
        mine = [each[rank * elements : (rank + 1) * elements] for each in given]
        expected = add(mine, regions(rank * elements, elements, size * elements, size, result.itemsize))
        known = known and torch.equal(result, expected)
    return known


def _numbers(rank: int, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(rank + 1))
