"""Exactness does not depend on how rows travel: the same loops over every transport that runs without a GPU."""

from typing import Any

import pytest
from exact import compare
from exact_configs import CONFIGS, configs
from exact_loops import LOOPS
from hypothesis import given
from hypothesis import strategies as st
from worlds import shared_world

TRANSPORTS = ["copy-engine", "host-staged"]


def same(size: int, config: Any, loop: str, transport: str) -> None:
    answers = shared_world(size).run(compare, config, LOOPS[loop], "fscomm", {"transport": transport})
    for rank, (found, said) in enumerate(answers):
        assert said["report"]["transport"] == transport  # not plainly, because the warm-up had failed
        assert found == [], f"rank {rank} of {size}, {loop}, {transport}"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 3, 4))])
def test_several_modules_and_sharding_groups(transport: str, size: int) -> None:
    same(size, CONFIGS["several"], "base", transport)


@pytest.mark.long
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("loop", ["flush", "load_state_dict", "without_forward", "no_sync"])
def test_loops(transport: str, loop: str) -> None:
    same(2, CONFIGS["loops"], loop, transport)


@pytest.mark.long
@pytest.mark.timeout(3600)
@given(
    size=st.integers(2, 4), config=configs(), loop=st.sampled_from(sorted(LOOPS)), transport=st.sampled_from(TRANSPORTS)
)
def test_many_random_models_and_loops(size: int, config: Any, loop: str, transport: str) -> None:
    same(size, config, loop, transport)
