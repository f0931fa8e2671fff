"""Counts collisions: rows of a global batch that the batch before uses too; and the bytes that a step sends.

A table row that two consecutive batches share cannot be prefetched. Such rows travel first, all others in the
background (the paper, section 2 and Figure 3). Shares are counted by occurrence, which decides the bytes of
gradients, and by distinct row. The count is exact for every sampled pair of batches and takes one memory
access per id.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from freescale_tools.collisions.held import MOST_IDS, Held, hold, hold_stored_once
from freescale_tools.collisions.kernels import MARKS, leave_mark, tally, tally_ranks
from freescale_tools.collisions.table_slots import AskedTable, predict_table
from freescale_tools.console.errors import UsageError
from freescale_tools.console.options import RANKS
from freescale_tools.console.terminal import Progress
from freescale_tools.scan.batch_order import ORDERS, Batches, Orders, streaks
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.histories import Requests
from fsranks.machine.cores import usable_cores

_LENGTHS = (50, 100, 200, 500, 1000, 2000, 4000, 8000, 12_000, 16_000, 21_000)
_MOST_LENGTHS = 6
_STATE_BYTES = 256 << 20  # of all threads together
# Work of a point, in ids: a share of the ids in memory, but at least `_WORK_IDS`. The larger share is for the
# points that the bytes and the orders come from.
_WORK_SHARE, _DEFAULT_SHARE, _WORK_IDS = 1 / 8, 1 / 2, 1 << 20
_MOST_WORK_IDS = 4 * MOST_IDS  # of which the shares are taken
_ID_BYTES, _FLOAT_BYTES = 8, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where collisions are counted."""

    order: str
    batch_size: int
    ranks: int
    max_length: int

    @property
    def rows(self) -> int:
        return self.batch_size * self.ranks


