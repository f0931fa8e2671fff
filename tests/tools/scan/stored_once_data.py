"""Requests with histories that are stored once, and the same samples with their histories in the rows."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from tools_kit import write

from freescale_tools.console.options import StoredHistories
from freescale_tools.scan.files import open_files
from freescale_tools.scan.histories import Requests, open_requests

OPTIONS = ("--on", "user", "--event-time", "when", "--time", "at")


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Requests: (user or None, at). Histories: user -> (times, items), ascending in time."""

    requests: list[tuple[int | None, int]]
    histories: dict[int, tuple[list[int], list[int]]]

    @classmethod
    def drawn(cls, seed: int, *, requests: int = 120, users: int = 9, longest: int = 14) -> "Samples":
        """Times are few, so that many are equal. Some users are missing, some have empty histories."""
        random = np.random.default_rng(seed)
        histories = {}
        for user in random.permutation(users).tolist():
            size = 0 if user % 4 == 2 else int(random.integers(0, longest + 1))
            if user % 5 != 3:
                times = np.sort(random.integers(0, 30, size)).tolist()
                histories[7 * user - 5] = (times, random.integers(-20, 40, size).tolist())
        rows = [
            (None if random.random() < 0.1 else 7 * int(random.integers(0, users)) - 5, int(random.integers(0, 34)))
            for _ in range(requests)
        ]
        return cls(requests=rows, histories=histories)

    @property
    def windows(self) -> list[list[int]]:
        """What every request sees, by looking at all events of its user."""
        found = []
        for user, at in self.requests:
            times, items = self.histories.get(user, ([], [])) if user is not None else ([], [])
            found.append([item for time, item in zip(times, items, strict=True) if time < at])
        return found

    def write(self, folder: Path, *, files: int = 2, group: int = 7, time: pa.DataType | None = None) -> None:
        """Folders `requests`, `histories` and `rows`. The files of requests and of rows have the same row groups."""
        kind = time or pa.int64()
        cuts = np.linspace(0, len(self.requests), files + 1).astype(int).tolist()
        windows = self.windows
        for file, (begin, end) in enumerate(itertools.pairwise(cuts)):
            asked = self.requests[begin:end]
            common = {
                "at": pa.array([at for _, at in asked], kind),
                "shown": pa.array([list(range(begin % 3 + n % 4)) for n in range(len(asked))], pa.list_(pa.int64())),
            }
            user = pa.array([user for user, _ in asked], pa.int32())
            rows = pa.array(windows[begin:end], pa.list_(pa.int64()))
            write(folder / "requests" / f"{file}.parquet", {"user": user, **common}, group=group)
            write(folder / "rows" / f"{file}.parquet", {"item": rows, **common}, group=group)
        users = list(self.histories)
        for file in range(files):
            some = users[file::files]
            lists = [self.histories[user] for user in some]
            table = {
                "user": pa.array(some, pa.int64()),
                "when": pa.array([times for times, _ in lists], pa.list_(kind)),
                "item": pa.array([items for _, items in lists], pa.list_(pa.int8())),
                "price": pa.array([[0.5] * len(items) for _, items in lists], pa.list_(pa.float32())),
            }
            write(folder / "histories" / f"{file}.parquet", table, group=3)


@contextmanager
def opened(
    folder: Path, *lists: str, on: str = "user", event_time: str = "when", time: str = "at"
) -> Iterator[Requests]:
    """The requests of what `Samples.write` wrote."""
    stored = StoredHistories(paths=(str(folder / "histories"),), on=on, event_time=event_time, time=time)
    paths = [str(folder / "requests")]
    with open_requests(open_files(paths), stored, lists or ["item"], paths=paths) as requests:
        yield requests
