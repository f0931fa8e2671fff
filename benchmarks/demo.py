"""The figures of `freescale demo`, kept: a small model trained in several ways on 2 processes.

    python benchmarks/demo.py [--data FOLDER ...]

The synthetic set first. Then each folder of `--data` twice: its whole histories, and its requests with their histories
as of their time. Each on links of memory, and with shorter histories on a slow link. The demo compares what must be
bitwise identical, and fails otherwise.
"""

import tempfile
from pathlib import Path

from common.table import argument_parser, emit

from freescale_tools.console.terminal import Terminal
from freescale_tools.demo.command import run
from freescale_tools.demo.data import BATCH, synthetic
from freescale_tools.demo.discover import discover
from freescale_tools.write.synth.presets import Lengths, demo_set

COLUMNS = (
    *("data", "samples are", "samples a rank", "links", "ids that collide %", "run", "step ms"),
    *("waits for stragglers ms", "waits for links ms", "samples/s", "straggler %", "events stored %", "loss", "NE"),
)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, nargs="*", default=[], metavar="FOLDER", help="oss_events, online_retail")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="freescale-demo-") as folder:
        files = demo_set(Path(folder))
        sets = [("synthetic", "histories", synthetic(files, batch_size=BATCH, max_length=Lengths().clip))]
        for data in given.data:
            sets += [(data.name, "histories", discover(data, requests=False)), (data.name, "requests", discover(data))]
        for name, kind, one in sets:
            outcome = run(Terminal(), one, Path(folder), own_data=name != "synthetic")
            for act in outcome.acts:
                for each in act.runs:
                    of_step = [len(step[0].lengths) for step in each.steps]
                    rows.append([
                        *(name, kind, of_step[0], act.links, 100 * act.rate, each.name),
                        *(1e3 * each.step_s, 1e3 * each.waits_for_stragglers, 1e3 * each.exposed, each.samples_per_s),
                        *(100 * each.straggler, 100 * each.stored, *each.last),
                    ])  # fmt: skip
    emit(
        "demo",
        "The demo: a small model on 2 processes",
        COLUMNS,
        rows,
        notes=["Runs that must be bitwise identical are. Loss and NE: of the last quarter of the steps."],
        data=", ".join(dict.fromkeys(name for name, _, _ in sets)),
        results=given.results,
    )


if __name__ == "__main__":
    main()
