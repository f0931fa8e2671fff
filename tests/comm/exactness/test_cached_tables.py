"""Tables in unified memory with a cache on the device: to the bit what the plain loop gives.

The cache is played (`cached_kernel`), and so is the device: each operation on a kernel has to be ordered behind the one
before it, on whichever stream that was.
"""

from typing import Any

import pytest
from exact import check_equal
from exact_configs import CONFIGS
from exact_device import compare_played
from exact_loops import LOOPS
from exact_model import Config
from usual_programs import usual
from worlds import shared_world


def compared(rank: int, size: int, config: Config, loop: str, ahead: bool, streams: bool) -> tuple[list[str], Any]:
    return compare_played(rank, size, config, LOOPS.get(loop) or usual(loop), {}, ahead=ahead, streams=streams)


@pytest.mark.parametrize("name", ["small", "several", "pooled mixed", "quantised"])
@pytest.mark.parametrize("streams", [False, True], ids=["threads", "streams"])
def test_models(name: str, streams: bool) -> None:
    config = CONFIGS[name].but(cached=True)
    for said in check_equal(shared_world(2), compared, config, "base", streams, streams):
        assert said["fallbacks"] == {}


@pytest.mark.parametrize(
    "loop", ["without_lookahead", "second_model", "scaled", "states, loops and blocks", "evaluation"]
)
def test_loops(loop: str) -> None:
    check_equal(shared_world(2), compared, CONFIGS["small"].but(cached=True), loop, False, True)
