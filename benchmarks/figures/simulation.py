"""What the simulation says, and how far it was right."""

from typing import Any

from validation.held_out import INSIDE, MEDIAN, WORST

from figures.records import listed, percent, record, say, table


def held_out() -> None:
    adviser = record("adviser")
    modes = {"plain": "plain loop", "sparse dist": "SparseDist", "fscomm": "fscomm"}
    found = adviser.extra["held_out.py"]
    rows, misses = [], []
    for mode, title in modes.items():
        error = found["summary"][mode]
        missed = [
            f"{row['what'].removeprefix('exposed, ').removesuffix(', ' + mode)} ({_error(row['error'])})"
            for row in adviser.where(against="held_out.py")
            if row["what"].endswith(f", {mode}") and row["verdict"].startswith("missed")
        ]
        misses += [f"{title}: {one}".replace("12%", "12 %").replace("25%", "25 %") for one in missed]
        rows.append([title, *map(percent, (error["median"], MEDIAN, error["worst"], WORST))])
    table(["", "median error", "goal", "worst", "goal of the worst"], rows, adviser, record("held_out"))
    say("These missed the goal (ranks, links, collisions, floats a row):")
    listed(misses)
    inside = f"{percent(found['inside'])} of these figures are inside the intervals of the verdicts"
    say(f"{inside} (goal {percent(INSIDE)}).")


def in_parts() -> None:
    adviser, measured = record("adviser"), record("exposed_parts")
    rows = adviser.where(against="exposed.py --parts")
    sections = list(dict.fromkeys(row["what"].split(", ")[1] for row in rows))
    modes = {"1 part": "fscomm", **{f"{number} parts": f"fscomm in {number} parts" for number in (2, 4, 8)}}
    found = {tuple(row["what"].split(", ")[1:]): row for row in rows}
    table(
        ["shared ids", *modes],
        [
            [
                section.removeprefix("collision ").replace("%", " %"),
                *(_both(found[section, mode]) for mode in modes.values()),
            ]
            for section in sections
        ],
        adviser,
        measured,
    )
    median, goal, worst, limit = adviser.note(
        r"--parts: held-out steps in 2 or more parts: error (\d+)% in the median \(goal (\d+)%\), (\d+)% at worst "
        r"\(goal (\d+)%\)"
    )
    best = adviser.extra["exposed.py --parts"]["best"].values()
    hits = sum(one["predicted"] == one["measured"] for one in best)
    lost = max(one["exposed_ms"] - one["least_ms"] for one in best)
    (fit,) = adviser.extra["exposed.py --parts"]["fits"]
    say(
        f"\\* fitted: a part takes {fit['value']:.1f} ms. Of the others, those in parts are {median} % off in the "
        f"median (goal {goal} %), {worst} % at worst (goal {limit} %). The number of parts that is predicted to be "
        f"best was the best in {hits} of {len(best)} cases, and had at most {lost:.0f} ms more exposed than the best."
    )


def _both(row: dict[str, Any]) -> str:
    predicted, mark = (row["predicted"], "") if row["fitted"] is None else (row["fitted"], "\\*")
    return f"{predicted:.0f}{mark} ({row['measured']:.0f})"


def published() -> None:
    adviser = record("adviser")
    rows = [
        [
            row["what"], *(_amount(float(row[name]), row["unit"]) for name in ("predicted", "measured")),
            _error(row["error"]), _between(row["90 %"], row["unit"]),
        ]
        for row in adviser.where(against="published")
        if row["fitted"] is None
    ]  # fmt: skip
    table(["", "predicted", "published", "error", "90 % of draws"], rows, adviser)
    (fit,) = adviser.extra["published"]["fits"]
    fitted = f"{fit['name']}, {fit['value']:.0f} {fit['unit']}, on {fit['on']}"
    say(f"Fitted: {fitted}. That run is therefore not in the table.")
    for note in adviser.extra["published"]["notes"]:
        say(note.replace("%", " %"))


def _amount(value: float, unit: str) -> str:
    if unit == "ms":
        return f"{value:.0f} ms"
    return f"{100 * value:.1f} %" if unit == "share" else f"{value:.2f} x"


def _between(interval: str | None, unit: str) -> str | None:
    return interval and " to ".join(_amount(float(end), unit) for end in interval.split(" to "))


def time_lost() -> None:
    measured, adviser = record("time_lost"), record("adviser")
    predicted = {row["what"]: row for row in adviser.where(against="time_lost.py")}
    rows, names = [], list(measured.extra["sets"])
    lines = {(names.index(row["set"]), row["ranks"], row["order"]) for row in measured.rows}
    for at, ranks, order in sorted(lines):
        name = names[at]
        cells = []
        for batches in ("plain", "balanced"):
            one = measured.row(set=name, ranks=ranks, order=order, batches=batches)
            cells.append(f"{100 * one['time lost']:.0f} %")
            cells.append(_guess(predicted[f"{name}, {ranks} ranks, {order}, {batches}"]))
        rows.append([name, ranks, order, *cells])
    table(["", "ranks", "order", "plain", "predicted", "balanced", "predicted"], rows, measured, adviser)
    off = max(abs(row["time lost"] - row["time lost by the fitted cost"]) for row in measured.rows)
    noise = [
        measured.note(rf"movielens, {ranks} ranks, shuffled, balanced: .*; ([\d.]+)% where")[0] for ranks in (2, 4)
    ]
    say(
        "By the fitted cost of the same batches, time lost is never further off than "
        f"{100 * off:.1f} points. Ranks with equal batches seem to lose {noise[0]} % with 2 ranks and "
        f"{noise[1]} % with 4: that is the noise."
    )
    say("\\* further off than 3 points, and outside the interval of the prediction.")
    for note in adviser.extra["time_lost.py"]["notes"]:
        say(note)


def _guess(row: dict[str, Any]) -> str:
    missed = "\\*" if row["verdict"].startswith("missed") else ""
    return f"{row['predicted']:.0f} %{missed}"


def balancing_measured() -> None:
    """One sentence: time lost without and with balancing, by data set, and why it gains little on some."""
    measured = record("time_lost")
    most = max(row["ranks"] for row in measured.rows)
    found = {}
    for row in measured.where(ranks=most, order="shuffled"):
        found.setdefault(row["set"], {})[row["batches"]] = row["time lost"]
    texts = [
        f"{name.replace('_', ' ')} from {percent(lost['plain'])} to {percent(lost['balanced'])}"
        for name, lost in sorted(found.items(), key=lambda item: item[1]["balanced"] / item[1]["plain"])
    ]
    say(
        f"Time lost to waiting, trained on whole histories, {most} ranks of {measured.extra['batch_size']} samples: "
        f"{', '.join(texts[:-1])} and {texts[-1]}. If one history "
        "outweighs all others of a step, balancing gains little: truncate or split such histories.",
        measured,
    )


def _error(text: str) -> str:
    return text.replace("%", " %")
