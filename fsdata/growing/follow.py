"""`Follow`: a source whose folder grows while it is read. Nothing is opened here."""

from dataclasses import dataclass
from typing import Literal

from fsdata.errors import SchemaError
from fsdata.options import integer, is_integer, one_of, plain, seconds
from fsdata.sources.source import Growing


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow(Growing):
    """Reads new files of a folder or glob as they arrive, each file once.

    The new files that are found at one time make an *extension* of the data: its row groups are dealt to the ranks,
    shuffled if the loader shuffles, and read like those of an epoch. Rows that do not fill a global batch are read with
    the next extension. All ranks read the same files in the same order: rank 0 looks for them, and sends their names to
    the others between two steps.

    A file is late if files behind it in the order were already read (with a larger path, or newer times): it is read
    with the next extension, and a warning is logged.

    Args:
        by: `"path"`: in the order of paths, as long as all files before them are whole; for ascending names such as
            `day=2026-11-23/part-0001.parquet`. `"time"`: in the order of their largest `Schema.time`, by the statistics
            in their footers.
        lag: how long files may arrive later than their position in the order. By path: a file is read once it has not
            been modified for this time. By time: once another file has times that are later by this time; a number
            without unit is in the unit of the time column. "90s", "10m", "1.5h", "2d".
        idle: end the epoch when no new file has come for this time; None never ends it. Files deferred by their times
            are read before the end, and one that is still not whole is an error that names it.
        every: interval between two looks for new files.
        at_most: the most files of one extension; more files become several extensions.

    Raises:
        SchemaError: a value is out of range.
    """

    by: Literal["path", "time"] = "path"
    lag: str | int = "0s"
    idle: str | None = None
    every: str = "10s"
    at_most: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", one_of("Follow(by=...)", self.by, ("path", "time"), error=SchemaError))
        object.__setattr__(self, "lag", plain(self.lag))
        if not (self.by == "time" and is_integer(self.lag, 0)):
            seconds(self.lag, "lag")
        if self.idle is not None:
            seconds(self.idle, "idle")
        if seconds(self.every, "every") <= 0:
            raise SchemaError("Follow(every=...) must be more than 0")
        object.__setattr__(self, "at_most", integer("Follow(at_most=...)", self.at_most, 1, error=SchemaError))

    @property
    def form(self) -> str:
        return f"follow by {self.by}"

    @property
    def by_path(self) -> bool:
        return self.by == "path"

    @property
    def idle_s(self) -> float | None:
        return None if self.idle is None else seconds(self.idle, "idle")

    @property
    def every_s(self) -> float:
        return seconds(self.every, "every")
