"""No kernel is compiled during a step: that takes seconds, in which all other ranks would wait."""

from dataclasses import replace

from synthetic_peers import Planner, World
from test_bags import drawn_classes, planned, world
from test_id_exchange import BUSY, Ranks
from worlds import shared_world

from fscomm.bags import kernels as of_bags
from fscomm.compose import compile_kernels
from fscomm.plan import hash_tables, kernels
from fscomm.plan.peer_ids import unit_classes_back
from fscomm.two_levels import kernels as of_hosts


def compiled_during_steps(rank: int, size: int) -> tuple[list[str], int]:
    """Kernels compiled, or loaded, during steps of both kinds of groups; the fewest forms of a kernel before them."""
    named = {**vars(hash_tables), **vars(kernels), **vars(of_bags), **vars(of_hosts)}
    every = {name: each for name, each in named.items() if hasattr(each, "signatures") and not name.startswith("_")}
    compile_kernels()
    before = {name: len(kernel.signatures) for name, kernel in every.items()}
    planner = Planner(World(ranks=4, features=2, rows=1000, ids=500, dim=4, chunk_bytes=256))
    for _ in range(3):
        planner.step(*planner.draw())
    in_parts = replace(BUSY, parts=(3, 2))
    ranks = Ranks([in_parts], [0])
    ranks.step(ranks.step(None, 0, [in_parts.asked(0)]), 1, [in_parts.asked(1)])
    for parts in (1, 3):
        found = world(2, 2, True, 3, parts, 0)
        for back in (False, True):
            planned(found, drawn_classes(found, 0.3, unit_classes_back(parts) if back else 1), back=back)
    return [name for name, kernel in every.items() if len(kernel.signatures) != before[name]], min(before.values())


def test_all_kernels_are_ready_before_the_first_step() -> None:
    """Only a new process shows it: in one that has planned before, every kernel is there."""
    assert shared_world(1, "no kernels").run(compiled_during_steps) == [([], 1)]
