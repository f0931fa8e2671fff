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
from freescale_tools.profile.loader_code import loader_files
from freescale_tools.profile.measure import Columns, Profile, Settings
from freescale_tools.profile.recommend import even_cut, recommend
from freescale_tools.profile.sharing import sharing
from freescale_tools.profile.stragglers import straggler_grid
from freescale_tools.profile.tradeoff import tradeoff
from freescale_tools.scan.columns import bind, holds
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.histories import Requests
from fsdata.balance.cost import Polynomial

HARDWARE = "h100-ib"
DIM = 128  # of the embedding table, for the bytes of an exchange

Bar = Callable[[str], AbstractContextManager[Progress]]


def predict(
    profile: Profile,
    files: FileSet,
    columns: Columns,
    settings: Settings,
    *,
    paths: Sequence[str],
    bar: Bar,
    requests: Requests | None = None,
) -> list[str]:
    """Fill stragglers, recommended, collisions, simulation, tradeoff and, if asked for, sharing of a full profile.

    Returns why some are still null. `bar` shows the progress. `requests`: as of `full`. Raises UsageError if
    collisions cannot be counted in the column `settings.ids`.
    """
    document = profile.document
    document["dims"] = settings.dims
    name = columns.sequences[0]
    histogram = profile.histograms[name]
    if not histogram.events:
        return [f"{name} has no events: there is nothing to predict from"]
    candidates = profile.histograms[columns.candidates] if columns.candidates else None
    cost = settings.calibration.cost if settings.calibration else Polynomial()
    samples = Samples(histogram=histogram, candidates=candidates)
    cut = even_cut(
        samples,
        Setting(max_length=histogram.longest, ranks=settings.default_ranks, batch_size=settings.batch_size, cost=cost),
    )
    with bar("simulating batches") as progress:
        grid = straggler_grid(
            histogram,
            candidates=candidates,
            ranks=settings.ranks,
            batch_size=settings.batch_size,
            default_ranks=settings.default_ranks,
            max_length=cut.recommended,
            cost=cost,
            progress=progress,
        )
    document["stragglers"] = grid
    document["recommended"] = recommend(
        samples,
        cut,
        files=loader_files(files, document, paths=paths, requests=requests, share=settings.share is not None),
    )
    with bar("counting collisions") as progress:
        document["collisions"], notes = _collisions(document, files, columns, settings, progress, requests)
    document["simulation"] = simulate(
        document,
        load_hardware(HARDWARE),
        ranks=settings.ranks,
        calibration=settings.calibration,
        beyond="show" if settings.extrapolate else "leave out",
    )
    document["tradeoff"] = tradeoff(
        document,
        samples,
        cut,
        load_hardware(HARDWARE),
        calibration=settings.calibration,
        gpu_hour_price=settings.gpu_hour_price,
    )
    if requests is not None and settings.share is not None:
        with bar("merging windows") as progress:
            document["sharing"] = _sharing(document, columns, settings, requests, progress)
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
        usable = _with_integers(files if requests is None else requests.table, column)
        files = usable if requests is None else files
        if not usable.footers:
            return None, [
                f"collisions are not estimated: {column} holds no integers; name a column that does with --ids"
            ]
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


def _sharing(
    document: dict[str, Any], columns: Columns, settings: Settings, requests: Requests, progress: Progress
) -> dict[str, Any]:
    default, dims = document["stragglers"]["default"], settings.dims
    if dims is None and settings.calibration and settings.calibration.dim:
        dims = round(settings.calibration.dim) or None
    held = hold_stored_once(
        requests,
        None,
        max_length=document["recommended"]["max_length"],
        ranks=default["ranks"],
        batch_size=default["batch_size"],
    )
    return sharing(
        held,
        document,
        load_hardware(HARDWARE),
        share=requests.stored.on,
        fields=sum(name not in requests.floats for name in columns.sequences),
        dim=_floats(dims, columns.sequences),
        orders=("file", "shuffled", "time"),
        calibration=settings.calibration,
        progress=progress,
    )


def _floats(dims: int | Mapping[str, int] | None, columns: Sequence[str]) -> int:
    """Of all these columns together, of one event."""
    if isinstance(dims, Mapping):
        return sum(dims.get(column, 0) for column in columns) or DIM
    return dims or DIM


def _with_integers(files: FileSet, column: str) -> FileSet:
    """The files in which the column is a list of integers."""
    found = zip(files.footers, bind(files, [column]).leaves, strict=True)
    return replace(
        files,
        footers=tuple(
            footer for footer, leaves in found if column in leaves and holds(footer, column, pa.types.is_integer)
        ),
    )
