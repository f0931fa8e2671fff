"""The classes of rows of a step in k parts: see `fscomm/plan/peer_ids.py` for those of strips and units.

In the law of `fscomm/engine/table_order.py` the place of all reads of a step is the first part's forward, and that of
the update the last part's backward pass. Collision rows are fetched part after part, in k classes, and updated in two:
those that the first part of n+1 uses (within n, n+1 and `FirstPart` of n+1), then all others (without that). What is
fetched for the first part meets the first update only, so the first part of the next step waits for no other one.
"""

from dataclasses import dataclass, replace
from functools import cache

from fscomm.exchange.operations import EXCLUSIVE_ROWS, SHARED_ROWS, TWO_CLASSES, Due, RowClasses, Rows


@dataclass(frozen=True, slots=True)
class FirstPart:
    """What the first part of a step uses."""

    step: int


@cache
def classes_in(parts: int) -> RowClasses:
    if parts == 1:
        return TWO_CLASSES
    first = replace(SHARED_ROWS, narrowed=_used_first)
    later = [replace(SHARED_ROWS, number=part, due=Due.NEXT) for part in range(1, parts)]
    # Gradients of the parts before the last one travel before the updates, in two classes of each part.
    update_first = replace(first, sends=parts - 1)
    update_later = replace(SHARED_ROWS, number=1, due=Due.NEXT, narrowed=_used_later, sends=2 * parts - 1)
    return RowClasses(ahead=(first, *later, EXCLUSIVE_ROWS), back=(update_first, update_later, EXCLUSIVE_ROWS))


def _used_first(rows: Rows, step: int | None) -> Rows:
    return rows if step is None else replace(rows, within=rows.within | {FirstPart(step)})


def _used_later(rows: Rows, step: int | None) -> Rows:
    return rows if step is None else replace(rows, without=rows.without | {FirstPart(step)})
