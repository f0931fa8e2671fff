"""The samples made one by one with numpy from flat arrays in memory, as a Dataset with workers does: a yardstick, and
an independent reading of the rules.

A sample is event p of a user: a listen with enough events before it. Of the last `scan` events before p, each pool (1
listened to by half, 2 liked, 4 listened to less) gives its last ones: a third of the length each, by their places
(`interleaved`), or the last ones of all pools (`last_n`). At most `most` of them stay.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from eventlog.log import LIKE, LISTEN
from xxhash import xxh64_intdigest

CROSSES = {  # name -> values, buckets, seed: those of the reference
    "uid_x_artist": (("uid", "artist"), 100_000_000, 0),
    "uid_x_album": (("uid", "album"), 40_000_000, 0),
    "uid_x_hour": (("uid", "hour"), 24_000_000, 0),
    "item_x_hour": (("item", "hour"), 40_000_000, 0),
    "artist_x_hour": (("artist", "hour"), 32_000_000, 0),
    "uid_x_organic": (("uid", "organic"), 2_000_000, 0),
    "uid_x_artist_x_hour": (("uid", "artist", "hour"), 40_000_000, 0),
}


@dataclass(frozen=True)
class Rules:
    """How samples are made; by default as in DLRMv4. cap: the last events of each pool, a third of the history; None:
    `last_n`. most: of all of them together."""

    scan: int = 20_000
    min_history: int = 4_086
    cap: int | None = 1_362
    most: int = 4_086


class Log:
    """The whole log as flat arrays, and artist and album by item."""

    def __init__(self, folder: Path) -> None:
        events = pq.read_table(folder / "log")
        self.uid, self.ts, self.item = (events[name].to_numpy() for name in ("uid", "ts", "item_id"))
        kind, ratio = events["type"].to_numpy(), events["ratio"].to_numpy()
        self.kind, self.played = kind, (kind == LISTEN) & (ratio >= 50)
        self.organic = events["organic"].to_numpy()
        self.pool = np.where(kind == LIKE, 2, np.where(kind != LISTEN, 0, np.where(self.played, 1, 4)))
        self.begins = np.flatnonzero(np.concatenate([[True], self.uid[1:] != self.uid[:-1]]))
        items = pq.read_table(folder / "items.parquet")
        size = int(max(items["item_id"].to_numpy().max(), self.item.max())) + 1
        self.artist, self.album = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self.artist[items["item_id"].to_numpy()] = items["artist_id"].to_numpy()
        self.album[items["item_id"].to_numpy()] = items["album_id"].to_numpy()

    def anchors(self, rules: Rules) -> np.ndarray:
        """int64 [A], the events that are samples."""
        begin = np.repeat(self.begins, np.diff(np.append(self.begins, len(self.uid))))
        return np.flatnonzero((self.kind == LISTEN) & (np.arange(len(self.uid)) - begin >= rules.min_history))

    def sample(self, anchor: int, rules: Rules) -> dict[str, np.ndarray]:
        begin = self.begins[np.searchsorted(self.begins, anchor, side="right") - 1]
        first = max(begin, anchor - rules.scan)
        pool = self.pool[first:anchor]
        if rules.cap is None:
            seen = np.flatnonzero(pool)
        else:
            seen = np.sort(np.concatenate([np.flatnonzero(pool == bit)[-rules.cap :] for bit in (1, 2, 4)]))
        events = first + seen[-rules.most :]
        item, own = self.item[events], self.item[anchor]
        values = {
            "uid": self.uid[anchor],
            "item": own,
            "artist": self.artist[own],
            "album": self.album[own],
            "hour": self.ts[anchor] // 3600 % 24,
            "organic": self.organic[anchor],
        }
        found = {
            "item": item.astype(np.int64),
            "artist": self.artist[item],
            "album": self.album[item],
            "ts": self.ts[events],
            "pools": pool[seen[-rules.most :]],
            "candidate": np.array([own], np.int64),
            "candidate_artist": values["artist"][None],
            "candidate_album": values["album"][None],
            "label": np.array([float(self.played[anchor])], np.float32),
            "user": np.array([values["uid"]]),
        }
        for name, (of, buckets, seed) in CROSSES.items():
            raw = np.array([values[each] for each in of], "<i8").tobytes()
            found[name] = np.array([xxh64_intdigest(raw, seed) % buckets])
        return found


def collate(samples: list[dict[str, np.ndarray]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Field -> (values of all samples, one after another; int64 [B], how many each has)."""
    return {
        name: (np.concatenate([each[name] for each in samples]), np.array([len(each[name]) for each in samples]))
        for name in samples[0]
    }
