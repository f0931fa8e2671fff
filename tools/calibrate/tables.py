"""Shows a fitted cost model: how well it explains the measured steps, and the line to paste."""

from typing import Any

from freescale_tools.console.terminal import Terminal


def show(terminal: Terminal, document: dict[str, Any], said: list[str], *, usable: bool) -> None:
    """`usable`: print the line to paste, too."""
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
    _show_run(terminal, document)
    if usable:
        terminal.say(f"\ncost={document['cost_model']}")


def _show_run(terminal: Terminal, document: dict[str, Any]) -> None:
    run, intervals = document["run"], document["intervals"]
    rows = [
        ["a step beside its samples", _ms(document["constant_s"]), _range(*map(_ms, intervals["constant_s"])), "ms"],
        ["a mean sample", _ms(sum(intervals["sample_s"]) / 2), _range(*map(_ms, intervals["sample_s"])), "ms"],
    ]
    for kind, what in (("lookup", "look-up of a row"), ("update", "update of a row")):
        if run[kind]:
            rows.append([what, *_value(run[kind]["seconds"], 1e9), "ns"])
    for name, given in document["own"].items():
        if given:
            rows.append([f"{name} itself, a step", *_value(given, 1e3), "ms"])
    for name, what in (("all_to_all", "all-to-all"), ("all_reduce", "all-reduce")):
        if run[name]:
            rows.append([f"{what}: latency", *_value(run[name]["latency_s"], 1e3), "ms"])
            rows.append([f"{what}: bandwidth", *_value(run[name]["bytes_per_s"], 1e-6), "MB/s"])
    notes = ["90 %: the range of 90 % of other draws of as many steps. Bytes are those that a rank gives."]
    alike = [what for name, what in (("all_to_all", "all-to-alls"), ("all_reduce", "all-reduces")) if _alike(run[name])]
    if alike:
        notes.append(f"All {' and '.join(alike)} have like sizes: their latency is within the bandwidth.")
    terminal.table("What a step costs", ["what", "value", "90 %", "unit"], rows, notes=notes)
    if any(run["exposed_s"].values()):
        kinds = [kind for kind in run["exposed_s"] if run["exposed_s"][kind] or run["bytes"].get(kind)]
        terminal.table(
            "Exchanges of a step, mean of the ranks",
            ["kind", "exposed ms", "exchanges", "MB"],
            [
                [k, _ms(run["exposed_s"][k]), run["exchanges"].get(k), run["bytes"].get(k, 0) / 1e6 or None]
                for k in kinds
            ],
        )


def _alike(fit: dict[str, Any] | None) -> bool:
    return bool(fit and fit["alike"])


def _value(given: dict[str, float | None], unit: float) -> tuple[float | None, str]:
    value, low, high = (None if one is None else one * unit for one in map(given.get, ("value", "low", "high")))
    return value, _range(low, high)


def _range(low: float | None, high: float | None) -> str:
    return f"{'?' if low is None else f'{low:.3g}'} to {'?' if high is None else f'{high:.3g}'}"


def _ms(seconds: float) -> float:
    return 1e3 * seconds


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else f"{share:.2%}"
