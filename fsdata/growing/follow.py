"""`Follow`: a source whose folder grows while it is read. Nothing is opened here."""

from dataclasses import dataclass
from typing import Literal

from fsdata.errors import SchemaError
from fsdata.options import integer, is_integer, one_of, plain, seconds
from fsdata.sources.source import Growing


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow(Growing):
    """New files of a folder or glob are read when they have come, each file once.

    The files that are there at one time make an *extension* of the data: its row groups are dealt out, shuffled if the
    loader shuffles, and read like those of an epoch, and rows that do not fill a global batch wait for the next
    extension. All ranks take the same files in the same order: rank 0 looks, and tells the others between two steps.

    A file that comes behind others that were read already (a smaller path, or older times) is late: it is read with the
    next extension, and a warning is logged.

    Args:
        by: `"path"`: in the order of their paths, as far as all before them are whole; for names that ascend, such as
            `day=2026-11-23/part-0001.parquet`. `"time"`: in the order of their largest `Schema.time`, by the
            statistics in their footers.
        lag: how much later than its place in the order a file may come. By path: a file is read when it was not changed
            for so long. By time: when another file has times that are later by so much; a number without unit counts
            in the units of the time column. "90s", "10m", "1.5h", "2d".
        idle: end the epoch when nothing new has come for so long; None never ends it. Files that wait by time are read
            before the end, and one that is still not whole is an error that names it.
        every: how often to look.
        at_most: files of one extension. Where many are there already, they are several extensions.

    Raises:
        SchemaError: a value that is none of these.
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
