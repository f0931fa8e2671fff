"""Shows collisions: shares along every axis, and the bytes that a rank sends."""

from typing import Any

from freescale_tools.console.terminal import Terminal

_AXES = {"order": "Order", "batch_size": "Batch size", "ranks": "Ranks", "max_length": "History length"}
_CLASSES = {
    "ids": "ids, 8 bytes each",
    "collision_rows": "rows of collisions",
    "exclusive_rows": "other rows",
    "collision_gradients": "gradients of collisions",
    "exclusive_gradients": "other gradients",
}


def show(terminal: Terminal, found: dict[str, Any]) -> None:
    for axis, title in _AXES.items():
        points = [point for point in found["points"] if point["axis"] == axis]
        terminal.table(
            f"Shared with the batch before, % (mean/P50/P99), by {title.lower()}",
            [title, "Pairs", "By occurrence", "By row", "Ids", "Distinct"],
            [
                [
                    point[axis],
                    point["pairs"],
                    _shares(point["by_occurrence"]),
                    _shares(point["by_row"]),
                    round(point["occurrences"]),
                    round(point["distinct"]),
                ]
                for point in points
            ],
        )
    total = sum(found["bytes"].values())
    terminal.table(
        f"Bytes a rank sends in a step, {found['dim']} floats a row",
        ["class", "bytes", "%"],
        [
            [name, round(found["bytes"][key]), 100 * found["bytes"][key] / total if total else None]
            for key, name in _CLASSES.items()
        ],
        notes=_notes(found),
    )


def _shares(spread: dict[str, float]) -> str:
    return "/".join(f"{100 * spread[key]:.1f}" for key in ("mean", "p50", "p99"))


def _notes(found: dict[str, Any]) -> list[str]:
    notes = [
        f"Where nothing else is said: {found['ranks']} ranks x {found['batch_size']} samples, histories of at most "
        f"{found['max_length']:,} events. {found['sampled_pairs']} pairs of batches were counted exactly; "
        f"{found['read_share']:.1%} of the rows were read.",
        "Rows travel once per rank, gradients for every occurrence; what a rank owns itself is not counted.",
    ]
    if found["left_out"]:
        spots = ", ".join(f"{one['ranks']} x {one['batch_size']}" for one in found["left_out"])
        notes.append(
            f"Left out, because two such batches are more than the {found['rows_read']:,} rows read: {spots} "
            "(ranks x samples)."
        )
    return [*notes, *found["notes"]]
