"""Holds the ids of rows in memory, as a loader reads them: chooses row groups, cuts lists, and renumbers ids from 0.

Memory holds at most 84 M ids of 4 bytes: two batches of 64 x 128 samples as long as the paper's. If the footers do
not say that ids lie close together, it holds a quarter of that, because renumbering needs a hash table. Row groups that
are being decoded come on top, 1 GiB of them or one. Of histories that are stored once it holds the events of the
table and 24 bytes a request, however long the windows are.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from freescale_tools.collisions.id_rows import NO_ROWS, PER_DAY, IdPart, IdRows
from freescale_tools.console.errors import CommandFailed
from freescale_tools.console.terminal import Progress
from freescale_tools.scan.columns import Leaf, bind, is_calendar, leaf
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.histories import Requests, RequestWindows
from fsdata.catalog.footers import Skipped
from fsranks.machine.cores import usable_cores

Found = TypeVar("Found")

MOST_IDS = 80 << 20
_ENOUGH_IDS = 32 << 20  # more ids are read only if the batches need them
_BATCHES = 4  # global batches of the default size that should be in memory
_ROW_IDS = 4  # memory for the start and length of a row, counted in ids
_MOST_RUNS = 8
_DIRECT = 1 << 28  # ids below this are counted without renumbering, in one byte each per thread
_MOST_BYTES = 1 << 30  # of row groups that are decoded at a time, if they are more than one
_BYTES_OF_ID = 24  # while it is decoded: in its page, as a loader gives it, and as it is held
_ROOM = 1.25  # the first rows of a row group may hold more than their share of its ids


class Unit(NamedTuple):
    """The first `rows` rows of a row group, with room for `room` ids; its file is footer number `file`."""

    file: int
    group: int
    rows: int
    room: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Rows in memory, N of them, in file order.

    Attributes:
        ids: uint32, below `distinct`; row n is ids[starts[n] : starts[n] + lengths[n]]. Rows may overlap.
        starts, lengths: int64 [N].
        distinct: all ids are below this number.
        units: rows of every row group, by run of consecutive row groups.
        time: int64 [N]; `known`, bool [N], says which rows have a time. Both are empty without a time column.
        per_day: parts of a day in `time`; 0 if times are integers, or if there are none.
        skipped: files and row groups that could not be read.
        rows: all rows of the files, read or not.
    """

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    distinct: int
    units: tuple[tuple[int, ...], ...]
    time: np.ndarray
    known: np.ndarray
    per_day: int
    skipped: tuple[Skipped, ...]
    rows: int

    @property
    def rows_read(self) -> int:
        return len(self.starts)

    @property
    def longest(self) -> int:
        return int(self.lengths.max(initial=0))


