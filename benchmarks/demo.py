"""The figures of `freescale demo`, kept: a small model trained in several ways on 2 processes.

    python benchmarks/demo.py [--data FOLDER ...]

The synthetic set first. Then each folder of `--data` twice: its whole histories, and its requests with their histories
as of their time. The demo compares what has to be equal to the bit, and fails otherwise.
"""

import argparse
import tempfile
from pathlib import Path

from common.table import add_results_option, emit

from freescale_tools.console.terminal import Terminal
from freescale_tools.demo.command import run
from freescale_tools.demo.data import synthetic
from freescale_tools.demo.discover import discover
from freescale_tools.write.synth.presets import Lengths, demo_set

COLUMNS = (
    *("data", "samples are", "samples a rank", "run", "straggler %", "exposed ms", "step ms"),
    *("ids that collide %", "events held %", "loss", "NE"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[], metavar="FOLDER", help="oss_events, online_retail")
    add_results_option(parser)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="freescale-demo-") as folder:
        files = demo_set(Path(folder))
        sets = [("synthetic", "histories", synthetic(files, batch_size=64, max_length=Lengths().clip))]
        for data in given.data:
            sets += [(data.name, "histories", discover(data, requests=False)), (data.name, "requests", discover(data))]
        for name, kind, one in sets:
            outcome = run(Terminal(), one, Path(folder))
            for each in outcome.runs:
                loss, ne = each.last
                rows.append([
                    name,
                    kind,
                    one.batch_size,
                    each.name,
                    100 * each.straggler,
                    1e3 * each.exposed,
                    1e3 * each.seconds["seconds"],
                    None if each.collisions is None else 100 * each.collisions,
                    100 * each.held,
                    loss,
                    ne,
                ])  # fmt: skip
    emit(
        "demo",
        "The demo: a small model on 2 processes",
        COLUMNS,
        rows,
        notes=["Runs that have to be equal to the bit were. Loss and NE: of the last quarter of the steps."],
        data=", ".join(dict.fromkeys(name for name, _, _ in sets)),
        results=given.results,
    )


if __name__ == "__main__":
    main()
