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
from fscomm.transports.transport import Done, Handle, check_splits
from fsranks.control_group import ControlGroup, control_group
from fsranks.errors import MismatchError
from fsranks.rank_context import RankContext

ELEMENTS = (1, 7, 320, 40_000)  # of each rank's result: less than a chunk, chunks that do not fit, many segments
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
UNKNOWN = "gloo adds the parts of its vectors in an order that fscomm does not know (row-wise pooling)"


class GlooTransport:
    """Collective to make. Sizes that disagree with another rank's end the process.

    The only rank sends to itself, also on a GPU.
    """

    name = "gloo"

    def __init__(self, context: RankContext, *, timeout_s: float) -> None:
        self.rank = context.rank
        self.world_size = context.world_size
        self._group = control_group(context, timeout_s=timeout_s)

    def all_to_all_v(
        self,
        out: torch.Tensor,
        inp: torch.Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        *,
        largest_bytes: int,
    ) -> Handle:
        check_splits(self.world_size, out, inp, out_splits, in_splits, largest_bytes)
        if isinstance(self._group, ControlGroup):
            return self._group.begin((out, inp, list(out_splits), list(in_splits)))
        if len(out) != len(inp):
            raise MismatchError(f"the only rank sends {len(inp)} rows to itself, but expects {len(out)}")
        out.copy_(inp)
        return Done()

    def barrier(self) -> None:
        self._group.all_gather(np.zeros(1, np.int8))

    def abort(self, reason: str) -> None:
        self._group.abort(reason)

    def close(self, reason: str) -> None:
        self._group.close(reason)


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
