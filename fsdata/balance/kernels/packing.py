"""Kernels of packing: samples in order of their costs, first plans in one pass, and exchanges that improve them; and
spans of rows dealt to ranks.

N samples, W ranks. `order` int32[N] lists the samples by descending cost; kernels of first plans return the rank of
each sample, int32[N]. Times are compared as load / target: one division, which every CPU rounds alike. All other
amounts are integers, so no result depends on the CPU.

The order comes from a radix sort. A comparison sort of a global batch would take longer than the rest of a plan, and
numpy's default sort orders ties differently on different CPUs. The counting sort is stable and takes O(N) per digit of
11 bits; it visits only the digits in which the costs differ.

Exchanges are between G groups (ranks, or whole nodes) above and below their targets. The samples of a group form one
row of values in descending order. One walk along two rows therefore finds the pair whose difference is nearest to the
load that has to move. A round pairs the most overloaded with the most underloaded group. An exchange brings one of the
two to its target, so a round makes about G exchanges, O(N) in all, and a few rounds suffice. Every exchange lowers the
larger time of the two groups, so no group ever ends above the largest time of the first plan.
"""

from typing import NamedTuple

import numpy as np
from numba import types

from fsranks.libraries import kernel

_BITS = 11
_BUCKETS = 1 << _BITS


@kernel(called_with="int64[::1]")
def descending(cost):
    """Positions of `cost` (int64[N], not negative) by descending cost, ties by position. int32[N]."""
    n = cost.size
    order = np.empty(n, np.int32)
    key = np.empty(n, np.int64)
    if n == 0:
        return order
    largest = cost[0]
    smallest = cost[0]
    for i in range(n):
        largest = max(largest, cost[i])
        smallest = min(smallest, cost[i])
    for i in range(n):
        order[i] = i
        key[i] = largest - cost[i]  # ascending, as a stable sort in reverse would also reverse ties
    spread = largest - smallest
    next_order = np.empty(n, np.int32)
    next_key = np.empty(n, np.int64)
    place = np.empty(_BUCKETS, np.int64)
    shift = 0
    while shift < 63 and (spread >> shift) > 0:  # 63: a shift of an int64 by 64 or more is undefined
        place[:] = 0
        for i in range(n):
            place[(key[i] >> shift) & (_BUCKETS - 1)] += 1
        total = 0
        for bucket in range(_BUCKETS):
            here = place[bucket]
            place[bucket] = total
            total += here
        for i in range(n):
            bucket = (key[i] >> shift) & (_BUCKETS - 1)
            to = place[bucket]
            place[bucket] = to + 1
            next_order[to] = order[i]
            next_key[to] = key[i]
        order, next_order = next_order, order
        key, next_key = next_key, key
        shift += _BITS
    return order


@kernel(called_with="int32[::1], int64")
def zigzag(order, num_ranks):
    """Deal `order` in rows of W ranks, every second row backwards (the paper's FBS).

    In the paper's counting from 1, rank i of n takes the sorted positions i, 2n+1-i, 2n+i, 4n+1-i, ...
    """
    rank = np.empty(order.size, np.int32)
    at = 0
    step = 1
    for position in range(order.size):
        rank[order[position]] = at
        at += step
        if at == num_ranks or at < 0:
            step = -step
            at += step
    return rank


@kernel(called_with="int32[::1], int64[::1], int64")
def sums(rank, amount, num_ranks):
    """int64[W]: `amount` (int64[N]) added up per rank."""
    total = np.zeros(num_ranks, np.int64)
    for i in range(rank.size):
        total[rank[i]] += amount[i]
    return total


@kernel(called_with="int64[::1], float64[::1], int64")
def contiguous(cost, target, least):
    """Cut the samples, in the order given, where the running cost is nearest to the running target.

    `target` float64[W] is what each rank should carry; every rank gets `least` samples or more.
    """
    n = cost.size
    num_ranks = target.size
    rank = np.empty(n, np.int32)
    start = 0
    carried = 0
    wanted = 0.0
    for r in range(num_ranks):
        wanted += target[r]
        last = n - (num_ranks - 1 - r) * least
        stop = start
        while stop < last:
            after = carried + cost[stop]
            if stop >= start + least and r < num_ranks - 1 and abs(after - wanted) > abs(carried - wanted):
                break
            carried = after
            rank[stop] = r
            stop += 1
        start = stop
    return rank


