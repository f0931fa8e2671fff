"""The report of `freescale profile`: one answer, then what it rests on.

The answer is what a terminal shows: a sentence for each remedy, what ranks wait in both orders, and code to paste. The
other sections are for the page and `--full`.
"""

from collections.abc import Iterator

from freescale_tools.collisions import report as of_collisions
from freescale_tools.model import report as of_steps
from freescale_tools.model.batches import enough_for
from freescale_tools.profile.length_report import length_sections
from freescale_tools.profile.sampled import sampled_table
from freescale_tools.profile.straggler_report import method_name, straggler_section
from freescale_tools.profile.tradeoff import tradeoff_notes
from freescale_tools.report import numbers as n
from freescale_tools.report import plots
from freescale_tools.report.blocks import (
    Code,
    Column,
    Document,
    Look,
    Plot,
    Points,
    Report,
    Section,
    Table,
    Tile,
    Tiles,
)
from freescale_tools.report.closing import closed, in_short
from freescale_tools.report.plots import Axis

_DEALT = (
    "Waiting: global batches are those that the loader deals of these rows, with shuffle=True unless file order is "
    "named; the time of a rank is the cost of its samples by the named cost model."
)
_DRAWN = (
    "Waiting: global batches are drawn row by row from the histogram of lengths, because the order of the rows is not "
    "known or they are too few; the time of a rank is the cost of its samples by the named cost model."
)
DEFINITIONS = (
    "straggler %: as the paper defines it, the mean over steps of 1 - mean / slowest rank.",
    "time lost: 1 - sum of mean ranks / sum of slowest ranks; step time, QPS, gains and GPU-hours follow from it.",
)
_SHARING = (
    "Sharing: in sampled global batches, an event that several samples of a rank see counts once. Bytes saved leave "
    "a rank: 8 for an id, 4 a value for embedding rows and for gradients. Where equal ids are looked up once anyway "
    "(fscomm), rows are not saved. In a step, shared events are read, moved, looked up, sent and updated once; the "
    "model computes as before. Steps are those of TorchRec's pipeline, balanced ones those of all of FreeScale."
)
_ORDERS = {"file": "in file order", "shuffled": "shuffle=True"}
_ORDER_COLORS = {"file": plots.BLUE, "shuffled": plots.RED, "time": plots.GREEN}


def profile_report(document: Document) -> Report:
    """The report of a document of kind `profile`. Parts that are null or absent are left out."""
    grid, advice, costs, collisions, sharing, simulation = (
        document.get(part) for part in ("stragglers", "recommended", "tradeoff", "collisions", "sharing", "simulation")
    )
    counted = (("Files", "files"), ("Row groups", "row_groups"), ("Rows", "rows"))
    facts = [(name, n.count(document[key])) for name, key in counted]
    facts.append(("Size on disk", n.size(document["bytes"])))
    if stored := document.get("histories"):
        once = f"{n.count(stored['keys'])} stored once, {n.count(stored['events'])} events, {n.size(stored['bytes'])}"
        facts.append(("Histories", f"{once}, by {n.short(stored['on'])}, as of {n.short(stored['time'])}"))
    facts.append(("Read", "footers only (quick)" if document["mode"] == "quick" else "every length"))
    tiles = tuple(_tiles(document))
    sections = [
        _answer_section(document, tiles) if document.get("answer") else in_short(tiles),
        *([of_steps.verdict_section(simulation)] if simulation else []),
        *([_tradeoff_section(costs)] if costs else []),
        *([_settings_section(advice, grid["default"])] if advice and grid else []),
        *length_sections(document["sequences"], document.get("candidates") or {}, advice),
        *([straggler_section(grid)] if grid else []),
        *([of_collisions.collision_section(collisions, brief=True)] if collisions else []),
        *([_sharing_section(sharing)] if sharing else []),
        *([of_steps.step_section(simulation, brief=True)] if simulation else []),
    ]
    dealt = _DEALT if (document.get("balance") or {}).get("rows_in_order") else _DRAWN
    assumptions = {
        dealt: grid, of_collisions.ASSUMPTION: collisions, _SHARING: sharing, of_steps.ASSUMPTION: simulation,
    }  # fmt: skip
    return closed(
        document,
        title="What FreeScale would bring",
        facts=facts,
        sections=sections,
        assumptions=[said for said, part in assumptions.items() if part],
        parameters=[of_steps.parameters(simulation, on_terminal=False)] if simulation else [],
        skipped=[*(document.get("skipped") or ()), *((collisions or {}).get("skipped") or ())],
    )


