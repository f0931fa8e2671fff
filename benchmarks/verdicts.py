"""What `freescale profile` advises for known data, kept, with what the demo measured of the same data beside it.

    python benchmarks/verdicts.py [--data FOLDER ...]

The synthetic sources of `freescale synth`, and each folder of `--data` (interactions-*.parquet with item_ids), at 128
samples a rank on the assumed cluster. The measured column is `demo.py`'s last record: 2 processes on CPU cores, whose
links are memory, so it can confirm balancing only.
"""

import argparse
import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.table import RESULTS, add_results_option, emit
from typer.testing import CliRunner

from freescale_tools.cli import app

COLUMNS = [
    "data", "ranks", "balancing, over TorchRec's pipeline", "prioritized, over that", "SM-free, over that",
    "events lost", "collisions", "straggler % measured, 2 ranks: plain, balanced",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[], metavar="FOLDER", help="oss_events, online_retail")
    add_results_option(parser)
    given = parser.parse_args()
    measured = json.loads((RESULTS / "demo.json").read_text())["rows"]
    rows = []
    with tempfile.TemporaryDirectory(prefix="freescale-verdicts-") as name:
        folder = Path(name)
        _call("synth", "sources", folder / "sources", "--median", 1000, "--p95", 3500)
        sets = [("synthetic", [folder / "sources" / "source-0"])]
        sets += [(data.name, sorted(data.glob("interactions-*.parquet"))) for data in given.data]
        for of, paths in sets:
            document = _call("profile", *paths, "--sequence", "item_ids", "--out", folder / of, "--json")
            rows.append([*_line(of, document), _measured(measured, of)])
    emit(
        "verdicts",
        "Verdicts of freescale profile on the assumed cluster h100-ib, 128 samples a rank",
        COLUMNS,
        rows,
        ["Measured: the demo's whole histories, another model, batch size and machine than the verdict is for."],
        data=", ".join(of for of, _ in sets),
        results=given.results,
    )


def _call(*arguments: Any) -> dict[str, Any]:
    with contextlib.redirect_stderr(io.StringIO()):
        done = CliRunner().invoke(app, [str(one) for one in arguments])
    if done.exit_code:
        raise SystemExit(f"freescale {' '.join(map(str, arguments))} ended with {done.exit_code}: {done.output}")
    return json.loads(done.stdout) if "--json" in arguments else {}


def _line(of: str, document: dict[str, Any]) -> Iterator[Any]:
    verdict, advice, collisions = document["simulation"]["verdict"], document["recommended"], document["collisions"]
    cut = f", cut to {advice['max_length']:,} events" if advice["events_cut"] else ""
    yield f"{of}{cut}"
    yield f"{verdict['ranks']}"
    for name in ("balance", "prioritized", "sm_free"):
        gain = verdict["gains"][name]
        said = "" if verdict["pays"][name] == "yes" else f": {verdict['pays'][name]}"
        yield f"{100 * gain['value']:+.0f} % ({100 * gain['low']:.0f} to {100 * gain['high']:.0f}){said}"
    yield f"{100 * advice['events_cut']:.0f} %" if advice["events_cut"] else "none"
    (usual,) = (point for point in collisions["points"] if point["axis"] == "default")
    yield f"{100 * usual['by_occurrence']['mean']:.0f} %"


def _measured(rows: list[dict[str, Any]], of: str) -> str | None:
    shares = [
        next((row["straggler %"] for row in rows if (row["data"], row["samples are"], row["run"]) == one), None)
        for one in ((of, "histories", "plain"), (of, "histories", "balanced"))
    ]
    return None if None in shares else ", ".join(f"{share:.1f}" for share in shares)


if __name__ == "__main__":
    main()
