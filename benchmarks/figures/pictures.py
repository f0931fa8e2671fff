"""The pictures of README and docs, drawn from `benchmarks/results` into `docs/images`: `make figures`.

A picture is data first: panels of bars, each with a title, a unit and numbers by bar and series. The file keeps these
numbers as its description, so that a test can compare them with the records whatever draws it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from figures import communication, loading, timelines, training
from figures.records import Record, record
from figures.svg import canvas, legend

WITHOUT, THEIRS, OURS = "without FreeScale", "TorchRec's pipeline", "with FreeScale"
_COLORS = {WITHOUT: "#90a4ae", THEIRS: "#5c6bc0", OURS: "#00897b", "balanced": "#00897b", "prioritized": "#26c6da"}
_MORE_COLORS = ("#ffb300", "#8d6e63", "#42a5f5", "#ab47bc")
_BAR = 0.26  # inches


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Horizontal bars: bar -> series -> number; a number that was not measured is None. `digits`: behind the point."""

    title: str
    unit: str
    bars: Mapping[str, Mapping[str, float | None]]
    digits: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """`docs/images/<name>.svg`. The panels stand side by side, and have the same series."""

    name: str
    panels: tuple[Panel, ...]
    width: float = 10.0

    def written(self) -> str:
        """Its numbers, as they stand in the file."""
        return json.dumps([asdict(panel) for panel in self.panels], ensure_ascii=True, sort_keys=True)


def waits() -> Picture:
    """What a step waits for: the first picture."""
    stragglers, demo, exposed = (record(name) for name in ("stragglers", "demo", "exposed"))
    simulated = stragglers.row(case="true cost", ranks=64)
    ranks = {"64 ranks, simulated": {WITHOUT: simulated["none"], OURS: simulated["fbs+swap"]}}
    for title, data, samples in (
        ("2 ranks, synthetic", "synthetic", "histories"),
        ("2 ranks, oss_events", "oss_events", "requests"),
        ("2 ranks, online_retail", "online_retail", "requests"),
    ):
        runs = _runs(demo, data, samples, "straggler %")
        ranks[title] = {WITHOUT: runs["plain"], OURS: runs["balanced"]}
    modes = {WITHOUT: "plain loop", THEIRS: "TorchRec SparseDist", OURS: "fscomm"}
    links = {
        "400 ms of compute": "400 ms",
        "270 ms of compute": "270 ms",
        "8 ranks, mixed tables": "8 ranks, 3 groups, skewed ids",
    }
    communication_ = {title: _exposed(exposed, section, modes) for title, section in links.items()}
    return Picture(
        name="waits",
        panels=(
            Panel(title="waiting for the slowest rank", unit="% of a step", bars=ranks, digits=1),
            Panel(title="waiting for embeddings, links of 200 Mbit", unit="ms of a step", bars=communication_),
        ),
    )


def demo() -> Picture:
    """Balancing, on links of memory. Runs that cost are there, too."""
    series = {
        WITHOUT: "plain",
        "prioritized": "prioritized",
        "balanced": "balanced",
        "both": "both",
        "histories shared": "shared",
    }
    return _of_the_demo("demo", series, memory=True, waits="waits for stragglers ms")


def demo_link() -> Picture:
    """Communication, on a slow link."""
    rows = training.of_act(record("demo"), memory=False)
    parts = next(row["run"] for row in rows if "parts" in row["run"])
    series = {WITHOUT: "plain", THEIRS: training.LOOP, "prioritized": "prioritized", parts: parts}
    return _of_the_demo("demo-link", series, memory=False, waits="waits for links ms")


def _of_the_demo(name: str, series: Mapping[str, str], *, memory: bool, waits: str) -> Picture:
    sets = training.sets(training.of_act(record("demo"), memory=memory))
    panels = []
    for title, column in ((waits.removesuffix(" ms"), waits), ("a step", "step ms")):
        bars = {}
        for set_name, rows in sets.items():
            found = {row["run"]: row[column] for row in rows}
            bars[set_name] = {each: found.get(run) for each, run in series.items()}
        panels.append(Panel(title=title, unit="ms", bars=bars))
    return Picture(name=name, panels=tuple(panels), width=11)


def _runs(demo: Record, data: str, samples: str, column: str) -> dict[str, float]:
    return {row["run"]: row[column] for row in demo.where(**{"data": data, "samples are": samples, "links": "memory"})}


def stragglers() -> Picture:
    stragglers = record("stragglers")
    methods = {WITHOUT: "none", "the paper's zig-zag": "fbs", OURS: "fbs+swap"}
    panels = []
    for title, case, column, numbers, unit in (
        ("by ranks, 128 samples each", "ranks", "ranks", (8, 64, 256, 1024), "ranks"),
        ("by samples, 64 ranks", "batch size", "batch", (16, 64, 128, 512), "samples a rank"),
    ):
        rows = [*stragglers.where(case=case), stragglers.row(case="true cost", ranks=64)]
        found = {row[column]: {series: row[method] for series, method in methods.items()} for row in rows}
        bars = {f"{number:,} {unit}": found[number] for number in numbers}
        panels.append(Panel(title=title, unit="% of a step", bars=bars, digits=1))
    return Picture(name="stragglers", panels=tuple(panels))


def loaders() -> Picture:
    loader = record("loader")
    rows = {title: loader.row(way=way, batch=512) for way, title in loading.SHORT.items()}
    panels = [
        Panel(
            title=title,
            unit=unit,
            digits=digits,
            bars={name: {OURS if name.startswith("FreeScale") else WITHOUT: row[column]} for name, row in rows.items()},
        )
        for title, unit, column, digits in (
            ("processor time", "times raw decoding", "CPU / raw", 2),
            ("memory at most", "MiB over imports", "peak MiB", 0),
        )
    ]
    return Picture(name="loaders", panels=tuple(panels))


