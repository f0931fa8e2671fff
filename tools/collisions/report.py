"""The report of `freescale collisions`; a profile has its section, too."""

from collections.abc import Iterator, Sequence
from typing import Any

from freescale_tools.report import plots
from freescale_tools.report.blocks import (
    Block,
    Column,
    Document,
    Look,
    Plot,
    Points,
    Report,
    Section,
    Table,
    Tile,
)
from freescale_tools.report.closing import closed, in_short
from freescale_tools.report.numbers import (
    BYTES,
    COUNT,
    NUMBER,
    PERCENTS,
    SHARE,
    TEXT,
    count,
    many,
    percent,
    short,
    size,
)
from freescale_tools.report.plots import Axis

ASSUMPTION = (
    "Collisions: counted exactly on sampled pairs of consecutive global batches. Bytes: 8 for an id; embedding "
    "rows go once for each distinct row of a rank, their gradients once for each occurrence, 4 a value."
)
_TABLE_ASSUMPTIONS = (
    "Rows of the embedding table: ids are hashed first (SplitMix64), and all rows are one bucket. Ids take their rows "
    "one after another, in the order of the rows of the data, or of time if a TTL is given. On CUDA, ids of one batch "
    "race for rows.",
    "An id shares its row if at its last occurrence it was given a row that another id was given at its own last "
    "occurrence, and the row was not taken from its owner between the two. Of the ids that share one row, all "
    "but one have no row of their own. By occurrence, every id counts as often as it occurs.",
)
_FEW = 0.001
"""Share of ids that share a row, below which a probe length is good enough."""
_AXES = {
    "batch_size": ("batch size", "samples of a rank"),
    "ranks": ("ranks", "ranks"),
    "max_length": ("longest history", "events of a history"),
}
"""Axis -> its name, and the unit of its values."""
_CLASSES = {
    "ids": ("IDs", plots.GREY),
    "collision_rows": ("collision rows", plots.RED),
    "collision_gradients": ("collision gradients", plots.AMBER),
    "exclusive_rows": ("exclusive rows", plots.BLUE),
    "exclusive_gradients": ("exclusive gradients", plots.SKY),
}
_RATE = "rows also in the batch before (%)"
_WAYS = {"by_occurrence": ("by occurrence", plots.BLUE, "circle"), "by_row": ("by row", plots.GREEN, "square")}


def collisions_report(document: Document) -> Report:
    """The report of a document of kind `collisions`."""
    found = document["collisions"]
    tiles = [tile] if (tile := collision_tile(found)) else []
    total, waited = _bytes_sent(found)
    if total:
        note = f"{size(waited)} of it in collisions, which have to be waited for"
        tiles.append(Tile(name="Sent by a rank in a step", value=size(total), note=note))
    return closed(
        document,
        title="Collisions between consecutive batches",
        facts=[
            ("IDs", short(found["column"])),
            ("Rows read", f"{count(found['rows_read'])} ({percent(found['read_share'])})"),
        ],
        sections=[in_short(tiles), collision_section(found), *([_table_section(found)] if "table" in found else [])],
        assumptions=[ASSUMPTION, *(_TABLE_ASSUMPTIONS if "table" in found else ())],
        skipped=found.get("skipped") or (),
    )


def collision_tile(found: Document) -> Tile | None:
    """The rate at the settings that were asked for; None where it was not counted."""
    for point in found["points"]:
        if point["axis"] == "default":
            occurrence, row = point["by_occurrence"], point["by_row"]
            note = f"P99 {percent(occurrence['p99'])}; by distinct row {percent(row['mean'])}"
            return Tile(name="Collisions, by occurrence", value=percent(occurrence["mean"]), note=note)
    return None


def collision_section(found: Document, *, brief: bool = False) -> Section:
    """Rates along every axis, and bytes by class. `brief`: on the terminal only the rates by order."""
    return Section(
        id="collisions",
        title="Collisions",
        intro=f"A row of {short(found['column'])} that the batch before also uses cannot be fetched ahead: it has to "
        "be updated first. By occurrence every event counts, which is what gradients weigh; by row each distinct row "
        f"counts once. Where nothing else is said: {many(found['ranks'], 'rank')} of {count(found['batch_size'])} "
        f"samples, histories of at most {count(found['max_length'])} events; {count(found['sampled_pairs'])} pairs of "
        "batches were counted.",
        blocks=tuple(_blocks(found, brief)),
    )