@kernel
def _before(a, b, time, count):
    """Whether rank `a` gets a sample before rank `b`: less time, then fewer samples, then the lower number."""
    if time[a] != time[b]:
        return time[a] < time[b]
    if count[a] != count[b]:
        return count[a] < count[b]
    return a < b


@kernel
def _sink(heap, size, at, time, count):
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        if child + 1 < size and _before(heap[child + 1], heap[child], time, count):
            child += 1
        if not _before(heap[child], heap[at], time, count):
            return
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@kernel
def _rebuild(heap, count, time, below):
    """Fill `heap` with the ranks that have fewer than `below` samples; returns their number."""
    size = 0
    for r in range(count.size):
        if count[r] < below:
            heap[size] = r
            size += 1
    for at in range(size // 2 - 1, -1, -1):
        _sink(heap, size, at, time, count)
    return size


@kernel
def _roomiest(heap, size, used, need, cap, time, count):
    """Heap index of the first rank, by `_before`, that has room for `need` tokens; -1 if none has."""
    best = -1
    for at in range(size):
        if used[heap[at]] + need <= cap and (best < 0 or _before(heap[at], heap[best], time, count)):
            best = at
    return best


@kernel(called_with="int32[::1], int64[::1], int64[::1], float64[::1], int64, int64, int64")
def lightest_first(order, cost, tokens, target, cap, min_count, max_count):
    """Give each sample of `order` to the rank with the least time so far that has room for it.

    Every rank ends with `min_count` to `max_count` samples and at most `cap` tokens. Returns (rank, failed): `failed`
    is the first position of `order` for which no rank had room (`rank` is then incomplete), or N.
    """
    n = order.size
    num_ranks = target.size
    rank = np.empty(n, np.int32)
    load = np.zeros(num_ranks, np.int64)
    used = np.zeros(num_ranks, np.int64)
    count = np.zeros(num_ranks, np.int64)
    time = np.zeros(num_ranks, np.float64)
    heap = np.empty(num_ranks, np.int64)
    full_at = max_count
    size = _rebuild(heap, count, time, full_at)
    short = num_ranks * min_count  # samples that all ranks together lack of their minimum
    for position in range(n):
        if full_at != min_count and n - position == short:
            # The remaining samples just bring every rank to its minimum: no rank may get more now.
            full_at = min_count
            size = _rebuild(heap, count, time, full_at)
        sample = order[position]
        at = 0
        # The search of all ranks, O(W), runs only where the cap binds; the heap is not ordered by room.
        if size == 0 or used[heap[0]] + tokens[sample] > cap:
            at = _roomiest(heap, size, used, tokens[sample], cap, time, count)
            if at < 0:
                return rank, position
        r = heap[at]
        rank[sample] = r
        load[r] += cost[sample]
        used[r] += tokens[sample]
        count[r] += 1
        time[r] = load[r] / target[r]
        if count[r] <= min_count:
            short -= 1
        if count[r] == full_at:
            size = _rebuild(heap, count, time, full_at)  # at most once per rank and limit, so O(W) is cheap enough
        else:
            _sink(heap, size, at, time, count)
    return rank, n


_SPARE = 8  # free slots per row, for groups that receive more samples than they give; `_find` keeps to them
_PATIENCE = 4  # partners tried for a group that finds no exchange (the most loaded group tries them all)


class SortedGroups(NamedTuple):
    """The samples of each group: row g is [start[g], start[g] + size[g]) of `value` and `sample`, by falling value."""

    value: np.ndarray  # int64[slots]
    sample: np.ndarray  # int32[slots]
    start: np.ndarray  # int64[G + 1]
    size: np.ndarray  # int64[G], samples in the row
    load: np.ndarray  # int64[G], sum of the row's values
    used: np.ndarray  # int64[G], sum of the row's tokens


class Rules(NamedTuple):
    """The limits of exchanges."""

    ceiling: np.ndarray  # float64[G]: a group above it is overloaded
    target: np.ndarray  # float64[G]: a group below it is underloaded
    cap: int  # largest sum of tokens of a group
    min_count: int
    max_count: int  # 0: samples are only swapped, never moved
    rounds: int


@kernel(called_with="int32[::1], int32[::1], int64[::1], int64[::1], int64")
def fill_rows(order, group, value, tokens, num_groups):
    """The rows of `num_groups` groups; `order` lists the samples by descending `value`, `group` int32[N]."""
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
    """The smallest gain that would leave group b as slow as group a is now."""
    if rules.target[a] == rules.target[b]:
        return rows.load[a] - rows.load[b]
    # Slightly less, against rounding: every exchange must lower the larger time of both groups.
    return np.int64((rows.load[a] / rules.target[a] - rows.load[b] / rules.target[b]) * rules.target[b] * (1 - 1e-12))


@kernel
def _find(rows, rules, tokens, a, b):
    """The exchange that moves load from group a to group b: indices in their rows, (-1, -1) if none helps.

    The second index is -1 for a move without return. In range are gains that bring a under its ceiling and keep b under
    its own; where b has not enough room, gains that fill b from its target to its ceiling. The walk starts at the small
    ends of both rows and returns the first exchange in range, so that few tokens move. If none is in range, it returns
    the nearest one.
    """
    room = rules.ceiling[b] - rows.load[b]
    low = rows.load[a] - rules.ceiling[a]
    if low > room:
        low = rules.target[b] - rows.load[b]
    want = np.int64(low) + 1  # the cast rounds down: the next integer is surely above the bound
    high = np.int64(room)
    too_much = _too_much(rows, rules, a, b)
    room_a = rules.cap - rows.used[a]
    room_b = rules.cap - rows.used[b]
    size_b = rows.size[b]
    # A move needs a free slot in the row of b, which is never enlarged.
    moving = rows.size[a] > rules.min_count and size_b < min(rules.max_count, rows.start[b + 1] - rows.start[b])
    # Local arrays: reading them from the tuple inside the loop would cost more than the walk.
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
        # Values of a grow along this walk, so j never goes back: one walk over both rows, O(size_a + size_b).
        while j >= 0 and value - value_b[j] >= want:
            j -= 1
        # The two swaps of this sample whose gains enclose `want`, then its move.
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
    """Carry out an exchange: swapped samples swap their ranks, a moved sample gets rank b."""
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
    # Merge sort is stable: ties are in the same order on every CPU.
    by_time = first + np.argsort(rows.load[first:last] / rules.target[first:last], kind="mergesort")
    made = 0
    low = 0
    for high in range(n - 1, 0, -1):
        a = by_time[high]
        left = 64 + rows.size[a]  # exchanges of this group in a round: a bound, so that a round stays O(N)
        failed = 0
        partner = low
        while partner < high and left > 0 and rows.load[a] > rules.ceiling[a]:
            b = by_time[partner]
            if rows.load[b] >= rules.target[b]:
                low += partner == low  # filled groups at the front need no visit by the next `a`
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
            # As near to its target from below as its ceiling is from above: b is done.
            if rules.target[b] - rows.load[b] <= rules.ceiling[b] - rules.target[b]:
                low += partner == low
                partner += 1
    return made


_GROUPS = types.NamedTuple((types.int64[::1], types.int32[::1], *[types.int64[::1]] * 4), SortedGroups)
_RULES = types.NamedTuple((types.float64[::1], types.float64[::1], *[types.int64] * 4), Rules)


@kernel(called_with=(_GROUPS, _RULES, types.int32[::1], types.int64[::1], types.int64))
def improve(rows, rules, rank, tokens, span):
    """Exchange samples until no group is above its ceiling or nothing helps; changes `rows` and `rank` in place.

    Groups [0, span), [span, 2 span), ... exchange only among themselves. `tokens` int64[N] counts against the cap.
    Returns the number of exchanges.
    """
    made = 0
    for first in range(0, rows.size.size, span):
        for _ in range(rules.rounds):
            now = _round(rows, rules, rank, tokens, first, first + span)
            made += now
            if now == 0:
                break
    return made
