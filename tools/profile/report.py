"""The report of `freescale profile`: the verdict, what settings cost, lengths, and what the other commands add.

`lengths` and `stragglers` make the sections of their own; collisions and steps come from their commands.
"""

from collections.abc import Iterator

from freescale_tools.collisions import report as of_collisions
from freescale_tools.model import report as of_steps
from freescale_tools.profile.length_report import length_sections
from freescale_tools.profile.straggler_report import method_name, straggler_section
from freescale_tools.profile.tradeoff import tradeoff_notes
from freescale_tools.report import numbers as n
from freescale_tools.report import plots
from freescale_tools.report.blocks import Code, Column, Document, Look, Plot, Points, Report, Section, Table, Tile
from freescale_tools.report.closing import closed, in_short
from freescale_tools.report.plots import Axis

_STRAGGLERS = (
    "Stragglers: global batches are drawn row by row from the histogram of lengths, as shuffle=True draws them; the "
    "time of a rank is the cost of its samples by the named cost model. Order in the files, and data that comes in "
    "similar stretches, is not in it."
)
_SHARING = (
    "Sharing: in sampled global batches, an event that several samples of a rank see counts once. Bytes saved leave "
    "a rank: 8 for an id, 4 a value for embedding rows and for gradients. Where equal ids are looked up once anyway "
    "(fscomm), rows are not saved. In a step, shared events are read, moved, looked up, sent and updated once; the "
    "model computes as before. Steps are those of TorchRec's pipeline, balanced ones those of all of FreeScale."
)
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
        of_steps.verdict_section(simulation, tiles=tiles) if simulation else in_short(tiles),
        *([_tradeoff_section(costs)] if costs else []),
        *([_settings_section(advice, grid["default"])] if advice and grid else []),
        *length_sections(document["sequences"], document.get("candidates") or {}, advice),
        *([straggler_section(grid)] if grid else []),
        *([of_collisions.collision_section(collisions, brief=True)] if collisions else []),
        *([_sharing_section(sharing)] if sharing else []),
        *([of_steps.step_section(simulation, brief=True)] if simulation else []),
    ]
    assumptions = {
        _STRAGGLERS: grid, of_collisions.ASSUMPTION: collisions, _SHARING: sharing, of_steps.ASSUMPTION: simulation,
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


def _tiles(document: Document) -> Iterator[Tile]:
    advice = document.get("recommended")
    if advice:
        default = document["stragglers"]["default"]
        unbalanced = n.percent(advice["straggler_none"], advice["straggler_none_error"])
        yield Tile(
            name="Straggler share, balanced",
            value=n.percent(advice["straggler"], advice["straggler_error"]),
            note=f"instead of {unbalanced}; {method_name(advice['method'])}, {_where(default)}",
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
        Column("straggler share", n.SHARE, "straggler", error="straggler_error"),
        Column("events lost", n.SHARE, "events_lost"),
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
        blocks=(Table(title="Trade-off table", columns=columns, rows=found["points"], notes=notes),),
    )


def _settings_section(advice: Document, default: Document) -> Section:
    """Code to paste, what the settings cost, and why they were chosen."""
    rows = [
        ("max_length, longest history kept", f"{n.count(advice['max_length'])} events"),
        ("events cut off", n.percent(advice["events_cut"])),
        ("method", method_name(advice["method"])),
        ("cost of a sample of length L", n.cost(advice["cost_model"])),
        ("max_tokens, most tokens of a rank", n.count(advice["max_tokens"])),
        ("straggler share with them", n.percent(advice["straggler"], advice["straggler_error"])),
        ("straggler share without balancing", n.percent(advice["straggler_none"], advice["straggler_none_error"])),
        ("lower bound of plans with equal counts", n.percent(advice["lower_bound"])),
    ]
    columns = (Column("setting", n.TEXT, 0), Column("value", n.TEXT, 1))
    return Section(
        id="settings",
        title="Recommended settings",
        intro=f"Settings to begin with for {_where(default)}.",
        blocks=(
            Code(title="To paste", text=advice["code"]),
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
        Column("straggler", n.SHARE, "straggler_shared"),
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
