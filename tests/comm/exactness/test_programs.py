"""The main test of exactness: random programs over everything that a training loop may do.

Each is played with and without fscomm. Whatever it looks at, and all that there is at the end, must be the same to the
bit; and every access to a table must keep to the law of `fscomm/engine/table_order.py`. A program that fails is shrunk.
The share of forwards that were served is printed at the end: running plainly would be exact, too.

`tests/realtime/test_late_workers.py` plays longer ones, with work in the workers delayed at random.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle
from typing import Any

import pytest
from clocks import Clocks, on_streams
from device_thread import compare_in_one_thread
from exact import Loop, compare
from exact_configs import CONFIGS, configs
from exact_model import Config, Table
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from patience import PATIENCE_S
from programs import SHORT, Different, Operation, operations_of, play, programs
from table_law import Counts, watch
from usual_programs import USUAL
from worlds import shared_world

LEAST_SERVED = 0.2  # of the forwards that a backward may come back to; a block begins with two plain steps

Delay = Callable[[random.Random], None]
Given = tuple[Config, list[Operation], int]  # model, what is done with it, chance
Play = Callable[[list[Operation]], Loop]


def at_once(_: random.Random) -> None:
    pass


def played(
    rank: int, size: int, program: Given, delay: Delay = at_once, by: Play = play
) -> tuple[list[str], list[str], Counts, Mapping[str, str]]:
    """What differs, what broke the law, what was seen, and why modules ran plainly in the last block.

    Where `chance` is even, the host runs ahead of a device, and the thread that trains may never wait for that; where
    it is a multiple of 4, one worker issues to streams of the device.

    delay: what workers do before any work.
    """
    config, operations, chance = program
    delays = random.Random(chance * 64 + rank)
    one_thread = chance % 3 == 0
    with pytest.MonkeyPatch.context() as patch, on_streams() if chance % 4 == 0 else contextlib.nullcontext():
        device = Clocks(done_share=0.5, seed=chance, runs_ahead=chance % 2 == 0)
        seen = watch(patch, device, lambda: delay(delays))
        compared = compare_in_one_thread if one_thread else compare
        found, said = compared(rank, size, config, by(operations), "fscomm", {"timeout_s": PATIENCE_S})
    broken = [] if one_thread else seen.broken()  # the law is not told that a thread waits for that one
    if device.runs_ahead and threading.current_thread().name in device.stalls:
        broken.append("the thread that trains waited for the device")
    return found, broken, seen.counts, said["fallbacks"]


def check_program(
    size: int, config: Config, program: str, chance: int = 1, by: Play = play
) -> list[tuple[Counts, Mapping[str, str]]]:
    """Nothing differs, and the law holds. What was seen on every rank, and why modules ran plainly."""
    answers = shared_world(size).run(played, (config, operations_of(program), chance), at_once, by)
    for rank, (found, broken, *_) in enumerate(answers):
        assert (found, broken) == ([], []), f"rank {rank} of {size}"
    return [(counts, why) for *_, counts, why in answers]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Of programs. by: plays them."""

    configs: st.SearchStrategy[Config]
    programs: Callable[[int], st.SearchStrategy[list[Operation]]]
    by: Play


ANY_TABLES = Kind(configs=configs(), programs=programs, by=play)


def all_are_exact(
    size: int,
    length: int,
    delay: Delay = at_once,
    fixed: int | None = None,
    most: int | None = None,
    kind: Kind = ANY_TABLES,
) -> tuple[int, Counts]:
    """Plays `most` programs, or as many as the profile of hypothesis says; the same at every run if a seed is `fixed`.

    Gives how many they were, and what was seen.
    """
    count, counts, different = 0, Counts(), Different()

    number = most or settings.default.max_examples

    @settings(database=None, max_examples=number, suppress_health_check=list(HealthCheck))
    @given(config=kind.configs, operations=kind.programs(length), chance=st.integers(0, 999))
    def each(config: Config, operations: list[Operation], chance: int) -> None:
        nonlocal count, counts
        with different.check(config, operations):
            answers = shared_world(size).run(played, (config, operations, chance), delay, kind.by)
            for rank, (found, broken, seen, _) in enumerate(answers):
                assert (found, broken) == ([], []), f"rank {rank} of {size}"
                counts += seen
        count += 1

    (each if fixed is None else seed(fixed)(each))()
    return count, counts


