"""The demo."""

from collections.abc import Sequence

from figures.records import record, table

_RUNS = "plain / prioritized / balanced / both"


def whole_histories() -> None:
    demo = record("demo")
    names = dict.fromkeys(row["data"] for row in demo.where(**{"samples are": "histories"}))
    table(
        ["data", f"straggler share %, {_RUNS}", "exposed communication, ms", "ids that collide", "loss; NE"],
        [
            [
                name if name == "synthetic" else f"`{name}`",
                _each(runs, "straggler %", ".1f"),
                _each(runs, "exposed ms", ".0f"),
                _collisions(runs),
                _loss(runs),
            ]
            for name in names
            if (runs := demo.where(**{"data": name, "samples are": "histories"}))
        ],
        demo,
    )


def requests() -> None:
    demo = record("demo")
    names = dict.fromkeys(row["data"] for row in demo.where(**{"samples are": "requests"}))
    table(
        [
            "requests of",
            f"straggler share %, {_RUNS} / shared / shared, both",
            "exposed communication, ms",
            "events held",
            "loss; NE",
        ],
        [
            [
                f"`{name}`, {runs[0]['samples a rank']} a rank",
                _each(runs, "straggler %", ".1f"),
                _each(runs, "exposed ms", ".0f"),
                f"{runs[-1]['events held %']:.0f} %",
                _loss(runs),
            ]
            for name in names
            if (runs := demo.where(**{"data": name, "samples are": "requests"}))
        ],
        demo,
    )


def _each(runs: Sequence[dict], column: str, form: str) -> str:
    return " / ".join(f"{run[column]:{form}}" for run in runs)


def _collisions(runs: Sequence[dict]) -> str:
    (share,) = {f"{run['ids that collide %']:.0f} %" for run in runs if run["ids that collide %"] is not None}
    return share


def _loss(runs: Sequence[dict]) -> str:
    return f"{runs[0]['loss']:.5f}; {runs[0]['NE']:.5f}"
