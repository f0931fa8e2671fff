"""Steps of both kinds of groups in a new process: prints the kernels that were compiled, or loaded, during them.

Only a new process shows it: in one that has planned before, every kernel is there. BENCHMARKS is the first argument.
"""

import sys

sys.path.append(sys.argv[1])

from common.synthetic_peers import Planner, World, uniform
from test_bags import drawn_shared, planned, world

from fscomm.plan import hash_tables, wire_kernels
from fscomm.plan.compiled import compile_kernels

named = {**vars(hash_tables), **vars(wire_kernels)}
kernels = {name: each for name, each in named.items() if hasattr(each, "signatures") and not name.startswith("_")}


def signatures() -> dict[str, int]:
    return {name: len(kernel.signatures) for name, kernel in kernels.items()}


compile_kernels()
before = signatures()
planner = Planner(World(ranks=4, features=2, rows=1000, ids=500, dim=4, chunk_bytes=256), uniform)
for _ in range(3):
    planner.step(*planner.draw())
found = world(2, 2, True, 3, 0)
for back in (False, True):
    planned(found, drawn_shared(found, 0.3), back=back)
print([name for name, number in signatures().items() if number != before[name]], min(before.values()))
