"""gloo's reduce-scatter adds in the order that pooled row-wise tables are added in."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE_S
from worlds import shared_world

from fscomm.bags import gloo_sums
from fscomm.bags.gloo_order import Region, add, regions

SHAPES = [(1, 1), (3, 4), (5, 12), (33, 100), (128, 64), (257, 36), (2048, 320)]


def added(rank: int, size: int, dtype: torch.dtype) -> tuple[list[int], int]:
    """How many elements have other bits: in gloo's order, by shape, and in that of whole shares of the ranks."""
    found = []
    for samples, columns in SHAPES:
        elements = samples * columns
        given = [torch.randn(size * elements, generator=torch.Generator().manual_seed(each)) for each in range(size)]
        given = [each.to(dtype) for each in given]
        result = torch.empty(elements, dtype=dtype)
        dist.reduce_scatter_tensor(result, given[rank].clone())
        mine = [each[rank * elements : (rank + 1) * elements] for each in given]
        found.append(
            int((add(mine, regions(rank * elements, elements, size * elements, size, dtype.itemsize)) != result).sum())
        )
    whole = [Region(start=0, end=elements, order=tuple((rank - 1 - k) % size for k in range(size)))]
    return found, int((add(mine, whole) != result).sum())


@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_order_of_gloo(size: int, dtype: torch.dtype) -> None:
    """Chunks are not the shares of the ranks: that formula gives other bits, if seldom."""
    answers = shared_world(size).run(added, dtype)
    assert [wrong for wrong, _ in answers] == [[0] * len(SHAPES)] * size
    assert size < 3 or dtype != torch.float32 or any(wrong for _, wrong in answers)


def checked(rank: int, size: int) -> dict[str, str]:
    group: Any = dist.group.WORLD
    return gloo_sums.unknown_orders({"a": group, "b": group}, timeout_s=PATIENCE_S)


def checked_wrong(rank: int, size: int) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gloo_sums, "regions", in_the_order_of_ranks)
        return checked(rank, size)


def in_the_order_of_ranks(first: int, elements: int, total: int, size: int, itemsize: int) -> list[Region]:
    return [Region(start=0, end=elements, order=tuple(range(size)))]


def test_it_is_checked_and_another_order_is_seen() -> None:
    for size in (1, 3):
        assert shared_world(size).run(checked) == [{}] * size
    found = shared_world(3).run(checked_wrong)
    assert all(each in ({}, {"a": gloo_sums.UNKNOWN, "b": gloo_sums.UNKNOWN}) for each in found)
    assert any(found)


def test_no_elements() -> None:
    assert regions(0, 0, 0, 4, 4) == []
