"""Kernels: first plans, made in one pass over the samples (zig-zag, lightest rank first, contiguous cut).

N samples, W ranks. `order` int32[N] lists the samples from dear to cheap; every kernel returns the rank of each sample,
int32[N]. Times are compared as load / target: one division, which every CPU rounds alike.
"""

import numpy as np

from fsranks.libraries import kernel


@kernel
def zigzag(order, num_ranks):
    """Deal `order` out in rows of W ranks, every other row backwards (the paper's FBS).

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


@kernel
def sums(rank, amount, num_ranks):
    """int64[W]: `amount` (int64[N]) added up per rank."""
    total = np.zeros(num_ranks, np.int64)
    for i in range(rank.size):
        total[rank[i]] += amount[i]
    return total


@kernel
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
    """Whether rank `a` is served before rank `b`: less time, then fewer samples, then the lower number."""
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
    """Fill `heap` with the ranks that hold fewer than `below` samples; returns how many."""
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
    """Heap place of the first rank in line that has room for `need` tokens; -1 if none has."""
    best = -1
    for at in range(size):
        if used[heap[at]] + need <= cap and (best < 0 or _before(heap[at], heap[best], time, count)):
            best = at
    return best


@kernel
def lightest_first(order, cost, tokens, target, cap, min_count, max_count):
    """Give each sample of `order` to the rank with the least time so far that may take it.

    Every rank ends with `min_count` to `max_count` samples and at most `cap` tokens. Returns (rank, failed): `failed`
    is the first position of `order` for which no rank had room (the ranks are then of no use), N if all went well.
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
    short = num_ranks * min_count
    for position in range(n):
        if full_at != min_count and n - position == short:
            # What is left just suffices to bring every rank to its minimum.
            full_at = min_count
            size = _rebuild(heap, count, time, full_at)
        sample = order[position]
        at = 0
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
            size = _rebuild(heap, count, time, full_at)
        else:
            _sink(heap, size, at, time, count)
    return rank, n
