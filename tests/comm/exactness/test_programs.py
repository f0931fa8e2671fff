"""The main test of exactness: random programs over everything that a training loop may do.

Each is played with and without fscomm, on 1 to 4 ranks, with work in the workers delayed at random. Whatever it looks
at, and all that there is at the end, must be the same to the bit; and every access to a table must keep to the law of
`fscomm/engine/table_order.py`. A program that fails is shrunk. The share of forwards that were served is printed at the
end: running plainly would be exact, too.
"""

import random
import time
from typing import Any

import pytest
from clocks import Clocks
from device_thread import compare_in_one_thread
from exact import compare
from exact_configs import CONFIGS, configs
from exact_model import Config
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from programs import LONG, SHORT, Different, Operation, play, programs
from table_law import watch
from worlds import shared_world

EXAMPLES = [(1, 120), (2, 30), (3, 8), (4, 8)]  # ranks, programs
MANY = {1: 1250, 2: 1750, 3: 1000, 4: 1000}
LEAST_SERVED = 0.3  # of the forwards that a backward may come back to; a block begins with two plain steps
SETTINGS = {
    "phases": [Phase.explicit, Phase.generate, Phase.shrink],
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
    "print_blob": False,
}


def played(
    rank: int, size: int, config: Config, operations: list[Operation], chance: int
) -> tuple[list[str], list[str], int, int]:
    """What differs, what broke the law, and how many forwards were served and ran plainly."""
    sleeps = random.Random(chance * 64 + rank)

    def delay() -> None:
        if sleeps.random() < 0.3:
            time.sleep(sleeps.random() * 0.001)

    with pytest.MonkeyPatch.context() as patch:
        seen = watch(patch, Clocks(done_share=0.5, seed=chance), delay)
        one_thread = chance % 3 == 0
        found, _ = (compare_in_one_thread if one_thread else compare)(rank, size, config, play(operations))
    broken = [] if one_thread else seen.broken()  # the law is not told that a thread waits for that one
    return found, broken, seen.served, seen.plain


def all_are_exact(size: int, examples: int, length: int, first: int) -> float:
    """Share of forwards served. first: the seed."""
    counts = [0, 0]
    different = Different()

    @seed(first)
    @settings(max_examples=examples, **SETTINGS)  # type: ignore[arg-type]
    @given(config=configs(), operations=programs(length), chance=st.integers(0, 999))
    def each(config: Config, operations: list[Operation], chance: int) -> None:
        different.check(config, operations)
        different.failed = True
        for rank, (found, broken, *ran) in enumerate(shared_world(size).run(played, config, operations, chance)):
            assert (found, broken) == ([], []), f"rank {rank} of {size}"
            counts[:] = [count + more for count, more in zip(counts, ran, strict=True)]
        different.failed = False

    each()
    return counts[0] / sum(counts)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_programs(number: int, record_property: Any) -> None:
    size, examples = EXAMPLES[number]
    served = all_are_exact(size, examples, SHORT, first=number)
    record_property("summary", f"{examples} programs on {size} ranks: {served:.0%} of the forwards served")
    assert served > LEAST_SERVED


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


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("operations", ONCE_WRONG.values(), ids=list(ONCE_WRONG))
def test_programs_that_went_wrong_once(operations: list[Operation], size: int) -> None:
    for config in (CONFIGS["several"], CONFIGS["several"].but(data_parallel=False)):
        for found, broken, *_ in shared_world(size).run(played, config, operations, 1):
            assert (found, broken) == ([], [])


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("size", MANY)
def test_many_programs(size: int, record_property: Any) -> None:
    served = all_are_exact(size, MANY[size], LONG, first=time.time_ns())
    record_property("summary", f"{MANY[size]} programs on {size} ranks: {served:.0%} of the forwards served")
