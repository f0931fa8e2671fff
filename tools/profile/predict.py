"""Predicts from measured lengths: what ranks wait, settings, collisions, a step on given hardware, trade-offs.

All of it is for one number of ranks: the one that was asked for, or the largest that the rows are enough for.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from freescale_tools.collisions.estimate import estimate
from freescale_tools.collisions.held import hold_stored_once
from freescale_tools.console.errors import UsageError
from freescale_tools.console.options import RANKS
from freescale_tools.console.terminal import Progress
from freescale_tools.model.batches import BATCHES, Setting, enough_for, fitting
from freescale_tools.model.hardware import load_hardware
from freescale_tools.model.simulation import simulate
from freescale_tools.model.waiting import waiting
from freescale_tools.model.workload import samples_of
from freescale_tools.profile.answer import answer
from freescale_tools.profile.loader_code import loader_code, loader_parts
from freescale_tools.profile.measure import Settings
from freescale_tools.profile.recommend import even_cut, recommend
from freescale_tools.profile.sampled import sampled_lengths
from freescale_tools.profile.sharing import sharing
from freescale_tools.profile.stragglers import straggler_grid
from freescale_tools.profile.tradeoff import tradeoff
from freescale_tools.scan.columns import bind, holds
from freescale_tools.scan.files import FileSet
from freescale_tools.scan.histories import Requests
from fsdata.balance.cost import Polynomial

DIM = 128  # of the embedding table, for the bytes of an exchange

Bar = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The files of a profile, for what is counted in them. `requests`: if their histories are stored once."""

    files: FileSet
    time: str | None
    requests: Requests | None = None


def predict(document: dict[str, Any], settings: Settings, data: Data | None = None, *, bar: Bar) -> list[str]:
    """Fill all that is predicted of a full profile, and its `answer`.

    Collisions, `loader` and, if asked for, sharing are counted in the files of `data`; without, they stay as they are.
    Returns why some parts are null. `bar` shows the progress. Raises UsageError where the rows are not enough for the
    settings, and if collisions cannot be counted in the column `settings.ids`.
    """
    calibration, hardware = settings.calibration, load_hardware(settings.hardware)
    name = next(iter(document["sequences"]))
    document["dims"] = settings.dims or document["dims"]
    if not document["sequences"][name]["events"]:
        return [f"{name} has no events: there is nothing to predict from"]
    samples = samples_of(document)
    histogram = samples.histogram
    ranks, batch_size = settings.size(histogram.rows)
    if not settings.extrapolate and not enough_for(histogram.rows, ranks, batch_size):
        size = f"{ranks * batch_size * BATCHES} make {BATCHES} global batches of {ranks} ranks x {batch_size} samples"
        return [f"{histogram.rows} rows are too few to predict from: {size}"]
    cost = calibration.cost if calibration else Polynomial()
    uncut = Setting(max_length=histogram.longest, ranks=ranks, batch_size=batch_size, cost=cost)
    cut = even_cut(samples, uncut)
    advice = document["recommended"] = recommend(samples, cut, max_length=settings.max_length)
    chosen = replace(uncut, max_length=advice["max_length"])
    by_ranks = sorted({*(1 << power for power in range(1, ranks.bit_length())), ranks} - {1} | {ranks})
    with bar("simulating batches") as progress:
        document["stragglers"] = straggler_grid(samples, chosen, ranks=by_ranks, progress=progress)
    error = calibration.error if calibration else None
    sure = waiting(samples, chosen, advice["method"], error=error)
    document["balance"] = {
        **{key: getattr(chosen, key) for key in ("ranks", "batch_size", "max_length")},
        "method": advice["method"],
        "cost": repr(cost),
        "rows": histogram.rows,
        "rows_in_order": sum(map(sum, samples.rows.units)) if samples.rows and samples.dealt(chosen) else 0,
        "orders": sure.in_orders(),
        "interval": {"time_lost": sure.interval()},
    }
    notes: list[str] = []
    if data is not None:
        share = settings.share is not None
        document["loader"] = loader_parts(data.files, document, requests=data.requests, share=share)
        with bar("counting collisions") as progress:
            document["collisions"], notes = _collisions(document, data, settings, chosen, progress)
    if document["loader"]:
        advice["code"] = loader_code(document["loader"], advice, chosen)
    document["simulation"] = simulate(
        document, hardware, samples, ranks=by_ranks, calibration=calibration, parts=settings.parts, waiting=sure
    )
    document["tradeoff"] = tradeoff(
        document, samples, cut, hardware, calibration=calibration, gpu_hour_price=settings.gpu_hour_price
    )
    if settings.stochastic_length is not None:
        document["tradeoff"]["sampled"] = sampled_lengths(
            samples, chosen, alpha=settings.stochastic_length, method=advice["method"]
        )
    if data is not None and data.requests is not None and settings.share is not None:
        with bar("merging windows") as progress:
            document["sharing"] = _sharing(document, data.requests, settings, chosen, progress)
    document["answer"] = answer(document)
    return notes


def _sharing(
    document: dict[str, Any], requests: Requests, settings: Settings, chosen: Setting, progress: Progress
) -> dict[str, Any]:
    calibration, dims, sequences = settings.calibration, settings.dims, list(document["sequences"])
    if dims is None and calibration and calibration.dim:
        dims = round(calibration.dim)
    return sharing(
        hold_stored_once(
            requests, None, max_length=chosen.max_length, ranks=chosen.ranks, batch_size=chosen.batch_size
        ),
        document,
        load_hardware(settings.hardware),
        share=requests.stored.on,
        fields=sum(name not in requests.floats for name in sequences),
        dim=_floats(dims, sequences),
        orders=("file", "shuffled", "time"),
        calibration=calibration,
        progress=progress,
    )


def _collisions(
    document: dict[str, Any], data: Data, settings: Settings, chosen: Setting, progress: Progress
) -> tuple[dict[str, Any] | None, list[str]]:
    column, files, requests = settings.ids or next(iter(document["sequences"])), data.files, data.requests
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
    ranks, batch_size = fitting(files.rows, chosen.ranks, chosen.batch_size)
    notes = []
    if (ranks, batch_size) != (chosen.ranks, chosen.batch_size):
        notes.append(
            f"collisions are counted at {ranks} ranks x {batch_size} samples: for more, {files.rows:,} rows are too few"
        )
    try:
        found = estimate(
            files,
            column,
            batch_size=batch_size,
            ranks=ranks,
            max_length=chosen.max_length,
            dim=_floats(settings.dims, [column]),
            orders=("file", "shuffled", *(("time",) if data.time else ())),
            time=data.time,
            progress=progress,
            requests=requests,
            by_ranks=[one for one in RANKS if one <= ranks],
            by_length=False,
        )
    except UsageError as error:
        if settings.ids is not None:
            raise
        return None, [f"collisions are not estimated: {error}"]
    return found, [*notes, *(f"collisions: {note}" for note in found["notes"])]


def _floats(dims: int | Mapping[str, int] | None, columns: Sequence[str]) -> int:
    """Of all these columns together, of one event."""
    if isinstance(dims, Mapping):
        return sum(dims.get(column, 0) for column in columns) or DIM
    return dims or DIM
