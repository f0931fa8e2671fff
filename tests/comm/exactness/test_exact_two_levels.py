"""Rows that come to a host once and are passed on there: to the bit what the plain loop gives.

It takes four ranks. With simulated ones, `tests/comm/exchange/` does the same in little time.
"""

from typing import Any
from unittest import mock

import pytest
from exact import compare
from exact_configs import CONFIGS, configs
from exact_loops import LOOPS
from exact_model import Config
from hypothesis import given
from hypothesis import strategies as st
from worlds import World, shared_world

from fscomm.plan.sharding_group import GroupLayout

pytestmark = pytest.mark.long

PASSED = ["exclusive rows, in host", "collision rows, in host"]


def compared(rank: int, size: int, config: Config, loop: str, per_host: int, limit: int | None = None) -> Any:
    """`compare` with hosts of `per_host` ranks; limit: rows in a chunk."""
    options = {"ranks_per_host": per_host}
    with mock.patch.object(GroupLayout, "chunk_rows", limit) if limit else mock.MagicMock():
        return compare(rank, size, config, LOOPS[loop], "fscomm", options)


def same(config: Config, loop: str, per_host: int = 2, limit: int | None = None) -> set[str]:
    """Nothing differs on 4 ranks. Returns the classes of which something travelled inside a host."""
    kinds = set()
    for rank, (found, said) in enumerate(shared_world(4).run(compared, config, loop, per_host, limit)):
        assert found == [], f"rank {rank}, {loop}"
        moved = [by_kind for step in said["report"]["steps"] for by_kind in step["bytes"].values()]
        kinds |= {kind for by_kind in moved for kind in PASSED if by_kind.get(kind, {"sent": 0})["sent"]}
    return kinds


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("name", ["several", "row", "column", "half and full"])
def test_models(name: str, limit: int | None) -> None:
    assert same(CONFIGS[name], "base", limit=limit) == set(PASSED)


def test_one_host_has_nothing_to_pass_on() -> None:
    same(CONFIGS["several"], "base", per_host=4)


@pytest.mark.parametrize("loop", ["flush", "load_state_dict", "without_forward", "no_sync", "skipped_module"])
def test_loops(loop: str) -> None:
    same(CONFIGS["loops"], loop)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("per_host", [2, 3])
def test_six_ranks(per_host: int) -> None:
    with World(6) as world:
        for name in ("several", "row", "table"):
            for found, _ in world.run(compared, CONFIGS[name], "base", per_host):
                assert found == []


@pytest.mark.timeout(3600)
@given(config=configs(), loop=st.sampled_from(sorted(LOOPS)), limit=st.sampled_from([None, 2]))
def test_many_random_models_and_loops(config: Config, loop: str, limit: int | None) -> None:
    same(config, loop, limit=limit)
