"""A synthetic log in the shape of Yambda's 5b variant: histories of very different length, popular items, times rounded
to 5 s.

One row per event: uid, ts, item_id, type (0 listen, 1 like, 2 others), ratio (percent played, 0 where null), organic.
Rows stand user after user, in the order of time. Items have an artist and an album.

The reference publishes these numbers of its preprocessed log: events of a user 2,695 in the median, 4,763 in the mean,
27,738 at most; 61.3 % of the events are listens of at least half, 35.9 % other listens, 1.9 % likes; 9.39 M items,
1.29 M artists, 3.37 M albums, 300 days. They hold here, whatever the number of events. Not published, and chosen:
users differ in how many listens they finish and how often they like, such that a sample of DLRMv4 has about 2,663
events, as in the reference (with equal users it would have 2,900); items are as popular as one over their rank; times
are uniform, and an album may be of another artist.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MEDIAN, MOST = 2_695, 27_738  # events of a user
SIGMA = 1.135  # of the logarithm of a history's length: a mean of 4,763
LISTENS = 0.972  # of all events
FINISHED, LIKES = 0.613 / 0.972, 0.019 / 0.028  # of listens, and of other events
DISTINCT = 2.4  # the smaller, the more users differ in these two
DAY, DAYS = 86_400, 300
START = 1_700_000_000
LISTEN, LIKE, OTHER = 0, 1, 2
FILE_EVENTS = 5_000_000
ITEMS, ARTISTS, ALBUMS = 9_390_624, 1_293_395, 3_367_692


def write(folder: Path, events: int, *, seed: int = 0) -> dict[str, int]:
    """Write `log/*.parquet` and `items.parquet`; {events, users, items}. Memory: some users at a time."""
    (folder / "log").mkdir(parents=True)
    random = np.random.default_rng(seed)
    lengths = _lengths(random, events)
    popular = random.permutation(ITEMS)
    users, ends, begin, file = len(lengths), lengths.cumsum(), 0, 0
    while begin < users:
        before = ends[begin - 1] if begin else 0
        end = max(int(np.searchsorted(ends, before + FILE_EVENTS)), begin + 1)
        table = _events(random, np.arange(begin, end), lengths[begin:end], popular)
        pq.write_table(table, folder / "log" / f"{file:05d}.parquet", row_group_size=1_000_000)
        begin, file = end, file + 1
    known = np.flatnonzero(random.random(ITEMS) < 0.98)  # of some items nothing is known
    columns = {
        "item_id": known,
        "artist_id": random.integers(1, ARTISTS, len(known)),
        "album_id": random.integers(1, ALBUMS, len(known)),
    }
    pq.write_table(pa.table(columns), folder / "items.parquet")
    return {"events": int(ends[-1]), "users": users, "items": ITEMS}


def _lengths(random: np.random.Generator, events: int) -> np.ndarray:
    """int64 [users], their sum is `events`: the history of the last user is cut."""
    users = 2 * events // MEDIAN + 100  # more than enough
    lengths = np.clip(MEDIAN * random.lognormal(0, SIGMA, users), 1, MOST).astype(np.int64)
    ends = lengths.cumsum()
    last = int(np.searchsorted(ends, events))
    lengths[last] -= ends[last] - events
    return lengths[: last + 1]


def _events(random: np.random.Generator, users: np.ndarray, lengths: np.ndarray, popular: np.ndarray) -> pa.Table:
    count = int(lengths.sum())
    uid = np.repeat(users * 10 + 3, lengths)
    ts = START + random.integers(0, DAYS * DAY // 5, count) * 5
    ts = ts[np.lexsort((ts, uid))]
    rank = (len(popular) ** random.random(count)).astype(np.int64) - 1  # as often as 1 / rank
    finished, likes = (
        np.repeat(random.beta(DISTINCT * mean, DISTINCT * (1 - mean), len(users)), lengths)
        for mean in (FINISHED, LIKES)
    )
    drawn = random.random(count)
    kind = np.where(drawn < LISTENS, LISTEN, np.where(drawn < LISTENS + (1 - LISTENS) * likes, LIKE, OTHER))
    ratio = np.where(random.random(count) < finished, random.integers(50, 101, count), random.integers(0, 50, count))
    return pa.table(
        {
            "uid": uid,
            "ts": ts,
            "item_id": popular[rank].astype(np.int32),
            "type": kind.astype(np.int8),
            "ratio": np.where(kind == LISTEN, ratio, 0).astype(np.int16),
            "organic": random.random(count) < 0.5,
        }
    )