def _bytes_sent(found: Document) -> tuple[float, float]:
    """(all bytes, bytes of collisions) that a rank sends in a step."""
    sent = {name: value or 0.0 for name, value in found["bytes"].items()}
    return sum(sent.values()), sent.get("collision_rows", 0.0) + sent.get("collision_gradients", 0.0)


def _blocks(found: Document, brief: bool) -> Iterator[Block]:
    by_axis = {axis: [one for one in found["points"] if one["axis"] == axis] for axis in ("order", *_AXES)}
    if points := by_axis["order"]:
        said = ", ".join(f"{percent(one['by_occurrence']['mean'])} in {one['order']} order" for one in points)
        table = _rates(points, Column("order", TEXT, "order"), "order of the samples")
        means = [one for one in table.columns if "mean" in one.name]
        figure = plots.bars(points, table.columns[0], means, x=Axis(_RATE))
        yield _plot(table, f"By occurrence: {said}.", figure, on_terminal=True)
    for axis, (name, unit) in _AXES.items():
        if not (points := sorted(by_axis[axis], key=lambda one: one[axis])):
            continue
        first, last = points[0], points[-1]
        table = _rates(points, Column(name, COUNT, axis), name)
        aid = (
            f"From {count(first[axis])} to {count(last[axis])} {unit}, the share of occurrences goes from "
            f"{percent(first['by_occurrence']['mean'])} to {percent(last['by_occurrence']['mean'])} "
            f"(P99 {percent(last['by_occurrence']['p99'])}), that of distinct rows from "
            f"{percent(first['by_row']['mean'])} to {percent(last['by_row']['mean'])}."
        )
        figure = plots.lines(points, table.columns, x=Axis(unit, "measured"), y=Axis(_RATE))
        yield _plot(table, aid, figure, on_terminal=not brief)
    if _bytes_sent(found)[0]:
        yield _bytes(found, on_terminal=not brief)
    notes = list(found.get("notes") or ())
    if found.get("left_out"):
        named = ", ".join(f"{one['ranks']} x {one['batch_size']}" for one in found["left_out"])
        notes.append(f"Left out, because two such batches are more rows than were read: {named} (ranks x samples).")
    if notes:
        yield Points(title="Notes", sentences=notes)


def _table_section(found: Document) -> Section:
    """How many ids share a row of the embedding table, by way, and which probe length to choose."""
    table = found["table"]
    order = "in the order of the data" if table["ttl"] is None else "in order of time"
    intro = (
        f"The {many(table['distinct'], 'distinct id')} that were read occur {count(table['occurrences'])} times. They "
        f"take rows of an embedding table one after another, {order}."
    )
    if table["ttl"] is not None:
        intro += (
            f" The data spans {many(table['hours'], 'hour')}; an id that has not occurred for more than "
            f"{many(table['ttl'], 'hour')} may lose its row to another one."
        )
    columns = [
        Column("way", TEXT, _way),
        Column("by id", SHARE, "by_id", look=Look(color=plots.GREEN)),
        Column("by occurrence", SHARE, "by_occurrence", look=Look(color=plots.BLUE)),
        Column("no row of their own", SHARE, "without_own"),
        Column("rows in use", SHARE, "occupancy"),
    ]
    if table["ttl"] is not None:
        columns.append(Column("evictions per million", COUNT, "evictions_per_million"))
    shown = Table(
        title=f"Ids that share a row of a table of {count(table['rows'])} rows",
        columns=columns,
        rows=table["ways"],
        notes=list(_table_notes(found)),
    )
    plot = Plot(
        title=shown.title,
        aid=_probe_to_choose(table),
        figure=plots.bars(table["ways"], columns[0], columns, x=Axis("share of ids or of their occurrences (%)")),
        table=shown,
        height=120 + 60 * len(table["ways"]),
        on_terminal=True,
    )
    return Section(id="table", title="Rows of an embedding table", intro=intro, blocks=(plot,))


def _way(one: Document) -> str:
    return "modulo" if one["max_probe"] is None else f"MPZCH, probe {count(one['max_probe'])}"


