"""What `freescale calibrate` shows of its document: how well lengths explain the steps, what else a step costs, and
the line to paste.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from freescale_tools.report.blocks import Block, Code, Column, Document, Table
from freescale_tools.report.numbers import BYTES, COUNT, MS, NUMBER, SHARE, TEXT, many, number, percent


def calibrate_blocks(document: Document, said: Sequence[str], *, usable: bool) -> Iterator[Block]:
    """`said`: advice that belongs to the model. `usable`: show the line to paste, too."""
    left, of_ranks = document["simulated"], document["measured_straggler"]
    measured = "" if of_ranks is None else f" Straggler as measured: {percent(of_ranks)}."
    yield Table(
        title="Cost model",
        columns=(
            Column("planned by", TEXT, 0),
            Column("R2", NUMBER, 1),
            Column("error", SHARE, 2),
            Column("straggler", SHARE, 3),
        ),
        rows=[
            ("samples where they fall", None, None, left["as_dealt"]),
            ("tokens only", document["r2_tokens"], document["typical_error_tokens"], left["by_tokens"]),
            ("fitted", document["r2"], document["typical_error"], left["by_model"]),
            ("fitted, if it were exact", None, None, left["model_alone"]),
        ],
        notes=[
            f"From {many(document['rows'], 'row')}: {many(document['steps'], 'step')}, "
            f"{many(document['ranks'], 'rank')}, {many(document['samples'], 'sample')}.{measured}",
            "error: standard deviation of measured / predicted seconds. straggler: mean idle share while ranks wait "
            f"for the slowest, in {left['steps']} simulated steps of {left['ranks']} ranks, each with the error of a "
            "row.",
            *said,
        ],
    )
    yield _step_costs(document)
    run = document["run"]
    if any(run["exposed_s"].values()):
        yield Table(
            title="Exchanges of a step, mean of the ranks",
            columns=(
                Column("kind", TEXT, lambda kind: kind),
                Column("exposed", MS, lambda kind: 1e3 * run["exposed_s"][kind]),
                Column("exchanges", COUNT, run["exchanges"].get),
                Column("sent", BYTES, run["bytes"].get),
            ),
            rows=[kind for kind in run["exposed_s"] if run["exposed_s"][kind] or run["bytes"].get(kind)],
        )
    if usable:
        yield Code(title="To paste", text=f"cost={document['cost_model']}")


def _step_costs(document: Document) -> Table:
    run, intervals = document["run"], document["intervals"]
    (low, high), (least, most) = intervals["constant_s"], intervals["sample_s"]
    empty_low, empty_high = intervals["empty_sample_s"]
    empty = {"value": document["empty_sample_s"], "low": empty_low, "high": empty_high}
    rows: list[tuple[str, Any, float, str]] = [
        ("a step beside its samples", {"value": document["constant_s"], "low": low, "high": high}, 1e3, "ms"),
        ("a mean sample", {"value": (least + most) / 2, "low": least, "high": most}, 1e3, "ms"),
        ("an empty sample", document["counts_differ"] and empty, 1e3, "ms"),
        ("look-up of a row", run["lookup"] and run["lookup"]["seconds"], 1e9, "ns"),
        ("update of a row", run["update"] and run["update"]["seconds"], 1e9, "ns"),
        *((f"{name} itself, a step", given, 1e3, "ms") for name, given in document["own"].items()),
    ]
    notes = ["90 %: the range of 90 % of other draws of as many steps. Bytes are those that a rank gives."]
    if not document["counts_differ"]:
        notes.append("Steps have equal numbers of samples: what an empty sample costs is part of the step.")
    alike = []
    for key, name in (("all_to_all", "all-to-all"), ("all_reduce", "all-reduce")):
        if fit := run[key]:
            rows.append((f"{name}: latency", fit["latency_s"], 1e3, "ms"))
            rows.append((f"{name}: bandwidth", fit["bytes_per_s"], 1e-6, "MB/s"))
            alike += [f"{name}s"] if fit["alike"] else []
    if alike:
        notes.append(f"All {' and '.join(alike)} have like sizes: their latency is within the bandwidth.")

    def of(given: Document, end: str, unit: float) -> str:
        return "?" if given[end] is None else number(unit * given[end])

    return Table(
        title="What a step costs",
        columns=(
            Column("what", TEXT, 0),
            Column("value", NUMBER, lambda row: None if row[1]["value"] is None else row[2] * row[1]["value"]),
            Column("90 %", TEXT, lambda row: f"{of(row[1], 'low', row[2])} to {of(row[1], 'high', row[2])}"),
            Column("unit", TEXT, 3),
        ),
        rows=[row for row in rows if row[1]],
        notes=notes,
    )
