"""Shows a fitted cost model: how well it explains the measured steps, and the line to paste."""

from typing import Any

from freescale_tools.console.terminal import Terminal


def show(terminal: Terminal, document: dict[str, Any], said: list[str]) -> None:
    left = document["simulated"]
    rows = [
        ["samples where they fall", None, None, _percent(left["as_dealt"])],
        ["tokens only", document["r2_tokens"], _percent(document["typical_error_tokens"]), _percent(left["by_tokens"])],
        ["fitted", document["r2"], _percent(document["typical_error"]), _percent(left["by_model"])],
        ["fitted, if it were exact", None, None, _percent(left["model_alone"])],
    ]
    of_ranks = document["measured_straggler"]
    notes = [
        f"From {document['rows']:,} rows: {document['steps']:,} steps, {document['ranks']:,} ranks, "
        f"{document['samples']:,} samples." + ("" if of_ranks is None else f" Straggler as measured: {of_ranks:.1%}."),
        "error: standard deviation of measured / predicted seconds. straggler: mean idle share while ranks wait for "
        f"the slowest, in {left['steps']} simulated steps of {left['ranks']} ranks, each with the error of a row.",
        *said,
    ]
    terminal.table("Cost model", ["planned by", "R2", "error", "straggler"], rows, notes=notes)
    terminal.say(f"\ncost={document['cost_model']}")


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else f"{share:.2%}"
