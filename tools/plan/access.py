"""Adds to tables what the data say: ids of a sample, and which rows are used how often.

A feature is a column of the profiled files. Lengths stand in the profile. How often rows are used does not: a part
of every file is read for it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freescale_tools.collisions.id_rows import IdRows
from freescale_tools.console.errors import UsageError
from freescale_tools.plan.tables import Table
from freescale_tools.scan.files import FileSet, open_files
from freescale_tools.simulate.workload import mean_lengths

SLICES = 1 << 16  # of the rows of a table: of smaller tables, each row
MOST_IDS = 1 << 22  # of a feature that are read


def with_lengths(tables: Sequence[Table], profile: Mapping[str, Any], *, max_length: int | None) -> tuple[Table, ...]:
    """Tables whose `ids_per_sample` is known: as given, or the mean of the profiled lists, cut to `max_length`.

    Raises UsageError that names the features of which nothing is known.
    """
    means = mean_lengths(profile, max_length)
    unknown = {
        feature
        for table in tables
        if table.ids_per_sample is None
        for feature in table.features
        if not means.get(feature)
    }
    if unknown:
        raise UsageError(
            f"the profile has no lengths of {', '.join(sorted(unknown))}: it has {', '.join(means) or 'none'}. Profile "
            "these columns (--sequence), or give ids_per_sample in the tables' TOML file"
        )
    return tuple(
        table
        if table.ids_per_sample is not None
        else dataclasses.replace(table, ids_per_sample=tuple(means[feature] for feature in table.features))
        for table in tables
    )


def with_uses(tables: Sequence[Table], paths: Sequence[str], columns: Sequence[str]) -> tuple[Table, ...]:
    """Tables with the `uses` that `columns` of the files at `paths` show.

    A table stays as it is if none of its features is such a column. Ids beyond the table are taken modulo its rows.
    At most MOST_IDS ids of a feature are read, the same share of every file. Raises UsageError for columns without
    integers, and for files that cannot be read.
    """
    wanted = sorted({feature for table in tables for feature in table.features} & set(columns))
    if not wanted:
        return tuple(tables)
    files = open_files(list(paths))
    read = {column: column_ids(files, column) for column in wanted}
    return tuple(
        dataclasses.replace(table, uses=counted)
        if (counted := _uses(table, [read[feature] for feature in table.features if feature in read])) is not None
        else table
        for table in tables
    )


def column_ids(files: FileSet, column: str, *, most: int = MOST_IDS) -> np.ndarray:
    """int64 ids of a column of integers, or of lists of them: the first ones of row groups, of each file alike many."""
    found = [np.empty(0, np.int64)]
    with IdRows(files, column) as opened:
        for number in opened.leaves:
            left = max(most // len(files.footers), 1)
            for group, rows in enumerate(files.footers[number].row_groups):
                if left > 0 and rows:
                    found.append(opened.read(number, group, rows).ids[:left])
                    left -= len(found[-1])
        damaged = [one for one in opened.skipped if one.row_group is not None]
    if damaged:
        raise UsageError(f"{damaged[0].file}: {column} cannot be read: {damaged[0].reason}")
    return np.concatenate(found)


def _uses(table: Table, ids: Sequence[np.ndarray]) -> np.ndarray | None:
    """float64 [S]: counts of the ids by slice of the table's rows; None without ids."""
    slices = min(table.rows, SLICES)
    counts = np.zeros(slices)
    for of_feature in ids:
        # In floats: ids near 2^63 times the slices do not fit into 64 bits.
        place = (of_feature % table.rows).astype(np.float64) * (slices / table.rows)
        counts += np.bincount(np.minimum(place.astype(np.int64), slices - 1), minlength=slices)
    return counts if counts.any() else None
