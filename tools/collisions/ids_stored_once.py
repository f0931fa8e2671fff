"""Holds the ids of histories that are stored once: rows are stretches of the table, and overlap in it.

Memory holds the events of the table and 24 bytes a request, however long the windows are.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from freescale_tools.collisions.arrow_ids import check_ids
from freescale_tools.collisions.ids_in_memory import BATCHES, MOST_IDS, Held, Unit, plan_runs, renumbered
from freescale_tools.console.errors import CommandFailed
from freescale_tools.console.terminal import Progress
from freescale_tools.scan.columns import bind
from freescale_tools.scan.histories import Requests, Windows
from fsranks.machine.cores import usable_cores


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
        bind(requests.table, [column], check=check_ids)
    units = [
        Unit(file=file, group=group, rows=rows, room=0)
        for file, footer in enumerate(requests.files.footers)
        for group, rows in enumerate(footer.row_groups)
        if rows
    ]
    runs = plan_runs(units, most_ids, ranks=ranks, rows_wanted=BATCHES * ranks * batch_size)

    def windows(unit: Unit) -> Windows:
        found = requests.windows(unit.file, unit.group, unit.rows)
        if progress is not None:
            progress.advance(rows=len(found.length))
        return found

    try:
        with ThreadPoolExecutor(usable_cores(), thread_name_prefix="freescale-windows") as pool:
            seen = [list(pool.map(windows, run)) for run in runs]
    except OSError as error:
        raise CommandFailed(f"the requests cannot be read: {error}") from error
    place, length, time = (
        np.concatenate([np.empty(0, np.int64), *(getattr(each, name) for run in seen for each in run)])
        for name in ("place", "length", "time")
    )
    lengths = np.minimum(length, np.iinfo(np.int64).max if max_length is None else max_length)
    ids, distinct = renumbered(np.empty(0, np.int64) if column is None else requests.values(column))
    return Held(
        ids=ids,
        starts=place + length - lengths,
        lengths=lengths,
        distinct=distinct,
        units=tuple(tuple(len(each.length) for each in run) for run in seen),
        time=time,
        known=np.ones(len(time), bool),
        skipped=tuple(requests.skipped),
        rows=requests.files.rows,
    )
