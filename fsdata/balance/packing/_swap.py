"""Kernels: improve a plan by exchanging samples between ranks that are over and under their target.

G groups (ranks, or whole nodes), N samples. The samples of a group form one row of values sorted downwards, so the pair
whose difference comes nearest to what has to go over is found in one walk down two rows. A round pairs the most
overloaded with the most underloaded group; an exchange puts one of the two right, so a round makes about G exchanges,
O(N) in all, and a few rounds suffice. Every exchange lowers the larger time of the two groups, so no group ever ends
above the largest time of the plan it started from.

All amounts are integers and the targets come in as numbers: nothing here depends on how a CPU rounds.
"""

from typing import NamedTuple

import numpy as np

from fsranks.libraries import kernel

_SPARE = 8  # free places per row, for rows that receive more samples than they give
_PATIENCE = 4  # partners tried for a group that finds no exchange (the most loaded group tries them all)


class SortedGroups(NamedTuple):
    """The samples of each group; row g is [start[g], start[g] + size[g]) of `value` and `sample`, values downwards."""

    value: np.ndarray  # int64[places]
    sample: np.ndarray  # int32[places]
    start: np.ndarray  # int64[G + 1]
    size: np.ndarray  # int64[G], samples in the row
    load: np.ndarray  # int64[G], sum of the row's values
    used: np.ndarray  # int64[G], sum of the row's tokens


class Rules(NamedTuple):
    """What an exchange may do."""

    ceiling: np.ndarray  # float64[G]: a group above it is overloaded
    target: np.ndarray  # float64[G]: a group below it is underloaded
    cap: int  # largest sum of tokens of a group
    min_count: int
    max_count: int  # smaller than min_count: samples are only swapped, never moved
    rounds: int


@kernel
def fill_rows(order, group, value, tokens, num_groups):
    """Rows of `num_groups` groups; `order` lists the samples by descending `value`, `group` int32[N]."""
    n = order.size
    count = np.zeros(num_groups, np.int64)
    for i in range(n):
        count[group[i]] += 1
    start = np.empty(num_groups + 1, np.int64)
    start[0] = 0
    for g in range(num_groups):
        start[g + 1] = start[g] + count[g] + _SPARE
    values = np.empty(start[num_groups], np.int64)
    samples = np.empty(start[num_groups], np.int32)
    load = np.zeros(num_groups, np.int64)
    used = np.zeros(num_groups, np.int64)
    place = start.copy()
    for position in range(n):
        sample = order[position]
        g = group[sample]
        values[place[g]] = value[sample]
        samples[place[g]] = sample
        place[g] += 1
        load[g] += value[sample]
        used[g] += tokens[sample]
    return SortedGroups(values, samples, start, count, load, used)


@kernel
def _take_out(rows, g, at):
    start = rows.start[g]
    stop = start + rows.size[g] - 1
    for k in range(start + at, stop):
        rows.value[k] = rows.value[k + 1]
        rows.sample[k] = rows.sample[k + 1]
    rows.size[g] -= 1


@kernel
def _put_in(rows, g, value, sample):
    start = rows.start[g]
    k = start + rows.size[g]
    while k > start and rows.value[k - 1] < value:
        rows.value[k] = rows.value[k - 1]
        rows.sample[k] = rows.sample[k - 1]
        k -= 1
    rows.value[k] = value
    rows.sample[k] = sample
    rows.size[g] += 1


@kernel
def _too_much(rows, rules, a, b):
    """The least gain that would leave group b as slow as group a is now."""
    if rules.target[a] == rules.target[b]:
        return rows.load[a] - rows.load[b]
    return np.int64((rows.load[a] / rules.target[a] - rows.load[b] / rules.target[b]) * rules.target[b] * (1 - 1e-12))


