"""Histories stored once, and how their table is made."""

from figures.records import record, say, table


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


def building() -> None:
    built = record("histories_build")
    table(
        ["", "events", "seconds", "peak memory"],
        [
            [
                f"{row['what']}, buckets: {row['buckets']}",
                f"{row['events']:,}",
                f"{row['s']:.1f}",
                f"{row['peak MB'] / 1e3:.2f} GB",
            ]
            for row in built.rows
            if row["s"] is not None
        ],
        built,
    )