def hold(
    files: FileSet,
    column: str,
    *,
    time: str | None,
    max_length: int | None,
    ranks: int,
    batch_size: int,
    most_ids: int = MOST_IDS,
    progress: Progress | None = None,
    hashed: bool = False,
) -> Held:
    """Read `column`, and `time`, of all row groups, or of as many as fit into memory.

    If the cut to `max_length` leaves more than `most_ids` ids, only some runs of consecutive row groups are
    read, and only the first rows of large row groups, so that each of `ranks` ranks still has a row group.
    One thread per core. Raises UsageError if no file has integers in the column, CommandFailed if a file
    cannot be reached.
    """
    with IdRows(files, column, time=time, max_length=max_length, hashed=hashed) as opened:
        units = []
        for number, leaf in opened.leaves.items():
            for group, rows in enumerate(files.footers[number].row_groups):
                values = files.footers[number].metadata.row_group(group).column(leaf.index).num_values
                if rows:
                    room = values if max_length is None else min(values, rows * max_length)
                    units.append(Unit(file=number, group=group, rows=rows, room=room))
        low, span = (0, 2**63 - 1) if hashed else _range(opened, files, units)
        near, narrow = span < _DIRECT, span < 2**32
        fit = most_ids if near else most_ids // 4
        runs = plan_runs(units, fit, ranks=ranks, rows_wanted=_BATCHES * ranks * batch_size)
        chosen = [unit for run in runs for unit in run]
        ids = np.empty(sum(unit.room for unit in chosen), np.uint32 if narrow else np.int64)
        at = 0

        def read(unit: Unit) -> IdPart:
            found = opened.read(unit.file, unit.group, unit.rows, room=unit.room)
            if not narrow:
                return found
            if len(found.ids) and not low <= found.ids.min() <= found.ids.max() <= low + span:
                reason = f"{column}: a value outside the range that its statistics promise"
                opened.leave_out(unit.file, unit.group, reason)
                return NO_ROWS
            moved = np.empty(len(found.ids), np.uint32)
            return found._replace(ids=np.subtract(found.ids, low, out=moved, casting="unsafe"))

        parts = []
        for unit, part in zip(chosen, _in_threads(read, chosen), strict=True):
            ids[at : at + len(part.ids)] = part.ids
            at += len(part.ids)
            parts.append(part._replace(ids=NO_ROWS.ids))  # all but the ids, which would stay in memory
            if progress is not None:
                chunk = files.footers[unit.file].metadata.row_group(unit.group).column(opened.leaves[unit.file].index)
                progress.advance(rows=len(part.lengths), bytes=chunk.total_compressed_size)
        _, lengths, when, known = map(np.concatenate, zip(NO_ROWS, *parts, strict=True))
        numbers, distinct = (ids[:at], span + 1) if near else renumbered(ids[:at])
        return Held(
            ids=numbers,
            starts=np.cumsum(lengths) - lengths,
            lengths=lengths,
            distinct=distinct,
            units=_by_run(runs, [len(part.lengths) for part in parts]),
            time=when,
            known=known,
            per_day=opened.per_day,
            skipped=tuple(opened.skipped),
            rows=files.rows,
        )


def hold_stored_once(
    requests: Requests,
    column: str | None,
    *,
    max_length: int | None,
    ranks: int,
    batch_size: int,
    most_ids: int = MOST_IDS,
    progress: Progress | None = None,
) -> Held:
    """Find the windows of all requests, or of as many as fit into memory, cut to their last `max_length` events.

    `column`: the ids, a list of the histories; None holds windows alone, and `ids` is then empty. Chooses
    requests as `hold` does rows. One thread per core. Raises UsageError if the column holds no integers, and
    as `Requests.windows`; CommandFailed if a file cannot be reached.
    """
    if column is not None:
        bind(requests.table, [column], "ids")
    units = [
        Unit(file=file, group=group, rows=rows, room=0)
        for file, footer in enumerate(requests.files.footers)
        for group, rows in enumerate(footer.row_groups)
        if rows
    ]
    runs = plan_runs(units, most_ids, ranks=ranks, rows_wanted=_BATCHES * ranks * batch_size)
    chosen = [unit for run in runs for unit in run]
    seen = [RequestWindows(NO_ROWS.lengths, NO_ROWS.lengths, NO_ROWS.time)]
    for found in _in_threads(lambda unit: requests.windows(unit.file, unit.group, unit.rows), chosen):
        seen.append(found)
        if progress is not None:
            progress.advance(rows=len(found.length))
    place, length, time = map(np.concatenate, zip(*seen, strict=True))
    lengths = length if max_length is None else np.minimum(length, max_length)
    times = [leaf(footer, requests.stored.time, "time") for footer in requests.files.footers]
    dated = any(isinstance(one, Leaf) and is_calendar(one.kind) for one in times)
    ids, distinct = renumbered(np.empty(0, np.int64) if column is None else requests.values(column))
    return Held(
        ids=ids,
        starts=place + length - lengths,
        lengths=lengths,
        distinct=distinct,
        units=_by_run(runs, [len(each.length) for each in seen[1:]]),
        time=time,
        known=np.ones(len(time), bool),
        per_day=PER_DAY["ns"] if dated else 0,
        skipped=tuple(requests.skipped),
        rows=requests.files.rows,
    )