@kernel
def _find(rows, rules, tokens, a, b):
    """The exchange that takes load from group a to group b: places in their rows, (-1, -1) if none helps.

    The second place is -1 for a move without return. In range are gains that bring a under its ceiling and leave b
    there; where b has no room for that much, gains that fill b from its target to its ceiling. Of these the cheapest is
    taken, so that few tokens move: the walk starts at the cheap ends of both rows and stops there. If none is in range,
    the one nearest to it.
    """
    room = rules.ceiling[b] - rows.load[b]
    low = rows.load[a] - rules.ceiling[a]
    if low > room:
        low = rules.target[b] - rows.load[b]
    want = np.int64(low) + 1
    high = np.int64(room)
    too_much = _too_much(rows, rules, a, b)
    room_a = rules.cap - rows.used[a]
    room_b = rules.cap - rows.used[b]
    size_b = rows.size[b]
    moving = rows.size[a] > rules.min_count and size_b < min(rules.max_count, rows.start[b + 1] - rows.start[b])
    # Local arrays: reading them out of the tuple inside the loop would cost more than the walk.
    value_a = rows.value[rows.start[a] : rows.start[a] + rows.size[a]]
    value_b = rows.value[rows.start[b] : rows.start[b] + size_b]
    sample_a = rows.sample[rows.start[a] : rows.start[a] + rows.size[a]]
    sample_b = rows.sample[rows.start[b] : rows.start[b] + size_b]
    best = np.iinfo(np.int64).max
    best_a = -1
    best_b = -1
    j = size_b - 1
    for i in range(value_a.size - 1, -1, -1):
        value = value_a[i]
        while j >= 0 and value - value_b[j] >= want:
            j -= 1
        # The swaps of this sample on both sides of `want`, then its move.
        for k in range(max(j, 0), min(j + 2, size_b) + moving):
            swap = k < min(j + 2, size_b)
            gain = value - value_b[k] if swap else value
            good = want <= gain <= high
            if gain <= 0 or gain >= too_much or not (good or abs(gain - want) < best):
                continue
            # The group that receives more tokens than it gives must stay within the cap.
            net = tokens[sample_a[i]] - (tokens[sample_b[k]] if swap else 0)
            if (net > 0 and net > room_b) or (net < 0 and -net > room_a):
                continue
            best, best_a, best_b = abs(gain - want), i, k if swap else -1
            if good:
                return best_a, best_b
    return best_a, best_b


@kernel
def _exchange(rows, rank, tokens, a, b, at_a, at_b):
    """Carry out an exchange; two samples that are swapped swap their ranks, one that is moved gets rank b."""
    value = rows.value[rows.start[a] + at_a]
    give = rows.sample[rows.start[a] + at_a]
    _take_out(rows, a, at_a)
    gain = value
    net = tokens[give]
    if at_b >= 0:
        back = rows.value[rows.start[b] + at_b]
        take = rows.sample[rows.start[b] + at_b]
        _take_out(rows, b, at_b)
        _put_in(rows, a, back, take)
        rank[give], rank[take] = rank[take], rank[give]
        gain -= back
        net -= tokens[take]
    else:
        rank[give] = b
    _put_in(rows, b, value, give)
    rows.load[a] -= gain
    rows.load[b] += gain
    rows.used[a] -= net
    rows.used[b] += net


@kernel
def _round(rows, rules, rank, tokens, first, last):
    """One round over groups [first, last); returns the number of exchanges."""
    n = last - first
    by_time = first + np.argsort(rows.load[first:last] / rules.target[first:last], kind="mergesort")
    made = 0
    low = 0
    for high in range(n - 1, 0, -1):
        a = by_time[high]
        left = 64 + rows.size[a]
        failed = 0
        partner = low
        while partner < high and left > 0 and rows.load[a] > rules.ceiling[a]:
            b = by_time[partner]
            if rows.load[b] >= rules.target[b]:
                low += partner == low
                partner += 1
                continue
            at_a, at_b = _find(rows, rules, tokens, a, b)
            if at_a < 0:
                failed += 1
                partner += 1
                if failed == _PATIENCE and high < n - 1:
                    break
                continue
            _exchange(rows, rank, tokens, a, b, at_a, at_b)
            left -= 1
            made += 1
            if rules.target[b] - rows.load[b] <= rules.ceiling[b] - rules.target[b]:
                low += partner == low
                partner += 1
    return made


@kernel
def improve(rows, rules, rank, tokens, span):
    """Exchange samples until no group is above its ceiling or nothing helps; changes `rows` and `rank` in place.

    Groups [0, span), [span, 2 span), ... exchange only among themselves. `tokens` int64[N] is what counts against the
    cap. Returns the number of exchanges.
    """
    made = 0
    for first in range(0, rows.size.size, span):
        for _ in range(rules.rounds):
            now = _round(rows, rules, rank, tokens, first, first + span)
            made += now
            if now == 0:
                break
    return made
