"""gloo's reduce-scatter adds in the order that pooled row-wise tables are added in."""

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE_S
from worlds import shared_world

from fscomm.plan import gloo_order
from fscomm.plan.gloo_order import Region, add, regions
from fscomm.transports import gloo

SHAPES = [(1, 1), (3, 4), (5, 12), (33, 100), (128, 64), (257, 36), (2048, 320)]


def added(rank: int, size: int, samples: int, columns: int, dtype: torch.dtype) -> tuple[int, int]:
    """How many elements have other bits: in gloo's order, and in that of whole shares of the ranks."""
    elements = samples * columns
    given = [
        torch.randn(size * elements, generator=torch.Generator().manual_seed(each)).to(dtype) for each in range(size)
    ]
    result = torch.empty(elements, dtype=dtype)
    dist.reduce_scatter_tensor(result, given[rank].clone())
    mine = [each[rank * elements : (rank + 1) * elements] for each in given]
    whole = [Region(start=0, end=elements, order=tuple((rank - 1 - k) % size for k in range(size)))]
    of = regions(rank * elements, elements, size * elements, size, dtype.itemsize)
    return int((add(mine, of) != result).sum()), int((add(mine, whole) != result).sum())


@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_order_of_gloo(size: int, dtype: torch.dtype) -> None:
    for samples, columns in SHAPES:
        for wrong, _ in shared_world(size).run(added, samples, columns, dtype):
            assert wrong == 0, (samples, columns)


def test_chunks_are_not_the_shares_of_the_ranks() -> None:
    """The simpler formula gives other bits, if seldom."""
    assert any(wrong > 0 for _, wrong in shared_world(3).run(added, 2048, 320, torch.float32))


def checked(rank: int, size: int) -> dict[str, str]:
    group: Any = dist.group.WORLD
    return gloo.unknown_orders({"a": [group], "b": [group, group]}, timeout_s=PATIENCE_S)


def checked_wrong(rank: int, size: int) -> dict[str, str]:
    with mock.patch.object(gloo, "regions", in_the_order_of_ranks):
        return checked(rank, size)


def in_the_order_of_ranks(first: int, elements: int, total: int, size: int, itemsize: int) -> list[Region]:
    return [Region(start=0, end=elements, order=tuple(range(size)))]


@pytest.mark.parametrize("size", [1, 3, pytest.param(4, marks=pytest.mark.long)])
def test_it_is_checked(size: int) -> None:
    assert shared_world(size).run(checked) == [{}] * size


def test_another_order_is_seen() -> None:
    found = shared_world(3).run(checked_wrong)
    assert all(each in ({}, {"a": gloo.UNKNOWN, "b": gloo.UNKNOWN}) for each in found)
    assert any(found)


def test_no_elements() -> None:
    assert gloo_order.regions(0, 0, 0, 4, 4) == []
