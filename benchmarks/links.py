"""What all-to-alls of gloo reach of links that are held to a rate, measured as `freescale measure-links` does.

    python benchmarks/links.py [--ranks 2,4,8] [--mbit 100,200,400,1000] [--repeats 7]

Needs root; takes about a minute. `adviser.py` reads what this writes: the links of `held_out.py`, without any step.
"""

import argparse

from common.table import add_results_option, emit
from network.namespaces import why_not
from network.world import World

SIZES = [1 << 18, 1 << 20, 1 << 22]
COLUMNS = ["ranks", "Mbit/s", "bytes a rank gives", "ms", "share of the rate"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--mbit", default="100,200,400,1000")
    parser.add_argument("--repeats", type=int, default=7)
    add_results_option(parser)
    given = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    rows = []
    for ranks in map(int, given.ranks.split(",")):
        with World(ranks=ranks, module="exposure.links") as world:
            for mbit in map(float, given.mbit.split(",")):
                world.network.shape(mbit)
                for point in world.call("measure", sizes=SIZES, repeats=given.repeats)[0]:
                    leaves = 8 * point["bytes"] * (ranks - 1) / ranks
                    reached = leaves / point["seconds"] / (mbit * 1e6)
                    rows.append([ranks, mbit, point["bytes"], 1e3 * point["seconds"], reached])
    notes = [
        "Between 2 ranks gloo has one connection. A rank's data stand there before the word that it is ready for the "
        "other's data, so that the two directions take turns unless both begin at once."
    ]
    emit(
        "links",
        "All-to-alls over links that are held to a rate",
        COLUMNS,
        rows,
        notes,
        {},
        data="zeros",
        results=given.results,
    )


if __name__ == "__main__":
    main()
