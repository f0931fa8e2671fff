"""The main test of exactness: random programs over everything that a training loop may do.

Each is played with and without fscomm. Whatever it looks at, and all that there is at the end, must be the same to the
bit; and every access to a table must keep to the law of `fscomm/engine/table_order.py`. A program that fails is shrunk.
The share of forwards that were served is printed at the end: running plainly would be exact, too.

`tests/realtime/test_late_workers.py` plays longer ones, with work in the workers delayed at random.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from clocks import Clocks
from device_thread import compare_in_one_thread
from exact import compare
from exact_configs import CONFIGS, configs
from exact_model import Config
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from patience import PATIENCE_S
from programs import SHORT, Different, Operation, play, programs
from table_law import watch
from worlds import shared_world

LEAST_SERVED = 0.3  # of the forwards that a backward may come back to; a block begins with two plain steps

Delay = Callable[[random.Random], None]
Given = tuple[Config, list[Operation], int]  # model, what is done with it, chance


def at_once(_: random.Random) -> None:
    pass


def played(
    rank: int, size: int, program: Given, delay: Delay = at_once, limit_s: float = PATIENCE_S
) -> tuple[list[str], list[str], int, int]:
    """What differs, what broke the law, and how many forwards were served and ran plainly.

    delay: what workers do before any work. limit_s: how long fscomm waits for other ranks.
    """
    config, operations, chance = program
    delays = random.Random(chance * 64 + rank)
    one_thread = chance % 3 == 0
    with pytest.MonkeyPatch.context() as patch:
        seen = watch(patch, Clocks(done_share=0.5, seed=chance), lambda: delay(delays))
        compared = compare_in_one_thread if one_thread else compare
        found, _ = compared(rank, size, config, play(operations), "fscomm", {"timeout_s": limit_s})
    broken = [] if one_thread else seen.broken()  # the law is not told that a thread waits for that one
    return found, broken, seen.served, seen.plain


def given_programs(length: int, play_one: Callable[[Given], None], fixed: int | None = None) -> None:
    """As many as hypothesis is told to, no two of them alike; the same ones at every run if a seed is `fixed`."""
    different = Different()

    @settings(database=None, suppress_health_check=list(HealthCheck))
    @given(config=configs(), operations=programs(length), chance=st.integers(0, 999))
    def each(config: Config, operations: list[Operation], chance: int) -> None:
        different.check(config, operations)
        different.failed = True
        play_one((config, operations, chance))
        different.failed = False

    (each if fixed is None else seed(fixed)(each))()


def all_are_exact(size: int, length: int, delay: Delay = at_once, fixed: int | None = None) -> str:
    """How many were played, and the share of forwards served, in words."""
    programs, counts = 0, [0, 0]

    def play_one(program: Given) -> None:
        nonlocal programs
        for rank, (found, broken, *ran) in enumerate(shared_world(size).run(played, program, delay)):
            assert (found, broken) == ([], []), f"rank {rank} of {size}"
            counts[:] = [count + more for count, more in zip(counts, ran, strict=True)]
        programs += 1

    given_programs(length, play_one, fixed)
    served = counts[0] / sum(counts)
    assert served > LEAST_SERVED
    return f"{programs} programs on {size} ranks: {served:.0%} of the forwards served"


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("size", [1, 2, *(pytest.param(size, marks=pytest.mark.long) for size in (3, 4))])
def test_random_programs_are_exact(size: int, record_property: Any) -> None:
    record_property("summary", all_are_exact(size, SHORT, fixed=size))


ONCE_WRONG = {
    "what backward brought for one forward waits while another one updates at once": [
        Operation("forward", 0), Operation("next_forward", 5), Operation("leave", 0), Operation("backward_of_sum", 0),
    ],
    "one rank reads the state after a backward pass that raised, the other one asks for a batch": [
        Operation("next", 7), Operation("new_loop", 0), Operation("backward_fails", 9), Operation("state", 8),
        Operation("backward_fails", 0),
    ],
    "one rank reads the state after a backward pass that raised, the other one runs backward": [
        Operation("recomputed", 8), Operation("backward_fails", 3), Operation("train_next", 3),
        Operation("next_forward", 8), Operation("forward", 11), Operation("backward_fails", 2), Operation("state", 5),
        Operation("backward_of_sum", 6),
    ],
    "one rank flushes between two backward passes, the other one goes on to the second": [
        Operation("next_forward", 0), Operation("backward_kept", 1), Operation("flush", 0),
        Operation("backward_kept", 0),
    ],
}  # fmt: skip


CONFIG = CONFIGS["several"].but(data_parallel=False)
WITH_DDP = pytest.param(2, CONFIGS["several"], marks=pytest.mark.long, id="with DDP")


@pytest.mark.parametrize(
    ("size", "config"),
    [pytest.param(2, CONFIG, id="2"), WITH_DDP, pytest.param(1, CONFIG, marks=pytest.mark.long, id="1")],
)
@pytest.mark.parametrize("operations", ONCE_WRONG.values(), ids=list(ONCE_WRONG))
def test_programs_that_went_wrong_once(operations: list[Operation], size: int, config: Config) -> None:
    for found, broken, *_ in shared_world(size).run(played, (config, operations, 1)):
        assert (found, broken) == ([], [])
