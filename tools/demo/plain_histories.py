"""Histories as of the time of a request, found without FreeScale: by an as-of join of polars.

Letters: K keys, E events of all of them, N requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from freescale_tools.demo.data import Histories, TableSource


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainHistories:
    """A table of histories in memory: the events of all keys, those of a key in ascending time.

    Attributes:
        starts: the first event of each key, key -> number of the event.
        events: key and time of each event, and its number: [E].
        fields: name -> the values of all events, [E].
    """

    join: Histories
    starts: pl.DataFrame
    events: pl.DataFrame
    fields: dict[str, np.ndarray]

    @classmethod
    def read(cls, join: Histories, fields: tuple[str, ...]) -> "PlainHistories":
        rows = read_files(join.paths, (join.on, join.time, *fields))
        counts = rows.select(join.on, number=pl.col(join.time).list.len().cast(pl.Int64))
        starts = counts.select(join.on, start=pl.col("number").cum_sum() - pl.col("number"))
        events = rows.filter(pl.col(join.time).list.len() > 0).explode(
            [name for name in rows.columns if name != join.on]
        )
        return cls(
            join=join,
            starts=starts,
            events=events.select(join.on, pl.col(join.time).alias("time")).with_row_index("event"),
            fields={name: events[name].to_numpy() for name in fields},
        )

    def windows(self, requests: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """(first event, one after the last) of what each request may see: int64 [N] each.

        requests: a row each, with the key and the time of the request.
        """
        join = self.join
        asked = requests.select(pl.col(join.on).cast(pl.Int64), pl.col(join.at).cast(pl.Int64).alias("time"))
        asked = asked.with_row_index("request").sort("time")
        found = (
            asked.join_asof(
                self.events.sort("time", maintain_order=True),
                on="time",
                by=join.on,
                allow_exact_matches=False,
                check_sortedness=False,
            )
            .join(self.starts, on=join.on, how="left")
            .sort("request")
        )
        stop = found["event"].cast(pl.Int64) + 1
        start = found["start"].fill_null(0)
        return start.to_numpy(), stop.fill_null(start).to_numpy()


def as_of_lengths(requests: TableSource, max_length: int | None) -> np.ndarray:
    """int64 [N]: how many events each row of a table of requests sees, at most `max_length`."""
    join = requests.histories
    assert join is not None
    rows = read_files(requests.paths, (join.on, join.at))
    first, stop = PlainHistories.read(join, ()).windows(rows)
    return np.minimum(stop - first, max_length or np.iinfo(np.int64).max)


def read_files(paths: Sequence[Path], columns: Sequence[str]) -> pl.DataFrame:
    """Columns of integers and of lists of integers, as int64, whatever integers each of the files has."""
    parts = []
    for path in paths:
        part = pl.read_parquet(path, columns=list(dict.fromkeys(columns)))
        parts.append(
            part.cast({name: pl.List(pl.Int64) if kind.is_nested() else pl.Int64 for name, kind in part.schema.items()})
        )
    return pl.concat(parts)