def _probe_to_choose(table: Document) -> str:
    """The smallest probe length at which few ids share a row; or that there is none."""
    modulo, *ways = table["ways"]
    if not table["distinct"]:
        return "There are no ids."
    size = f"{many(table['distinct'], 'distinct id')}, {count(table['rows_per_id'])} rows per id"
    few = f"{100 * _FEW:g}\u00a0%"
    for one in sorted(ways, key=lambda way: way["max_probe"]):
        if one["by_id"] < _FEW:
            return (
                f"Choose a probe length of {count(one['max_probe'])}, the smallest of these at which fewer than {few} "
                f"of ids share a row: {percent(one['by_id'])} do. By modulo hashing {percent(modulo['by_id'])} do "
                f"({size})."
            )
    least = min(ways, key=lambda way: way["by_id"])
    return (
        f"The table is too small ({size}): even with a probe length of {count(least['max_probe'])}, "
        f"{percent(least['by_id'])} of ids share a row, and not fewer than {few}. Give it more rows"
        f"{', or try a longer probe' if table['rows_per_id'] > 1 else ''}."
    )


def _table_notes(found: Document) -> Iterator[str]:
    table = found["table"]
    if table["distinct"] > table["rows"]:
        yield (
            f"There are more ids ({count(table['distinct'])}) than rows ({count(table['rows'])}): not all can have a "
            "row of their own at a time."
        )
    if found["rows_read"] < found["rows"]:
        yield (
            f"Only {percent(found['read_share'])} of the rows of the data were read: all of them may have more "
            "distinct ids, and need a larger table."
        )
    if table["every"] > 1:
        yield f"Of the rows that were read, one in {count(table['every'])} counts here, because they have so many ids."
    if table["without_time"]:
        yield f"{many(table['without_time'], 'row')} of the data without a time are left out here."


def _rates(points: Sequence[Document], first: Column, by: str) -> Table:
    columns = [
        Column(
            f"{name}, {figure}",
            PERCENTS,
            f"{key}.{figure.lower()}",
            look=Look(color=color, dash=dash, symbol=f"{symbol}{'' if dash == 'solid' else '-open'}") if dash else None,
        )
        for key, (name, color, symbol) in _WAYS.items()
        for figure, dash in (("mean", "solid"), ("P50", ""), ("P99", "dot"))
        if (key, figure) != ("by_row", "P99")
    ]
    return Table(
        title=f"Shared with the batch before (%), by {by}",
        columns=(
            first,
            Column("pairs", COUNT, "pairs"),
            *columns,
            Column("occurrences", COUNT, lambda one: round(one["occurrences"])),
            Column("distinct rows", COUNT, lambda one: round(one["distinct"])),
        ),
        rows=points,
    )


def _plot(table: Table, aid: str, figure: Any, *, on_terminal: bool) -> Plot:
    return Plot(title=table.title, aid=aid, figure=figure, table=table, height=380, half=True, on_terminal=on_terminal)


def _duplicates(sent: Document, total: float) -> str:
    """How many ids of a rank's batch are duplicates, and what index dedup would send."""
    rows = sent["collision_rows"] + sent["exclusive_rows"]
    gradients = sent["collision_gradients"] + sent["exclusive_gradients"]
    distinct = rows / gradients
    return (
        f"{percent(1 - distinct)} of the ids of a rank's batch are duplicates. With TorchRec's index dedup, ids and "
        f"gradients travel once per rank, too: {size(2 * rows + sent['ids'] * distinct)} instead of {size(total)}."
    )


def _bytes(found: Document, *, on_terminal: bool) -> Block:
    total, waited = _bytes_sent(found)
    rows = [(*_CLASSES[key], value) for key, value in found["bytes"].items() if value is not None]
    table = Table(
        title="Bytes that leave a rank in a step, by class (MB)",
        columns=(
            Column("class", TEXT, 0),
            Column("sent", BYTES, 2),
            Column("share", SHARE, lambda row: row[2] / total),
        ),
        rows=rows,
        notes=[
            "Rows travel once per rank, gradients for every occurrence; what a rank owns itself is not counted.",
            _duplicates(found["bytes"], total),
        ],
    )
    sent = Column("sent", NUMBER, lambda row: row[2] / 1e6, look=Look(color=[color for _, color, _ in rows]))
    return Plot(
        title=table.title,
        aid=f"With embeddings of {count(found['dim'])} float32 values, a rank sends {size(total)} a step. The "
        f"{size(waited)} of collisions ({percent(waited / total)}) have to be waited for, the rest can travel beside "
        "compute.",
        figure=plots.bars(rows, table.columns[0], [sent], x=Axis("sent by a rank in a step (MB)")),
        table=table,
        height=290,
        on_terminal=on_terminal,
    )
