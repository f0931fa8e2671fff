"""Merging sources row by row: the units' order is the k-way merge, whatever the row groups look like."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdata.order.mix import merge_order, merged_units, sequential_units, weighted_keys

sorted_source = st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=6), min_size=0, max_size=5)


def sizes(rows):
    return np.array(list(rows), np.int64)


def merged(units, keys):
    """(source, row) in the order of the units."""
    out = []
    for unit in units:
        rows = [(part.source, part.first + i) for part in unit.ranges for i in range(part.rows)]
        part_keys = [keys(part.source, part.group)[part.start : part.stop] for part in unit.ranges]
        out += [rows[i] for i in merge_order(unit, part_keys)]
    return out


def k_way(times):
    """The plain reference: always the smallest head, ties by source."""
    heads, out = [0] * len(times), []
    while any(head < len(of) for head, of in zip(heads, times, strict=True)):
        _, source = min((times[s][head], s) for s, head in enumerate(heads) if head < len(times[s]))
        out.append((source, heads[source]))
        heads[source] += 1
    return out


@given(st.lists(sorted_source, min_size=1, max_size=3))
def test_time_mix_is_the_k_way_merge(sources):
    times = [sorted(time for group in source for time in group) for source in sources]
    starts = [np.cumsum([0, *map(len, source)]) for source in sources]

    def keys(source, group):
        return np.array(times[source][starts[source][group] : starts[source][group + 1]])

    units = merged_units([sizes(map(len, source)) for source in sources], keys)
    assert merged(units, keys) == k_way(times)
    largest = sum(max(map(len, source), default=0) for source in sources)
    assert all(unit.rows <= 3 * largest for unit in units)


@given(st.lists(sorted_source, min_size=1, max_size=3))
def test_unsorted_sources_lose_nothing_and_keep_their_own_order(sources):
    def keys(source, group):
        return np.array(sources[source][group])

    units = merged_units([sizes(map(len, source)) for source in sources], keys)
    rows = merged(units, keys)
    for source, groups in enumerate(sources):
        assert [row for of, row in rows if of == source] == list(range(sum(map(len, groups))))


def test_weighted_mix_holds_its_shares_in_every_stretch():
    groups = [sizes([100] * 3), sizes([50] * 2)]
    keys = weighted_keys(groups, [3.0, 1.0])
    rows = [source for source, _ in merged(merged_units(groups, keys), keys)]
    for start in range(0, 380, 20):
        assert sum(rows[start : start + 20]) == pytest.approx(5, abs=1)


def test_sequential_units_are_the_row_groups():
    units = sequential_units([sizes([4, 2]), sizes([]), sizes([3])])
    assert [(unit.ranges[0].source, unit.ranges[0].group, unit.rows, unit.ranges[0].first) for unit in units] == [
        (0, 0, 4, 0),
        (0, 1, 2, 4),
        (2, 0, 3, 0),
    ]
    assert units.row_counts.tolist() == [unit.rows for unit in units] == [4, 2, 3]
    assert units[-1] == units[2]
