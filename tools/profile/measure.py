"""Measures the lengths of a data set: from footers alone (quick), or from every row (full)."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from freescale_tools.calibrate.calibration import Calibration
from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import header
from freescale_tools.console.terminal import Progress
from freescale_tools.model.batches import MOST_RANKS, check_ranks, enough_for, supported
from freescale_tools.model.profiles import VERSION
from freescale_tools.scan.columns import Bound, bind
from freescale_tools.scan.engines import Engine, Lost, Threads
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.histories import Requests, scan_windows
from freescale_tools.scan.lengths import LengthSums, Piece, Scanned, counts, in_order, kept_runs, pieces, scan
from freescale_tools.scan.times import Spans, time_spans
from fsdata.catalog.footers import Skipped

_BATCH_SIZE = 128  # the paper's


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns to profile.

    Attributes:
        sequences: list columns; the first stands for the history in predictions. Not empty where lengths are read.
        candidates: a list column, or None.
        time: the column with the time of a row, for lengths over time, or None.
    """

    sequences: tuple[str, ...]
    candidates: str | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        twice = sorted({name for name in self.lists if self.lists.count(name) > 1})
        if twice:
            raise UsageError(f"named twice: {', '.join(twice)}")
        if self.time in self.lists:
            raise UsageError(f"--time {self.time} is one of the list columns; the time of a row is one value")

    @property
    def lists(self) -> tuple[str, ...]:
        return self.sequences + ((self.candidates,) if self.candidates else ())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The training job that predictions are made for.

    Attributes:
        ranks: of the job; None: the most that the rows are enough for.
        batch_size: samples of a rank; None: 128, or fewer where the rows are few.
        max_length: most events of a history; None: as recommended.
        hardware: a bundled name, or the path of a TOML file.
        ids: the column whose collisions are counted; None takes the first sequence if it holds integers.
        dims: floats exchanged per event, or by list column; None: not known.
        share: the key whose samples share their history, or None.
        calibration: what a training run has shown of the costs of a step, or None.
        extrapolate: also ranks that the rows are not enough for, or that are more than the calibration's.
        gpu_hour_price: what an hour of a GPU costs, in any currency, or None.
        parts: numbers of parts that a step is computed in, for predictions; none by default.
        stochastic_length: alpha of `StochasticLength`, compared with truncation; None leaves it out.
    """

    ranks: int | None = None
    batch_size: int | None = None
    max_length: int | None = None
    hardware: str = "h100-ib"
    ids: str | None = None
    dims: int | Mapping[str, int] | None = None
    share: str | None = None
    calibration: Calibration | None = None
    extrapolate: bool = False
    gpu_hour_price: float | None = None
    parts: tuple[int, ...] = ()
    stochastic_length: float | None = None

    def __post_init__(self) -> None:
        for name in ("ranks", "batch_size", "max_length"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if self.gpu_hour_price is not None and not 0 < self.gpu_hour_price < math.inf:
            raise UsageError(f"--gpu-hour-price must be above 0, got {self.gpu_hour_price}")
        alpha = self.stochastic_length
        if alpha is not None and not 1 < alpha <= 2:
            raise UsageError(f"--stochastic-length must be above 1 and at most 2, got {alpha}")
        if alpha is not None and self.share is not None:
            raise UsageError(
                f"--share {self.share} and --stochastic-length {alpha} cannot be combined: samples that draw their "
                "events share none. Leave one of them out"
            )

    def size(self, rows: int) -> tuple[int, int]:
        """(ranks, batch size) of all predictions from so many rows.

        Raises UsageError where `rows`, or the calibration, are not enough for what was asked for.
        """
        measured = self.calibration.ranks if self.calibration and self.calibration.ranks > 1 else None
        batch_size = self.batch_size or _BATCH_SIZE
        ranks = self.ranks or supported(rows, batch_size, most=min(measured or MOST_RANKS, MOST_RANKS))
        if ranks == 1 and self.ranks is None and self.batch_size is None:
            return fitting_size(rows)
        if not self.extrapolate:
            check_ranks(max(ranks, 2) if self.ranks is None else ranks, rows, batch_size, measured=measured)
        return ranks, batch_size


def fitting_size(rows: int) -> tuple[int, int]:
    """(2 ranks, the largest power of two as batch size that the rows are enough for)."""
    batch_size = _BATCH_SIZE
    while batch_size > 1 and not enough_for(rows, 2, batch_size):
        batch_size //= 2
    return 2, batch_size


def quick(files: FileSet, columns: Columns, *, paths: Sequence[str]) -> dict[str, Any]:
    """profile.json from footers: rows, events and means, in all and by file. Reads no page, predicts nothing.

    Files whose column is not a list are in the document's `skipped`. Raises UsageError if a column is a list
    in no file.
    """
    bound = bind(files, columns.lists)
    found = {column: counts(files, bound, column) for column in columns.lists}
    return _document("quick", files, columns, paths, found, [*files.skipped, *bound.missing])


def full(
    files: FileSet,
    columns: Columns,
    *,
    paths: Sequence[str],
    engine: Engine | None = None,
    progress: Progress | None = None,
    requests: Requests | None = None,
) -> dict[str, Any]:
    """profile.json from the lengths of all rows, with what is predicted still null.

    Reads these lengths and the time column once. `requests`: the files, if their histories are stored once. The
    sequences are then lists of the histories, and a row has the length of its window. Candidates are always in the
    rows.

    Damaged row groups, files that cannot be reached and files with an unusable column are in the document's
    `skipped`. Raises UsageError if a column is usable in no file.
    """
    where = engine or Threads()
    in_rows = columns.lists if requests is None else columns.lists[len(columns.sequences) :]
    bound = bind(files, in_rows)
    missing = list(bound.missing)
    spans = None
    if columns.time is not None:
        spans, timed = time_spans(files, columns.time)
        missing += timed.missing
    sums, lost = _scan(functools.partial(scan, spans=spans), files, bound, in_rows, spans, where, progress)
    if requests is not None:
        # The window of a request is as long in every list of the histories: its key and time say how long.
        stored = requests.stored
        keyed = bind(requests.files, [stored.on, stored.time], "any")
        work = functools.partial(scan_windows, requests=requests, spans=spans)
        windows, more = _scan(work, requests.files, keyed, [stored.on], None, where, progress)
        sums |= dict.fromkeys(columns.sequences, windows[stored.on])
        known = {(one.file, one.row_group) for one in lost}
        lost += [one for one in (*more, *requests.skipped) if (one.file, one.row_group) not in known]
    found = {column: each.document(files, spans) for column, each in sums.items()}
    document = _document("full", files, columns, paths, found, [*files.skipped, *missing, *lost])
    first, candidates = (sums.get(name or "") for name in (columns.sequences[0], columns.candidates))
    assert first is not None
    # Candidates of other files than the events' are drawn apart from them.
    beside = {"candidates": candidates} if candidates and first.rows.keys() <= candidates.rows.keys() else {}
    document["in_order"] = in_order(kept_runs(files), {"sequence": first, **beside}).to_dict()
    if requests is not None:
        document["histories"] = {
            **dataclasses.asdict(requests.stored),
            "keys": requests.keys,
            "events": requests.events,
            "files": len(requests.table.footers),
            "bytes": requests.table.bytes,
        }
    return document


def _scan(
    work: Callable[[Piece], Scanned],
    files: FileSet,
    bound: Bound,
    columns: Sequence[str],
    spans: Spans | None,
    engine: Engine,
    progress: Progress | None,
) -> tuple[dict[str, LengthSums], list[Skipped]]:
    """What `work` finds of the columns in all pieces of the files, and what could not be read."""
    # A file without a readable row group is listed, too.
    sums = {
        column: LengthSums(per_file={file: (0, 0) for file, leaves in enumerate(bound.leaves) if column in leaves})
        for column in columns
    }
    kept = {one for run in kept_runs(files) for one in run}
    unreachable: dict[tuple[str, str], int] = {}
    damaged: list[Skipped] = []
    for piece, found in engine.run(work, pieces(files, bound, spans, workers=engine.workers)):
        if isinstance(found, Lost):
            key = piece.footer.file.name, found.reason
            unreachable[key] = unreachable.get(key, 0) + piece.rows
        else:
            more_sums, skipped = found
            damaged += skipped
            for column, more in more_sums.items():
                more.rows = {one: of for one, of in more.rows.items() if one in kept}
                sums[column].add(more)
        if progress is not None:
            progress.advance(rows=piece.rows, bytes=piece.bytes)
    lost = [
        Skipped(file=file, row_group=None, rows=rows, reason=reason) for (file, reason), rows in unreachable.items()
    ]
    return sums, [*lost, *damaged]


def _document(
    mode: str,
    files: FileSet,
    columns: Columns,
    paths: Sequence[str],
    found: dict[str, dict[str, Any]],
    skipped: Sequence[Skipped],
) -> dict[str, Any]:
    return {
        **header("profile", version=VERSION),
        "mode": mode,
        "paths": list(paths),
        "files": len(files.footers),
        "rows": files.rows,
        "row_groups": files.row_groups,
        "bytes": files.bytes,
        "dims": None,
        "histories": None,
        "skipped": [dataclasses.asdict(one) for one in skipped],
        "sequences": {column: found[column] for column in columns.sequences},
        "candidates": {columns.candidates: found[columns.candidates]} if columns.candidates else {},
        "in_order": None,
        "answer": None,
        "stragglers": None,
        "balance": None,
        "recommended": None,
        "loader": None,
        "tradeoff": None,
        "collisions": None,
        "simulation": None,
        "sharing": None,
    }
