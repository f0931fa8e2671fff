"""One rank among synthetic peers: what it does for a step may not grow with the number of ranks."""

import sys
import tracemalloc
from typing import Any

import pytest
import torch
from synthetic_peers import Planner, World

RANKS = (8, 32, 128)


def counted(ranks: int, **source: Any) -> dict[str, int]:
    """Of one step: exchanges, calls of Python and C functions, and the most bytes that numpy had at once."""
    world = World(ranks=ranks, features=4, rows=12_500 * ranks, ids=20_000, dim=16, chunk_bytes=1 << 17, **source)
    planner = Planner(world)
    for _ in range(2):
        planner.step(*planner.draw())
    given, calls = planner.draw(), 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    tracemalloc.start()
    sys.setprofile(note)
    ids = planner.step(*given)
    sys.setprofile(None)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    back = ids.back[0]
    assert back is not None
    (leg,) = ids.ahead(0).fetch[-1].legs
    return {"exchanges": leg.chunks + back.legs[-1].chunks, "calls": calls, "bytes": most}


@pytest.mark.parametrize("source", [{}, {"skew": 4.0}, {"zipf": True}], ids=["uniform", "skewed", "zipf"])
def test_a_step_takes_as_much_however_many_ranks_there_are(source: dict[str, Any]) -> None:
    """The ids of a rank are the same in number; lists of sizes by rank and chunk may grow, and no more than they do."""
    few, some, many = (counted(ranks, **source) for ranks in RANKS)
    assert max(each["exchanges"] for each in (few, some, many)) <= min(few["exchanges"], many["exchanges"]) + 4
    assert many["calls"] <= 1.1 * few["calls"]
    assert many["bytes"] - few["bytes"] <= (RANKS[2] - RANKS[0]) * 5_000


def test_what_the_peers_say_is_what_a_rank_expects() -> None:
    """The plan of the real rank gives each local output a row, and asks for each row once."""
    world = World(ranks=8, features=3, rows=5_000, ids=3_000, dim=4, chunk_bytes=1 << 12)
    planner = Planner(world)
    for _ in range(3):
        mine, order = planner.draw()
        ids = planner.step(mine, order)
        merge = ids.ahead(0).merge
        assert len(merge.index) == len(mine.ids) == len(order)
        used = torch.unique(merge.index)
        assert torch.equal(used, torch.arange(merge.strips))
        assert ids.ahead(0).collisions.occurrences == planner.peers.asked.counts.sum()
