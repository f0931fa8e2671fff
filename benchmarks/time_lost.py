"""How much time ranks lose to waiting for the slowest, plain and balanced, beside what `freescale profile` predicts.

    python benchmarks/time_lost.py --data FOLDER [--sets NAME ...]

Five sets (`common/history_sets.py`), 2 and 4 ranks, in order of the files and shuffled, plain and balanced as a profile
recommends it. Loaders of all ranks deal the batches, then one process trains the same small model with causal attention
on those of every rank: seconds are CPU seconds of forward and backward. Of a set the cost model is fitted first, by
`freescale calibrate`, on plain steps of one rank with another seed and with three batch sizes.

`--data`: the folder of oss_events and online_retail; without it only the synthetic sets are measured. `--sets` measures
some anew, the others stay as the record has them. `adviser.py` compares. About 10 minutes.

Letters: S steps, W ranks.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common.history_sets import COLUMN, HistorySet, history_sets
from common.ranks import before_others, run_ranks
from common.table import argument_parser, emit
from parts.time_lost_rank import Batch, Condition, Trainer, deal

from freescale_tools.calibrate.calibration import Calibration, load_calibration
from fsdata.balance.packing.plan import straggler_share

RANKS = (2, 4)
BATCH_SIZE = 16
CALIBRATED = (8, 16, 32)  # batch sizes: among equal ones, samples cannot be told apart from the step
_CALIBRATED_STEPS = 60  # of each
COLUMNS = (
    "set", "ranks", "order", "batches", "steps", "ms of a mean rank", "time lost", "straggler share",
    "time lost by the fitted cost",
)  # fmt: skip


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="that holds oss_events and online_retail")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="only these; the others stay as in the record")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="freescale-time-lost-") as name:
        sets = list(history_sets(Path(name), given.data))
        unknown = set(given.sets or ()) - {of.name for of in sets}
        if unknown:
            parser.error(f"--sets {' '.join(sorted(unknown))}: there are {', '.join(of.name for of in sets)}")
        chosen = [of for of in sets if given.sets is None or of.name in given.sets]
        others = [of.name for of in sets if of not in chosen]
        _measure(chosen, Path(name), record=_others(given.results / "time_lost.json", others), results=given.results)


def _measure(sets: list[HistorySet], folder: Path, *, record: dict[str, Any], results: Path) -> None:
    """record: of the sets that are not measured anew."""
    before_others()
    trainer = Trainer()
    calibrations = {of.name: _calibrate(of, trainer, folder) for of in sets}
    profiles = {of.name: {ranks: _profile(of, ranks, folder) for ranks in RANKS} for of in sets}
    rows: list[list[Any]] = []
    noise: list[list[Any]] = []  # set, ranks, time lost, the same again, time lost of ranks with equal batches
    for ranks in RANKS:
        conditions = [
            Condition(
                of=of, batch_size=BATCH_SIZE, shuffle=shuffle, cost=cost,
                method=profiles[of.name][ranks]["method"],
            )
            for of in sets
            for shuffle in (False, True)
            for cost in (None, calibrations[of.name].cost)
        ]  # fmt: skip
        for condition, *dealt in zip(conditions, *run_ranks(ranks, deal, conditions), strict=True):
            rows.append(_row(condition, dealt, trainer, calibrations[condition.of.name]))
            print(*rows[-1], file=sys.stderr, flush=True)
            if condition.of is sets[0] and condition.shuffle and condition.cost:
                again = _row(condition, dealt, trainer, calibrations[condition.of.name])
                equal = time_lost(_seconds(trainer, dealt[:1] * ranks))
                noise.append([sets[0].name, ranks, rows[-1][6], again[6], equal])
    emit(
        "time_lost",
        "Time lost to waiting for the slowest rank, by CPU time",
        COLUMNS,
        record["rows"] + rows,
        list(_notes(record["noise"] + noise)),
        {
            "batch_size": BATCH_SIZE,
            "noise": record["noise"] + noise,
            "sets": record["sets"]
            | {
                of.name: {
                    "about": of.about,
                    "max_length": of.max_length,
                    "calibration": json.loads(_calibration_file(of, folder).read_text()),
                }
                for of in sets
            },
            "profiles": record["profiles"] | profiles,
        },
        data=", ".join([*record["sets"], *(of.name for of in sets)]),
        results=results,
    )


def time_lost(seconds_SW: np.ndarray) -> float:
    """1 - sum over the steps of the mean rank / sum of the slowest rank: a step counts by its length."""
    return 1.0 - float(seconds_SW.mean(axis=1).sum() / seconds_SW.max(axis=1).sum())


def _row(condition: Condition, dealt: list[list[Batch]], trainer: Trainer, fitted: Calibration) -> list[Any]:
    """Of `COLUMNS`. dealt: of each rank."""
    seconds_SW = _seconds(trainer, dealt)
    costs_SW = np.array([[float(fitted.cost({COLUMN: lengths}).sum()) for _, lengths in rank] for rank in dealt]).T
    return [
        condition.of.name,
        len(dealt),
        "shuffled" if condition.shuffle else "file",
        "balanced" if condition.cost else "plain",
        len(seconds_SW),
        1e3 * float(seconds_SW.mean()),
        time_lost(seconds_SW),
        float(np.mean([straggler_share(step) for step in seconds_SW])),
        time_lost(fitted.seconds_per_cost * costs_SW + fitted.constant_s),
    ]


def _seconds(trainer: Trainer, dealt: list[list[Batch]]) -> np.ndarray:
    """float64 [S, W]."""
    return np.array([trainer.seconds(list(step)) for step in zip(*dealt, strict=True)])


def _others(path: Path, names: list[str]) -> dict[str, Any]:
    """{rows, noise, sets, profiles} of these sets in the record that exists."""
    if not names or not path.exists():
        return {"rows": [], "noise": [], "sets": {}, "profiles": {}}
    record = json.loads(path.read_text())
    extra = record["extra"]
    return {
        "rows": [list(row.values()) for row in record["rows"] if row["set"] in names],
        "noise": [one for one in extra["noise"] if one[0] in names],
        "sets": {name: one for name, one in extra["sets"].items() if name in names},
        "profiles": {name: one for name, one in extra["profiles"].items() if name in names},
    }


def _notes(noise: list[list[Any]]) -> Iterator[str]:
    yield f"{BATCH_SIZE} samples a rank. time lost: 1 - sum of mean ranks / sum of slowest ranks."
    yield "straggler share: the mean over the steps of 1 - mean / slowest, as the paper defines it."
    for name, ranks, once, again, equal in noise:
        yield (
            f"Noise: {name}, {ranks} ranks, shuffled, balanced: {once:.1%}, measured again {again:.1%}; "
            f"{equal:.1%} where all ranks train on the batches of one."
        )


def _calibrate(of: HistorySet, trainer: Trainer, folder: Path) -> Calibration:
    """Fit the cost of a sample, as a user does, and keep the calibration in `folder`."""
    conditions = [
        Condition(of=of, batch_size=size, shuffle=True, cost=None, seed=1, steps=_CALIBRATED_STEPS)
        for size in CALIBRATED
    ]
    lines = ["step,rank,seconds,lengths"]
    for batch in (batch for dealt in deal(0, 1, conditions) for batch in dealt):
        (seconds,) = trainer.seconds([batch])
        _, lengths = batch
        counted = zip(*np.unique(lengths, return_counts=True), strict=True)
        samples = ";".join(f"{length}:{count}" for length, count in counted)
        lines.append(f"{len(lines)},0,{seconds!r},{samples}")
    measured = folder / f"{of.name}.csv"
    measured.write_text("\n".join(lines))
    _freescale("calibrate", measured, "--out", _calibration_file(of, folder))
    return load_calibration(_calibration_file(of, folder))


def _calibration_file(of: HistorySet, folder: Path) -> Path:
    return folder / f"{of.name}.calibration.json"


def _profile(of: HistorySet, ranks: int, folder: Path) -> Any:
    answer = _freescale(
        "profile", *of.paths, "--sequence", COLUMN, "--ranks", ranks, "--batch-size", BATCH_SIZE,
        "--max-length", of.max_length, "--calibration", _calibration_file(of, folder),
        "--out", folder / f"{of.name}-{ranks}", "--json",
    )  # fmt: skip
    return json.loads(answer)["balance"]


def _freescale(*arguments: Any) -> str:
    """What the command prints. It is a process of its own, as a user's is."""
    command = [sys.executable, "-c", "from freescale_tools.cli import app; app()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"freescale {' '.join(command[3:])} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
