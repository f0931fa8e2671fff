"""What all-to-alls of gloo reach of links that are held to a rate, measured as `freescale measure-links` does.

    python benchmarks/links.py

Needs root; takes about a minute. `adviser.py` reads what this writes: the links of `held_out.py`, without any step.
"""

from typing import Any

import torch
import torch.distributed as dist
from common.table import argument_parser, emit
from network.namespaces import why_not
from network.world import World

from freescale_tools.write.exchange_times import all_to_alls

RANKS, MBIT = (2, 4, 8), (100.0, 200.0, 400.0, 1000.0)
SIZES, REPEATS = [1 << 18, 1 << 20, 1 << 22], 7
COLUMNS = ["ranks", "Mbit/s", "bytes a rank gives", "ms", "share of the rate"]


def measure(_: dict[str, Any]) -> list[dict[str, Any]]:
    """On a rank of the world: as `freescale measure-links` measures, among all ranks."""
    return all_to_alls(torch.device("cpu"), [dist.get_world_size()], SIZES, repeats=REPEATS)


def main() -> None:
    results = argument_parser(__doc__).parse_args().results
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    rows = []
    for ranks in RANKS:
        with World(ranks=ranks, module="links") as world:
            for mbit in MBIT:
                world.network.shape(mbit)
                for point in world.call("measure")[0]:
                    leaves = 8 * point["bytes"] * (ranks - 1) / ranks
                    reached = leaves / point["seconds"] / (mbit * 1e6)
                    rows.append([ranks, mbit, point["bytes"], 1e3 * point["seconds"], reached])
    notes = [
        "Between 2 ranks gloo has one connection. A rank's data stand there before the word that it is ready for the "
        "other's data, so that the two directions take turns unless both begin at once."
    ]
    emit("links", "All-to-alls over links that are held to a rate", COLUMNS, rows, notes, data="zeros", results=results)


if __name__ == "__main__":
    main()