def plan_runs(units: Sequence[Unit], most_ids: int, *, ranks: int, rows_wanted: int) -> list[list[Unit]]:
    """All units as one run if they fit. Otherwise several runs that together hold at most `most_ids` ids."""
    weights = np.array([unit.room + _ROW_IDS * unit.rows for unit in units], np.float64)
    needed = float(weights.sum()) / max(sum(unit.rows for unit in units), 1) * rows_wanted
    most_ids = min(max(int(needed), _ENOUGH_IDS), most_ids)
    if weights.sum() <= most_ids:
        return [list(units)]
    fit = max(int(most_ids / weights.mean()), 1)
    rows = fit * sum(unit.rows for unit in units) // len(units)
    number = min(max(min(fit // ranks, rows // rows_wanted), 1), _MOST_RUNS)
    size = min(max(fit // number, min(ranks, len(units))), len(units))
    runs = []
    for index in range(number):
        begin, end = len(units) * index // number, len(units) * (index + 1) // number
        first = (begin + end - size) // 2
        share = min(most_ids / number / weights[first : first + size].sum(), 1.0)
        run = list(units[first : first + size])
        if share < 1:
            rooms = [min(int(unit.room * share * _ROOM), unit.room) for unit in run]
            run = [
                unit._replace(rows=max(int(unit.rows * share), 1), room=max(room, 1))
                for unit, room in zip(run, rooms, strict=True)
            ]
        runs.append(run)
    return runs


def _by_run(runs: Sequence[Sequence[Unit]], rows: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """rows: that were read of every unit of all runs."""
    left = iter(rows)
    return tuple(tuple(next(left) for _ in run) for run in runs)


def _range(opened: IdRows, files: FileSet, units: Sequence[Unit]) -> tuple[int, int]:
    """(smallest id, largest - smallest) from the footers; the range of int64 if footers do not say."""
    ends: list[int] = []
    for unit in units:
        chunk = files.footers[unit.file].metadata.row_group(unit.group).column(opened.leaves[unit.file].index)
        seen = chunk.statistics
        if seen is not None and seen.has_min_max:
            ends += [int(seen.min), int(seen.max)]
        elif seen is None or not seen.has_null_count or seen.null_count < chunk.num_values:
            return -(2**63), 2**64 - 1
    if not ends or max(ends) - min(ends) >= 2**32 or max(ends) >= 2**63:
        return -(2**63), 2**64 - 1
    return min(ends), max(ends) - min(ends)


def _in_threads(read: Callable[[Unit], Found], units: Sequence[Unit]) -> Iterator[Found]:
    """In the order of the units. Raises CommandFailed if a file cannot be reached."""
    largest = max((unit.room for unit in units), default=0) * _BYTES_OF_ID
    threads = max(min(usable_cores(), _MOST_BYTES // max(largest, 1)), 1)
    with ThreadPoolExecutor(threads, thread_name_prefix="freescale-ids") as pool:
        try:
            yield from pool.map(read, units)
        except OSError as error:
            raise CommandFailed(f"the rows cannot be read: {error}") from error


def renumbered(ids: np.ndarray) -> tuple[np.ndarray, int]:
    """(ids as uint32 from 0, a number above all of them). ids: integers of any type."""
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
    if high - low < _DIRECT:
        moved = np.subtract(ids, low, dtype=ids.dtype)
        return moved.view(f"u{moved.itemsize}").astype(np.uint32), high - low + 1
    encoded = pa.array(ids).dictionary_encode()
    numbers = np.frombuffer(encoded.indices.buffers()[1], np.uint32)[: len(ids)]
    return np.array(numbers), len(encoded.dictionary)
