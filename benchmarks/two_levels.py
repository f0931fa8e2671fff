"""Rows that go to a host once and are passed on there, with real ids: bytes between hosts, and time of a step.

Hosts are network namespaces, each with a link of its own; ranks of one host talk over its loopback. A sample is a
request of `oss_events` with the last events of its user before it; requests come in time order and are dealt to the
ranks in turn. One row-wise table. The same steps run plainly, under fscomm, and under fscomm with `ranks_per_host`;
losses and tables are compared to the bit.

Needs root. Run: python benchmarks/two_levels.py --events FOLDER [--hosts 2] [--ranks-per-host 2 4 8] [--mbit 200]
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common.table import add_results_option, emit
from network.namespaces import why_not
from network.world import World

SAMPLES, LENGTH, STEPS, ROWS, DIM = 32, 200, 12, 1 << 19, 64
PATIENCE_S = 300
MODES = {"plain": None, "fscomm": 1, "fscomm, two levels": 0}  # ranks_per_host; 0: those of a host
COLUMNS = ["hosts x ranks", "rows", "step ms", "link MB", "rows MB", "to flat", "in-host MB", "bits"]


def requests(folder: Path, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The last `number` requests by time: items of their histories int64, hashed into the table, and their lengths."""
    import polars as pl

    asked = pl.scan_parquet(folder / "requests-*.parquet").sort("ts", "request_id").tail(number).collect()
    known = pl.scan_parquet(folder / "interactions-*.parquet").select("user_id", "item_ids", "timestamps").collect()
    joined = asked.join(known, on="user_id", how="left", maintain_order="left")
    items, lengths = [], []
    for at, ids, times in zip(joined["ts"], joined["item_ids"], joined["timestamps"], strict=True):
        end = 0 if times is None else int(np.searchsorted(times.to_numpy(), at))
        items.append(ids.to_numpy()[max(end - LENGTH, 0) : end] if end else np.empty(0, np.int64))
        lengths.append(len(items[-1]))
    return np.concatenate(items) * 0x9E3779B1 % ROWS, np.array(lengths)


def measure(hosts: int, per_host: int, mbit: float | None, ids: Path) -> list[list[Any]]:
    rows, seen = [], {}
    with World(ranks=hosts * per_host, ranks_per_host=per_host, module="parts.two_levels_rank") as world:
        world.network.shape(mbit)
        sizes = {"rows": ROWS, "dim": DIM, "samples": SAMPLES, "steps": STEPS, "per_host": per_host}
        world.call("prepare", ids=str(ids), **sizes, timeout_s=PATIENCE_S)
        for mode, given in MODES.items():
            told = world.call("block", ranks_per_host=per_host if given == 0 else given, timeout_s=PATIENCE_S)
            seen[mode] = [(each["losses"], each["tables"]) for each in told]
            sent = sum(each["rows_sent"] for each in told) / STEPS / 1e6
            flat = sent if mode == "fscomm" else rows[-1][4] if rows and mode != "plain" else None
            rows.append(
                [
                    f"{hosts} x {per_host}",
                    mode,
                    max(each["step_ms"] for each in told),
                    sum(each["link"] for each in told[::per_host]) / STEPS / 1e6,
                    sent if mode != "plain" else None,
                    sent / flat if flat else None,
                    sum(each["in_host"] for each in told) / STEPS / 1e6 if mode != "plain" else None,
                    "same" if seen[mode] == seen["plain"] else "DIFFERENT",
                ]
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--mbit", type=float, default=200.0, help="of each host's link")
    add_results_option(parser)
    given = parser.parse_args()
    if (why := why_not()) is not None:
        parser.error(why)
    rows = []
    for per_host in given.ranks_per_host:
        with tempfile.TemporaryDirectory(prefix="freescale-") as folder:
            values, lengths = requests(given.events, given.hosts * per_host * SAMPLES * STEPS)
            np.savez(Path(folder, "ids.npz"), values=values, lengths=lengths)
            rows += measure(given.hosts, per_host, given.mbit, Path(folder, "ids.npz"))
    emit(
        "two_levels",
        f"Rows between hosts: {SAMPLES} requests a rank, their last {LENGTH} events, {given.mbit:g} Mbit/s a host",
        COLUMNS,
        rows,
        notes=[
            "Of all ranks, a step. Link: all that left the hosts, gradients and ids too. Rows: those to other hosts, "
            "and their share of what fscomm sends without ranks_per_host. In-host: rows between ranks of a host.",
        ],
        results=given.results,
        data="oss_events",
    )


if __name__ == "__main__":
    main()
