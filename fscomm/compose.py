"""Which plan and which tables a group has, and all kernels of planning, compiled ahead: otherwise numba compiles each
at its first use, in a step."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from fscomm.plan.arrays import segments
from fscomm.plan.group_plan import AskedIds, GroupPlan, OwnerReply
from fscomm.plan.hash_tables import checksum
from fscomm.plan.masks import pack_masks, unpack_masks
from fscomm.plan.row_plan import RowPlan
from fscomm.plan.sharding_group import GroupLayout, Pooling


def is_installed(extension: str) -> bool:
    """Whether a folder of fscomm that can be deleted is there."""
    return find_spec(f"fscomm.{extension}") is not None


def group_plan(layout: GroupLayout) -> GroupPlan:
    if layout.pooling is not None:
        from fscomm.bags.bag_plan import BagPlan

        return BagPlan(layout)
    if layout.two_levels:
        from fscomm.two_levels.plan import TwoLevelPlan

        return TwoLevelPlan(layout)
    if layout.dedups:
        from fscomm.parts.dedup_plan import DedupPlan

        return DedupPlan(layout)
    return RowPlan(layout)


def tables_kind(layout: GroupLayout, of_rows: Any) -> Any:
    """The class of the group's tables. of_rows: that of tables which are not pooled (`GroupTables`)."""
    if layout.pooling is None:
        return of_rows
    from fscomm.bags.pooled_tables import PooledTables

    return PooledTables


def compile_kernels() -> None:
    """Compile the kernels, or load them from numba's cache, by planning a step of one id in all kinds of groups."""
    collects = gc.isenabled()
    gc.disable()  # numba makes many objects that stay: looking through those of the process takes as long as loading
    try:
        checksum(np.zeros(1, np.uint64))
        for plan, asked in _steps():
            request = plan.request(asked)
            _plan(plan, request, request.ids.parts)
    finally:
        if collects:
            gc.enable()


def _steps() -> Iterator[tuple[GroupPlan, Any]]:
    id_ = torch.zeros(1, dtype=torch.int64)
    row, bag = AskedIds(id_, [1], id_), AskedIds(id_, [1], None, torch.ones(1, 1), torch.ones(1))
    layout = GroupLayout(
        module="", sharding="", rank=0, world_size=1, dim=1, dtype=torch.float32, runs=((1,),), rows=(1,)
    )
    yield RowPlan(layout), [row]
    yield RowPlan(layout), [row, row._replace(from_wire=None)]
    if is_installed("two_levels"):
        from fscomm.two_levels.plan import TwoLevelPlan

        yield TwoLevelPlan(layout), [row]
    if is_installed("parts"):
        from fscomm.parts.dedup_plan import AskedOnce, DedupPlan

        yield DedupPlan(layout), AskedOnce(row, np.zeros(1, np.int64), np.array([[1, 0]]))
    if is_installed("bags"):
        from fscomm.bags.bag_plan import BagPlan

        yield BagPlan(replace(layout, pooling=Pooling(strips=((1,),), owners=1, mean=False))), [bag]


def _plan(plan: GroupPlan, request: Any, parts: int) -> None:
    numbers = plan.numbers(request)
    words, sizes = plan.words(request)
    segments(words, sizes - sizes, sizes)
    served = plan.serve(words, numbers.reshape(1, -1), parts)
    later = plan.needed_later(served)
    served.rows.mark_common(served.rows, later, later, later)
    for back in (False, True):
        shared = plan.shared(served, np.zeros(len(served.rows), np.uint8), back=back)
        masks, units = plan.masks(served, shared, back=back), served.ids.units
        unpack_masks(pack_masks(numbers[:1], masks, [units] * len(masks), 1), 1, [units] * len(masks), 1)
        reply: OwnerReply = plan.reply(masks, np.array([shared.bounds]))
        (plan.back if back else plan.ahead)(request, served, shared, reply)
