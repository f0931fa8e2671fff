"""Counts events of list columns from footers alone, without reading a page.

`num_values` of a leaf counts its elements, and one for every null or empty list. `null_count` of its
statistics counts null elements, and one for each of the same lists. The difference is the number of elements
that are not null.
"""

from dataclasses import dataclass
from typing import Any

from freescale_tools.scan.columns import Bound
from freescale_tools.scan.files import FileSet, Leaf
from freescale_tools.scan.lengths import per_file
from fsdata.catalog.footers import Footer


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The count of one column in one file.

    Attributes:
        events: elements that are not null; in row groups without statistics also null and empty lists.
        without_statistics: row groups whose part of `events` is an upper bound.
    """

    rows: int
    events: int
    without_statistics: int


def count(footer: Footer, place: Leaf) -> Counted:
    """Count the events of a leaf from the footer of its file."""
    metadata = footer.metadata
    events = without = 0
    for group in range(metadata.num_row_groups):
        values = metadata.row_group(group).column(place.index).num_values
        nulls = int(footer.null_counts[group, place.index])
        events += values - max(nulls, 0)
        without += values > 0 > nulls
    return Counted(rows=metadata.num_rows, events=events, without_statistics=without)


def counts(files: FileSet, bound: Bound, column: str) -> dict[str, Any]:
    """One entry of `sequences` in profile.json, for mode quick. Everything that needs row lengths is null.

    `events_are` is `exact` (elements that are not null), or `upper bound` because of
    `row_groups_without_statistics`.
    """
    found = [
        (footer.file.name, count(footer, leaves[column]))
        for footer, leaves in zip(files.footers, bound.leaves, strict=True)
        if column in leaves
    ]
    rows, events = sum(one.rows for _, one in found), sum(one.events for _, one in found)
    without = sum(one.without_statistics for _, one in found)
    unknown = ("empty", "null", "null_elements", "max", "quantiles", "top1_share", "histogram", "longest", "drift")
    return {
        "rows": rows,
        "events": events,
        "events_are": "upper bound" if without else "exact",
        "row_groups_without_statistics": without,
        "mean": events / rows if rows else 0.0,
        "per_file": per_file((name, one.rows, one.events) for name, one in found),
        **dict.fromkeys(unknown),
    }
