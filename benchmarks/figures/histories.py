"""Histories stored once, and how their table is made."""

import re
from typing import Any

from figures.records import record, say, short, table


def stored_once() -> None:
    histories = record("histories")
    rows, once = (histories.row(stored=way) for way in ("in every row", "once, as of the request"))
    found = histories.extra
    table(
        ["", "in rows", "stored once"],
        [
            ["CPU of the loader, 1,000 requests", *(f"{each['CPU ms / 1,000']:.1f} ms" for each in (rows, once))],
            [
                f"disk, all {found['requests']:,} requests",
                f"about {found['disk MB, in rows']:,.0f} MB",
                f"{found['disk MB, stored once']:.1f} MB",
            ],
            [
                "memory of the histories, 4 ranks on a host",
                None,
                f"{found['table MB']:.1f} MB, {found['memory of 4 ranks / table']:.2f} times their size in the files' "
                "types",
            ],
        ],
        histories,
    )
    if found["windows that differ"] is not None:
        say(
            f"Of the windows of all {found['requests']:,} requests {found['windows that differ'] or 'none'} "
            "differ from a search through all events of the user."
        )


def sharing() -> None:
    sharing = record("histories_sharing")
    titles = {
        "groups": "groups of samples that see the same events (what `share` plans)",
        "fbs+swap, without regard": "planned without regard to sharing",
        "none: consecutive requests": "requests left where they were read",
    }
    table(
        ["64 ranks, 512 requests each", "events held, of those without sharing", "straggler share"],
        [
            [title, f"{row['% of unshared']:.1f} %", f"{row['straggler %']:.2g} %"]
            for balance, title in titles.items()
            if (row := sharing.row(balance=balance))
        ],
        sharing,
    )


def event_log() -> None:
    log = record("dlrm_v4")
    sizes = sorted({row["events"] for row in log.rows})
    made = [row | {"what": re.sub(r" of [\d,]+ events in the mean", "", row["what"])} for row in log.rows]
    found = {(row["events"], row["what"]): row for row in made}
    whats = dict.fromkeys(row["what"] for row in made if "equal" not in row["what"])
    table(
        ["", *(f"{events / 1e6:,.0f} M events" for events in sizes)],
        [[what, *(_both(found.get((events, what))) for events in sizes)] for what in whats],
        log,
    )
    equal = [row for row in log.rows if "equal" in row["what"]]
    if equal:
        samples = sum(row["FreeScale"] for row in equal)
        say(
            f"FreeScale / one by one. All {samples:,} samples of {equal[0]['events'] / 1e6:,.0f} M events under "
            f"{len(equal)} sets of rules, both pool strategies and caps of 1 to 4,086 among them, are equal in every "
            "field."
        )
    opening = [row for row in made if row["unit"] == "s"]
    seconds = [sum(row["FreeScale"] for row in opening if row["events"] == events) for events in sizes]
    each = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
    say(
        f"From the two largest, another billion events takes {1e9 * each / 60:,.0f} minutes on these two cores, so "
        f"Yambda's 4.8 billion about {4.8e9 * each / 3600:.1f} hours. Memory follows the size of a bucket."
    )


def _both(row: dict[str, Any] | None) -> str | None:
    if row is None:
        return None
    ours, theirs = row["FreeScale"], row["numpy, one by one"]
    return f"{short(ours)}{'' if theirs is None else f' / {short(theirs)}'} {row['unit']}"
