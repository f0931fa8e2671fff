"""The kernels once more in plain Python: short, slow, and what the fast ones are compared with.

N samples, W ranks (or G groups), lists of ints in and out. Not used for planning.
"""

import itertools
from collections.abc import Sequence
from typing import Any


def descending(cost: Sequence[int]) -> list[int]:
    """Positions from dear to cheap, ties by position."""
    return sorted(range(len(cost)), key=lambda i: (-cost[i], i))


def contiguous(cost: Sequence[int], target: Sequence[float], least: int) -> list[int]:
    """Cut where the running cost is nearest to the running target, the later cut among equals."""
    running = [0, *itertools.accumulate(cost)]
    rank: list[int] = []
    wanted = 0.0
    for r, share in enumerate(target):
        wanted += share
        last = len(cost) - (len(target) - 1 - r) * least
        cuts = range(len(rank) + least, last + 1)
        stop = last if r == len(target) - 1 else min(cuts, key=lambda cut: (abs(running[cut] - wanted), -cut))
        rank += [r] * (stop - len(rank))
    return rank


def lightest_first(
    order: Sequence[int],
    cost: Sequence[int],
    tokens: Sequence[int],
    target: Sequence[float],
    cap: int,
    min_count: int,
    max_count: int,
) -> tuple[list[int], int]:
    """Each sample to the rank with the least time, fewest samples, lowest number, among those that may take it."""
    width = len(target)
    rank = [-1] * len(order)
    load, used, count = [0] * width, [0] * width, [0] * width
    for position, sample in enumerate(order):
        short = sum(max(min_count - held, 0) for held in count)
        full_at = min_count if len(order) - position <= short else max_count
        able = [r for r in range(width) if count[r] < full_at and used[r] + tokens[sample] <= cap]
        if not able:
            return rank, position
        r = min(able, key=lambda r: (load[r] / target[r], count[r], r))
        rank[sample] = r
        load[r] += cost[sample]
        used[r] += tokens[sample]
        count[r] += 1
    return rank, len(order)


def improve(
    order: Sequence[int], rank: Sequence[int], cost: Sequence[int], tokens: Sequence[int], rules: Any, *, span: int
) -> list[int]:
    """Exchange samples between overloaded and underloaded ranks; `rules` as for the kernel."""
    rows: list[list[int]] = [[] for _ in rules.target]
    for sample in order:
        rows[rank[sample]].append(sample)
    places = [len(row) + 8 for row in rows]
    for first in range(0, len(rows), span):
        for _ in range(rules.rounds):
            if not _round(rows, places, cost, tokens, rules, range(first, first + span)):
                break
    found = [-1] * len(order)
    for r, row in enumerate(rows):
        for sample in row:
            found[sample] = r
    return found


def _round(rows, places, cost, tokens, rules, members):
    def load(r):
        return sum(cost[s] for s in rows[r])

    by_time = sorted(members, key=lambda r: (load(r) / rules.target[r], r))
    made, low = 0, 0
    for high in range(len(by_time) - 1, 0, -1):
        a = by_time[high]
        left, failed, partner = 64 + len(rows[a]), 0, low
        while partner < high and left > 0 and load(a) > rules.ceiling[a]:
            b = by_time[partner]
            slack = rules.ceiling[b] - rules.target[b]
            if load(b) < rules.target[b]:
                pair = _find(rows, places, cost, tokens, rules, a, b)
                if pair is None:
                    failed, partner = failed + 1, partner + 1
                    if failed == 4 and high < len(by_time) - 1:
                        break
                    continue
                _exchange(rows, cost, a, b, *pair)
                left, made = left - 1, made + 1
                if rules.target[b] - load(b) > slack:
                    continue
            low += partner == low
            partner += 1
    return made


def _find(rows, places, cost, tokens, rules, a, b):
    """Places of the best exchange; every pair of the two rows is looked at."""
    load_a, load_b = sum(cost[s] for s in rows[a]), sum(cost[s] for s in rows[b])
    used_a, used_b = sum(tokens[s] for s in rows[a]), sum(tokens[s] for s in rows[b])
    room = rules.ceiling[b] - load_b
    least = load_a - rules.ceiling[a]
    if least > room:
        least = rules.target[b] - load_b
    want, high = int(least) + 1, int(room)
    moving = len(rows[a]) > rules.min_count and len(rows[b]) < min(rules.max_count, places[b])
    best = None
    for i in range(len(rows[a]) - 1, -1, -1):
        value = cost[rows[a][i]]
        enough = [k for k in range(len(rows[b])) if value - cost[rows[b][k]] >= want]
        short = [k for k in range(len(rows[b])) if value - cost[rows[b][k]] < want]
        for k in [*short[-1:], *enough[:1], *([None] if moving else [])]:
            gain = value - (0 if k is None else cost[rows[b][k]])
            net = tokens[rows[a][i]] - (0 if k is None else tokens[rows[b][k]])
            good = want <= gain <= high
            if not 0 < gain < _too_much(load_a, load_b, rules.target[a], rules.target[b]):
                continue
            if (net > 0 and used_b + net > rules.cap) or (net < 0 and used_a - net > rules.cap):
                continue
            if good:
                return i, k
            if best is None or abs(gain - want) < best[0]:
                best = abs(gain - want), (i, k)
    return best and best[1]


def _too_much(load_a, load_b, target_a, target_b):
    if target_a == target_b:
        return load_a - load_b
    return int((load_a / target_a - load_b / target_b) * target_b * (1 - 1e-12))


def _exchange(rows, cost, a, b, at_a, at_b):
    give = rows[a].pop(at_a)
    if at_b is not None:
        _insert(rows[a], cost, rows[b].pop(at_b))
    _insert(rows[b], cost, give)


def _insert(row, cost, sample):
    row.insert(sum(cost[s] >= cost[sample] for s in row), sample)


def largest_load(cost: Sequence[int], num_ranks: int, *, least: int, most: int) -> int | None:
    """The smallest largest load of all plans with `least` to `most` samples per rank, by trying every plan."""
    best = None
    for rank in itertools.product(range(num_ranks), repeat=len(cost)):
        counts = [rank.count(r) for r in range(num_ranks)]
        if min(counts) >= least and max(counts) <= most:
            load = max(sum(c for c, r in zip(cost, rank, strict=True) if r == one) for one in range(num_ranks))
            best = load if best is None else min(best, load)
    return best
