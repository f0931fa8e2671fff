"""Whether gloo adds in the order in which parts of pooled vectors are added here: otherwise sums have other bits."""

from collections.abc import Mapping
from datetime import timedelta
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from fscomm.bags.gloo_order import add, regions

ELEMENTS = (1, 7, 320, 40_000)  # of each rank's result: less than a chunk, chunks that do not fit, many segments
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
UNKNOWN = "gloo adds the parts of its vectors in an order that fscomm does not know (row-wise pooling)"


def unknown_orders(groups: Mapping[str, Any], *, timeout_s: float) -> dict[str, str]:
    """Why sharding groups cannot be served: gloo adds in another order than that of `gloo_order`. By name.

    groups: the process group that adds up the vectors of each. Collective: it compares the order with real
    reduce-scatters.
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