def histories() -> Picture:
    stored = record("histories")
    sharing = record("histories_sharing")
    rows, once = (stored.row(stored=way) for way in ("in every row", "once, as of the request"))
    found = stored.extra
    shared = {
        "as they were read": {WITHOUT: sharing.row(balance="none: consecutive requests")["% of unshared"]},
        "groups": {OURS: sharing.row(balance="groups")["% of unshared"]},
    }
    pairs = (
        ("processor time", "ms of 1,000 requests", rows["CPU ms / 1,000"], once["CPU ms / 1,000"], 1),
        ("disk", "MB", found["disk MB, in rows"], found["disk MB, stored once"], 0),
    )
    panels = [
        Panel(
            title=title,
            unit=unit,
            digits=digits,
            bars={"in every row": {WITHOUT: theirs}, "stored once": {OURS: ours}},
        )
        for title, unit, theirs, ours, digits in pairs
    ]
    panels.append(Panel(title="events held, if samples share", unit="% of those without", bars=shared, digits=1))
    return Picture(name="histories", panels=tuple(panels), width=11)


def exposed() -> Picture:
    exposed = record("exposed")
    modes = {WITHOUT: "plain loop", THEIRS: "TorchRec SparseDist", OURS: "fscomm"}
    bars = {title: _exposed(exposed, section, modes) for section, title in communication.SECTIONS.items()}
    return Picture(name="exposed", panels=(Panel(title="exposed communication", unit="ms of a step", bars=bars),))


def _exposed(exposed: Record, section: str, modes: Mapping[str, str]) -> dict[str, float | None]:
    return {series: communication.exposed_ms(exposed, section, mode) for series, mode in modes.items()}


def collisions() -> Picture:
    rows = record("exposed_collisions").rows
    bars = {
        f"{row['% of ids']:.0f} % of the ids": {
            "rows that collide, on the wire alone": row["floor ms"],
            OURS: row["(1) exposed ms"],
        }
        for row in rows
    }
    panel = Panel(title="exposed communication, by ids that collide", unit="ms of a step", bars=bars)
    return Picture(name="exposed-collisions", panels=(panel,))


def pooled() -> Picture:
    pooled = record("pooled")
    bars = {
        row["model"].replace("1 ids", "1 id"): {
            each: pooled.row(sharding=each, model=row["model"])["ratio"] for each in ("table-wise", "row-wise")
        }
        for row in pooled.where(sharding="table-wise")
    }
    panel = Panel(title="bytes that a step waits for", unit="of those of TorchRec's pipeline", bars=bars, digits=2)
    return Picture(name="pooled", panels=(panel,), width=8)


def object_store() -> Picture:
    store = record("object_store")
    titles = {"local files": "local files", "S3, no latency": "S3, no latency", "S3, 100 ms": "S3, 100 ms a request"}
    bars = {}
    for row in store.rows:
        if row["from"] in titles:
            series = "read_ahead=0" if row["read ahead"] == "0" else "with read-ahead"
            bars.setdefault(titles[row["from"]], {})[series] = row["of local"]
    panel = Panel(title="rows per second", unit="of those from local files", bars=bars, digits=2)
    return Picture(name="object-store", panels=(panel,), width=8)


PICTURES: tuple[Callable[[], Picture], ...] = (
    *(waits, demo, demo_link, stragglers, loaders, histories, exposed, collisions, pooled, object_store),
)
TIMELINES = (timelines.balancing, timelines.communication)


def draw(picture: Picture) -> None:
    bars = sorted((bar for panel in picture.panels for bar in panel.bars.values()), key=len, reverse=True)
    series = list(dict.fromkeys(name for bar in bars for name in bar))  # in the order of the bars
    more = iter(_MORE_COLORS)
    colors = {name: _COLORS.get(name) or next(more) for name in series}
    lines = max(sum(max(_present(bar), 1) + 0.7 for bar in panel.bars.values()) for panel in picture.panels)
    size = {"width": picture.width, "height": lines * _BAR + 1.3}
    with canvas(picture.name, picture.written(), panels=len(picture.panels), **size) as (figure, axes):
        for axis, panel in zip(axes, picture.panels, strict=True):
            _bars(axis, panel, colors)
        if len(series) > 1:
            legend(figure, colors)


def _present(bar: Mapping[str, float | None]) -> int:
    return sum(value is not None for value in bar.values())


def _bars(axis, panel: Panel, colors: Mapping[str, str]) -> None:
    """The first bar on top; next to each bar its number."""
    at, ticks = 0.0, []
    for bar in panel.bars.values():
        present = {name: value for name, value in bar.items() if value is not None}
        ticks.append(at + (len(present) - 1) / 2)
        for name, value in present.items():
            axis.barh(at, value, 0.9, color=colors[name])
            least = 10**-panel.digits
            shown = f"{value:,.{panel.digits}f}" if value >= least / 2 or not value else f"< {least:g}"
            axis.annotate(shown, (value, at), (4, 0), textcoords="offset points", va="center", fontsize=9)
            at += 1
        at += 0.7
    axis.set_yticks(ticks, list(panel.bars))
    axis.set_ylim(at - 0.6, -0.8)
    axis.set_xlim(0, 1.25 * max(value for bar in panel.bars.values() for value in bar.values() if value is not None))
    axis.set_title(panel.title, loc="left", fontsize=11)
    axis.set_xlabel(panel.unit)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)


if __name__ == "__main__":
    for picture in PICTURES:
        draw(picture())
    for timeline in TIMELINES:
        timelines.draw(timeline())
