"""What the tools cost."""

from figures.records import record, short, table


def costs() -> None:
    profile, optimize = record("profile"), record("optimize")
    quick, full, collisions = (
        profile.row(what=what)["ratio"] for what in ("quick, 200 files", "full profile", "collisions")
    )
    memory = profile.row(what="peak memory, lengths")["ms or MB"]
    pages = profile.row(what="peak memory, lengths and predictions")["ms or MB"]
    page = profile.row(what="page")["ms or MB"]
    whole = optimize.row(columns="27 columns of the loader")
    smaller = 1 - whole["MB after"] / whole["MB before"]
    table(
        ["", "cost"],
        [
            ["footers of 200 files", f"{quick:.2f} times `pq.read_metadata` (goal: 1.3)"],
            [
                "full profile",
                f"{full:.1f} times the speed of pyarrow decoding that leaf column; at most {memory:.0f} MB over "
                "imports",
            ],
            ["collisions", f"{collisions:.2f} times that decoding (goal: 1.5)"],
            ["memory, pages", f"at most {pages:.0f} MB over imports; pages of {page:.0f} MB"],
            [
                "files rewritten by `freescale optimize`",
                f"the reference set decodes in {whole['after / before']:.2f} times the time and is "
                f"{100 * smaller:.0f} % smaller",
            ],
        ],
        profile,
        optimize,
    )


def lengths() -> None:
    levels = record("levels")
    titles = {
        "item_ids": "lists of 355",
        "actions": "the same lists, few different values",
        "candidate_ids": "lists of 25",
        "unused_list_0": "lists of 2.6, chunks of 17 KB",
    }
    pages = {
        "reference set": "reference set: version 1, zstd, checksums",
        "version 1, snappy, checksums": "version 1, Snappy, checksums",
        "version 1, none, checksums": "version 1, not compressed, checksums",
        "version 2, zstd, checksums": "version 2, zstd, checksums",
        "version 2, zstd": "version 2, zstd",
    }
    table(
        ["pages", *titles.values()],
        [
            [title, *(f"1/{short(levels.row(pages=name, column=column)['ratio'])}" for column in titles)]
            for name, title in pages.items()
        ],
        levels,
    )


def histories_profiled() -> None:
    profiled = record("profile_histories")
    table(["", "seconds on one core"], [[row["what"], f"{row['s']:g}"] for row in profiled.rows], profiled)
