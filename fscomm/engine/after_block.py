"""Backward after the `with` block, through a forward that ran inside the block: workers and transports are closed.

The thread that runs backward sends the gradients itself, over the module's own process group, as TorchRec would.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from fscomm.exchange.handed_over import Gradients
from fscomm.plan.group_plan import Back, Leg
from fscomm.tables.binding import Binding
from fscomm.tables.group_tables import TableUpdate
from fscomm.tables.lookups import Update, nothing, update_in_turn
from fscomm.tables.shadow_kernels import Hyper, Shadow


def update(gradients: Gradients, back: Sequence[Back | None], module: Binding, groups: Sequence[int]) -> None:
    """Send the gradients of `groups`, which are those of `module`, and apply what comes; blocks for all ranks.

    Tables that are in another block now are updated in its order.
    """
    for number, g in enumerate(groups):
        targets = module.proxy_targets(number)
        for updates in _exchanged(gradients, g, back[g], module, number):
            for target, each in zip(targets, updates or [nothing], strict=True):
                update_in_turn(target, None, each)


def _exchanged(gradients: Gradients, g: int, back: Back | None, module: Binding, number: int) -> Iterator[list[Update]]:
    """The updates of all kernels of a group, for one class after the other."""
    tables = module.tables(number)
    codec = tables.codecs.gradients
    assert back is not None
    received = torch.empty(back.legs[-1].end, codec.width, dtype=codec.dtype, device=tables.where)
    for piece, leg in enumerate(back.legs):
        given = gradients.strips(g, back, piece if leg is not back.legs[-1] else -1, module.layouts[number].dim)
        mine = torch.zeros(len(leg.index), codec.width, dtype=codec.dtype, device=tables.where)
        if given is not None:
            mine = codec.encode(given.index_select(0, leg.index))
        _exchange(received, mine, leg, module.process_group)
    if gradients.used(g):
        for apply in back.applies:
            yield [
                partial(_apply, call, gradients.hypers[g][call.kernel]) if len(call.ids) else nothing
                for call in tables.updates(apply, received)
            ]


def _exchange(received: torch.Tensor, mine: torch.Tensor, leg: Leg, group: Any) -> None:
    first, start = 0, leg.start
    for send, receive in leg.splits():
        last, end = first + sum(send), start + sum(receive)
        dist.all_to_all_single(received[start:end], mine[first:last], receive, send, group=group)
        first, start = last, end


def _apply(call: TableUpdate, hyper: Hyper, shadow: Callable[[], Shadow]) -> None:
    call.run(shadow(), hyper)
