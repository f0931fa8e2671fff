"""The sections about simulated steps: gain, bubbles, timelines and parameters."""

from collections.abc import Iterator, Sequence

from freescale_tools.model.verdict import INTERVAL, REMEDIES
from freescale_tools.report.blocks import Block, Document, Plot, Section, Table
from freescale_tools.report.numbers import count, milliseconds, number, percent, short, signed
from freescale_tools.simulate.page import step_figures as figures

ALL = "all"
PIPELINE = "TrainPipelineSparseDist"
_USUAL_RANKS = 64


def step_section(simulation: Document, usual_ranks: int | None) -> Section:
    """Gain and step time by ranks; bubbles and the timeline before and after, at one number of ranks."""
    wanted = min(usual_ranks or _USUAL_RANKS, simulation["carried"]["ranks"] or 1)
    every = sorted({point["ranks"] for point in simulation["points"]})
    ranks = min(every, key=lambda one: abs(one - wanted))
    return Section(
        id="steps",
        title="A training step",
        intro=f"Simulated on {short(simulation['hardware']['name'])} from the lengths and collisions of the data; the "
        f"assumptions stand at the end of the page. Plain is a loop that does nothing ahead, {simulation['over']} is "
        f"TorchRec's {PIPELINE}, all is every remedy together. {enough_rows(simulation)}",
        blocks=tuple(_blocks(simulation, ranks)),
    )


def enough_rows(simulation: Document) -> str:
    """A sentence that says how many ranks the rows are enough for."""
    carried, first = simulation["carried"], min(point["ranks"] for point in simulation["points"])
    rows, size = f"The {count(carried['rows'])} rows", f"ranks of {count(carried['batch_size'])} samples"
    if carried["ranks"] is None:
        return f"{rows} are too few for {count(first)} {size}: every batch would repeat them."
    return f"{rows} are enough for {count(carried['ranks'])} {size}; batches of more ranks repeat them."


def _blocks(simulation: Document, ranks: int) -> Iterator[Block]:
    points, ways = simulation["points"], simulation["ways"]
    at = [point for way in ways for point in points if point["ranks"] == ranks and point["way"] == way]
    yield _verdict(simulation)
    if len(simulation["gain"]) > 1:
        yield _gain(simulation)
    if len({point["ranks"] for point in points}) > 1:
        yield _steps(points, ways, ranks)
    yield _bubbles(at, ranks, simulation["over"])
    yield from _timelines(at, ranks, simulation["over"])
    yield _gain_table(simulation)
    yield _table(points)


def _verdict(simulation: Document) -> Block:
    found = simulation["verdict"]
    return Table(
        title=f"Which remedies pay at {count(found['ranks'])} ranks",
        columns=("Remedy", "Pays", "Over", "Gain", "90 %"),
        rows=[
            (name, found["pays"].get(key, ""), over, signed(gain["value"]), span(gain))
            for key, (name, over) in REMEDIES.items()
            for gain in [found["gains"][key]]
        ],
        words=3,
        note=" ".join([*found["why"], INTERVAL]),
    )


def span(gain: Document) -> str:
    """The interval of a gain, in whole percents."""
    return f"{signed(gain['low'])} to {signed(gain['high'])}"


def _gain(simulation: Document) -> Block:
    carried = simulation["carried"]["ranks"]
    ordered = sorted(simulation["gain"], key=lambda point: point["ranks"])
    said = [
        f"{signed(point['qps_gain'])} at {count(point['ranks'])} ranks"
        for point in ordered
        if point in (ordered[0], ordered[-1]) or point["ranks"] == carried
    ]
    return Plot(
        title="QPS gain (%) by ranks",
        aid=f"Samples per second of all remedies over {PIPELINE}: {', '.join(said)}.",
        figure=figures.gain(ordered, carried),
        half=True,
    )


def _steps(points: Sequence[Document], ways: Sequence[str], ranks: int) -> Block:
    at = {point["way"]: point for point in points if point["ranks"] == ranks}
    slowest, fastest = (choose(at.values(), key=lambda point: point["step_ms"]) for choose in (max, min))
    return Plot(
        title="Time of a step (ms) by ranks",
        aid=f"At {count(ranks)} ranks a step takes {milliseconds(slowest['step_ms'])} ({slowest['way']}) to "
        f"{milliseconds(fastest['step_ms'])} ({fastest['way']}).",
        figure=figures.steps(points, ways),
        half=True,
    )


