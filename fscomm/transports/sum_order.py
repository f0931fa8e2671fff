"""Whether gloo adds in the order that `plan/gloo_order.py` says: compared once, with real reduce-scatters."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from fscomm.plan.gloo_order import add, regions

ELEMENTS = (1, 7, 320, 40_000)  # of each rank's result: less than a chunk, chunks that do not fit, many segments
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
UNKNOWN = "gloo adds the parts of its vectors in an order that fscomm does not know (row-wise pooling)"


def unknown_orders(groups: Mapping[str, Sequence[Any]], *, timeout_s: float) -> dict[str, str]:
    """Why modules cannot be served; `groups`: the process groups in which vectors of each are added up. Collective."""
    checked = {group: _is_known(group, timeout_s) for of_module in groups.values() for group in of_module}
    return {name: UNKNOWN for name, of_module in groups.items() if not all(checked[group] for group in of_module)}


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
