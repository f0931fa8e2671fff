"""A synthetic log in the shape of Yambda's: histories of very different length, popular items, times rounded to 5 s.

One row per event: uid, ts, item_id, type (0 listen, 1 like, 2 others), ratio (percent played, 0 where null), organic.
Rows stand user after user, in the order of time. Items have an artist and an album.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MEAN = 4_800  # events of a user: 4.8 billion of a million users
SIGMA = 1.3  # of the logarithm of a history's length
DAY, DAYS = 86_400, 300
START = 1_700_000_000
LISTEN, LIKE, OTHER = 0, 1, 2
FILE_EVENTS = 5_000_000
MOST_ITEMS = 9_400_000


def write(folder: Path, events: int, *, seed: int = 0, mean: int = MEAN) -> dict[str, int]:
    """Write `log/*.parquet` and `items.parquet`; {events, users, items}. Memory: some users at a time."""
    (folder / "log").mkdir(parents=True)
    random = np.random.default_rng(seed)
    users = max(events // mean, 3)
    lengths = random.lognormal(0, SIGMA, users)
    lengths = np.maximum((lengths * events / lengths.sum()).astype(np.int64), 1)
    items = min(max(events // 100, 1000), MOST_ITEMS)
    popular = random.permutation(items)
    ends, begin, file = lengths.cumsum(), 0, 0
    while begin < users:
        before = ends[begin - 1] if begin else 0
        end = max(int(np.searchsorted(ends, before + FILE_EVENTS)), begin + 1)
        table = _events(random, np.arange(begin, end), lengths[begin:end], popular)
        pq.write_table(table, folder / "log" / f"{file:05d}.parquet", row_group_size=1_000_000)
        begin, file = end, file + 1
    known = np.flatnonzero(random.random(items) < 0.98)  # of some items nothing is known
    artist = random.integers(1, items // 6 + 2, len(known))
    columns = {"item_id": known, "artist_id": artist, "album_id": random.integers(1, items // 3 + 2, len(known))}
    pq.write_table(pa.table(columns), folder / "items.parquet")
    return {"events": int(ends[-1]), "users": users, "items": items}


def _events(random: np.random.Generator, users: np.ndarray, lengths: np.ndarray, popular: np.ndarray) -> pa.Table:
    count = int(lengths.sum())
    uid = np.repeat(users * 10 + 3, lengths)
    ts = START + random.integers(0, DAYS * DAY // 5, count) * 5
    ts = ts[np.lexsort((ts, uid))]
    rank = (len(popular) ** random.random(count)).astype(np.int64) - 1  # as often as 1 / rank
    kind = random.choice(np.array([LISTEN, LIKE, OTHER], np.int8), count, p=(0.93, 0.05, 0.02))
    ratio = np.where(random.random(count) < 0.6, random.integers(50, 101, count), random.integers(0, 50, count))
    return pa.table(
        {
            "uid": uid,
            "ts": ts,
            "item_id": popular[rank].astype(np.int32),
            "type": kind,
            "ratio": np.where(kind == LISTEN, ratio, 0).astype(np.int16),
            "organic": random.random(count) < 0.5,
        }
    )
