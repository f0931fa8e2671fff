"""Steps under conditions that `adviser.py` predicts: some to fit on, the others held out.

    python benchmarks/held_out.py [--rounds 3] [--steps 4]

As `exposed.py`: ranks in network namespaces, links held to a rate, compute emulated by sleeping, all modes on the same
batches. Link speed, number of ranks, collision rate and width of a row change one or two at a time. Needs root; takes
about 15 minutes. `adviser.py` reads what this writes.
"""

from dataclasses import replace

from common.table import argument_parser
from exposed import USUAL, Section, run

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
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="measured steps of a block")
    given = parser.parse_args()
    run(sections(given.rounds, given.steps), name="held_out", results=given.results)


if __name__ == "__main__":
    main()