def told(size: int, count: int, counts: Counts) -> str:
    served = counts.served.total()
    share = served / (served + counts.plain.total())
    assert share > LEAST_SERVED
    return f"{count} programs on {size} ranks: {share:.0%} of the forwards served"


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("size", "fixed", "most"),
    [(1, 1, 10), (2, 2, 8), *(pytest.param(size, None, None, marks=pytest.mark.long) for size in (1, 2, 3, 4))],
)
def test_random_programs_are_exact(size: int, fixed: int | None, most: int | None, record_property: Any) -> None:
    record_property("summary", told(size, *all_are_exact(size, SHORT, fixed=fixed, most=most)))


ONCE_WRONG = {
    "one rank reads the state after a backward pass that raised, the other one asks for a batch":
        "next:7 new_loop backward_fails:9 state:8 backward_fails",
    "one rank reads the state after a backward pass that raised, the other one runs backward":
        "recomputed:8 backward_fails:3 train_next:3 next_forward:8 forward:11 backward_fails:2 state:5"
        " backward_of_sum:6",
    "one rank flushes between two backward passes, the other one goes on to the second":
        "next_forward backward_kept:1 flush backward_kept",
}  # fmt: skip


THREADS, STREAMS = 1, 4  # chances: who issues
RUN_PLAINLY = {  # forwards of a module with gradients: the first one of a block, and those of which nothing is ahead
    "passes out of turn": 2,
    "gradients of several batches": 1,
    "parts of the model, other batches": 11,
    "states, loops and blocks": 2,
    "evaluation": 3,
    "tables are read": 2,
    "tables are changed": 1,
    "tables are held by numpy": 4,
    "errors": 4 + (find_spec("fscomm.recipes") is not None),  # whose first recipe of a block fits one batch only
    "prefetchers": 2,
    "random numbers": 2,
    "random numbers on one rank": 2,
}


@pytest.mark.parametrize(("program", "chance"), list(zip(USUAL, cycle([THREADS, STREAMS]), strict=False)))
def test_usual_programs(program: str, chance: int) -> None:
    for counts, why in check_program(2, CONFIGS["several"], USUAL[program], chance):
        assert max(counts.plain.values()) == RUN_PLAINLY[program], counts
        assert program != "tables are held by numpy" or "through a numpy array" in why["embeddings.a"]


def test_parameters_that_ddp_finds_unused() -> None:
    program = "train_next:3 train_next train_next:4 train_next train_next:3 train_next"
    check_program(2, CONFIGS["several"].but(finds_unused=True), program)


@pytest.mark.parametrize(
    ("program", "chance"), list(zip(ONCE_WRONG.values(), cycle([STREAMS, THREADS]), strict=False)), ids=ONCE_WRONG
)
def test_smallest_programs_that_went_wrong_once(program: str, chance: int) -> None:
    check_program(2, CONFIGS["several"].but(data_parallel=False, hides=True), program, chance)


def test_index_dedup_where_a_wrong_source_has_no_samples() -> None:
    """In the first batch an empty tensor beside the ids holds the same as they do."""
    tables = (
        Table(name="t", rows=41, sharding="row", features=("t0", "t1")),
        Table(name="u", rows=24, sharding="row", features=("u0",)),
    )
    modules = {"a": tables[:1], "b": tables[1:]}
    config = Config(modules=modules, static_graph=False, max_batch=1, max_length=1, spread=0.3, dedup=True)
    check_program(2, config, "next")


TABLE = Table(name="t", rows=24, sharding="table", features=("t0",))
OTHER = Table(name="u", rows=24, sharding="table", features=("u0",), home=1)
ROWS = Table(name="r", rows=24, sharding="row", features=("r0",))


@pytest.mark.parametrize(
    ("modules", "program"),
    [
        ({"a": (TABLE,), "b": (OTHER,)}, "table_in_loss:4 next_forward:5"),
        ({"a": (TABLE, ROWS)}, "table_in_loss:14 next_forward:3"),
    ],
    ids=["modules", "groups"],
)
def test_some_ranks_read_a_table_in_backward(modules: Any, program: str) -> None:
    """A term over a table that the rank has: its read waits for gradients of the other rank. That must not keep them
    back in a collective: here of TorchRec, for a forward that ran plainly. Some tables get no gradients, so it does not
    know yet that it has all."""
    config = Config(modules=modules, static_graph=False, spread=1.0)
    check_program(2, config, f"next_forward:6 {program} backward_kept:1 backward_of_sum train_next")


BAGS = Config(
    modules={"a": (Table(name="t", rows=41, sharding="table", features=("t0", "t1"), pooling="sum"),)},
    spread=1.0,
    steps=12,
)


def test_bags_are_read_after_all_updates_of_their_rows() -> None:
    """Seen in steps that are served one after the other, by the law alone: one rank is too fast for other results."""
    check_program(1, BAGS, "train_next " * BAGS.steps)
