"""Shows a profile: tables and sentences."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from freescale_tools.console.terminal import Terminal
from freescale_tools.model.batches import BATCHES
from freescale_tools.profile.recommend import share_text
from freescale_tools.profile.tradeoff import tradeoff_notes
from freescale_tools.report.numbers import dated_spans, decimals
from freescale_tools.simulate.tables import show_verdict

Document = Mapping[str, Any]
_SHORT = {"vbs-contiguous": "contiguous", "hierarchical": "by node"}
_QUANTILES = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9"}


def show(terminal: Terminal, document: Document) -> None:
    """Show every part that the document has."""
    terminal.say(
        f"{document['files']:,} files, {document['row_groups']:,} row groups, {document['rows']:,} rows, "
        f"{document['bytes'] / 1e6:,.1f} MB"
    )
    if document["histories"]:
        terminal.say(_histories(document["histories"]))
    if document["simulation"]:
        show_verdict(terminal, document["simulation"])
    columns = {**document["sequences"], **document["candidates"]}
    _lengths(terminal, columns, quick=document["mode"] == "quick")
    name, first = next(iter(document["sequences"].items()))
    if first["longest"]:
        rows = [[one["file"], one["row"], one["length"]] for one in first["longest"]]
        terminal.table(f"Longest rows of {name}", ["file", "row", "events"], rows)
    if first["drift"]:
        keys = ("rows", "mean", "p50", "p95")
        begins, ends, unit = dated_spans(first["drift"])
        figures = [[one[key] for key in keys] for one in first["drift"]]
        rows = [[*times, *own] for *times, own in zip(begins, ends, figures, strict=True)]
        terminal.table(f"Lengths of {name} over time ({unit})", ["from", "before", *keys], rows)
    if document["stragglers"]:
        _stragglers(terminal, document["stragglers"])
    if document["collisions"]:
        _collisions(terminal, document["collisions"])
    if document["simulation"]:
        _gain(terminal, document["simulation"])
    if document["sharing"]:
        _sharing(terminal, document["sharing"])
    if document["recommended"]:
        _recommended(terminal, document["recommended"])
    if document["tradeoff"]:
        _tradeoff(terminal, document["tradeoff"])


def _histories(stored: Document) -> str:
    return (
        f"as of {stored['time']}: histories by {stored['on']}, stored once: {stored['keys']:,} keys, "
        f"{stored['events']:,} events, {stored['bytes'] / 1e6:,.1f} MB"
    )


def _lengths(terminal: Terminal, columns: Document, *, quick: bool) -> None:
    notes = [note for name, found in columns.items() for note in _skew(name, found)]
    if quick:
        rows = [[name, found["rows"], found["events"], found["mean"]] for name, found in columns.items()]
        unsure = sum(found["row_groups_without_statistics"] for found in columns.values())
        if unsure:
            notes.append(
                f"{unsure:,} row groups have no statistics: there each empty or null list counts as an event, and "
                "events and means are upper bounds."
            )
        terminal.table("Lengths, from footers", ["column", "rows", "events", "mean"], rows, notes=notes)
        return
    lines: list[tuple[str, Callable[[Document], Any]]] = [
        ("rows", lambda found: found["rows"]),
        ("null", lambda found: found["null"]),
        ("empty", lambda found: found["empty"]),
        ("events", lambda found: found["events"]),
        ("null elements", lambda found: found["null_elements"]),
        ("mean", lambda found: found["mean"]),
        *((name, lambda found, key=key: found["quantiles"][key]) for key, name in _QUANTILES.items()),
        ("longest", lambda found: found["max"]),
        ("% of events in the longest 1 %", lambda found: 100 * found["top1_share"]),
    ]
    rows = [[name, *(of(found) for found in columns.values())] for name, of in lines]
    terminal.table("Lengths", ["", *columns], rows, notes=notes)


def _skew(name: str, found: Document) -> list[str]:
    files = sorted((one for one in found["per_file"] if one["rows"]), key=lambda one: one["mean"])
    if len(files) < 2:
        return []
    low, high = files[0], files[-1]
    return [f"{name}, mean by file: {low['mean']:,.4g} ({low['file']}) to {high['mean']:,.4g} ({high['file']})."]


def _stragglers(terminal: Terminal, grid: Document) -> None:
    default = grid["default"]
    rows = [
        [
            point["max_length"],
            _percent(point["sparsity"]),
            *(
                _percent(point["straggler"][method], point.get("straggler_error", {}).get(method))
                for method in grid["methods"]
            ),
            _percent(point["lower_bound"]),
        ]
        for point in grid["points"]
        if point["axis"] == "max_length"
    ]
    terminal.table(
        f"Straggler %: {default['ranks']} ranks x {default['batch_size']} samples, {default['cost']}",
        ["longest", "padding", *(_SHORT.get(method, method) for method in grid["methods"]), "bound"],
        rows,
        notes=[
            "The mean wait of a rank by the time of a step, by the longest history kept. bound: no plan with equal "
            "counts gets below it, because one sample may cost more than a mean rank. padding: share of a batch, if it "
            "were padded. No digit is smaller than the standard error of the drawn steps. Samples of a batch are drawn "
            "from all files (shuffle=True): in the order of the files, ranks without balancing wait differently."
        ],
    )


def _tradeoff(terminal: Terminal, found: Document) -> None:
    money, counted = found["gpu_hour_price"] is not None, found["collisions_max_length"] is not None

    def collisions(point: Document) -> float | None:
        return None if point["collisions"] is None else _percent(point["collisions"])

    rows = [
        [
            point["batch_size"],
            point["max_length"],
            _percent(point["straggler"], point["straggler_error"]),
            _percent(point["events_lost"]),
            *([collisions(point)] if counted else []),
            point["steps"],
            point["gpu_hours"],
            *([point["money"]] if money else []),
            point["bytes"] / 1e6,
        ]
        for point in found["points"]
    ]
    terminal.table(
        f"Trade-off table: {found['ranks']} ranks, {found['method']}",
        [
            "samples",
            "longest",
            "straggler %",
            "lost %",
            *(["collisions %"] if counted else []),
            "steps",
            "GPU hours",
            *(["money"] if money else []),
            "MB",
        ],
        rows,
        notes=tradeoff_notes(found),
    )


def _percent(share: float, error: float | None = None) -> float:
    allowed = decimals(error)
    return round(100 * share, 2 if allowed is None else min(allowed, 2))


def _collisions(terminal: Terminal, found: Document) -> None:
    rows = [
        [
            point["order"],
            point["pairs"],
            *(_percent(point[way][key]) for way in ("by_occurrence", "by_row") for key in ("mean", "p50", "p99")),
        ]
        for point in found["points"]
        if point["axis"] == "order"
    ]
    where = f"{found['ranks']} ranks x {found['batch_size']} samples of at most {found['max_length']:,} events"
    headings = ["order", "pairs", "occurrences, mean", "p50", "p99", "rows, mean", "p50", "p99"]
    terminal.table(f"Collisions of {found['column']}, % of consecutive batches: {where}", headings, rows)


def _gain(terminal: Terminal, found: Document) -> None:
    steps = {(point["ranks"], point["way"]): point for point in found["points"]}
    carried = found["carried"]["ranks"] or 0
    rows = []
    for one in found["gain"]:
        before, whole = steps[one["ranks"], found["over"]], steps[one["ranks"], "all"]
        speeds = round(before["qps"]), round(whole["qps"])
        enough = "yes" if one["ranks"] <= carried else "no"
        gains = [f"{one[key]:+.0%}" for key in ("balance", "communication", "qps_gain")]
        rows.append([one["ranks"], before["step_ms"], whole["step_ms"], *speeds, *gains, enough])
    terminal.table(
        f"What FreeScale would bring over TrainPipelineSparseDist on {found['hardware']['name']}",
        [
            "ranks",
            "step ms, SparseDist",
            "with all",
            "samples/s",
            "with all",
            "balancing",
            "fscomm",
            "both",
            "enough rows",
        ],
        rows,
        notes=[
            f"enough rows: the {found['carried']['rows']:,} rows make at least {BATCHES} different global batches.",
            "fscomm: prioritized and SM-free, over TrainPipelineSparseDist that is balanced.",
            "Simulated; every assumed parameter is in profile.json. `freescale simulate` takes other hardware.",
        ],
    )


def _sharing(terminal: Terminal, found: Document) -> None:
    rows = [
        [
            point["order"],
            point["batch_size"],
            "yes" if point["balanced"] else "no",
            round(point["events"]),
            _percent(point["ratio"]),
            sum(point["bytes_saved"].values()) / 1e6,
            _percent(point["straggler_shared"]),
            point["step_ms"],
            point["step_ms"] - point["step_ms_shared"],
        ]
        for point in found["points"]
    ]
    headings = ["order", "samples", "balanced", "events", "held %", "MB saved", "straggler %", "step ms", "ms saved"]
    where = f"{found['ranks']} ranks, histories of at most {found['max_length']:,} events"
    terminal.table(
        f"What share={found['share']!r} saves: {where}",
        headings,
        rows,
        notes=[
            "By rank and step. events: of its samples; held: of these, with windows of a history merged.",
            f"MB saved: of what leaves a rank. An event has {8 * found['fields']} bytes of ids, {4 * found['dim']} of "
            "rows and as many of gradients. Where equal ids are looked up once anyway (fscomm), rows are not saved.",
            "balanced: Balance keeps samples of one history on one rank.",
            f"step ms: without sharing, simulated on {found['hardware']}; TorchRec's pipeline, balanced with all of "
            "FreeScale. Shared events are read, moved, looked up, sent and updated once; the model computes as before.",
        ],
    )


def _recommended(terminal: Terminal, found: Document) -> None:
    unbalanced = share_text(found["straggler_none"], found["straggler_none_error"])
    rows: Sequence[Sequence[Any]] = [
        ["max_length", f"{found['max_length']:,}"],
        ["method", found["method"]],
        ["cost model", found["cost_model"]],
        ["max_tokens, per rank", f"{found['max_tokens']:,}"],
        ["events cut off", share_text(found["events_cut"])],
        ["straggler", f"{share_text(found['straggler'], found['straggler_error'])} ({unbalanced} unbalanced)"],
    ]
    terminal.table("Recommended", ["setting", "value"], rows, notes=found["why"])
    terminal.say("")
    terminal.say(found["code"])