def _answer_section(document: Document, tiles: tuple[Tile, ...]) -> Section:
    """What pays, how long ranks wait in both orders, and the code."""
    found, advice = document["balance"], document["recommended"]
    rows = [{"order": _ORDERS[order], **waits} for order, waits in found["orders"].items()]
    columns = [
        Column("order", n.TEXT, "order"),
        Column("steps", n.COUNT, "steps"),
        *(
            Column(name if method == "none" else "balanced", n.PERCENTS, f"{key}.{method}")
            for name, key in (("straggler %", "straggler"), ("time lost %", "time_lost"))
            for method in ("none", "balanced")
        ),
    ]
    low, high = found["interval"]["time_lost"]["none"]
    kept = found["rows_in_order"]
    some = f" Batches are dealt of {n.count(kept)} of them." if 0 < kept < found["rows"] else ""
    both = some if kept else " Their order is not known, or they are too few: batches are drawn."
    sure = f"90 % of the draws of cost model, order and steps lose {n.percent(low)} to {n.percent(high)} unbalanced."
    return Section(
        id="answer",
        title=f"What pays on {_where(found)}",
        intro=f"{_enough(found)}{both}",
        blocks=(
            *([Tiles(tiles=tiles)] if tiles else []),
            Points(title="", sentences=[one["said"] for one in document["answer"]]),
            Table(
                title="Stragglers in an epoch, plain and balanced",
                columns=columns,
                rows=rows,
                notes=[*DEFINITIONS, sure],
            ),
            *([Code(title="To paste", text=advice["code"])] if "code" in advice else []),
        ),
    )


def _enough(found: Document) -> str:
    """Why the answer is for so many ranks."""
    ranks, size, rows = found["ranks"], found["batch_size"], found["rows"]
    if not enough_for(rows, ranks, size):
        return f"The {n.count(rows)} rows are too few for {_where(found)}: batches repeat them."
    if enough_for(rows, 2 * ranks, size):
        return f"The {n.count(rows)} rows are enough for more than {_where(found)}."
    return f"The {n.count(rows)} rows are too few for {n.count(2 * ranks)} ranks of {n.count(size)} samples."


def _tiles(document: Document) -> Iterator[Tile]:
    advice, simulation = document.get("recommended"), document.get("simulation")
    if simulation:
        gain = simulation["verdict"]["gains"]["all"]
        interval = f"{n.signed(gain['low'])} to {n.signed(gain['high'])}"
        yield Tile(
            name=f"QPS gain at {n.count(simulation['verdict']['ranks'])} ranks",
            value=n.signed(gain["value"]),
            note=f"{interval}: balancing and fscomm over TrainPipelineSparseDist",
        )
    if advice:
        unbalanced = n.percent(advice["time_lost_none"], advice["time_lost_none_error"])
        yield Tile(
            name="Time lost, balanced",
            value=n.percent(advice["time_lost"], advice["time_lost_error"]),
            note=f"instead of {unbalanced}; {method_name(advice['method'])}, {_where(document['balance'])}",
        )
    if document.get("collisions") and (tile := of_collisions.collision_tile(document["collisions"])):
        yield tile
    name, sequence = next(iter(document["sequences"].items()))
    events = sequence["events"]
    longest = "" if sequence["max"] is None else f", {n.count(sequence['max'])} at most"
    yield Tile(
        name=f"Events in {n.short(name)}",
        value=n.count(events) if events < 1e9 else f"{n.number(events / 1e9)} billion",  # room for nine digits
        note=f"{n.count(sequence['mean'])} in a mean history{longest}",
    )
    if sequence["top1_share"] is not None:
        yield Tile(
            name="Held by the longest 1\u00a0% of the rows",
            value=n.percent(sequence["top1_share"]),
            note="of all events: why ranks wait for each other",
        )


def _where(default: Document) -> str:
    return f"{n.count(default['ranks'])} ranks of {n.count(default['batch_size'])} samples"


def _tradeoff_section(found: Document) -> Section:
    """What other batch sizes and lengths cost."""
    columns = (
        Column("samples", n.COUNT, "batch_size"),
        Column("longest history", n.COUNT, "max_length"),
        Column("time lost", n.SHARE, "time_lost", error="time_lost_error"),
        Column("events lost", n.SHARE, "events_lost"),
        Column("rows touched", n.SHARE, "rows_touched"),
        *([] if found["collisions_max_length"] is None else [Column("collisions", n.SHARE, "collisions")]),
        Column("steps", n.COUNT, "steps"),
        Column("GPU-hours", n.NUMBER, "gpu_hours"),
        *([] if found["gpu_hour_price"] is None else [Column("money", n.NUMBER, "money")]),
        Column("memory", n.BYTES, "bytes"),
    )
    notes = tradeoff_notes(found)
    return Section(
        id="tradeoff",
        title="What batch size and longest history cost",
        intro=f"{n.count(found['ranks'])} ranks, balanced by {method_name(found['method'])}. The last length of every "
        "batch size is that of no cut.",
        blocks=(
            Table(title="Trade-off table", columns=columns, rows=found["points"], notes=notes),
            *([sampled_table(found["sampled"])] if "sampled" in found else []),
        ),
    )


