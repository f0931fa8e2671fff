"""Histories stored once against histories in every row, on the requests of `oss_events` in time order.

1. every window of every request, against a search through all events of its user (`--check`);
2. processor time, wall time and disk of a loader with `AsOf`, and of the same samples stored in rows. The fat file
   holds some stretches of the requests, as all of them would take gigabytes; both loaders read the same requests;
3. memory of the table with 4 ranks on one host: their shares of the pages of the table, added up;
4. sharing: events that batches of 64 ranks hold, of those that they hold without, as the balance of the loader plans
   it, and the straggler share; requests in time order, 512 a rank.

Run: python benchmarks/histories.py --events FOLDER [--check]
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from common.ranks import run_ranks
from common.table import argument_parser, emit
from torch import distributed as dist

from fsdata import AsOf, Balance, FreeScaleDataLoader, ParquetSource, Polynomial, Schema, Sequence, pack
from fsdata.balance.options import StepPlanner
from fsdata.balance.packing.plan import straggler_share
from fsdata.batch.merged_windows import merge_windows
from fsdata.histories.histories import histories_of
from fsdata.histories.kernels import histories

CAP, BATCH, RANKS = 4096, 1024, 4
REQUESTS, STRETCHES = 65_536, 8  # of the fat file
FIELDS = ("item_ids", "actions")
SCHEMA = Schema(sequences=(Sequence("uih", FIELDS, max_length=CAP),), context=("request_id", "user_id"))
COLUMNS = ["stored", "disk MB", "events, M", "CPU s", "CPU ms / 1,000", "wall s", "open s"]
ROUNDS = 3
SHARING_RANKS, SHARING_BATCH, SHARING_STEPS = 64, 512, 8


def as_of(folder: Path, requests: str = "requests-*.parquet") -> ParquetSource:
    histories = ParquetSource(str(folder / "interactions-*.parquet"))
    return ParquetSource(
        requests if Path(requests).is_absolute() else str(folder / requests),
        join=AsOf(histories, on="user_id", at="ts", time="timestamps", fields=FIELDS),
    )


def opened(source: ParquetSource, **options: Any) -> FreeScaleDataLoader:
    return FreeScaleDataLoader(source, SCHEMA, batch_size=BATCH, num_threads=1, **options)


def check(folder: Path) -> tuple[int, int]:
    """All requests: how many there are, and how many windows differ from those of a search through all events."""
    asked = pl.read_parquet(folder / "requests-*.parquet", columns=["request_id", "user_id", "ts"])
    at = dict(zip(asked["request_id"].to_list(), asked["ts"].to_list(), strict=True))
    table = pl.read_parquet(folder / "interactions-*.parquet")
    known = {
        user: tuple(each.to_numpy() for each in lists)
        for user, *lists in zip(*(table[name] for name in ("user_id", "timestamps", *FIELDS)), strict=True)
    }
    wrong = seen = 0
    with opened(as_of(folder)) as loader:
        for batch in loader:
            columns = [batch.features[name].values().numpy() for name in ("request_id", "user_id")]
            lists = [batch.features[name] for name in FIELDS]
            ends = np.cumsum(lists[0].lengths().numpy())
            values = [each.values().numpy() for each in lists]
            starts = np.concatenate([[0], ends[:-1]])
            for request, user, start, end in zip(*(each.tolist() for each in (*columns, starts, ends)), strict=True):
                times, *fields = known.get(user, (np.empty(0, np.int64),) * 3)
                before = times < at[request]
                number = int(np.count_nonzero(before))
                first = max(number - CAP, 0)
                same = before[:number].all() and all(
                    np.array_equal(of[start:end], field[first:number]) for of, field in zip(values, fields, strict=True)
                )
                wrong += not same
                seen += 1
    return seen, wrong + abs(len(at) - seen)


def fat_files(folder: Path, out: Path) -> None:
    """Requests in some stretches of consecutive ones, as they are and with their histories in the rows."""
    asked = pl.read_parquet(folder / "requests-*.parquet")
    size = REQUESTS // STRETCHES
    starts = np.linspace(0, len(asked) - size, STRETCHES).astype(int)
    chosen = pl.concat([asked.slice(start, size) for start in starts])
    chosen.write_parquet(out / "requests.parquet", compression="zstd", row_group_size=8192)
    writer = None
    with opened(as_of(folder, str(out / "requests.parquet"))) as loader:
        for batch in loader:
            columns: dict[str, Any] = {name: batch.features[name].values().numpy() for name in SCHEMA.context}
            for name, kind in zip(FIELDS, (pa.int64(), pa.int32()), strict=True):
                lists = batch.features[name]
                offsets = np.concatenate([[0], np.cumsum(lists.lengths().numpy())])
                columns[name] = pa.LargeListArray.from_arrays(offsets, pa.array(lists.values().numpy()).cast(kind))
            rows = pa.table(columns)
            writer = writer or pq.ParquetWriter(out / "fat.parquet", rows.schema, compression="zstd")
            writer.write_table(rows)
    assert writer is not None
    writer.close()


def run(source: ParquetSource) -> dict[str, float]:
    """The best of some epochs."""
    begin = time.perf_counter()
    with opened(source, prefetch=0) as loader:
        found = {"open": time.perf_counter() - begin, "events": 0.0}
        for number in range(ROUNDS):
            cpu, wall, events = time.process_time(), time.perf_counter(), 0
            for batch in loader:
                events += batch.stats.global_items["uih"]
            times = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "events": events}
            found = found | (times if number == 0 else {key: min(each, found[key]) for key, each in times.items()})
    return found


def sharing(folder: Path) -> list[list[Any]]:
    """Rows of a table: balance, events of all batches, share of those without sharing, straggler share, floor."""
    asked = pl.read_parquet(folder / "requests-*.parquet", columns=["user_id", "ts"]).sort("ts", maintain_order=True)
    with opened(as_of(folder)) as loader:
        table = histories_of(loader._data.sources[0].stages).groups["uih"]
    users, times = (asked[name].to_numpy() for name in asked.columns)
    found, first, stop = (np.empty(len(users), np.int64) for _ in range(3))
    histories.find_keys(table.keys, users, np.zeros(len(users), bool), found)
    histories.find_windows(found, table.offsets, table.times, times, first, stop)
    length = np.minimum(stop - first, CAP)
    place, step = stop - length, SHARING_RANKS * SHARING_BATCH
    home = np.repeat(np.arange(SHARING_RANKS), SHARING_BATCH)
    figures: dict[str, list[list[float]]] = {}
    for begin in np.linspace(0, len(users) - step, SHARING_STEPS).astype(int):
        places, lengths = place[begin : begin + step], length[begin : begin + step]
        cost = Polynomial()({"uih": lengths})
        plain = pack(cost, SHARING_RANKS)
        groups, _, _ = StepPlanner(Balance(), SHARING_RANKS)._pack(cost, lengths, home, None, (places, lengths))
        ranks = {"none: consecutive requests": home, "fbs+swap, without regard": plain.rank, "groups": groups.rank}
        for balance, rank in ranks.items():
            straggler = straggler_share(np.bincount(rank, cost, SHARING_RANKS))
            held = _held(rank, places, lengths)
            figures.setdefault(balance, []).append([held, lengths.sum(), 100 * straggler, 100 * plain.lower_bound])
    rows = []
    for balance, of_steps in figures.items():
        held, total, straggler, floor = np.array(of_steps).T
        share = 100 * held.sum() / total.sum()
        least = None if balance.startswith("none") else float(floor.mean())
        rows.append([balance, held.sum() / 1e6, share, float(straggler.mean()), least])
    return rows


def _held(rank: np.ndarray, places: np.ndarray, lengths: np.ndarray) -> int:
    """Events of the batches of all ranks, if samples of a batch share them."""
    held = 0
    for of in range(SHARING_RANKS):
        mine = np.flatnonzero(rank == of)
        held += merge_windows(np.zeros_like(mine), places[mine], lengths[mine]).size.sum()
    return held


def resident(rank: int, world_size: int, folder: Path) -> tuple[int, int]:
    """(bytes of the table, bytes of memory that it takes for this one of the ranks of a host, all of which read it)."""
    with opened(as_of(folder), rank=rank, world_size=world_size) as loader:
        arrays = histories_of(loader._data.sources[0].stages).groups["uih"].shared.arrays.values()
        for each in arrays:
            each.sum()
        dist.barrier()
        share = 1024 * sum(_pss())
        dist.barrier()
        return sum(each.nbytes for each in arrays), share


def _pss() -> Iterator[int]:
    """kB of each mapping of the shared table: a page that several processes have mapped counts for each in part."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = "freescale-" in line
        elif inside and line.startswith("Pss:"):
            yield int(line.split()[1])


