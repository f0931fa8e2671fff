"""The demo."""

from figures.records import percent, record, table


def runs() -> None:
    """A line for every run; the samples stand in the first line of each set."""
    demo = record("demo")
    rows = []
    for row in demo.rows:
        name = row["data"] if row["data"] == "synthetic" else f"`{row['data']}`"
        share = row["ids that collide %"]
        rows.append([
            f"{name}: {row['samples are']}, {row['samples a rank']:,} a rank" if row["run"] == "plain" else None,
            row["run"],
            f"{row['straggler %']:.1f} %",
            f"{row['step ms']:.0f} ms",
            f"{row['exposed ms']:.0f} ms",
            None if share is None else percent(share / 100),
            percent(row["events held %"] / 100),
            f"{row['loss']:.5f}",
            f"{row['NE']:.5f}",
        ])  # fmt: skip
    header = ["samples", "run", "straggler share", "step", "exposed communication", "ids that collide", "events held"]
    table([*header, "loss, nats", "NE"], rows, demo)
