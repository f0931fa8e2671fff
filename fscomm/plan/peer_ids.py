"""The ids between this rank and its peers in one step, numbered alike by both ranks of a pair.

An *item* is what gets an output of its own: each occurrence of an id or, in a pooled group, each bag with an id in it.
Items are in *wire order*: by peer, then by feature, then by sample. Among the items of one pair of ranks a *unit* is a
distinct one: a row, or a bag that is like no other. Both ranks see the same ids, and number the units by first
occurrence. Before a step units travel. After it the gradients of all items do: adding gradients up before they travel
would change the order of additions, and with it bits.

What travels consists of *strips*: a row is one strip, a pooled vector has as many as its table is wide. Each strip has
a *class*, an index into what travels one after the other, most urgent first:

| of a step that is computed in k parts | classes of units | classes of strips |
|---|---|---|
| before it | 0 shared with the step before, 1 exclusive | k: units of class 0 by the first part that needs them |
| before it, with reassigned rows, k = 1 | 0 shared, 1 reassigned, 2 exclusive | 2: as units |
| after it, k = 1 | 0 shared with the step after, 1 exclusive | 1: as units |
| after it, k > 1 | 0 for part 0 of the step after, 1 for a later part, 2 exclusive | 2k: by unit and part |

*Exclusive* ones come last, in addition to the number of classes given here.

Everything is in host memory. N ids, I items, U units, W peers, k parts.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fscomm.plan import kernels
from fscomm.plan.arrays import sums, take


class Strips(NamedTuple):
    """classes: uint8[n] of strips that travel, by peer; by_peer: int64[W] how many each peer has."""

    classes: np.ndarray
    by_peer: np.ndarray


def unit_classes_back(parts: int) -> int:
    """How many classes units have after a step, without the exclusive one."""
    return min(parts, 2)


def classes_back(parts: int) -> int:
    """How many classes strips have after a step, without the exclusive one."""
    return unit_classes_back(parts) * parts


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIds:
    """Of all peers of this rank.

    Attributes:
        ids: int64[N].
        parts: k of the step. part_of: uint8[I] the part with which the gradient of each item travels; empty if there is
            one part. first_of: uint8[I] the first part that uses it.
        items: int64[W] by peer.
        positions: int32[U] the item in which each unit occurs first. slots: int32[I] the unit of each item.
        units: int64[W] by peer.
        widths: int64[I] strips of each item; None: all have one.
    """

    ids: np.ndarray
    parts: int
    part_of: np.ndarray
    first_of: np.ndarray
    items: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    units: np.ndarray
    widths: np.ndarray | None = None

    def ahead(self, units: np.ndarray) -> Strips:
        """What travels before the step, one strip after the other. units: uint8[U] their classes."""
        classes = units
        if self.parts > 1:
            classes = np.full(len(units), self.parts, np.uint8)
            kernels.first_parts(self.slots, self.first_of, classes)
            classes[units > 0] = self.parts
        if self.widths is None:
            return Strips(classes, self.units)
        widths = self.widths[self.positions]
        return Strips(classes.repeat(widths), sums(widths, self.units))

    def back(self, units: np.ndarray) -> Strips:
        """What travels after the step."""
        classes = take(units, self.slots)
        if self.parts > 1:
            by_part = classes * np.uint8(self.parts) + self.part_of
            classes = np.minimum(by_part, np.uint8(classes_back(self.parts)))
        if self.widths is None:
            return Strips(classes, self.items)
        return Strips(classes.repeat(self.widths), sums(self.widths, self.items))
