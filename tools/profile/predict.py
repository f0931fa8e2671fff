"""Predicts from measured lengths: stragglers, settings, collisions, a step on the default hardware, trade-offs."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from freescale_tools.collisions.estimate import estimate
from freescale_tools.collisions.held import hold_stored_once
from freescale_tools.console.errors import UsageError
from freescale_tools.console.terminal import Progress
from freescale_tools.model.batches import Samples, Setting, fitting
from freescale_tools.model.hardware import load_hardware
from freescale_tools.model.simulation import simulate
from freescale_tools.profile.loader_code import loader_code
from freescale_tools.profile.measure import Columns, Settings
from freescale_tools.profile.recommend import even_cut, recommend
from freescale_tools.profile.sharing import sharing
from freescale_tools.profile.stragglers import straggler_grid
from freescale_tools.profile.tradeoff import tradeoff
from freescale_tools.scan.columns import bind, holds
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.histogram import LengthHistogram
from freescale_tools.scan.histories import Requests
from fsdata.balance.cost import Polynomial

HARDWARE = "h100-ib"
DIM = 128  # of the embedding table, for the bytes of an exchange


def predict(
    document: dict[str, Any],
    files: FileSet,
    columns: Columns,
    settings: Settings,
    *,
    bar: Callable[[str], AbstractContextManager[Progress]],
    requests: Requests | None = None,
) -> list[str]:
    """Fill stragglers, recommended, collisions, simulation, tradeoff and, if asked for, sharing of a full profile.

    Returns why some are still null. `bar` shows the progress. `requests`: as of `full`. Raises UsageError if
    collisions cannot be counted in the column `settings.ids`.
    """
    document["dims"] = settings.dims
    name, calibration, hardware = columns.sequences[0], settings.calibration, load_hardware(HARDWARE)
    histogram, *candidates = (
        LengthHistogram.from_dict(one["histogram"])
        for one in (document["sequences"][name], *document["candidates"].values())
    )
    if not histogram.events:
        return [f"{name} has no events: there is nothing to predict from"]
    samples = Samples(histogram=histogram, candidates=candidates[0] if candidates else None)
    uncut = Setting(
        max_length=histogram.longest,
        ranks=settings.default_ranks,
        batch_size=settings.batch_size,
        cost=calibration.cost if calibration else Polynomial(),
    )
    cut = even_cut(samples, uncut)
    chosen = replace(uncut, max_length=cut.recommended)
    with bar("simulating batches") as progress:
        document["stragglers"] = straggler_grid(samples, chosen, ranks=settings.ranks, progress=progress)
    document["recommended"] = recommend(samples, cut)
    share = settings.share is not None
    document["recommended"]["code"] = loader_code(files, document, chosen, requests=requests, share=share)
    with bar("counting collisions") as progress:
        document["collisions"], notes = _collisions(document, files, columns, settings, progress, requests)
    document["simulation"] = simulate(
        document,
        hardware,
        ranks=settings.ranks,
        calibration=calibration,
        beyond="show" if settings.extrapolate else "leave out",
    )
    document["tradeoff"] = tradeoff(
        document, samples, cut, hardware, calibration=calibration, gpu_hour_price=settings.gpu_hour_price
    )
    if requests is not None and share:
        dims = settings.dims
        if dims is None and calibration and calibration.dim:
            dims = round(calibration.dim)
        with bar("merging windows") as progress:
            document["sharing"] = sharing(
                hold_stored_once(
                    requests, None, max_length=chosen.max_length, ranks=chosen.ranks, batch_size=chosen.batch_size
                ),
                document,
                hardware,
                share=requests.stored.on,
                fields=sum(name not in requests.floats for name in columns.sequences),
                dim=_floats(dims, columns.sequences),
                orders=("file", "shuffled", "time"),
                calibration=calibration,
                progress=progress,
            )
    return notes


def _collisions(
    document: dict[str, Any],
    files: FileSet,
    columns: Columns,
    settings: Settings,
    progress: Progress,
    requests: Requests | None,
) -> tuple[dict[str, Any] | None, list[str]]:
    column = settings.ids or columns.sequences[0]
    if settings.ids is None:
        # Files may differ: those count in which the column is a list of integers.
        of = files if requests is None else requests.table
        leaves_of = zip(of.footers, bind(of, [column]).leaves, strict=True)
        usable = [one for one, leaves in leaves_of if column in leaves and holds(one, column, pa.types.is_integer)]
        if not usable:
            return None, [
                f"collisions are not estimated: {column} holds no integers; name a column that does with --ids"
            ]
        files = replace(files, footers=tuple(usable)) if requests is None else files
    ranks, batch_size = fitting(files.rows, settings.default_ranks, settings.batch_size)
    notes = []
    if (ranks, batch_size) != (settings.default_ranks, settings.batch_size):
        notes.append(
            f"collisions are counted at {ranks} ranks x {batch_size} samples: for more, {files.rows:,} rows are too few"
        )
    try:
        found = estimate(
            files,
            column,
            batch_size=batch_size,
            ranks=ranks,
            max_length=document["recommended"]["max_length"],
            dim=_floats(settings.dims, [column]),
            orders=("file", "shuffled", *(("time",) if columns.time else ())),
            time=columns.time,
            progress=progress,
            requests=requests,
        )
    except UsageError as error:
        if settings.ids is not None:
            raise
        return None, [f"collisions are not estimated: {error}"]
    return found, [*notes, *found["notes"]]


def _floats(dims: int | Mapping[str, int] | None, columns: Sequence[str]) -> int:
    """Of all these columns together, of one event."""
    if isinstance(dims, Mapping):
        return sum(dims.get(column, 0) for column in columns) or DIM
    return dims or DIM