def disk_bytes(folder: Path, files: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(files))


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--events", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--check", action="store_true", help="every window of every request")
    given = parser.parse_args()
    notes = [f"At most {CAP:,} events of a request, {BATCH} requests a batch, one thread; the best of {ROUNDS} epochs."]
    windows = check(given.events) if given.check else None
    if windows is not None:
        seen, wrong = windows
        notes.append(f"Of the windows of {seen:,} requests {wrong:,} differ from those of a search through all events.")
    thin = disk_bytes(given.events, "interactions-*.parquet")
    with tempfile.TemporaryDirectory(prefix="freescale-") as name:
        out = Path(name)
        fat_files(given.events, out)
        runs = {
            "once, as of the request": run(as_of(given.events, str(out / "requests.parquet"))),
            "in every row": run(ParquetSource(str(out / "fat.parquet"))),
        }
        sizes = [thin + disk_bytes(out, "requests.parquet"), disk_bytes(out, "fat.parquet")]
    total = pl.scan_parquet(given.events / "requests-*.parquet").select(pl.len()).collect().item()
    (table, *_), shares = zip(*run_ranks(RANKS, resident, given.events), strict=True)
    of_all = {
        "requests": total,
        "windows that differ": windows and windows[1],
        "disk MB, stored once": (thin + disk_bytes(given.events, "requests-*.parquet")) / 1e6,
        "disk MB, in rows": sizes[1] * total / REQUESTS / 1e6,
        "table MB": table / 1e6,
        "memory of 4 ranks / table": sum(shares) / table,
    }
    once, fat = runs.values()
    notes += [
        f"In rows / stored once: CPU {fat['cpu'] / once['cpu']:.1f}, wall {fat['wall'] / once['wall']:.1f}.",
        f"Disk of all {total:,} requests: stored once {of_all['disk MB, stored once']:.1f} MB; in rows about "
        f"{of_all['disk MB, in rows']:,.0f} MB, as the fat file would grow.",
        f"Memory of the table with {RANKS} ranks on a host: {of_all['memory of 4 ranks / table']:.2f} times its "
        f"{of_all['table MB']:.1f} MB.",
    ]
    rows = [
        [
            *(stored, stored_bytes / 1e6, each["events"] / 1e6, each["cpu"], 1e6 * each["cpu"] / REQUESTS),
            *(each["wall"], each["open"]),
        ]
        for (stored, each), stored_bytes in zip(runs.items(), sizes, strict=True)
    ]
    title = f"Histories of {REQUESTS:,} requests in {STRETCHES} stretches"
    emit("histories", title, COLUMNS, rows, notes, of_all, results=given.results, data="oss_events")
    emit(
        "histories_sharing",
        f"Events that batches hold with sharing: {SHARING_RANKS} ranks, {SHARING_BATCH} requests each in time order",
        ["balance", "events, M", "% of unshared", "straggler %", "floor %"],
        sharing(given.events),
        notes=[f"Means of {SHARING_STEPS} steps; at most {CAP:,} events of a request."],
        results=given.results,
        data="oss_events",
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
