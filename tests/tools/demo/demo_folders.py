"""Folders for the demo."""

import numpy as np
import pyarrow as pa
from tools_kit import ragged, write

EPOCH, USERS, REQUESTS = 1_700_000_000, 9, 96


def request_folder(at):
    """Histories of some users, of no event, of one and of more, and requests of these and other users; many times
    are equal."""
    folder, rng = at / "requests", np.random.default_rng(2)
    users = rng.permutation(USERS)[:-2]
    lengths = np.array([0, 1, *rng.integers(5, 60, len(users) - 2)])
    times = np.concatenate([EPOCH + np.sort(rng.integers(0, 40, length)) for length in lengths])
    rows = {
        "user_id": users,
        "item_ids": ragged(lengths, rng.integers(0, 500, lengths.sum())),
        "when": ragged(lengths, times),
        "kinds": ragged(lengths, pa.array(rng.integers(0, 4, lengths.sum()), pa.int32())),
    }
    write(folder / "histories.parquet", rows, group=3)
    asked = {
        "request_id": np.arange(REQUESTS),
        "user_id": rng.integers(0, USERS, REQUESTS),
        "ts": EPOCH + np.sort(rng.integers(0, 45, REQUESTS)),
    }
    write(folder / "requests.parquet", asked, group=16)
    seen = {"user_id": np.arange(USERS), "first_ts": np.full(USERS, EPOCH), "last_ts": np.full(USERS, EPOCH + 40)}
    write(folder / "users.parquet", seen)
    return folder
