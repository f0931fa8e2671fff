"""Exposed communication, and the bytes of pooled tables."""

import re

from figures.records import Record, listed, record, say, table

_MODES = ("plain loop", "TorchRec SparseDist", "TorchRec PEC, stubbed", "fscomm")
SECTIONS = {
    "400 ms": "200 Mbit, 400 ms",
    "400 ms, 20 after the backward": "200 Mbit, 400 ms, 20 of them after the backward",
    "270 ms": "200 Mbit, 270 ms",
    "400 ms, unshaped": "not limited, 400 ms",
    "270 ms, unshaped": "not limited, 270 ms",
    "real compute, 2 ranks": "2 ranks, real compute",
    "8 ranks, 3 groups, skewed ids": "8 ranks, row-, table- and column-wise, skewed ids",
    "20 M under DDP, 1 Gbit": "1 Gbit, 20 M dense parameters under DDP",
    "26 one-hot features, table-wise": "26 one-hot features, pooled, table-wise",
    "26 one-hot features, row-wise": "26 one-hot features, pooled, row-wise",
    "behind MPZCH": "behind managed collision (MPZCH)",
}


def exposed_ms(exposed: Record, section: str, mode: str) -> float | None:
    """None where the section has not this mode."""
    rows = exposed.where(section=section, mode=mode)
    return rows[0]["(1) exposed"] if rows else None


def exposed() -> None:
    record_ = record("exposed")
    rows = []
    for section, title in SECTIONS.items():
        times = [exposed_ms(record_, section, mode) for mode in _MODES]
        rows.append([title, *(None if time is None else f"{time:.0f}" for time in times)])
    table(
        [
            "links, compute",
            "plain loop",
            "TrainPipelineSparseDist",
            "TrainPipelinePEC (stubbed; its updates are wrong)",
            "fscomm",
        ],
        rows,
        record_,
    )


def exposed_besides() -> None:
    record_ = record("exposed")
    base, slope = record("exposed_collisions").note(r"fscomm: ([\d.]+) ms \+ ([\d.]+) ms per percent")
    (floor,) = record_.note(r"^400 ms: .* exposed: ([\d.]+) ms")
    (memory,) = record_.note(r"peak memory over the plain loop ([\d,]+) bytes")
    busy = record_.row(section="real compute, 2 ranks", mode="fscomm")
    listed([
        f"Sending only the collision rows and their gradients takes {floor} ms at 200 Mbit (links do not limit a first "
        "burst).",
        f"The exposed time of fscomm is {base} ms, and {slope} ms more per percent of collisions.",
        f"fscomm takes {int(memory.replace(',', '')) / 1e6:.0f} MB more memory than the plain loop here.",
        "With real compute the threads of fscomm have no core to themselves. The training thread waits for "
        f"communication for {busy['(3) blocked']:.0f} ms; the rest are look-ups and updates of fscomm, which compete "
        "with the compute.",
    ], record_, record("exposed_collisions"))  # fmt: skip


def parts() -> None:
    found = record("exposed_parts")
    modes = list(dict.fromkeys(row["mode"] for row in found.rows))
    shares = list(dict.fromkeys(row["% of ids"] for row in found.rows))
    rows = [
        [
            f"{share:.0f} %",
            *(f"{found.row(**{'% of ids': share, 'mode': mode})['(1) exposed ms']:.0f}" for mode in modes),
        ]
        for share in shares
    ]
    floors = {row["mode"]: row["floor ms"] for row in found.where(**{"% of ids": shares[-1]})}
    say(
        "Exposed milliseconds per step, on 4 ranks whose links are limited to 200 Mbit, with 400 ms of emulated "
        f"compute. At {shares[-1]:.0f} % the links need {floors['fscomm in 4 parts']:.0f} ms for a fourth of the "
        "shared rows and gradients."
    )
    table(["shared ids", *modes], rows, found)
    auto = record("exposed_auto")
    chosen = [
        f"{row['parts'].replace(', ', ' or ')} at {row['% of ids']:.0f} % ({row['(1) exposed ms']:.0f} ms)"
        for row in auto.rows
    ]
    say(f'Numbers of parts that `parts="auto"` chose in two runs, and the exposed time: {", ".join(chosen)}.', auto)


def dedup() -> None:
    found = record("exposed_dedup")
    sections = list(dict.fromkeys(row["section"] for row in found.rows))
    modes = list(dict.fromkeys(row["mode"] for row in found.rows if row["mode"] != "compute only"))
    rows = []
    for section in sections:
        (floor,) = found.note(rf"^{section}: .* exposed: ([\d.]+) ms")
        times = [exposed_ms(found, section, mode) for mode in modes]
        shown = ("" if time is None else f"{time:.0f}" for time in times)
        rows.append([re.sub(r"collision (\d+) ?%", r"\1 % of rows shared", section), *shown, f"{float(floor):.0f}"])
    say(
        "Batches of a log that is read user by user: 256 samples of 200 events, of four users, so 98 % of the ids of a "
        "batch are duplicates. Exposed milliseconds per step, on the same links; the last column is the time in which "
        "the links carry all shared rows and gradients."
    )
    table(["", *modes, "shared bytes"], rows, found)


def pooled_bytes() -> None:
    pooled = record("pooled")
    models = list(dict.fromkeys(row["model"] for row in pooled.rows))
    table(
        ["", *(model.replace("1 ids", "1 id") for model in models)],
        [
            [sharding, *(f"{pooled.row(sharding=sharding, model=model)['ratio']:.2f}" for model in models)]
            for sharding in ("table-wise", "row-wise")
        ],
        pooled,
    )
