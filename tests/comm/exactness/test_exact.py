"""Exactness: whatever a user can look at is, to the bit, what the same loop gives without fscomm."""

from collections.abc import Callable, Collection, Iterable
from typing import Any
from unittest import mock

import pytest
from device_thread import compare_in_one_thread
from exact import compare
from exact_configs import CONFIGS
from exact_loops import LOOPS
from exact_model import Config, Table
from worlds import World, shared_world

from fscomm.plan import group_plan
from fscomm.plan.sharding_group import GroupLayout

PARTLY_PLAIN = {  # steps of these run plainly, and the report says so
    "microbatches",
    "zipped_loaders",
    "drawing",
    "drawing_on_one_rank",
    "evaluation_of_the_batch",
    "flush",
    "load_state_dict",
    "module_alone",
    "other_features",
    "recomputed_after_its_update",
    "same_batch_twice",
    "two_forwards_one_backward",
    "without_lookahead",
}
SKIPPING = {"skipped_module", "two_steps_in_three_without_forward", "without_forward"}
NOT_CALLED = "its forward was not called"


def check(size: int, config: Config, loop: str) -> None:
    """Nothing differs, and nothing runs plainly that could be served."""
    for rank, (found, said) in enumerate(shared_world(size).run(compare, config, LOOPS[loop])):
        where, reasons = f"rank {rank} of {size}, {loop}", list(said["fallbacks"].values())
        assert found == [], where
        if loop in SKIPPING:
            assert reasons, where
            assert all(reason.endswith(NOT_CALLED) for reason in reasons), (where, reasons)
        elif loop not in PARTLY_PLAIN:
            assert not reasons, (where, reasons)


def at_any(names: Iterable[str], cheap: Callable[[str], Collection[int]]) -> list[Any]:
    """(name, size) for each and 1 to 4 ranks; long but for the `cheap` sizes of a name."""
    return [
        pytest.param(name, size, marks=() if size in cheap(name) else pytest.mark.long)
        for name in names
        for size in (1, 2, 3, 4)
    ]


CHEAP = {  # one model per kind of sharding, of precision on the way, of bags, of kernels
    "several": (1, 2),
    **dict.fromkeys(
        (
            "row rowwise",  # under a static graph
            "half and full",
            "two rates",
            "shared kjt",
            "frozen",
            "dedup and half",
            "bf16",
            "counters",
            "pooled mixed",
            "pooled hosts",
            "pooled row weighted mean",
            "pooled called twice",
            "quantised scaled",
            "quantised in groups, bags",
            "quantised sums scaled",
        ),
        (2,),
    ),
}


@pytest.mark.parametrize(
    ("name", "size"), at_any((name for name in CONFIGS if name != "loops"), lambda name: CHEAP.get(name, ()))
)
def test_models(name: str, size: int) -> None:
    check(size, CONFIGS[name], "base")


@pytest.mark.long
@pytest.mark.parametrize("name", ["pooled hosts", "pooled host weighted mean", "pooled grid mean"])
def test_three_hosts_of_three_ranks(name: str) -> None:
    """Sums of three depend on their order, and a division by three and three is not one by nine."""
    with World(9) as world:
        for found, said in world.run(compare, CONFIGS[name].but(host=3, max_batch=16), LOOPS["base"]):
            assert found == []
            assert not said["fallbacks"]


SMALL = CONFIGS["loops"].but(
    modules={
        "a": (Table(name="r", rows=40, sharding="row", features=("r0", "r1")),),
        "b": (Table(name="s", rows=33, sharding="table", features=("s0",), home=1),),
    }
)


@pytest.mark.parametrize("loop", LOOPS)
def test_loops(loop: str) -> None:
    check(2, SMALL, loop)


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("loop", LOOPS)
def test_loops_with_several_sharding_groups_in_a_module(loop: str, size: int) -> None:
    check(size, CONFIGS["loops"], loop)


@pytest.mark.long
@pytest.mark.parametrize("loop", LOOPS)
def test_loops_with_backward_in_one_thread(loop: str) -> None:
    for found, _ in shared_world(2).run(compare_in_one_thread, CONFIGS["loops"], LOOPS[loop]):
        assert found == []


def chunked(rank: int, size: int, config: Config) -> tuple[list[str], int]:
    """With three rows a chunk; what differs, and the most chunks that anything was cut into."""
    most = 0
    cut = group_plan.cut

    def counted(*args: Any) -> Any:
        nonlocal most
        made = cut(*args)
        most = max(most, len(made.exclusive))
        return made

    with mock.patch.object(GroupLayout, "chunk_rows", 3), mock.patch.object(group_plan, "cut", counted):
        found, said = compare(rank, size, config, LOOPS["base"])
    assert said["fallbacks"] == {}
    return found, most


@pytest.mark.parametrize("name", ["several", pytest.param("long", marks=pytest.mark.long)])
def test_rows_in_many_chunks(name: str) -> None:
    for found, most in shared_world(2).run(chunked, CONFIGS[name]):
        assert found == []
        assert most > 2
