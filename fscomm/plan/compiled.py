"""Every kernel of planning, compiled before the first step: numba compiles at a kernel's first use."""

import gc
from dataclasses import replace

import torch

from fscomm.plan import two_levels
from fscomm.plan.bags import request as bag_request
from fscomm.plan.group_plan import GroupPlan, RowPlan, group_plan
from fscomm.plan.hash_tables import checksum
from fscomm.plan.routes import request as row_request
from fscomm.plan.row_masks import pack, unpack
from fscomm.plan.sharding_group import GroupLayout, Pooling
from fscomm.plan.ways import segments


def compile_kernels() -> None:
    """Compile them, or load them from numba's cache, by planning a step of one id in both kinds of groups."""
    collects = gc.isenabled()
    gc.disable()  # numba makes many objects that stay: looking through those of the process takes as long as loading
    try:
        _plan_both()
    finally:
        if collects:
            gc.enable()


def _plan_both() -> None:
    ids = torch.zeros(1, dtype=torch.int64)
    checksum(ids.numpy().view("uint64"))
    layout = GroupLayout(
        module="", sharding="", rank=0, world_size=1, dim=1, dtype=torch.float32, runs=((1,),), rows=(1,)
    )
    pooled = replace(layout, pooling=Pooling(strips=((1,),), owners=1, mean=False))
    _plan(group_plan(layout), row_request(ids, [1], ids, layout))
    _plan(group_plan(pooled), bag_request(ids, torch.ones(1, 1), torch.ones(1), pooled))


def _plan(plan: GroupPlan, request: object) -> None:
    numbers = plan.numbers(request)
    words, sizes = plan.words(request)
    segments(words, sizes - sizes, sizes)
    served = plan.serve(words, numbers.reshape(1, -1))
    flags = served.rows.ids < 0
    served.rows.mark_common(served.rows, flags, flags)
    shared = plan.shared(served, flags)
    units = [plan.served_units(served)]
    _, (mine,) = unpack(pack(numbers[:1], [shared.units], units, 1), 1, units, 1)
    plan.ahead(request, served, shared, mine, 1)
    if isinstance(plan, RowPlan):
        crossing = replace(served, asking=two_levels.asking(served, plan.layout))
        two_levels.lookup(crossing, shared.units, flags, 1, plan.layout)
    plan.back(request, served, shared, mine, 1)
