"""Steps under conditions that `adviser.py` predicts: some to fit on, the others held out.

    python benchmarks/held_out.py [--rounds 3] [--steps 4]

As `exposed.py`: ranks in network namespaces, links held to a rate, compute emulated by sleeping, all modes on the same
batches. Link speed, number of ranks, collision rate and width of a row change one or two at a time. Needs root; takes
about 15 minutes. `adviser.py` reads what this writes.
"""

import argparse
import itertools
import statistics
from dataclasses import asdict, replace
from typing import Any

from common.table import add_results_option, emit
from exposed import USUAL, Section, measure
from exposure.figures import TITLES
from network.namespaces import why_not

MODES = ("compute", "plain", "sparse dist", "fscomm")
FITTED = "fitted on"
"""Sections whose name starts with this are those that parameters may be fitted on."""


def sections(rounds: int, steps: int) -> list[Section]:
    """All sections, those of one world one after another."""
    usual = Section(name="", compute_ms=200, modes=MODES, rounds=rounds, steps=steps)

    def at(ranks: int = 4, mbit: float = 200.0, collision: float = 0.12, width: int = 128, *, fit: str = "") -> Section:
        return replace(
            usual,
            name=f"{fit}{ranks} ranks, {mbit:g} Mbit/s, {collision:.0%}, {width}",
            ranks=ranks,
            rate_mbit=mbit,
            collision=collision,
            shape=replace(USUAL, width=width),
        )

    fit = f"{FITTED} "
    return [
        at(fit=fit),
        at(mbit=1000, fit=fit),
        at(collision=0.5, mbit=1000, fit=fit),
        at(mbit=100),
        at(mbit=400),
        at(collision=0.0),
        at(collision=0.25),
        at(collision=0.5),
        at(width=64),
        at(width=64, mbit=400, collision=0.25),
        at(width=256, mbit=400),
        at(2),
        at(2, mbit=400, collision=0.25),
        at(8, mbit=400),
        at(8, collision=0.25),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="measured steps of a block")
    add_results_option(parser)
    arguments = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    blocks, notes = [], []
    for _, world in itertools.groupby(
        sections(arguments.rounds, arguments.steps), key=lambda section: (section.ranks, asdict(section.shape))
    ):
        found, different = measure(list(world))
        blocks += found
        notes += [
            f"{TITLES[mode]}: tables differ from the plain loop's on ranks {' '.join(ranks)}"
            for mode, ranks in different.items()
            if ranks and mode != "compute"
        ]
    rows = [
        [
            block.condition["name"], TITLES[mode], statistics.median(block.steps_ms(mode)),
            statistics.median(block.exposed_ms(mode)),
        ]
        for block in blocks
        for mode in block.answers
    ]  # fmt: skip
    extra: dict[str, Any] = {"blocks": [block.raw() for block in blocks]}
    emit(
        "held_out",
        "Steps that are predicted",
        ["section", "mode", "step ms", "exposed ms"],
        rows,
        notes,
        extra,
        data="random ids, made as it runs",
        results=arguments.results,
    )


if __name__ == "__main__":
    main()
