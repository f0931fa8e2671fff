"""Histories stored once, and how their table is made."""

from collections.abc import Callable
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


_SAYS_MORE = 100_000_000
"""Events from which times of the whole log, 48 times as large, follow."""


def event_log() -> None:
    log = record("dlrm_v4")
    sizes = sorted({row["events"] for row in log.rows})
    found = {(row["events"], row["what"]): row for row in log.rows}
    whats = dict.fromkeys(row["what"] for row in log.rows if "equal" not in row["what"])
    table(
        ["FreeScale / one by one", *(f"{events / 1e6:,.0f} M events" for events in sizes)],
        [[what, *(_both(found.get((events, what))) for events in sizes)] for what in whats],
        log,
    )
    equal = [row for row in log.rows if "equal" in row["what"]]
    if equal:
        samples = sum(row["FreeScale"] for row in equal)
        say(
            f"All {samples:,} samples of {equal[0]['events'] / 1e6:,.0f} M events are equal in every field, under the "
            f"rules of DLRMv4 and {len(equal) - 1} others: the last events of any pool, pools whose sum is cut, a "
            "short scan with users from their first listen on."
        )
    _costs(lambda what: found[sizes[-1], what])
    if len(sizes) > 1 and sizes[-1] >= _SAYS_MORE:
        seconds = [
            sum(row["FreeScale"] for row in log.rows if row["unit"] == "s" and row["events"] == events)
            for events in sizes
        ]
        each = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
        say(
            f"From the two largest, another billion events takes {1e9 * each / 60:,.0f} minutes on these two cores, so "
            f"Yambda's 4.8 billion about {4.8e9 * each / 3600:.1f} hours. Memory follows the size of a bucket, and the "
            "table of 9.39 million items."
        )


def _costs(row: Callable[[str], dict[str, Any]]) -> None:
    """What the largest log says: cores that a node needs, what the loader does beside copying, what `share` saves."""
    user, shuffled = (
        {
            part: row(f"{order}: {what}")["FreeScale"]
            for part, what in (
                ("all", "processor time of 1,000 samples"),
                ("pools", "without look-ups and crosses"),
                ("copy", "copying five fields of as many events"),
                ("cores", "cores for the 12,969 samples/s of 8 B200"),
            )
        }
        for order in ("user order", "shuffled")
    )
    say(
        f"8 B200 train 12,969 samples a second together, 1,621 each: all of these take {user['cores']:.2f} cores in "
        f"user order and {shuffled['cores']:.2f} shuffled, with the largest log. Of "
        f"{short(user['all'])} ms for 1,000 samples in user order, {short(user['copy'])} ms are what copying takes of "
        f"as many values from histories without pools; with pools, but without look-ups and crosses, samples take "
        f"{short(user['pools'])} ms. The rest is nearly all look-ups of artists and albums, in a table of 75 MB."
    )
    plain, shared = (
        {
            part: row(f"the last 2,663 events of any kind, user order, {way} share: {what}")["FreeScale"]
            for part, what in (("time", "processor time of 1,000 samples"), ("events", "events copied for a sample"))
        }
        for way in ("without", "with")
    )
    say(
        f"Where histories have no gaps, `share` copies {shared['events']:,.0f} in place of "
        f"{plain['events']:,.0f} events for a sample in user order, in {short(shared['time'])} in place of "
        f"{short(plain['time'])} ms of 1,000."
    )


def _both(row: dict[str, Any] | None) -> str | None:
    if row is None:
        return None
    digits = ",.0f" if row["unit"] == "" else ".1f" if "duplicates" in row["what"] else None
    numbers = [each for each in (row["FreeScale"], row["numpy, one by one"]) if each is not None]
    texts = [short(each) if digits is None else format(each, digits) for each in numbers]
    return f"{' / '.join(texts)} {row['unit']}".rstrip()
