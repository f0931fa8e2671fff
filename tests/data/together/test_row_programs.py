"""Random programs against plain Python: every value of every field, every row once, its order, counts, and each state.

A program draws fields of many types with their null policies, several sources with filters, expressions and `map`, side
tables, histories with pools, events as rows, dimension tables, candidates that become samples, shared histories, and
the options of a loader (`row_programs`). `row_program_oracle` says what comes of it, by the docs and without numpy.
From random states another loader goes on, with another decoder, other threads, and on another number of ranks. A seed
that fails is run again by `pytest tests/data/together/test_row_programs.py -k 'one_rank and 17'`.

FREESCALE_RUNS says how many programs the long run has, in place of 500 on one rank and 200 on two.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from data_kit import as_python, assert_same
from row_program_data import Data
from row_program_oracle import Row, held, in_order, rows_by_source, tokens_of
from row_programs import program
from worlds import shared_world

from fsdata import Batch, DataError, FreeScaleDataLoader

Key = Any


class Case:
    """A program, its data, and what has to come of it."""

    def __init__(self, seed: int, ranks: int, folder: Path) -> None:
        self.program, self.folder = program(seed, ranks), folder
        self.data = Data(self.program)
        self.sources, self.fails = rows_by_source(self.data)
        self.rows: dict[Key, Row] = {row.key: row for of in self.sources for row in of}
        self.cap = max([9, *(row.tokens for row in self.rows.values())]) * 3 // 2

    def plain(self) -> FreeScaleDataLoader:
        """In one thread, neither balanced nor cut, and without an end that drops rows."""
        options: Any = {"balance": None, "uneven": "empty", "drop_last": False, "num_threads": 1, "prefetch": 0}
        return self.data.loader(self.folder, **options)

    def loader(self, **options: Any) -> FreeScaleDataLoader:
        given = self.program.loader
        balance = given.get("balance")
        if given["capped"] and balance is None:
            options["max_tokens"] = self.cap
        elif given["capped"]:
            options["balance"] = replace(balance, max_tokens=self.cap)
        return self.data.loader(self.folder, **options)

    def other(self, number: int = 1, **options: Any) -> FreeScaleDataLoader:
        """One that has to give the same, with other threads; every second one with another decoder, too."""
        decoders = {source.decoder for source in self.program.sources}
        decoder = "pages" if "pyarrow" in decoders else "pyarrow"
        return self.loader(**{"decoder": decoder} if number % 2 else {}, num_threads=2, prefetch=1, **options)

    def keys_of(self, batch: Batch) -> list[Key]:
        """The rows of a batch, after a look at every value and at what the batch says of itself."""
        samples, found, at = as_python(batch), list[Key](), 0
        anchors = self.program.anchors is not None
        while at < len(samples):
            row = samples[at]
            key = (row["user"], row["position"]) if anchors else row["row"]
            for want in self.rows[key].samples:
                assert at < len(samples), f"a part of row {key}"
                assert said(samples[at]) == said(want), f"row {key}"
                at += 1
            found.append(key)
        self._check_counts(batch, samples, [self.rows[key] for key in found])
        return found

    def fits(self, keys: list[Key]) -> bool:
        return not self.program.loader["capped"] or sum(self.rows[key].tokens for key in keys) <= self.cap

    def resume(self, batches: int) -> list[int]:
        return [round(share * batches) for share in self.program.resume]

    def _check_counts(self, batch: Batch, samples: list[dict[str, Any]], rows: list[Row]) -> None:
        schema = self.program.schema
        assert batch.stats.samples == len(samples) == len(batch)
        dense = torch.tensor([[of[name] for name in schema.dense] for of in samples], dtype=torch.float32)
        assert torch.equal(batch.dense, dense.reshape(len(samples), len(schema.dense)))
        for group in self.program.groups:
            if group.name in batch.shared and not group.as_of.get("known"):
                first = schema.sequences[[each.name for each in schema.sequences].index(group.name)].fields[0]
                found, most = (
                    (batch.shared[group.name].rows, len(batch.features[first].values())),
                    held(group.name, rows),
                )
                assert found <= most if group.table == "side" else found == most, group.name

    def items_of(self, keys: list[Key]) -> dict[str, int]:
        """Elements of every group, of labels along it, and ids of nested fields."""
        samples = [sample for key in keys for sample in self.rows[key].samples]
        found = {}
        for group in self.program.groups:
            only = replace(self.program, groups=(group,))
            fields = self.program.along(group.name)
            nested = {
                each.name: sum(len(ids) for of in samples for ids in of[each.name])
                for each in fields
                if each.role == "nested"
            }
            count = sum(tokens_of(only, sample) for sample in samples) - sum(nested.values())
            labels = [each.name for each in fields if each.role in ("labels", "id_labels")]
            found |= {group.name: count, **nested, **dict.fromkeys(labels, count)}
        return found


def said(sample: dict[str, Any]) -> str:
    """Tells apart what Python takes for equal: 0.0, -0.0, 0 and False."""
    return repr(sorted(sample.items()))


@contextmanager
def failing(seed: int, ranks: int, folder: Path) -> Iterator[Case]:
    case = Case(seed, ranks, folder)
    try:
        case.data.write(folder)
        yield case
    except BaseException as error:
        error.add_note(f"program({seed}, {ranks}): {case.program}")
        raise


def state_of(loader: FreeScaleDataLoader) -> dict[str, Any]:
    return json.loads(json.dumps(loader.state_dict()))


def epoch_of(loader: FreeScaleDataLoader) -> tuple[list[Batch], list[dict[str, Any]]]:
    """The batches of an epoch, and the states before the first and after each."""
    batches, states = [], [state_of(loader)]
    for batch in loader:
        batches.append(batch)
        states.append(state_of(loader))
    return batches, states


def goes_on(case: Case, batches: list[Batch], states: list[dict[str, Any]], number: int) -> tuple[int, list[Key]]:
    """Another loader goes on with the same batches and states; after the last, with the next epoch. Gives where, and
    its rows; the next one goes on from the states of this one."""
    at = case.resume(len(batches))[number]
    with case.other(number) as again:
        again.load_state_dict(states[at])
        rest, resumed = epoch_of(again)
    if at < len(batches):
        assert_same(rest, batches[at:])
        before, after = states[at:], resumed
        if case.program.may_drop:  # how many of the dropped rows are passed depends on what is decoded together
            before, after = ([{**state, "positions": None} for state in of] for of in (before, after))
        assert before == after
        states[at:] = resumed
    else:
        assert {batch.stats.epoch for batch in rest} <= {1}
    return at, [key for batch in rest for key in case.keys_of(batch)]


# One rank


def check_order(case: Case, batches: list[list[Key]]) -> None:
    of, want = case.program, in_order(case.data, case.sources)
    keys = [key for batch in batches for key in batch]
    shuffle, balance = of.loader["shuffle"], of.loader.get("balance")
    if shuffle:
        check_windows(case, keys)
        return
    for rows in case.sources:
        own = {row.key for row in rows}
        assert [key for key in keys if key in own] == [row.key for row in rows][: len(own & {*keys})]
    if want is not None:
        assert keys == [row.key for row in want][: len(keys)]
    if balance is None or not of.loader["capped"]:
        for one, other in pairwise(batches):
            full = len(one) == of.loader["batch_size"]
            tokens = sum(case.rows[key].tokens for key in [*one, other[0]])
            assert full or (of.loader["capped"] and tokens > case.cap)


def check_windows(case: Case, keys: list[Key]) -> None:
    """Rows come in windows of whole row groups, where none drops out and sources follow each other."""
    of, window = case.program, case.program.loader["shuffle_window"]
    plain = isinstance(window, int) and of.anchors is None and not of.may_drop and not of.loader["drop_last"]
    plain &= of.loader["mix"] == "sequential" or len(of.sources) == 1
    if (
        not plain
        or any(group.as_of.get("bucketed") for group in of.groups)
        or any(s.skip or s.limit for s in of.sources)
    ):
        return
    unit, left = {}, {}
    for number, source in enumerate(of.sources):
        sizes = [size for groups in source.files for size in groups]
        row = 1000 * number
        for each, size in enumerate(sizes):
            unit |= dict.fromkeys(range(row, row + size), (number, each))
            left[number, each] = size
            row += size
    begun = set()
    for key in keys:
        begun.add(unit[key])
        assert len(begun) <= window
        left[unit[key]] -= 1
        if not any(left[each] for each in begun):
            begun = begun if len(begun) < window else set()


def check_one_rank(case: Case) -> None:
    of = case.program
    with case.loader() as loader:
        if case.fails:
            check_error(case, loader)
            return
        batches, states = epoch_of(loader)
        dropped = loader.dropped
    keys = [case.keys_of(batch) for batch in batches]
    seen = [key for batch in keys for key in batch]
    assert len(seen) == len({*seen})
    assert len(case.rows) - len(seen) == dropped
    assert dropped == 0 or (of.loader["drop_last"] and dropped < of.loader["batch_size"])
    assert [batch.stats.step for batch in batches] == list(range(len(batches)))
    for batch, each in zip(batches, keys, strict=True):
        assert case.fits(each)
        items = case.items_of(each)
        assert {name: batch.stats.global_items.get(name) for name in items} == items
        assert batch.stats.global_samples == batch.stats.samples
    check_order(case, keys)
    for number in range(len(of.resume)):
        at, rest = goes_on(case, batches, states, number)
        if at == len(batches) and not of.loader["drop_last"]:
            assert sorted(rest) == sorted(case.rows)
        if not (of.may_drop or of.loader["capped"] or of.loader["drop_last"] or "balance" in of.loader):
            check_alone(case, [key for batch in keys[:at] for key in batch], states[at], ranks=2 + at % 2)


def check_alone(case: Case, seen: list[Key], state: dict[str, Any], ranks: int) -> None:
    """Ranks that need not communicate go on together, with other batches."""
    rest = []
    for rank in range(ranks):
        with case.loader(rank=rank, world_size=ranks, batch_size=4) as loader:
            loader.load_state_dict(state)
            rest += [key for batch in loader for key in case.keys_of(batch)]
    assert sorted(rest) == sorted(case.rows if len(seen) == len(case.rows) else {*case.rows} - {*seen})


def check_error(case: Case, loader: FreeScaleDataLoader) -> None:
    """Rows before the one with the error come as they are."""
    plain = len(case.sources) == 1 and not case.program.loader["shuffle"]
    batches: list[Batch] = []
    with pytest.raises(DataError, match=r"is null|is NaN"):
        batches += loader
    keys = [key for batch in batches if plain for key in case.keys_of(batch)]
    assert keys == [row.key for row in case.sources[0]][: len(keys)]


# Two ranks


def play(rank: int, size: int, folder: Path, seed: int) -> tuple[list[Any], list[Any], int, list[Key]]:
    """Of every step: rows, where they were read, counts; the states; how many rows were dropped; the rows that this
    rank reads, in order."""
    case = Case(seed, 2, folder)
    with case.plain() as loader:
        order = [key for batch in loader for key in case.keys_of(batch)]
    with case.loader() as loader:
        batches, states = epoch_of(loader)
        dropped = loader.dropped
    steps = []
    for batch in batches:
        of_row = [key for key in case.keys_of(batch) for _ in case.rows[key].samples]
        origin = dict(zip(map(tuple, batch.origin.tolist()), of_row, strict=True))
        stats = batch.stats
        steps.append((list(dict.fromkeys(of_row)), origin, stats.global_samples, stats.global_items))
    for number in range(len(case.program.resume)):
        goes_on(case, batches, states, number)
    return steps, states, dropped, order


def rest_of(rank: int, size: int, folder: Path, seed: int, state: dict[str, Any]) -> list[Key]:
    case = Case(seed, 2, folder)
    with case.other(batch_size=4) as loader:
        loader.load_state_dict(state)
        return [key for batch in loader for key in case.keys_of(batch)]


def check_two_ranks(case: Case, seed: int) -> None:
    of = case.program
    answers = shared_world(2).run(play, case.folder, seed)
    steps, states = list(zip(*(of_rank for of_rank, *_ in answers), strict=True)), answers[0][1]
    assert answers[1][1] == states
    read: list[list[Key]] = [[], []]
    for step in steps:
        assert all(case.fits(rows) for rows, *_ in step)
        keys = [key for rows, *_ in step for key in rows]
        items, balanced = case.items_of(keys), "balance" in of.loader
        for _, _, samples, global_items in step:
            assert samples == sum(len(case.rows[key].samples) for key in keys)
            assert not balanced or {name: global_items.get(name) for name in items} == items
        origin = {place: key for _, places_of, *_ in step for place, key in places_of.items()}
        for rank, row in sorted(origin):
            if origin[rank, row] not in read[rank][-1:]:
                read[rank].append(origin[rank, row])
    seen = [key for of_rank in read for key in of_rank]
    assert sorted(seen) == sorted({*seen})
    lost, dropped = len(case.rows) - len(seen), sum(count for _, _, count, _ in answers)
    uneven = (of.may_drop or of.loader["capped"]) and "balance" not in of.loader and of.loader["uneven"] == "drop"
    assert lost <= dropped if uneven else lost == dropped
    assert lost == 0 or uneven or of.loader["drop_last"]
    assert sorted(key for *_, order in answers for key in order) == sorted(case.rows)
    assert read == [order[: len(of_rank)] for of_rank, (*_, order) in zip(read, answers, strict=True)]

    at = case.resume(len(steps))[0]
    before = {key for step in steps[:at] for rows, *_ in step for key in rows}
    if seed % 3:
        rest = rest_of(0, 1, case.folder, seed, states[at])
    else:
        rest = [key for of_rank in shared_world(3).run(rest_of, case.folder, seed, states[at]) for key in of_rank]
    left = {*case.rows} - (before if at < len(steps) else set())
    assert len(rest) == len({*rest})
    assert {*rest} <= left
    assert uneven or of.loader["drop_last"] or len(rest) == len(left)


def parameters(count: int, fast: tuple[int, ...]) -> list[Any]:
    count = int(os.environ.get("FREESCALE_RUNS", count))
    return [seed if seed in fast else pytest.param(seed, marks=pytest.mark.long) for seed in range(count)]


@pytest.mark.parametrize("seed", parameters(500, fast=tuple(range(12))))
def test_programs_on_one_rank(tmp_path: Path, seed: int) -> None:
    with failing(seed, 1, tmp_path) as case:
        check_one_rank(case)


@pytest.mark.parametrize("seed", parameters(200, fast=tuple(range(1, 5))))
def test_programs_on_two_ranks(tmp_path: Path, seed: int) -> None:
    with failing(seed, 2, tmp_path) as case:
        check_two_ranks(case, seed)