def estimate(
    files: FileSet,
    column: str,
    *,
    batch_size: int,
    ranks: int,
    max_length: int | None,
    dim: int,
    orders: Sequence[str] = ("file", "shuffled"),
    time: str | None = None,
    seed: int = 0,
    pairs: int = 16,
    most_ids: int = MOST_IDS,
    progress: Progress | None = None,
    requests: Requests | None = None,
    table: AskedTable | None = None,
    hashed: bool = False,
    by_ranks: Sequence[int] = RANKS,
    by_length: bool = True,
) -> dict[str, Any]:
    """The document: shares at the default and along each axis, and bytes per rank and step.

    Args:
        batch_size: samples of a rank.
        max_length: most events of a history, the last ones; None keeps all.
        dim: columns of the embedding table, float32.
        orders: of rows in batches. The axes use the first.
        time: the column for the order `time`, and for a `table` with a TTL. Of a list, the last element counts.
        pairs: most consecutive pairs per point. Large batches get fewer, at least one.
        most_ids: about how many ids memory holds.
        requests: the files, if their histories are stored once. The column is then a list of the histories.
        table: also predict which ids share a row of this table.
        hashed: the column holds text, and ids are made of it as by `fsdata.text_key`.
        by_ranks, by_length: numbers on the axis of ranks; whether there is an axis of longest histories.

    Points that need more rows than memory holds are left out and listed. Raises UsageError if a number or an
    order is invalid, if the column holds no integers, or if two batches need more rows than there are;
    CommandFailed if a file cannot be reached.
    """
    expires = table is not None and table.ttl is not None
    if expires and time is None:
        raise UsageError("--ttl needs the time of every row: name its column with --time")
    _check(orders, time, batch_size=batch_size, ranks=ranks, max_length=max_length, dim=dim, pairs=pairs)
    size: dict[str, Any] = {
        "max_length": max_length, "ranks": ranks, "batch_size": batch_size, "most_ids": most_ids, "progress": progress
    }  # fmt: skip
    if requests is None:
        held = hold(files, column, time=time if expires or "time" in orders else None, hashed=hashed, **size)
    else:
        held = hold_stored_once(requests, column, **size)
    # Without a limit, the longest history serves as the limit: plots need a number.
    default = Spot(order=orders[0], batch_size=batch_size, ranks=ranks, max_length=max_length or max(held.longest, 1))
    in_order = Orders(held.units, held.time, held.known, seed=seed)

    def batches(spot: Spot) -> Batches:
        return in_order.batches(spot.order, ranks=spot.ranks, batch_size=spot.batch_size)

    for order in orders:
        if batches(replace(default, order=order)).pairs == 0:
            raise UsageError(_too_few(held, replace(default, order=order), column))
    of_table = {} if table is None else {"table": _table(held, table)}
    axes = _axes(default, orders, by_ranks, held.longest if by_length else None)
    # The largest first: a large spot that starts last would run alone at the end.
    possible = sorted(
        {spot for _, spot in axes if batches(spot).pairs},
        key=lambda spot: (-spot.rows, -spot.max_length, spot.order, spot.ranks),
    )
    # Each thread has its own state.
    threads = max(min(usable_cores(), _STATE_BYTES // max(held.distinct, 1), len(possible)), 1)
    with ThreadPoolExecutor(threads, thread_name_prefix="freescale-collisions") as pool:
        counted = pool.map(lambda spot: _count(held, batches(spot), spot, default, pairs), possible)
        found = dict(zip(possible, counted, strict=True))
    return {
        "column": column,
        "batch_size": batch_size,
        "ranks": ranks,
        "max_length": default.max_length,
        "dim": dim,
        "sampled_pairs": sum(map(len, found.values())),
        "points": [{"axis": axis, **_point(spot, found[spot])} for axis, spot in axes if spot in found],
        "bytes": _bytes(found[default], ranks, dim),
        # Of these, two batches need more rows than memory holds.
        "left_out": [
            {
                "axis": axis,
                **{key: getattr(spot, key) for key in ("order", "batch_size", "ranks")},
                "rows": 2 * spot.rows,
            }
            for axis, spot in axes
            if spot not in found
        ],
        "rows": held.rows,
        "rows_read": held.rows_read,
        "read_share": held.rows_read / held.rows if held.rows else 1.0,
        "skipped": [asdict(one) for one in held.skipped],
        "notes": _notes(held, orders),
        **of_table,
    }


def _check(orders: Sequence[str], time: str | None, **numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}")
    unknown = [order for order in orders if order not in ORDERS]
    if unknown or not orders:
        raise UsageError(f"an order is one of {', '.join(ORDERS)}, got {', '.join(unknown) or 'none'}")
    if "time" in orders and time is None:
        raise UsageError("the order 'time' needs the column to sort by: name it with --time")


def _table(held: Held, asked: AskedTable) -> dict[str, Any]:
    return predict_table(
        held.ids,
        held.starts,
        held.lengths,
        distinct=held.distinct,
        asked=asked,
        time=held.time,
        known=held.known,
        per_day=held.per_day,
    )


def _count(held: Held, batches: Batches, spot: Spot, default: Spot, pairs: int) -> np.ndarray:
    """int64 [pairs, 6]. Columns 0 to 3 come from `tally`; 4 and 5 from `tally_ranks`, or they are 0.

    Counts as many pairs as wanted, within the work of a share of the ids in memory. Rows that overlap there have more
    ids than it holds.
    """
    ids, by_rank = max(int(held.lengths.sum()), 1), spot == default
    share = _DEFAULT_SHARE if spot == replace(default, order=spot.order) else _WORK_SHARE
    share = max(share * min(_MOST_WORK_IDS / ids, 1.0), _WORK_IDS / ids)
    affordable = int(min(max(sum(batches.steps) * share, 1), pairs))
    state = np.zeros(held.distinct, np.uint8)
    local = np.zeros(held.distinct if by_rank else 0, np.uint8)
    found, mark = [], 0
    for streak in streaks(batches, affordable):
        if mark + streak.batches > MARKS:
            state[:], mark = 0, 0
        for step in range(streak.first, streak.first + streak.batches):
            mark += 1
            rows, counts = batches.rows(streak.run, step), np.zeros(6, np.int64)
            place = (held.ids, held.starts, held.lengths, rows, spot.max_length)
            if step == streak.first:
                leave_mark(*place, mark, state)
                continue
            tally(*place, mark, state, counts[:4])
            if by_rank:
                tally_ranks(*place, spot.batch_size, state, local, counts[4:])
            found.append(counts)
    return np.array(found)


def _point(spot: Spot, counts: np.ndarray) -> dict[str, Any]:
    """A point of the document, without its axis."""
    return {
        **asdict(spot),
        "pairs": len(counts),
        "by_occurrence": _spread(counts[:, 1], counts[:, 0]),
        "by_row": _spread(counts[:, 3], counts[:, 2]),
        "occurrences": float(counts[:, 0].mean()),
        "distinct": float(counts[:, 2].mean()),
    }


def _spread(shared: np.ndarray, all_of_them: np.ndarray) -> dict[str, float]:
    """Mean, P50 and P99 of the shares of pairs; a batch without ids shares nothing."""
    shares = shared / np.maximum(all_of_them, 1)
    p50, p99 = np.quantile(shares, (0.5, 0.99))
    return {"mean": float(shares.mean()), "p50": float(p50), "p99": float(p99)}


def _axes(default: Spot, orders: Sequence[str], by_ranks: Sequence[int], longest: int | None) -> list[tuple[str, Spot]]:
    """(axis, spot) of every point; each axis contains the default. `longest`: None leaves out the axis of lengths."""
    size = default.batch_size
    sizes = sorted({max(size // part, 1) for part in (8, 4, 2, 1)} | {2 * size})
    lengths: list[int] = []
    if longest is not None:
        most = min(default.max_length, longest)
        lengths = [*[length for length in _LENGTHS if length < most][1 - _MOST_LENGTHS :], default.max_length]
    return [
        ("default", default),
        *(("order", replace(default, order=order)) for order in orders),
        *(("batch_size", replace(default, batch_size=value)) for value in sizes),
        *(("ranks", replace(default, ranks=value)) for value in sorted({*by_ranks, default.ranks})),
        *(("max_length", replace(default, max_length=value)) for value in lengths),
    ]


def _bytes(counts: np.ndarray, ranks: int, dim: int) -> dict[str, float]:
    """Mean bytes that leave a rank in a step, by class; counts: int64 [pairs, 6].

    Every id travels, with 8 bytes. The forward pass sends each distinct row of a rank once, the backward pass
    the gradient of every occurrence. Owners are taken as spread evenly, so 1 / W of everything stays on its
    rank.
    """
    leaving = counts.mean(axis=0) * (ranks - 1) / ranks**2
    occurrences, shared, _, _, rows, shared_rows = leaving.tolist()
    row_bytes = dim * _FLOAT_BYTES
    return {
        "ids": occurrences * _ID_BYTES,
        "collision_rows": shared_rows * row_bytes,
        "exclusive_rows": (rows - shared_rows) * row_bytes,
        "collision_gradients": shared * row_bytes,
        "exclusive_gradients": (occurrences - shared) * row_bytes,
    }


def _too_few(held: Held, spot: Spot, column: str) -> str:
    size = f"{spot.ranks} ranks x {spot.batch_size} samples are {2 * spot.rows:,} rows"
    what = f"two consecutive global batches of {size}"
    if held.rows_read == held.rows or held.skipped:
        left_out = f"; the first that was left out: {held.skipped[0].reason}" if held.skipped else ""
        return (
            f"{what}, but only {held.rows_read:,} rows could be read ({spot.order} order): "
            f"lower the batch size or the number of ranks, or give more files{left_out}"
        )
    return (
        f"{what}; of {column}, {held.rows_read:,} of {held.rows:,} rows fit into memory at a mean of "
        f"{held.lengths.mean():,.0f} ids: cut histories (max length), lower the batch size or the number of ranks"
    )


def _notes(held: Held, orders: Sequence[str]) -> list[str]:
    if held.rows_read == held.rows:
        return []
    stretches = f"{len(held.units)} stretches" if len(held.units) > 1 else "one stretch"
    notes = [f"{held.rows_read:,} of {held.rows:,} rows were read, from {stretches} of the data."]
    if "time" in orders:
        notes.append("Each stretch is sorted by time on its own, which is exact if the files are in order of time.")
    return notes
