"""The plan of every kind of sharding group, what is told before a step, and all kernels of that, compiled ahead.

Ranks tell each other in three rounds: some numbers, then words of 8 bytes, then one bit for each *unit* that an owner
serves a requester, a distinct row or bag, and for each class but the exclusive one: whether the unit is in it. With
rows in two levels, one more bit for each rank of the requester's host: whether it asks for the row, too. Messages of
the third round are bytes: a few numbers, then *masks*, which are the bits of all units of a group.

W ranks, H numbers in the head, U units.
"""

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fscomm.plan import bags, routes, wire_kernels
from fscomm.plan.bags import BagPlan
from fscomm.plan.hash_tables import checksum
from fscomm.plan.routes import RowPlan
from fscomm.plan.sharding_group import GroupLayout, Pooling
from fscomm.plan.two_levels import TwoLevelPlan
from fscomm.plan.ways import Told, pieces_back, segments

GroupPlan = RowPlan | BagPlan


def group_plan(layout: GroupLayout) -> GroupPlan:
    if layout.pooling is not None:
        return BagPlan(layout)
    return TwoLevelPlan(layout) if layout.two_levels else RowPlan(layout)


def mask_sizes(head: int, lengths: Sequence[np.ndarray], world_size: int) -> np.ndarray:
    """int64[W] bytes of the message with each peer; `lengths`: int64[W] the rows by peer of every mask."""
    return _starts(head, lengths, world_size)[1]


def pack_masks(
    head: np.ndarray, masks: Sequence[np.ndarray], lengths: Sequence[np.ndarray], world_size: int
) -> np.ndarray:
    """The messages to all peers, one after the other: int64[H], then the bits of each mask for that peer.

    `masks`: bool[U] each, by peer; `lengths`: int64[W] their rows by peer.
    """
    starts, bytes_ = _starts(len(head), lengths, world_size)
    message = np.empty(bytes_.sum(), np.uint8)
    message[starts[0][:, None] + np.arange(head.nbytes)] = head.view(np.uint8)
    for mask, rows, start in zip(masks, lengths, starts[1:], strict=True):
        wire_kernels.pack_bits(mask, rows, start, message)
    return message


def unpack_masks(
    message: np.ndarray, head: int, lengths: Sequence[np.ndarray], world_size: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """int64[W, H] the heads, and bool[U] each mask, by peer, from what all peers sent."""
    starts, _ = _starts(head, lengths, world_size)
    heads = message[starts[0][:, None] + np.arange(8 * head)].view(np.int64)
    masks = [np.empty(rows.sum(), np.bool_) for rows in lengths]
    for mask, rows, start in zip(masks, lengths, starts[1:], strict=True):
        wire_kernels.unpack_bits(message, rows, start, mask)
    return heads, masks


def _starts(head: int, lengths: Sequence[np.ndarray], world_size: int) -> tuple[np.ndarray, np.ndarray]:
    """int64[1 + masks, W] where the head and each mask begin in the messages, and int64[W] bytes with each peer."""
    of_each = np.array([np.full(world_size, 8 * head), *(-(-rows // 8) for rows in lengths)])
    ends = np.cumsum(of_each.T.ravel()).reshape(world_size, -1).T
    return ends - of_each, of_each.sum(0)


def compile_kernels() -> None:
    """Compile all kernels of planning, or load them from numba's cache, by planning a step of one id in all kinds of
    groups. Otherwise numba compiles each at its first use, in a step.
    """
    collects = gc.isenabled()
    gc.disable()  # numba makes many objects that stay: looking through those of the process takes as long as loading
    try:
        _plan_all()
    finally:
        if collects:
            gc.enable()


def _plan_all() -> None:
    ids = torch.zeros(1, dtype=torch.int64)
    checksum(ids.numpy().view("uint64"))
    layout = GroupLayout(
        module="", sharding="", rank=0, world_size=1, dim=1, dtype=torch.float32, runs=((1,),), rows=(1,)
    )
    pooled = replace(layout, pooling=Pooling(strips=((1,),), owners=1, mean=False))
    for plan in (RowPlan(layout), TwoLevelPlan(layout)):
        _plan(plan, routes.request([routes.Part(ids, [1], ids)], layout))
    _plan(BagPlan(pooled), bags.request([bags.BagPart(ids, torch.ones(1, 1), torch.ones(1))], pooled))
    of_two_parts = [routes.Part(ids, [1], ids), routes.Part(ids, [1], None)]
    _plan(RowPlan(layout), routes.request(of_two_parts, layout), parts=2)


def _plan(plan: GroupPlan, request: Any, parts: int = 1) -> None:
    numbers = plan.numbers(request)
    words, sizes = plan.words(request)
    segments(words, sizes - sizes, sizes)
    served: Any = plan.serve(words, numbers.reshape(1, -1), parts)
    classes, flags, units = served.in_later_parts, np.ones(1, np.bool_), [np.ones(1, np.int64)]
    served.rows.mark_common(served.rows, classes, classes, classes)
    unpack_masks(pack_masks(numbers[:1], [flags], units, 1), 1, units, 1)
    asking = served.asking if isinstance(plan, TwoLevelPlan) else None
    for back, pieces in ((False, parts + 1), (True, pieces_back(parts) + 1)):
        shared = plan.shared(served, np.zeros(len(served.rows), np.uint8), back=back)
        told = Told(mine=shared.units, asking=asking, largest=1, most=[1] * pieces, most_passed=[1] * pieces)
        (plan.back if back else plan.ahead)(request, served, shared, told)
