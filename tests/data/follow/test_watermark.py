"""Which files may be read: pure rules."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdata import Follow, SchemaError
from fsdata.growing.follow import seconds
from fsdata.growing.watermark import Arrived, Taken, files_to_read


def files(*names, whole=True, modified=0):
    return [Arrived(name, modified, whole) for name in names]


def names(found):
    return [file.name for file in found]


def by_path(there, taken=None, before=100):
    return names(files_to_read(there, taken or Taken(), by="path", before=before, latest=None))


def test_files_before_one_that_is_not_whole_are_read():
    there = [*files("c", "a"), Arrived("b", 0, whole=False), Arrived("d", 0, whole=True)]
    assert by_path(there) == ["a"]
    assert by_path([replace(file, whole=True) for file in there]) == ["a", "b", "c", "d"]
    assert by_path([*files("a", "c"), Arrived("b", 101, whole=True)]) == ["a"]  # it is too new


def test_late_files_wait_for_nobody_and_nobody_waits_for_them():
    taken = Taken()
    taken.add(("b", "d"), (0, "d"))
    there = [Arrived("a", 0, whole=False), *files("c", "e"), Arrived("f", 0, whole=None), *files("g")]
    assert by_path(there, taken) == ["c", "e"]


@pytest.mark.parametrize(("latest", "expected"), [(9, ["b"]), (20, ["b", "a"]), (None, ["b", "a", "c"])])
def test_by_time(latest, expected):
    there = [Arrived("a", 0, True, 20), Arrived("b", 0, True, 5), Arrived("c", 0, True, 21), Arrived("d", 0, False, 1)]
    assert names(files_to_read(there, Taken(), by="time", before=0, latest=latest)) == expected


@given(
    order=st.permutations([f"{n:02}" for n in range(40)]),
    at_once=st.integers(1, 9),
    restarts=st.sets(st.integers(0, 40), max_size=4),
    removed=st.sets(st.integers(0, 39)),
)
def test_every_file_is_taken_once_however_they_come(order, at_once, restarts, removed):
    """In any order, with any times of modification, whether the job runs or not."""
    taken, there, read, gone = Taken(), [], [], set()

    def look():
        waiting = [file for file in there if file.name not in taken]
        found = files_to_read(waiting, taken, by="path", before=99, latest=None)[:at_once]
        if found:
            taken.add(names(found), max(file.key for file in found))
        read.extend(names(found))
        return found

    for number, name in enumerate(order):
        there.append(Arrived(name, number % 3, whole=True))
        if number in restarts:
            taken = Taken.from_state(json.loads(json.dumps(taken.state())))
            assert {file.name for file in there if file.name in taken} == set(read) - gone
        look()
        gone |= {f"{n:02}" for n in removed} & set(read)
        there = [file for file in there if file.name not in gone]
    while look():
        pass
    assert len(read) == len(set(read))
    assert {file.name for file in there} <= set(read)
    assert taken.upto == (0, max(read))


def test_a_state_is_small():
    taken = Taken()
    taken.add((f"day=2026-11-{n // 1000}/part-{n:06}.parquet" for n in range(10_000)), (0, "x"))
    assert len(json.dumps(taken.state())) < 11 * 10_000


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("2d", 172800), ("20ms", 0.02)]
)
def test_durations(text, expected):
    assert seconds(text, "lag") == expected


@pytest.mark.parametrize(
    "options",
    [
        {"by": "name"}, {"lag": "10"}, {"lag": 10}, {"lag": -1, "by": "time"}, {"idle": 5}, {"every": "0s"},
        {"at_most": 0}, {"every": "soon"}, {"idle": "-1s"},
    ],
)  # fmt: skip
def test_nonsense_is_named(options):
    with pytest.raises(SchemaError, match=next(iter(options))):
        Follow(**options)