def _settings_section(advice: Document, default: Document) -> Section:
    """What the settings of the code cost, and why they were chosen."""
    rows = [
        ("max_length, longest history kept", f"{n.count(advice['max_length'])} events"),
        ("events cut off", n.percent(advice["events_cut"])),
        ("method", method_name(advice["method"])),
        ("cost of a sample of length L", n.cost(advice["cost_model"])),
        ("max_tokens, most tokens of a rank", n.count(advice["max_tokens"])),
        ("rows that lose some", n.percent(advice["rows_cut"])),
        *(
            (f"{name}{way}", n.percent(advice[f"{key}{of}"], advice[f"{key}{of}_error"]))
            for name, key in (("straggler %", "straggler"), ("time lost", "time_lost"))
            for way, of in ((" with them", ""), (" without balancing", "_none"))
        ),
        ("straggler %, lower bound of plans with equal counts", n.percent(advice["lower_bound"])),
    ]
    columns = (Column("setting", n.TEXT, 0), Column("value", n.TEXT, 1))
    return Section(
        id="settings",
        title="Recommended settings",
        intro=f"Settings to begin with for {_where(default)}.",
        blocks=(
            Table(title="What they are and what they cost", columns=columns, rows=rows),
            Points(title="Why", sentences=advice["why"]),
        ),
    )


def _sharing_section(found: Document) -> Section:
    """Events held, bytes and time saved where samples of a batch share their histories."""
    drawn = []
    for balanced, where in ((False, "without balancing"), (True, "balanced")):
        own = [one for one in found["points"] if one["balanced"] == balanced]
        if not own:
            continue
        best = min(own, key=lambda one: one["ratio"])
        held = {(one["batch_size"], one["order"]): one["ratio"] for one in own}
        rows = [
            {"samples": samples, **{order: held.get((samples, order)) for order in _ORDER_COLORS}}
            for samples in sorted({batch_size for batch_size, _ in held})
        ]
        by_order = [
            Column(f"{order} order", n.SHARE, order, look=Look(color=color, symbol=symbol))
            for (order, color), symbol in zip(_ORDER_COLORS.items(), plots.SYMBOLS, strict=False)
        ]
        figure = plots.lines(
            rows,
            [Column("samples", n.COUNT, "samples"), *by_order],
            x=Axis("samples of a rank and step", "measured"),
            y=Axis("events held, of those without sharing (%)"),
        )
        title = f"Events held (%) by batch size, {where}"
        aid = (
            f"In {best['order']} order, batches of {n.count(best['batch_size'])} samples hold "
            f"{n.percent(best['ratio'])} of the events that they hold without sharing."
        )
        drawn.append(Plot(title=title, aid=aid, figure=figure, height=320, half=True))
    columns = (
        Column("order", n.TEXT, "order"),
        Column("balanced", n.TEXT, lambda one: "yes" if one["balanced"] else "no"),
        Column("samples", n.COUNT, "batch_size"),
        Column("events", n.COUNT, lambda one: round(one["events"])),
        Column("held", n.SHARE, "ratio"),
        Column("straggler %", n.SHARE, "straggler_shared"),
        Column("step", n.MS, "step_ms"),
        Column("step, shared", n.MS, "step_ms_shared"),
        *(Column(f"{kind} saved", n.BYTES, f"bytes_saved.{kind}") for kind in ("ids", "rows", "gradients")),
    )
    note = (
        "events: of the samples of a rank; held: of these, with windows of a history merged. balanced: Balance "
        f"keeps samples of one history on one rank. Steps are simulated on {n.short(found['hardware'])}. An event "
        f"has {8 * found['fields']} bytes of ids, {4 * found['dim']} of rows and as many of gradients."
    )
    return Section(
        id="sharing",
        title="Histories that samples share",
        intro=f"What Sequence(share={n.short(found['share'])!r}) saves: a batch holds events once that several of its "
        f"samples see. With {n.count(found['ranks'])} ranks and histories of at most {n.count(found['max_length'])} "
        "events.",
        blocks=(*drawn, Table(title="By rank and step", columns=columns, rows=found["points"], notes=[note])),
    )
