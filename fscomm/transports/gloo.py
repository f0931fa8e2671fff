"""Over TCP by gloo, for CPU tensors; and whether gloo's own sums have the bits that pooled tables need.

Every class and thread has a connection of its own.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from fscomm.plan.gloo_order import add, regions
from fscomm.transports.handshake import Handshake
from fscomm.transports.transport import Handle, check_splits
from fsranks.control_group import BegunExchange, ControlGroup
from fsranks.errors import PeerError
from fsranks.rank_context import RankContext

ELEMENTS = (1, 7, 320, 40_000)  # of each rank's result: less than a chunk, chunks that do not fit, many segments
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
UNKNOWN = "gloo adds the parts of its vectors in an order that fscomm does not know (row-wise pooling)"


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
        begun = self._group.begin((out, inp, list(out_splits), list(in_splits)))
        return begun if self._handshake is None else _Agreed(begun, self._handshake)

    def meet(self) -> None:
        if self._handshake is not None:
            self._handshake.agree("meet", torch.empty(0, dtype=torch.uint8))
        self._group.all_gather(np.zeros(1, np.int8))

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
