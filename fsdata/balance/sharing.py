"""Samples that share a history stay on one rank where that leaves the ranks in balance (pure planning).

What is dealt to the ranks are then groups of samples, not single ones. A group is at most a sixteenth of what a rank
computes: groups of this size can be dealt out evenly, and a history that is too long for one group lies on few ranks.
"""

import numpy as np

GROUPS_OF_A_RANK = 16
SHARES = ("fbs+swap", "vbs")
"""Methods that may give ranks different numbers of samples, or are the default."""


def sharing_groups(place: np.ndarray, length: np.ndarray, cost: np.ndarray, num_ranks: int) -> np.ndarray:
    """int64 [N]: the group of each sample, numbered from 0.

    place: int64 [N], the number of the first event that a sample sees, among all events of all histories; length: int64
    [N], how many it sees; cost: int64 [N]. Samples whose events overlap are one group, cut where it gets too large in
    the order of their first events.
    """
    size = len(place)
    alone = length == 0
    order = np.lexsort((np.arange(size), place, alone))
    begin, end = place[order], (place + length)[order]
    reach = np.maximum.accumulate(end)
    opens = np.ones(size, bool)
    opens[1:] = (begin[1:] >= reach[:-1]) | alone[order][1:]
    before = np.cumsum(cost[order]) - cost[order]
    of_group = before - before[opens][np.cumsum(opens) - 1]
    limit = max(int(cost.sum()) // (num_ranks * GROUPS_OF_A_RANK), 1)
    part = of_group // limit
    opens[1:] |= part[1:] != part[:-1]
    groups = np.empty(size, np.int64)
    groups[order] = np.cumsum(opens) - 1
    return groups


def events_shared(place: np.ndarray, length: np.ndarray, owner: np.ndarray, owners: int) -> np.ndarray:
    """int64 [owners]: events that samples of an owner see in all, less those that they see at least once.

    place, length: int64 [N], see `sharing_groups`; owner: int [N], such as the rank or the group of each sample.
    """
    place = _without_gaps(place, length)
    order = np.lexsort((place, owner))
    of = owner[order].astype(np.int64)
    apart = of * (int((place + length).max(initial=0)) + 1)  # events of one owner begin where those of others end
    begin = place[order] + apart
    end = begin + length[order]
    reach = np.concatenate([[0], np.maximum.accumulate(end)[:-1]])[: len(end)]
    again = np.clip(reach, begin, end) - begin
    found = np.zeros(owners, np.int64)
    np.add.at(found, of, again)
    return found


def _without_gaps(place: np.ndarray, length: np.ndarray) -> np.ndarray:
    """int64 [N]: `place`, where events that no sample sees are not counted.

    Places count the events of all sources, up to 2**63: times a number of owners they would overflow.
    """
    order = np.argsort(place, kind="stable")
    begin = place[order]
    reach = np.maximum.accumulate(begin + length[order])
    gap = np.maximum(begin - np.concatenate([[0], reach])[: len(begin)], 0)
    found = np.empty_like(begin)
    found[order] = begin - np.cumsum(gap)
    return found
