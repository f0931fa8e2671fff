"""Ids that share a row of an embedding table: against a table that is filled one occurrence after another."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from freescale_tools.collisions import table_slots
from freescale_tools.collisions.table_slots import AskedTable, hours_of, predict_table
from freescale_tools.console.errors import UsageError
from fscomm.managed.zero_collision import slot_hash

MASK = 2**64 - 1


def predict(rows, asked, hours=None, **options):
    """`hours`: of every row, None without a time."""
    lengths = np.array([len(row) for row in rows], np.int64)
    ids = np.array([one for row in rows for one in row], np.uint32)
    time = np.array([0 if hour is None else 3600 * hour for hour in hours or ()], np.int64)
    return predict_table(
        ids,
        np.cumsum(lengths) - lengths,
        lengths,
        distinct=int(ids.max(initial=0)) + 1,
        asked=asked,
        time=time,
        known=np.array([hour is not None for hour in hours or ()], bool),
        per_day=0,
        **options,
    )


def hashed(one):
    """The finalizer of SplitMix64, in whole numbers."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        one = (one ^ (one >> shift)) * factor & MASK
    return one ^ (one >> 31)


class SlowTable:
    """Gives a row for every single occurrence; a row is (its number, how often it was taken from its owner)."""

    def __init__(self, rows, probe, ttl):
        self.rows, self.probe, self.ttl = rows, probe, ttl
        self.owners, self.expiry, self.taken = {}, {}, Counter()

    def row(self, one, hour):
        if self.probe is None:
            return hashed(one) % self.rows, 0
        begin = int(slot_hash(np.uint64(hashed(one)).astype(np.int64)) % np.uint64(self.rows))
        chain = [(begin + step) % self.rows for step in range(self.probe)]
        free = next((at for at, slot in enumerate(chain) if slot not in self.owners), self.probe)
        before = chain[:free]
        own = [slot for slot in before if self.owners[slot] == one]
        expired = [slot for slot in before if self.ttl is not None and self.expiry[slot] < hour]
        if not own and expired:
            self.taken[expired[0]] += 1
        found = [*own, *expired, *chain[free : free + 1]]
        if found:
            self.owners[found[0]] = one
            self.expiry[found[0]] = hour + (self.ttl or 0)
        slot = (found or [begin])[0]
        return slot, self.taken[slot]


def slowly(rows, size, probe, ttl, hours):
    table, last, counts = SlowTable(size, probe, ttl), {}, Counter()
    order = range(len(rows))
    if ttl is not None:
        order = sorted((n for n in order if hours[n] is not None), key=lambda n: hours[n])
    for n in order:
        for one in rows[n]:
            counts[one] += 1
            last[one] = table.row(one, 0 if ttl is None else hours[n])
    users = Counter(last.values())
    sharing = [one for one, row in last.items() if users[row] > 1]
    total = max(counts.total(), 1)
    timed = ttl is not None and probe is not None
    return {
        "max_probe": probe,
        "by_id": len(sharing) / max(len(last), 1),
        "by_occurrence": sum(counts[one] for one in sharing) / total,
        "without_own": (len(last) - len(users)) / max(len(last), 1),
        "occupancy": len(users if probe is None else table.owners) / size,
        "evictions_per_million": pytest.approx(1e6 * table.taken.total() / total) if timed else None,
    }


HOURS = st.none() | st.integers(0, 12)


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 40), max_size=5), HOURS), max_size=40),
    st.integers(1, 30),
    st.lists(st.integers(1, 9), min_size=1, max_size=2),
    st.none() | st.integers(0, 4),
)
@example([([one], hour) for hour in (0, 3, 5) for one in range(20)], 8, [2, 8], 1)  # evicts a lot
@example([([one, 40 - one], (7 * one) % 12) for one in range(30)], 12, [3, 5], 2)  # times in no order
@example([([one, one + 1], None) for one in range(30)], 16, [4], None)
def test_as_one_occurrence_after_another_gives(data, size, probes, ttl):
    rows, hours = [row for row, _ in data], [hour for _, hour in data]
    if ttl is not None and all(hour is None for hour in hours):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_slots, "_CHUNK", 3)
        found = predict(rows, AskedTable(rows=size, probes=tuple(probes), ttl=ttl), hours)
    assert found["ways"] == [slowly(rows, size, probe, ttl, hours) for probe in (None, *probes)]
    timed = [row for row, hour in data if ttl is None or hour is not None]
    assert found["occurrences"] == sum(map(len, timed))
    distinct = len({one for row in timed for one in row})
    assert found["distinct"] == distinct
    assert found["rows_per_id"] == (size / distinct if distinct else None)
    assert found["without_time"] == len(rows) - len(timed)


def test_of_too_many_ids_every_third_row_counts():
    found = predict([[1], [2], [3], [1], [5]], AskedTable(rows=4), most_occurrences=2)
    assert (found["every"], found["distinct"], found["occurrences"]) == (3, 1, 2)


def test_hours_begin_on_the_hour_and_dates_are_whole_days():
    begin = 1_700_000_000 // 3600 * 3600
    seconds = np.array([begin + 3599, begin + 3600, begin + 7199, begin + 86_400])
    for per_day, second in ((0, 1), (86_400, 1), (86_400_000, 10**3), (86_400 * 10**9, 10**9)):
        assert hours_of(seconds * second, per_day).tolist() == [0, 1, 1, 24]
    assert hours_of(np.array([-1, 0, 19_000]), 1).tolist() == [0, 24, 24 * 19_001]


def test_numbers_out_of_range_and_times_of_no_use():
    for options, message in (
        ({"rows": 0}, r"--table-rows must be from 1 to 1,073,741,824, got 0: give the rows"),
        ({"rows": 2**31}, r"--table-rows must be from 1 to .* got 2,147,483,648"),
        ({"rows": 1, "probes": (8, 4097)}, r"--probe must be from 1 to 4,096, got 4,097"),
        ({"rows": 1, "ttl": -1}, r"--ttl must be 0 or more hours, got -1: leave it out"),
    ):
        with pytest.raises(UsageError, match=message):
            AskedTable(**options)
    for hours, message in (
        ([None, None], "no row has one: name another"),
        ([0, 10**6], "span 114 years. .* integers are seconds"),
    ):
        with pytest.raises(UsageError, match=message):
            predict([[1], [2]], AskedTable(rows=4, ttl=1), hours)
