"""The demo."""

from typing import Any

from figures.records import Record, percent, record, say, table_of

MEMORY = "memory"
LOOP = "TrainPipelineSparseDist"


def of_act(demo: Record, *, memory: bool) -> list[dict[str, Any]]:
    """The runs of one act: those on links of memory, or those on a slow link."""
    return [row for row in demo.rows if (row["links"] == MEMORY) == memory]


def sets(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The runs of each set, by what the set is called; of the sets that collide as stated, by how many ids do."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        samples = row["samples are"]
        if row["links"] != MEMORY and row["data"] == "synthetic":
            samples = f"{row['ids that collide %']:.0f} % of ids collide"
        found.setdefault(f"{row['data']}: {samples}", []).append(row)
    return found


def balancing() -> None:
    """A line for every run of the first act."""
    _runs(memory=True, columns={
        "samples": "{set}",
        "run": "{run}",
        "straggler %": "{straggler %:.1f} %",
        "step": "{step ms:.0f} ms",
        "waits for stragglers": "{waits for stragglers ms:.0f} ms",
        "waits for links": "{waits for links ms:.0f} ms",
        "events stored": "{events stored %:.0f} %",
        "NE": "{NE:.5f}",
    })  # fmt: skip


def communication() -> None:
    """A line for every run of the second act."""
    _runs(memory=False, columns={
        "samples": "{set}",
        "ids that collide": "{collide}",
        "run": "{run}",
        "step": "{step ms:.0f} ms",
        "waits for stragglers": "{waits for stragglers ms:.0f} ms",
        "waits for links": "{waits for links ms:.0f} ms",
        "samples/s": "{samples/s:.0f}",
    })  # fmt: skip


def _runs(*, memory: bool, columns: dict[str, str]) -> None:
    """What a set is called, and how many of its ids collide, stands in its first line."""
    demo = record("demo")
    rows = []
    for name, (first, *others) in sets(of_act(demo, memory=memory)).items():
        title = f"{name}, {first['samples a rank']:,} a rank"
        rows.append(first | {"set": title, "collide": percent(first["ids that collide %"] / 100)})
        rows += [row | {"set": "", "collide": ""} for row in others]
    table_of(rows, columns, demo)


def costs() -> None:
    """What each remedy took off a step or cost, from the least to the most over the sets."""
    demo = record("demo")
    memory = sets(of_act(demo, memory=True)).values()
    link = sets(of_act(demo, memory=False)).values()
    (speed,) = {row["links"] for runs in link for row in runs}
    parts = next(row["run"] for runs in link for row in runs if "parts" in row["run"])
    in_parts = parts.replace("prioritized, ", "in ")
    say(
        f"Against the plain loop, balanced steps {_changes(memory, 'balanced')}, and prioritized steps on links of "
        f"memory {_changes(memory, 'prioritized')}: nothing is left to overlap there, and its threads use CPU "
        f"time. On the link of {speed}, prioritized steps {_changes(link, 'prioritized')}, those {in_parts} "
        f"{_changes(link, parts)}, and those of {LOOP} {_changes(link, LOOP)}."
    )


def _changes(sets: Any, name: str) -> str:
    """Such as "take 5 to 30 % less time", or "take from 10 % less to 4 % more time"."""
    least, most = _range(sets, name)
    if most <= 0:
        return f"take {-most:.0f} to {-least:.0f} % less time"
    if least >= 0:
        return f"take {least:.0f} to {most:.0f} % more time"
    return f"take from {-least:.0f} % less to {most:.0f} % more time"


def _range(sets: Any, name: str) -> tuple[float, float]:
    found = []
    for runs in sets:
        times = {row["run"]: row["step ms"] for row in runs}
        found.append(100 * (times[name] / times["plain"] - 1))
    return min(found), max(found)
