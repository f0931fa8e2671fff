"""Loaders with options drawn by a seed, in pairs and more: every row once, with its values and ids, where it belongs.

What holds for each of them is compared with the files themselves, and with a loader that neither balances nor drops.
`FREESCALE_RUNS` says how many there are in the long run.
"""

import itertools
import os
import random
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pytest
from data_kit import as_python, rows_of
from global_batches import COST
from rank_loaders import ALL, loader_on, read_and_go_on, sources_of
from sets import SCHEMA, expected
from worlds import shared_world

from fsdata import Balance

CAP = 19  # events and candidates: the longest sample has 15, four samples about 25
KEPT = (pl.col("row") < 22) | (pl.col("row") % 5 == 0)  # then ranks end at other steps
WITH_IDS = replace(SCHEMA, passthrough=("request_id", "number", "other"))
BALANCES = [
    None,
    Balance(cost=COST),
    Balance("vbs", cost=COST),
    Balance("fbs+swap", cost=COST, max_tokens=CAP),
    Balance("vbs", cost=COST, max_tokens=CAP),
    Balance("repair", cost=COST, max_tokens=CAP),
    CAP,  # without balance: batches end before they would have more
]


def program_of(seed):
    """What is drawn: options of a loader, of its sources, and two numbers of ranks."""
    draw = random.Random(seed)
    options = {
        "balance": None,
        "max_tokens": None,
        "batch_size": draw.choice([3, 4]),
        "shuffle": draw.random() < 0.6,
        "shuffle_window": draw.choice([1, 2, 3]),
        "seed": seed,
        "mix": draw.choice(["sequential", "weighted", "time"]),
        "num_threads": draw.choice([1, 3]),
        "prefetch": draw.choice([0, 2]),
        "uneven": draw.choice(["empty", "drop"]),
        "drop_last": draw.random() < 0.2,
    }
    kind = BALANCES[seed % len(BALANCES)]
    options |= {"max_tokens": CAP, "drop_last": False} if kind == CAP else {"balance": kind}
    of_sources = {"some": draw.random() < 0.5, "mapped": draw.random() < 0.5}
    sizes = (draw.choice([1, 2, 2, 3]), draw.choice([1, 2, 3]))
    return options | {"schema": WITH_IDS if draw.random() < 0.5 else SCHEMA}, of_sources, sizes


def twice(batch):
    lists = batch["item"]
    made = pa.array([[2 * item for item in items] for items in lists.to_pylist()], lists.type)
    return batch.set_column(batch.schema.get_field_index("item"), "item", made)


def made(folder, options, *, some, mapped):
    sources = sources_of(folder, map=twice if mapped else None, filter=KEPT if some else None)
    return loader_on(folder, sources, **options)


def plain_order(rank, size, folder, options, of_sources):
    """The rows of this rank, one after another, of a loader that neither balances nor drops, in one thread."""
    given = {**options, "balance": None, "max_tokens": None, "uneven": "empty", "drop_last": False}
    given |= {"num_threads": 1, "prefetch": 0}
    with made(folder, given, **of_sources) as loader:
        rows = rows_of(loader)
        assert loader.dropped == 0
    return rows


def cap_of(options):
    return options["balance"].max_tokens if options["balance"] else options["max_tokens"]


def tokens_of(sample):
    return len(sample["item"]) + len(sample["candidate"])


