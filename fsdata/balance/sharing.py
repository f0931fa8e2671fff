"""Groups the samples that share a history, so that a group stays on one rank (pure planning).

Groups of samples are then dealt to the ranks, not single samples. A group has about a sixteenth of a rank's work at
most: groups of this size can be dealt evenly, and a history that is too long for one group is on few ranks.
"""

import numpy as np

GROUPS_OF_A_RANK = 16
SHARES = ("fbs+swap", "vbs")
"""Methods under which groups are dealt: `vbs` allows unequal numbers of samples per rank, `fbs+swap` is the default."""


def sharing_groups(first_event: np.ndarray, length: np.ndarray, cost: np.ndarray, num_ranks: int) -> np.ndarray:
    """int64 [N]: the group of each sample, numbered from 0.

    first_event: int64 [N], the number of the first event that a sample sees, among all events of all histories;
    length: int64 [N], how many events it sees; cost: int64 [N]. Samples whose events overlap form one group. A group
    that is too large is cut in the order of first events.
    """
    size = len(first_event)
    alone = length == 0  # without events there is nothing to share; sorted last, so that they separate no group
    order = np.lexsort((np.arange(size), first_event, alone))
    begin, end = first_event[order], (first_event + length)[order]
    reach = np.maximum.accumulate(end)  # not `end`: an earlier, longer sample may reach over the previous one
    opens = np.ones(size, bool)
    opens[1:] = (begin[1:] >= reach[:-1]) | alone[order][1:]
    before = np.cumsum(cost[order]) - cost[order]
    cost_in_group = before - before[opens][np.cumsum(opens) - 1]
    limit = max(int(cost.sum()) // (num_ranks * GROUPS_OF_A_RANK), 1)
    part = cost_in_group // limit
    opens[1:] |= part[1:] != part[:-1]
    groups = np.empty(size, np.int64)
    groups[order] = np.cumsum(opens) - 1
    return groups


def events_shared(first_event: np.ndarray, length: np.ndarray, owner: np.ndarray, owners: int) -> np.ndarray:
    """int64 [owners]: the events of all samples of an owner, minus the distinct ones among them.

    first_event, length: int64 [N], see `sharing_groups`; owner: int [N], e.g. the rank or the group of each sample.
    """
    first_event = _without_gaps(first_event, length)
    order = np.lexsort((first_event, owner))
    sample_owner = owner[order].astype(np.int64)
    # Each owner gets a range of event numbers of its own, so one running maximum serves all owners.
    offset = sample_owner * (int((first_event + length).max(initial=0)) + 1)
    begin = first_event[order] + offset
    end = begin + length[order]
    reach = np.concatenate([[0], np.maximum.accumulate(end)[:-1]])[: len(end)]
    repeated = np.clip(reach, begin, end) - begin
    events = np.zeros(owners, np.int64)
    np.add.at(events, sample_owner, repeated)
    return events


def _without_gaps(first_event: np.ndarray, length: np.ndarray) -> np.ndarray:
    """int64 [N]: `first_event`, renumbered without the events that no sample sees.

    The numbers count the events of all sources, up to 2**63: multiplied by a number of owners they would overflow.
    """
    order = np.argsort(first_event, kind="stable")
    begin = first_event[order]
    reach = np.maximum.accumulate(begin + length[order])
    gap = np.maximum(begin - np.concatenate([[0], reach])[: len(begin)], 0)
    renumbered = np.empty_like(begin)
    renumbered[order] = begin - np.cumsum(gap)
    return renumbered