def _bubbles(at: Sequence[Document], ranks: int, over: str) -> Block:
    return Plot(
        title=f"Idle time of a step (ms) by cause, {count(ranks)} ranks",
        aid=_bubbles_aid(at, over),
        figure=figures.bubbles(at),
        height=110 + 42 * len(at),
    )


def _bubbles_aid(at: Sequence[Document], over: str) -> str:
    known = {point["way"]: point for point in at}
    first, last = known.get(over, at[0]), known.get(ALL, at[-1])
    causes = ", ".join(
        f"{name} {milliseconds(first['bubbles'][key])} → {milliseconds(last['bubbles'][key])}"
        for key, name, _ in figures.BUBBLES
    )
    return f"From {first['way']} to {last['way']}: {causes}; idle in all {_idle(first)} → {_idle(last)}."


def _idle(point: Document) -> str:
    idle = sum(point["bubbles"].values())
    share = idle / point["step_ms"] if point["step_ms"] else 0.0
    return f"{milliseconds(idle)} ({percent(share)} of the step)"


def _timelines(at: Sequence[Document], ranks: int, over: str) -> Iterator[Block]:
    known = {point["way"]: point for point in at}
    shown = [known[way] for way in (over, ALL) if way in known] or list(at[:1])
    until = max(point["step_ms"] for point in shown)
    for point in shown:
        name = {over: f"before: {PIPELINE}", ALL: "after: all remedies"}.get(point["way"], point["way"])
        lanes = len({bar["lane"] for bar in point["timeline"]})
        yield Plot(
            title=f"One step {name} (ms by lane), {count(ranks)} ranks",
            aid=_timeline_aid(point),
            figure=figures.timeline(point, until_ms=until),
            height=150 + 36 * lanes,
        )


def _timeline_aid(point: Document) -> str:
    compute = sum(bar["ms"] for bar in point["timeline"] if figures.work_class(bar["what"])[0] == "compute")
    network = sum(bar["ms"] for bar in point["timeline"] if bar["lane"] == "network")
    return (
        f"The step takes {milliseconds(point['step_ms'])}; the mean rank computes for {milliseconds(compute)} of it, "
        f"the network is busy for {milliseconds(network)}, and compute waits "
        f"{milliseconds(point['bubbles']['exposed_ms'])} for communication."
    )


def _gain_table(simulation: Document) -> Table:
    points = {(point["ranks"], point["way"]): point for point in simulation["points"]}
    ways = simulation["ways"]
    ranks = sorted({point["ranks"] for point in simulation["points"]})
    gains = {point["ranks"]: point["qps_gain"] for point in simulation["gain"]}
    return Table(
        title="Samples per second of all ranks (QPS)",
        columns=("Ranks", *ways, f"gain, all over {simulation['over']}"),
        rows=[
            (
                count(one),
                *(number(points[one, way]["qps"]) if (one, way) in points else "–" for way in ways),
                signed(gains.get(one)),
            )
            for one in ranks
        ],
        words=0,
    )


def _table(points: Sequence[Document]) -> Table:
    return Table(
        title=f"All {count(len(points))} simulated steps",
        columns=("Way", "Ranks", "Step (ms)", "QPS", "Straggler (ms)", "Exposed (ms)", "Contention (ms)", "Idle"),
        rows=[
            (
                point["way"],
                count(point["ranks"]),
                number(point["step_ms"]),
                number(point["qps"]),
                *(number(point["bubbles"][key]) for key, _, _ in figures.BUBBLES),
                percent(sum(point["bubbles"].values()) / point["step_ms"] if point["step_ms"] else 0.0),
            )
            for point in points
        ],
        folded=True,
    )


def parameters(simulation: Document) -> Table:
    """Every parameter of the simulation with its source."""
    return Table(
        title=f"Parameters of the simulation ({short(simulation['hardware']['name'])})",
        columns=("Parameter", "Value", "Source"),
        rows=[
            (short(one["name"]).replace("_", " "), _value(one), str(one["source"]))
            for one in simulation["hardware"]["parameters"]
        ],
        words=3,
    )


def _value(one: Document) -> str:
    value, unit = one["value"], one["unit"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return short(value)
    if unit.startswith("share"):
        return f"{percent(value)}{unit.removeprefix('share')}"
    return f"{count(value) if value == int(value) else number(value)} {unit}".strip()