def play(rank, size, folder, options, of_sources):
    """Of every step: rows, where they were read, samples of all ranks. The states, each 5th of which goes on; the
    number of rows that were dropped; the length of the loader."""
    want, loaders, steps = expected(folder), [], []
    batches, states = read_and_go_on(lambda: loaders.append(made(folder, options, **of_sources)) or loaders[-1], 5)
    cap, full = cap_of(options), []
    for batch in batches:
        samples = as_python(batch)
        for sample in samples:
            of_row = want[sample["row"]]
            items = [item * (2 if of_sources["mapped"] else 1) for item in of_row["item"]]
            assert sample == {**{name: of_row[name] for name in sample}, "item": items}
        assert cap is None or sum(map(tokens_of, samples)) <= cap
        full += [samples] if samples else []
        assert batch.stats.samples == len(samples)
        if options["balance"] and size > 1 and cap is None:
            assert batch.stats.straggler_after <= batch.stats.straggler_before
        rows = [sample["row"] for sample in samples]
        steps.append((rows, list(map(tuple, batch.origin.tolist())), batch.stats.global_samples))
    if options["max_tokens"]:
        for samples, (following, *_) in itertools.pairwise(full):
            assert len(samples) == options["batch_size"] or sum(map(tokens_of, [*samples, following])) > cap
    return steps, states, loaders[0].dropped, len(loaders[0])


def rest_of(rank, size, folder, options, of_sources, state):
    with made(folder, options, **of_sources) as loader:
        loader.load_state_dict(state)
        return rows_of(loader)


FAST = (*range(1, 18), 27)  # each balance, mix and number of ranks, and what else is drawn
LONG = [seed for seed in range(int(os.environ.get("FREESCALE_RUNS", "84"))) if seed not in FAST]


@pytest.mark.parametrize("seed", [*FAST, *(pytest.param(seed, marks=pytest.mark.long) for seed in LONG)])
def test_every_row_once_where_it_belongs(id_folder, seed):
    options, of_sources, (size, after) = program_of(seed)
    want = [row for row in ALL if not of_sources["some"] or row < 22 or row % 5 == 0]
    apart = of_sources["some"] or options["max_tokens"] is not None  # ranks end at other steps
    uneven = apart and options["balance"] is None and options["uneven"] == "drop"
    world = shared_world(size)
    plain = world.run(plain_order, id_folder, options, of_sources)
    assert sorted(row for rows in plain for row in rows) == want
    answers = world.run(play, id_folder, options, of_sources)
    steps, states = list(zip(*(of for of, *_ in answers), strict=True)), answers[0][1]
    assert all(of == states for _, of, *_ in answers)

    # The rows that each rank read, in their order, whatever rank they went to.
    read = [[] for _ in range(size)]
    for step in steps:
        assert {count for *_, count in step} == {sum(len(rows) for rows, *_ in step)}
        placed = {place: row for rows, origin, _ in step for place, row in zip(origin, rows, strict=True)}
        for rank, row in sorted(placed):
            read[rank].append(placed[rank, row])
    assert [rows[: len(of)] for rows, of in zip(plain, read, strict=True)] == read
    lost, dropped = len(want) - sum(map(len, read)), sum(of for *_, of, _ in answers)
    assert lost <= dropped if uneven else lost == dropped  # counted by the footers
    assert lost == 0 or uneven or options["drop_last"]
    carries = cap_of(options) is not None
    if not of_sources["some"] and not carries:
        assert {length for *_, length in answers} == {len(steps)}
    ends_empty = apart and options["balance"] is None and options["uneven"] == "empty"  # ranks without rows go on
    if options["drop_last"] and not carries and not ends_empty:
        assert {step[0][2] for step in steps} == {size * options["batch_size"]}
        assert lost < size * options["batch_size"] or of_sources["some"]
    if size > 1 and options["balance"] and options["balance"].method != "vbs":
        counts = [[len(rows) for rows, *_ in step] for step in steps]
        assert max(max(of) - min(of) for of in counts) <= 1

    # From the middle on, on another number of ranks; where batches are dropped, what is left may be too little for one.
    at, drops = (len(states) - 1) // 2, uneven or options["drop_last"]
    rest = shared_world(size if drops else after).run(rest_of, id_folder, options, of_sources, states[at])
    seen = [row for step in steps[:at] for rows, *_ in step for row in rows] + [row for rows in rest for row in rows]
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(want)
    assert drops or len(seen) == len(want)
