"""Steps that are computed in parts: to the bit what one call of the embedding modules for the whole batch gives."""

import contextlib
from typing import Any
from unittest import mock

import pytest
from clocks import Clocks
from exact import compare
from exact_configs import CONFIGS, configs
from exact_model import Config, Table
from hypothesis import given
from hypothesis import strategies as st
from parts import LOOPS, in_parts
from worlds import World, shared_world

from fscomm import comm


def compared(
    rank: int, size: int, config: Config, loop: str, parts: int, options: dict[str, Any], ahead: bool
) -> tuple[list[str], Any]:
    with contextlib.ExitStack() as patched:
        if ahead:
            device = Clocks(done_share=0.5, runs_ahead=True)
            patched.enter_context(mock.patch.object(comm, "device_of", return_value=device))
        return compare(rank, size, config, in_parts(loop, parts), "fscomm", {"parts": parts, **options})


def check(
    world: World, config: Config, loop: str, parts: int, *, ahead: bool = False, **options: Any
) -> list[dict[str, Any]]:
    """Nothing differs. Returns what fscomm said of itself on every rank. ahead: of a device; it is played."""
    config = config.but(static_graph=False)
    answers = world.run(compared, config, loop, parts, options, ahead)
    for rank, (found, _) in enumerate(answers):
        assert found == [], f"rank {rank} of {world.size}, {loop}"
    return [said for _, said in answers]


MODELS = [  # one for each kind of sharding, of precision on the way, of bags, of kernels; each transport, and chunks
    ("several", 1, 4, "gloo"),
    ("several", 2, 3, "copy-engine"),
    ("odd tables", 2, 2, "gloo"),
    ("half output", 2, 3, "host-staged"),
    ("counters", 2, 2, "gloo"),
    ("tiny", 2, 4, "gloo"),
    ("pooled mixed", 2, 3, "gloo"),
    ("pooled hosts", 4, 2, "gloo"),
    ("pooled table mean", 2, 2, "host-staged"),
    ("pooled weighted", 3, 2, "gloo"),
    ("quantised", 2, 2, "gloo"),
    ("quantised sums", 2, 3, "gloo"),
]


@pytest.mark.parametrize(("name", "size", "parts", "transport"), MODELS, ids=[f"{m[0]}-{m[1]}" for m in MODELS])
def test_models(name: str, size: int, parts: int, transport: str) -> None:
    """All forwards but those of the first step are served."""
    config = CONFIGS[name]
    for said in check(shared_world(size), config, "base", parts, transport=transport):
        assert said["fallbacks"] == {}
        for forwards in said["report"]["forwards"].values():
            assert forwards["served"] == config.steps - 1


SMALL = CONFIGS["loops"].but(
    modules={
        "a": (Table(name="r", rows=40, sharding="row", features=("r0", "r1")),),
        "b": (Table(name="s", rows=33, sharding="table", features=("s0",), home=1),),
    }
)


@pytest.mark.parametrize("ahead", [False, True], ids=["threads", "streams"])
@pytest.mark.parametrize("loop", LOOPS)
def test_loops(loop: str, ahead: bool) -> None:
    for said in check(shared_world(2), SMALL, loop, 3, ahead=ahead):
        assert said["fallbacks"] == {}


@pytest.mark.long
@pytest.mark.timeout(7200)
@given(
    size=st.integers(1, 4),
    config=configs(),
    loop=st.sampled_from(sorted(LOOPS)),
    parts=st.sampled_from([2, 3, 4, 8]),
)
def test_many_random_models_and_loops(size: int, config: Config, loop: str, parts: int) -> None:
    check(shared_world(size), config.but(calls=1, dedup=False), loop, parts)
