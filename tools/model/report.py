"""The sections of a profile about steps.

The verdict comes first: which remedies pay, each over what is there without it. Then a step: gain and time by ranks,
and at the ranks of the verdict what waits for what, before and after.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

from freescale_tools.model.simulation import INTERVAL, REMEDIES
from freescale_tools.report import plots
from freescale_tools.report.blocks import (
    Block,
    Column,
    Document,
    Look,
    Plot,
    Section,
    Table,
    of_pair,
)  # fmt: skip
from freescale_tools.report.numbers import (
    COUNT,
    GAIN,
    MS,
    SHARE,
    TEXT,
    count,
    milliseconds,
    number,
    percent,
    short,
    signed,
)  # fmt: skip
from freescale_tools.report.plots import Axis

ASSUMPTION = (
    "Steps: the slowest rank is scheduled, task by task, until its steps repeat; bubbles are those of the mean "
    "rank, which computes as much less as the straggler share says and waits the rest."
)
_BUBBLES = {
    "straggler_ms": ("straggler", plots.RED),
    "exposed_ms": ("exposed", plots.BLUE),
    "contention_ms": ("contention", plots.AMBER),
}
_PIPELINE = "TrainPipelineSparseDist"
_ALL = "all"
_LANES = ("compute", "network", "memory", "host", "data")
_CLASSES = {
    "compute": (plots.GREEN, ("forward", "backward", "optimizer")),
    "balancing and fscomm themselves": (plots.SKY, ("own work",)),
    "waiting for the slowest rank": (plots.FAINT, ("wait",)),
    "rows and gradients in the background": (plots.BLUE, ("exclusive",)),
    "rows and gradients that compute waits for": (plots.RED, ("collision", "rows", "gradients", "lookup", "apply")),
    "dense all-reduce": (plots.PINK, ("all-reduce",)),
    "IDs": (plots.AMBER, ("id",)),
    "loader": (plots.GREY, ("read", "data")),
    "other": (plots.SKY, ("",)),
}
"""Classes of work with their colour. A task belongs to the first one with a word that its name contains: "exclusive"
comes before "rows", which is in several names."""


def verdict_section(simulation: Document) -> Section:
    """Which remedies pay."""
    found = simulation["verdict"]

    def span(remedy: str) -> str:
        gain = found["gains"][remedy]
        return f"{signed(gain['low'])} to {signed(gain['high'])}"

    table = Table(
        title="Which remedies pay",
        columns=(
            Column("remedy", TEXT, lambda one: REMEDIES[one][0]),
            Column("pays", TEXT, lambda one: found["pays"][one]),
            Column("gain", GAIN, lambda one: found["gains"][one]["value"]),
            Column("90 %", TEXT, span),
            Column("over", TEXT, lambda one: REMEDIES[one][1]),
        ),
        rows=[remedy for remedy in REMEDIES if remedy in found["gains"]],
        notes=[*found["why"], INTERVAL],
    )
    title = f"Verdict for {count(found['ranks'])} ranks on {short(simulation['hardware']['name'])}"
    return Section(id="verdict", title=title, blocks=(table,))


def step_section(simulation: Document, *, brief: bool = False) -> Section:
    """Gain and step time by ranks; what waits for what before and after. `brief`: only the gain on the terminal."""
    at_verdict = [point for point in simulation["points"] if point["ranks"] == simulation["verdict"]["ranks"]]
    return Section(
        id="steps",
        title="A training step",
        intro=f"Simulated on {short(simulation['hardware']['name'])} from the lengths and collisions of the data. "
        f"Plain is a loop that does nothing ahead, {simulation['over']} is TorchRec's {_PIPELINE}, which sends ids one "
        "batch ahead, all is balancing and fscomm; + dedup adds TorchRec's index dedup.",
        blocks=(
            _gain_table(simulation),
            *([_parts_table(simulation)] if "parts" in simulation else []),
            *([_steps_plot(simulation, at_verdict)] if len(simulation["gain"]) > 1 else []),
            _bubbles_plot(simulation, at_verdict, on_terminal=not brief),
            *_timelines(simulation, at_verdict),
        ),
    )


def parameters(simulation: Document, *, on_terminal: bool = True) -> Table:
    """Every parameter of the simulation with its source."""
    return Table(
        title=f"What the simulation on {short(simulation['hardware']['name'])} rests on",
        columns=(
            Column("parameter", TEXT, "name"),
            Column("value", TEXT, _value),
            Column("source", TEXT, "source"),
        ),
        rows=simulation["hardware"]["parameters"],
        on_terminal=on_terminal,
    )


def _value(one: Document) -> str:
    value, unit = one["value"], one["unit"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return short(value)
    if unit.startswith("share"):
        return f"{percent(value)}{unit.removeprefix('share')}"
    return f"{count(value) if value == int(value) else number(value)} {unit}".strip()


def _steps_plot(simulation: Document, at_verdict: Sequence[Document]) -> Block:
    ways = simulation["ways"]
    palette = (plots.GREY, plots.GREEN, plots.AMBER, plots.PINK, plots.SKY)
    colors = dict(zip((way for way in ways if way not in ("plain", _ALL)), itertools.cycle(palette), strict=False))
    colors |= {"plain": plots.RED, _ALL: plots.BLUE}
    steps = {(one["ranks"], one["way"]): one["step_ms"] for one in simulation["points"]}
    columns = [
        Column(way, MS, of_pair(steps, way), look=Look(color=colors[way], dash=dash, symbol=symbol))
        for way, dash, symbol in zip(ways, itertools.cycle(plots.DASHES), itertools.cycle(plots.SYMBOLS), strict=False)
    ]
    slowest, fastest = (choose(at_verdict, key=lambda one: one["step_ms"]) for choose in (max, min))
    return Plot(
        title="Time of a step (ms) by ranks",
        aid=f"At {count(slowest['ranks'])} ranks a step takes {milliseconds(slowest['step_ms'])} ({slowest['way']}) to "
        f"{milliseconds(fastest['step_ms'])} ({fastest['way']}).",
        figure=plots.lines(
            sorted({ranks for ranks, _ in steps}),
            [Column("ranks", COUNT, lambda ranks: ranks), *columns],
            x=Axis("ranks", "measured"),
            y=Axis("time of a step (ms)"),
        ),
    )


def _gain_table(simulation: Document) -> Table:
    over = simulation["over"]
    points = {(one["ranks"], one["way"]): one for one in simulation["points"]}

    def of(way: str, key: str) -> Callable[[Document], float]:
        return lambda gain: points[gain["ranks"], way][key]

    return Table(
        title=f"What FreeScale would bring over {_PIPELINE}",
        columns=(
            Column("ranks", COUNT, "ranks"),
            Column(f"step, {over}", MS, of(over, "step_ms")),
            Column("step, all", MS, of(_ALL, "step_ms")),
            Column(f"QPS, {over}", COUNT, of(over, "qps")),
            Column("QPS, all", COUNT, of(_ALL, "qps")),
            Column("balancing", GAIN, "balance"),
            Column("fscomm", GAIN, "communication"),
            Column("both", GAIN, "qps_gain"),
        ),
        rows=simulation["gain"],
        notes=[
            f"fscomm: prioritized and SM-free, over {_PIPELINE} that is balanced.",
        ],
    )


def _parts_table(simulation: Document) -> Table:
    """Steps in parts by ranks: time and exposed communication."""
    known = {
        (one["ranks"], step["parts"], key): step[key]
        for one in simulation["parts"]
        for step in one["steps"]
        for key in ("step_ms", "exposed_ms")
    }

    def of(parts: int, key: str) -> Callable[[Document], float]:
        return lambda one: known[one["ranks"], parts, key]

    counted = [step["parts"] for step in simulation["parts"][0]["steps"]]
    return Table(
        title="Steps that are computed in parts, with all remedies",
        columns=(
            Column("ranks", COUNT, "ranks"),
            *(
                Column(f"{name}, {number} {'part' if number == 1 else 'parts'}", MS, of(number, key))
                for name, key in (("step", "step_ms"), ("exposed", "exposed_ms"))
                for number in counted
            ),
            Column("best", COUNT, "best"),
        ),
        rows=simulation["parts"],
        notes=[
            "exposed: communication that compute waits for, and what the parts cost.",
            "best: the fewest parts whose step is at most 1 % longer than the shortest one; fscomm.enable(parts=...).",
        ],
    )


def _bubbles_plot(simulation: Document, at_verdict: Sequence[Document], *, on_terminal: bool) -> Block:
    """Of the ways at the ranks of the verdict; its table has all points."""

    def idle_ms(point: Document) -> float:
        return float(sum(point["bubbles"].values()))

    def share(point: Document) -> float:
        return idle_ms(point) / point["step_ms"] if point["step_ms"] else 0.0

    table = Table(
        title=f"All {count(len(simulation['points']))} simulated steps, of the mean rank",
        columns=(
            Column("ranks", COUNT, "ranks"),
            Column("way", TEXT, "way"),
            Column("QPS", COUNT, "qps"),
            Column("step", MS, "step_ms"),
            *(Column(name, MS, f"bubbles.{key}", look=Look(color=color)) for key, (name, color) in _BUBBLES.items()),
            Column("waits for data", MS, "data_wait_ms"),
            Column("idle", SHARE, share),
        ),
        rows=simulation["points"],
        notes=["sm-free: prioritized, and exchanges beside compute leave the compute units (SMs) alone."],
    )
    known = {one["way"]: one for one in at_verdict}
    first, last = known[simulation["over"]], known[_ALL]
    causes = ", ".join(
        f"{name} {milliseconds(first['bubbles'][key])} → {milliseconds(last['bubbles'][key])}"
        for key, (name, _) in _BUBBLES.items()
    )
    idle = " → ".join(f"{milliseconds(idle_ms(one))} ({percent(share(one))} of the step)" for one in (first, last))
    return Plot(
        title=f"Idle time of a step (ms) by cause, {count(first['ranks'])} ranks",
        aid=f"From {first['way']} to {last['way']}: {causes}; idle in all {idle}.",
        figure=plots.bars(
            at_verdict, table.columns[1], table.columns, x=Axis("idle time of a step (ms)"), stacked=True
        ),
        table=table,
        height=110 + 42 * len(at_verdict),
        on_terminal=on_terminal,
    )


def work_class(what: str) -> str:
    """The class of work that a task belongs to."""
    return next(name for name, (_, words) in _CLASSES.items() if any(word in what for word in words))


def _timelines(simulation: Document, at_verdict: Sequence[Document]) -> Iterator[Block]:
    known = {one["way"]: one for one in at_verdict}
    shown = {f"before: {_PIPELINE}": known[simulation["over"]], "after: all remedies": known[_ALL]}
    until, colors = max(point["step_ms"] for point in shown.values()), {name: of for name, (of, _) in _CLASSES.items()}
    for name, point in shown.items():
        tasks = [{**task, "class": work_class(task["what"])} for task in point["timeline"]]
        there = {task["lane"] for task in tasks}
        lanes = [*(lane for lane in _LANES if lane in there), *sorted(there.difference(_LANES))]
        compute = sum(task["ms"] for task in tasks if task["class"] == "compute")
        network = sum(task["ms"] for task in tasks if task["lane"] == "network")
        yield Plot(
            title=f"One step {name} (ms by lane), {count(point['ranks'])} ranks",
            aid=f"The step takes {milliseconds(point['step_ms'])}; the mean rank computes for {milliseconds(compute)} "
            f"of it, the network is busy for {milliseconds(network)}, and compute waits "
            f"{milliseconds(point['bubbles']['exposed_ms'])} for communication.",
            figure=plots.timeline(tasks, lanes=lanes, classes=colors, until_ms=until),
            height=150 + 36 * len(lanes),
        )
