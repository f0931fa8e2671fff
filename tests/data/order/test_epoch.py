"""Epochs in which ranks, batch sizes, weights and sources change: every row once, in an order that follows the weights.

Only plans are made here: rows are numbers, and states go through JSON as saved ones do.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from fsdata.errors import StateError
from fsdata.order.changes import Run, resumed
from fsdata.order.deal import window_order
from fsdata.order.epoch import EpochOrder, UnitsOfEpoch
from fsdata.order.progress import Progress, to_state

Row = tuple[str, int, int]
"""Source, row group, row in it."""


@dataclass(frozen=True)
class Job:
    """A run of a job on its data.

    data: source -> rows of its row groups; times: source -> for `mix="time"`, of every row group.
    """

    data: dict[str, list[int]]
    times: dict[str, list[np.ndarray]]
    names: tuple[str, ...]
    weights: tuple[float | None, ...]
    mix: str
    shuffle: bool
    window: int | float
    ranks: int
    batch_size: int
    order: EpochOrder = field(init=False)

    def __post_init__(self) -> None:
        order = EpochOrder(
            [np.array(self.data[name], np.int64) for name in self.names],
            self.weights,
            mix=self.mix,
            times=lambda source, group: self.times[self.names[source]][group],
            shuffle=self.shuffle,
            shuffle_window=self.window,
            seed=5,
        )
        object.__setattr__(self, "order", order)

    @property
    def run(self) -> Run:
        fingerprint = {"rows": str(int(self.order.whole.units.row_counts.sum())), "schema": "", "order": self.mix}
        for number, (name, weight) in enumerate(zip(self.names, self.weights, strict=True)):
            fingerprint |= {f"source {number} arguments": f"{name} {weight}", f"source {number} files": name}
        return Run(
            fingerprint=fingerprint,
            labels=self.names,
            weights=self.weights,
            mix=self.mix,
            arguments=lambda number, weight: f"{self.names[number]} {weight}",
            sequences=(),
            schema=lambda _: "",
        )

    def saved(self, progress: Progress) -> dict:
        run = {"weights": list(self.weights)}
        if progress.mixes:
            _, streams = self.order.streams(progress, self.ranks)
            run["rows"] = progress.passed - sum(progress.positions) + sum(stream.rows for stream in streams)
        return json.loads(json.dumps(to_state(progress, self.run.fingerprint, run)))

    def loaded(self, state: dict, *changed: str) -> Progress:
        return resumed(state, self.run, changed)[0].on(self.ranks)

    def rest(self, progress: Progress) -> list[list[Row]]:
        """The rows behind a position, of every rank."""
        mixtures, streams = self.order.streams(progress, self.ranks)
        rows_of_unit = self._rows_of_units(UnitsOfEpoch(mixtures), mixtures)
        found = []
        for stream, position in zip(streams, progress.positions, strict=True):
            rows: list[Row] = []
            for window in stream.after(position):
                of_pieces = [row for at in window.pieces for row in rows_of_unit(at.unit)[at.start : at.stop]]
                if self.shuffle:
                    of_pieces = [of_pieces[n] for n in window_order(window, seed=5, epoch=progress.epoch)]
                rows += of_pieces[window.start : window.stop]
            found.append(rows)
        return found

    def _rows_of_units(self, units, mixtures):
        found: dict[int, list[Row]] = {}

        def rows_of(number: int) -> list[Row]:
            if number not in found:
                ranges = units[number].ranges
                rows = [(self.names[of.source], of.group, row) for of in ranges for row in range(of.start, of.stop)]
                merged = next(each for each in reversed(mixtures) if each.first_unit <= number).keys is not None
                found[number] = [rows[n] for n in units.order_in(number)] if merged else rows
            return found[number]

        return rows_of

    def steps(self, progress: Progress, steps: int) -> tuple[list[Row], Progress]:
        """The rows of so many steps, and the position after them."""
        rest = self.rest(progress)
        left = np.array([len(rows) for rows in rest])
        after, taken = progress.skipped(left, steps, batch_size=self.batch_size, drop_last=False)
        passed = np.array(after.positions) - progress.positions
        assert taken == min(steps, -(-max(left) // self.batch_size))
        return [row for rows, count in zip(rest, passed, strict=True) for row in rows[:count]], after

    @property
    def all_rows(self) -> set[Row]:
        """Of the sources that are read."""
        return {
            (name, group, row)
            for name, weight in zip(self.names, self.weights, strict=True)
            if weight != 0
            for group, rows in enumerate(self.data[name])
            for row in range(rows)
        }


def job(draw: random.Random) -> Job:
    names = tuple("abcde"[: draw.randint(1, 3)])
    data = {name: [draw.randint(1, 9) for _ in range(draw.randint(0 if name != "a" else 1, 4))] for name in "abcdef"}
    times = {
        name: np.split(np.sort([draw.randint(0, 30) for _ in range(sum(rows))]), np.cumsum(rows)[:-1])
        for name, rows in data.items()
    }
    return Job(
        data=data,
        times=times,
        names=names,
        weights=tuple(draw.choice([None, None, 1, 2.5]) for _ in names),
        mix=draw.choice(["weighted", "weighted", "sequential", "time"]),
        shuffle=draw.random() < 0.5,
        window=draw.choice([1, 2, 3, 0.4]),
        ranks=draw.randint(1, 4),
        batch_size=draw.randint(1, 5),
    )


def changed(draw: random.Random, before: Job, *, left_out: bool) -> Job:
    """Other ranks, another batch size, other weights, sources added; left out only if `left_out`."""
    names, weights = list(before.names), list(before.weights)
    for name in sorted(set("abcdef") - set(names)):
        if draw.random() < 0.15:
            at = draw.randint(0, len(names))
            names.insert(at, name)
            weights.insert(at, draw.choice([None, 2.0]))
    weights = [draw.choice([None, 0, 1, 3.5]) if draw.random() < 0.3 else weight for weight in weights]
    if left_out and len(names) > 1 and draw.random() < 0.5:
        at = draw.randrange(len(names))
        del names[at], weights[at]
    if not any(weight != 0 for weight in weights):
        weights[draw.randrange(len(weights))] = 1
    return replace(
        before,
        names=tuple(names),
        weights=tuple(weights),
        ranks=draw.randint(1, 4),
        batch_size=draw.randint(1, 5),
    )


def check_chain(seed: int) -> None:
    draw = random.Random(seed)
    now = job(draw)
    progress = Progress.start(0, now.ranks)
    for epoch in range(2):
        assert progress.epoch == epoch
        read: list[Row] = []
        for _ in range(draw.randint(0, 5)):
            rows, progress = now.steps(progress, draw.randint(0, 3))
            read += rows
            if not any(now.rest(progress)):
                break
            at_begin = not read
            state, now = now.saved(progress), changed(draw, now, left_out=at_begin)
            progress = now.loaded(state, "weights", "sources")
            assert progress.epoch == epoch
        rows, progress = now.steps(progress, 1_000)
        read += rows
        assert max(Counter(read).values(), default=1) == 1, "a row was read twice"
        assert now.all_rows <= set(read), "a row was not read"
        # The state of the end of the epoch, with a change: the next epoch begins, and no row is lost.
        state, now = now.saved(progress), changed(draw, now, left_out=True)
        then = now.loaded(state, "weights", "sources")
        if then.epoch == epoch:
            # Nothing has changed, so that the loader goes on to the next epoch; or this one had no row yet.
            assert then.at_begin or not any(now.rest(then))
            then = Progress.start(epoch + 1, now.ranks)
        progress = then


def test_whatever_changes_every_row_is_read_once() -> None:
    for seed in range(100):
        check_chain(seed)


@pytest.mark.long
def test_ten_thousand_chains_of_changes_read_every_row_once() -> None:
    for seed in range(1_000, 11_000):
        check_chain(seed)


def plain(mix: str, weights: tuple[float | None, ...], **options: object) -> Job:
    """Two sources of 30 rows, on one rank, not shuffled; the times of the second are later by 10."""
    data = {"a": [7, 8, 15], "b": [20, 10], "c": [4]}
    times = {
        name: np.split(np.arange(sum(rows)) + 10 * (name == "b"), np.cumsum(rows)[:-1]) for name, rows in data.items()
    }
    given = {"shuffle": False, "window": 1, "ranks": 1, "batch_size": 1, **options}
    return Job(data=data, times=times, names=("a", "b"), weights=weights, mix=mix, **given)


def order_in(row: Row, now: Job) -> int:
    name, group, at = row
    return sum(now.data[name][:group]) + at


def merged(now: Job, rows: dict[str, list[Row]], key) -> list[Row]:
    """The rows of several sources by `key` (source, number among them), ties in the order of the sources."""
    keys = [(key(name, n), now.names.index(name), n) for name, of in rows.items() for n in range(len(of))]
    return [rows[now.names[source]][n] for _, source, n in sorted(keys)]


@pytest.mark.parametrize("passed", [0, 1, 13, 40])
def test_the_rest_is_merged_by_the_new_weights(passed: int) -> None:
    before, now = plain("weighted", (1.0, 1.0)), plain("weighted", (3.0, 1.0))
    read, progress = before.steps(Progress.start(0, 1), passed)
    left = {name: sorted(row for row in before.all_rows - set(read) if row[0] == name) for name in now.names}
    (rest,) = now.rest(now.loaded(before.saved(progress), "weights"))
    assert rest == merged(now, left, lambda name, n: (n + 0.5) / {"a": 3.0, "b": 1.0}[name])
    if passed < 13:  # three of four, as long as both last
        assert all(abs(sum(row[0] == "a" for row in rest[at : at + 12]) - 9) <= 1 for at in range(0, 24, 4))


def test_without_weights_all_sources_end_together_also_one_that_is_added() -> None:
    before = plain("weighted", (None, None))
    now = replace(before, names=("a", "b", "c"), weights=(None, None, None))
    _, progress = before.steps(Progress.start(0, 1), 20)
    (rest,) = now.rest(now.loaded(before.saved(progress), "sources"))
    assert len(rest) == 60 - 20 + 4
    assert {row[0] for row in rest[-12:]} == {"a", "b", "c"}
    assert [row for row in rest if row[0] == "c"] == [("c", 0, n) for n in range(4)]


def test_an_added_source_is_merged_by_time_or_comes_in_its_turn() -> None:
    for mix, where in (("time", [0, 2, 4, 6]), ("sequential", [0, 1, 2, 3])):
        before = replace(plain(mix, (0, None)), names=("c", "b"))  # source c is not read yet
        _, progress = before.steps(Progress.start(0, 1), 3)
        now = replace(before, weights=(None, None), names=("c", "b"), times={**before.times, "c": [np.arange(13, 17)]})
        (rest,) = now.rest(now.loaded(before.saved(progress), "weights"))
        assert [row for row in rest if row[0] == "b"] == [("b", 0, n) for n in range(3, 20)] + [
            ("b", 1, n) for n in range(10)
        ]
        assert [at for at, row in enumerate(rest) if row[0] == "c"] == where, mix


def test_the_order_within_a_source_is_kept_whatever_its_weight_was() -> None:
    now, progress, read = plain("weighted", (1.0, 2.0)), Progress.start(0, 1), []
    for weights in ((5.0, 1.0), (0, 1.0), (1.0, 0), (None, 0.5)):
        rows, progress = now.steps(progress, 7)
        read += rows
        state, now = now.saved(progress), replace(now, weights=weights)
        progress = now.loaded(state, "weights")
    rest = now.rest(progress)[0]
    assert rest
    for name in now.names:
        assert [order_in(row, now) for row in read + rest if row[0] == name] == list(range(30))
    assert [row[0] for row in read[14:21]] == ["b"] * 7
    assert [row[0] for row in read[21:28]] == ["a"] * 7


def test_a_change_before_the_first_row_or_behind_the_last_leaves_nothing_behind() -> None:
    before, now = plain("weighted", (1.0, 1.0)), plain("weighted", (2.0, 1.0))
    assert now.loaded(before.saved(Progress.start(3, 1)), "weights") == Progress.start(3, 1)
    _, end = before.steps(Progress.start(3, 1), 60)
    assert now.loaded(before.saved(end), "weights") == Progress.start(4, 1)
    # The mix of which no row was read, too.
    _, middle = before.steps(Progress.start(3, 1), 9)
    once = now.loaded(before.saved(middle), "weights")
    other = replace(now, weights=(0, 4.0))
    assert other.loaded(now.saved(once), "weights") == other.loaded(before.saved(middle), "weights")


def test_states_with_the_same_changes_at_other_places_do_not_mix() -> None:
    before, now = plain("weighted", (1.0, 1.0)), plain("weighted", (2.0, 1.0))
    for steps in (9, 20):
        read, progress = before.steps(Progress.start(0, 1), steps)
        (rest,) = now.rest(now.loaded(before.saved(progress), "weights"))
        assert set(rest) == before.all_rows - set(read)


def test_shuffled_windows_that_were_begun_are_finished_first() -> None:
    options = {"shuffle": True, "window": 2, "ranks": 2}
    before, now = plain("weighted", (1.0, 1.0), **options), plain("weighted", (9.0, 1.0), **options)
    _, progress = before.steps(Progress.start(0, 2), 3)
    old = before.rest(progress)
    new = now.rest(now.loaded(before.saved(progress), "weights"))
    begun = [next(iter(each.after(3))).rows for each in before.order.streams(Progress.start(0, 2), 2)[1]]
    assert {row for rows in new for row in rows} == {row for rows in old for row in rows}
    assert [rows[:count] for rows, count in zip(new, begun, strict=True)] == [
        rows[:count] for rows, count in zip(old, begun, strict=True)
    ]


def state_error(now: Job, state: dict, *changed: str) -> str:
    with pytest.raises(StateError) as caught:
        now.loaded(state, *changed)
    return str(caught.value)


def test_what_is_not_named_is_an_error_that_says_which_name_accepts_it() -> None:
    before = plain("weighted", (1.0, 1.0))
    state = before.saved(before.steps(Progress.start(0, 1), 5)[1])
    heavier = replace(before, weights=(2.0, 1.0))
    message = state_error(heavier, state, "sources")
    assert "weight of a: saved 1.0, now 2.0" in message
    assert "load_state_dict(state, changed='weights') accepts" in message
    more = replace(before, names=("a", "c", "b"), weights=(2.0, 1.0, 1.0))
    assert "changed=('sources', 'weights')) accepts" in state_error(more, state)
    # Left out within the epoch; in another order.
    alone = replace(before, names=("a",), weights=(1.0,))
    assert "ParquetSource(weight=0)" in state_error(alone, state, "sources")
    assert "source 1 arguments" in state_error(replace(before, names=("b", "a")), state, "sources", "weights")
    # Another order, seed or file: whatever is named.
    assert "order: saved 'weighted', now 'time'" in state_error(replace(before, mix="time"), state, *before_all())
    old = {key: value for key, value in state.items() if key != "run"}
    assert before.loaded(old).positions == (5,)
    assert "saved no weights" in state_error(heavier, old, "weights")
    assert before.loaded(state, *before_all()).positions == (5,)  # what is named need not have changed


def before_all() -> tuple[str, ...]:
    return "weights", "sources", "batch_size", "max_length"


def test_an_unknown_name_and_damaged_weights_are_errors() -> None:
    now = plain("weighted", (1.0, 1.0))
    state = now.saved(now.steps(Progress.start(0, 1), 5)[1])
    with pytest.raises(ValueError, match="'seed': it takes 'weights', 'sources', 'batch_size', 'max_length'"):
        now.loaded(state, "weights", "seed")
    for damage in ({"run": {"weights": [1.0]}}, {"run": {"weights": [1.0, -1.0]}}, {"mixes": [[1, [1.0]]]}):
        assert "the state is damaged" in state_error(now, {**state, **damage})
