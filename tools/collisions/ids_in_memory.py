"""Reads the id column into memory: chooses row groups, cuts histories, and renumbers ids from 0.

Memory holds at most 84 M ids of 4 bytes: two batches of 64 x 128 samples as long as the paper's. If the
footers do not say that ids lie close together, it holds a quarter of that, because renumbering needs a hash
table.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from freescale_tools.collisions.arrow_ids import check_ids, check_time, last_time, parts
from freescale_tools.collisions.kernels import take_rows
from freescale_tools.console.errors import CommandFailed, first_line
from freescale_tools.console.terminal import Progress
from freescale_tools.scan.columns import Bound, Reader, bind
from freescale_tools.scan.files import FileSet
from fsdata.catalog.footers import Footer, Skipped
from fsdata.catalog.retry import unreachable
from fsdata.errors import DataError
from fsranks.machine.cores import usable_cores

MOST_IDS = 80 << 20
_ENOUGH_IDS = 32 << 20  # more ids are read only if the batches need them
BATCHES = 4  # global batches of the default size that should be in memory
_ROW_IDS = 4  # memory for the start and length of a row, counted in ids
_MOST_RUNS = 8
_DIRECT = 1 << 28  # ids below this are counted without renumbering, in one byte each per thread
_ROOM = 1.25  # the first rows of a row group may hold more than their share of its ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
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
) -> Held:
    """Read `column`, and `time`, of all row groups, or of as many as fit into memory.

    If the cut to `max_length` leaves more than `most_ids` ids, only some runs of consecutive row groups are
    read, and only the first rows of large row groups, so that each of `ranks` ranks still has a row group.
    One thread per core. Raises UsageError if no file has integers in the column, CommandFailed if a file
    cannot be reached.
    """
    wanted = [column, *([time] if time else [])]
    bound = bind(
        files,
        wanted,
        check=lambda footer, name, place: (check_ids if name == column else check_time)(footer, name, place),
    )
    units = _whole_units(files, bound, wanted, max_length)
    low, span = _range(files, bound, column, units)
    wanted_rows = BATCHES * ranks * batch_size
    if span >= _DIRECT:
        most_ids //= 4
    runs = plan_runs(units, most_ids, ranks=ranks, rows_wanted=wanted_rows)
    reading = _UnitReader(
        files, bound, column, time, max_length, [unit for run in runs for unit in run], low=low, span=span
    )
    reading.run(progress)
    return reading.held(runs, bound.missing)


def _range(files: FileSet, bound: Bound, column: str, units: Sequence[Unit]) -> tuple[int, int]:
    """(smallest id, largest - smallest) from the footers; the range of int64 if footers do not say."""
    lowest, highest = [], []
    for unit in units:
        leaf = bound.leaves[unit.file][column]
        chunk = files.footers[unit.file].metadata.row_group(unit.group).column(leaf.index)
        seen = chunk.statistics
        if seen is not None and seen.has_min_max:
            lowest.append(int(seen.min))
            highest.append(int(seen.max))
        elif seen is None or not seen.has_null_count or seen.null_count < chunk.num_values:
            return 0, 2**64 - 1
    if not lowest or max(highest) - min(lowest) >= 2**32 or max(highest) >= 2**63:
        return 0, 2**64 - 1
    return min(lowest), max(highest) - min(lowest)


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
        runs.append([_part(unit, share) for unit in units[first : first + size]])
    return runs


def _part(unit: Unit, share: float) -> Unit:
    if share >= 1:
        return unit
    return replace(
        unit, rows=max(int(unit.rows * share), 1), room=max(min(int(unit.room * share * _ROOM), unit.room), 1)
    )


def _whole_units(files: FileSet, bound: Bound, wanted: Sequence[str], max_length: int | None) -> list[Unit]:
    units = []
    for number, (footer, leaves) in enumerate(zip(files.footers, bound.leaves, strict=True)):
        if not all(name in leaves for name in wanted):
            continue
        for group in range(footer.metadata.num_row_groups):
            chunk = footer.metadata.row_group(group)
            values, rows = chunk.column(leaves[wanted[0]].index).num_values, chunk.num_rows
            room = values if max_length is None else min(values, rows * max_length)
            if rows:
                units.append(Unit(file=number, group=group, rows=rows, room=room))
    return units


class _UnitReader:
    """Decodes units in threads. Each unit has its own stretch of the arrays."""

    def __init__(
        self,
        files: FileSet,
        bound: Bound,
        column: str,
        time: str | None,
        max_length: int | None,
        units: Sequence[Unit],
        *,
        low: int,
        span: int,
    ) -> None:
        self._files = files
        self._bound = bound
        self._column = column
        self._time = time
        self._limit = max_length or np.iinfo(np.int64).max
        self._units = units
        rows = [unit.rows for unit in units]
        self._row_begin = np.cumsum([0, *rows])
        self._id_begin = np.cumsum([0, *(unit.room for unit in units)])
        self._done = np.zeros(len(units), np.int64)
        self._low, self._span = low, span
        narrow = span < 2**32
        self._ids = np.empty(self._id_begin[-1], np.uint32 if narrow else np.int64)
        self._starts, self._lengths = np.empty((2, self._row_begin[-1]), np.int64)
        self._when = np.zeros(self._row_begin[-1] if time else 0, np.int64)
        self._known = np.zeros(len(self._when), bool)
        self._skipped: dict[int, Skipped] = {}

    def run(self, progress: Progress | None) -> None:
        tasks = list(_tasks(self._units))
        with ThreadPoolExecutor(usable_cores(), thread_name_prefix="freescale-ids") as pool:
            for _ in pool.map(lambda task: self._read_file(task, progress), tasks):
                pass

    def held(self, runs: Sequence[Sequence[Unit]], missing: Sequence[Skipped]) -> Held:
        """The rows that were read, without the space that was kept for other rows."""
        done = self._done
        rows = np.concatenate(
            [np.arange(begin, begin + count) for begin, count in zip(self._row_begin, done, strict=False)]
            or [np.empty(0, np.int64)]
        )
        whole = len(rows) == len(self._starts)
        starts, lengths = (self._starts, self._lengths) if whole else (self._starts[rows], self._lengths[rows])
        ids, distinct = self._renumbered(starts, lengths)
        by_run, first = [], 0
        for run in runs:
            by_run.append(tuple(done[first : first + len(run)].tolist()))
            first += len(run)
        return Held(
            ids=ids,
            starts=starts,
            lengths=lengths,
            distinct=distinct,
            units=tuple(by_run),
            time=self._when[rows] if self._time else self._when,
            known=self._known[rows] if self._time else self._known,
            skipped=(*missing, *(self._skipped[unit] for unit in sorted(self._skipped))),
            rows=self._files.rows,
        )

    def _read_file(self, units: Sequence[int], progress: Progress | None) -> None:
        footer = self._files.footers[self._units[units[0]].file]
        try:
            with Reader(footer) as reader:
                for unit in units:
                    self._read_unit(reader, footer, unit)
                    if progress is not None:
                        one = self._units[unit]
                        leaf = self._bound.leaves[one.file][self._column]
                        size = footer.metadata.row_group(one.group).column(leaf.index).total_compressed_size
                        progress.advance(rows=int(self._done[unit]), bytes=size)
        except OSError as error:
            raise CommandFailed(f"{footer.file.path}: cannot be read: {error}") from error

    def _read_unit(self, reader: Reader, footer: Footer, unit: int) -> None:
        one = self._units[unit]
        try:
            self._fill(reader, unit)
        except (pa.ArrowException, OSError, DataError) as error:
            if unreachable(error):
                raise
            reason = first_line(error)
            whole = footer.metadata.row_group(one.group).num_rows
            self._skipped[unit] = Skipped(file=footer.file.name, row_group=one.group, rows=whole, reason=reason)

    def _fill(self, reader: Reader, unit: int) -> None:
        one = self._units[unit]
        row, last = self._row_begin[unit], self._row_begin[unit + 1]
        at, end = self._id_begin[unit], self._id_begin[unit + 1]
        for _, arrays in reader.batches(one.group, self._bound.leaves[one.file]):
            values, offsets, valid = parts(arrays[self._column])
            offsets = offsets[: last - row + 1]
            stop = row + len(offsets) - 1
            done = take_rows(
                values, offsets, valid, self._low, self._span, self._limit, self._ids[:end], at,
                self._starts[row:stop], self._lengths[row:stop],
            )  # fmt: skip
            if done < 0:
                raise pa.ArrowInvalid(f"{self._column}: a value outside the range that its statistics promise")
            if self._time:
                when, known = last_time(arrays[self._time])
                self._when[row : row + done], self._known[row : row + done] = when[:done], known[:done]
            row += done
            if done:
                at = int(self._starts[row - 1] + self._lengths[row - 1])
            if row == last or done < len(offsets) - 1:
                break
        self._done[unit] = row - self._row_begin[unit]

    def _renumbered(self, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, int]:
        """(ids as uint32 from 0, a number above all ids)."""
        ids = self._ids
        if ids.dtype == np.uint32 and self._span < _DIRECT:
            return ids, self._span + 1
        # Space that no row was read into holds arbitrary bytes.
        used = np.concatenate(
            [ids[begin:end] for begin, end in self._stretches(starts, lengths)] or [np.empty(0, ids.dtype)]
        )
        starts[:] = np.cumsum(lengths) - lengths
        return renumbered(used)

    def _stretches(self, starts: np.ndarray, lengths: np.ndarray) -> Iterator[tuple[int, int]]:
        """(begin, end) of the ids of each unit. The rows of a unit have no gaps between them."""
        first = 0
        for count in self._done.tolist():
            if count:
                last = first + count - 1
                yield int(starts[first]), int(starts[last] + lengths[last])
            first += count


def renumbered(ids: np.ndarray) -> tuple[np.ndarray, int]:
    """(ids as uint32 from 0, a number above all of them). ids: integers of any type."""
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
    if high - low < _DIRECT:
        moved = np.subtract(ids, low, dtype=ids.dtype)
        return moved.view(f"u{moved.itemsize}").astype(np.uint32), high - low + 1
    encoded = pa.array(ids).dictionary_encode()
    numbers = np.frombuffer(encoded.indices.buffers()[1], np.uint32)[: len(ids)]
    return np.array(numbers), len(encoded.dictionary)


def _tasks(units: Sequence[Unit]) -> Iterator[list[int]]:
    """Numbers of units in groups: a few units of one file each."""
    task: list[int] = []
    for number, unit in enumerate(units):
        if task and (unit.file != units[task[0]].file or len(task) == 4):
            yield task
            task = []
        task.append(number)
    if task:
        yield task
