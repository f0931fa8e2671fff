"""Folders for the demo."""

import numpy as np
import polars as pl
import pyarrow as pa

EPOCH, USERS, REQUESTS = 1_700_000_000, 9, 96


def lists(rng, lengths, values=None, kind="int64"):
    """Lists of these lengths, of random values if none are given."""
    values = rng.integers(0, 40, lengths.sum()) if values is None else values
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values).cast(pa.type_for_alias(kind)))


def request_folder(at):
    """Histories of some users, of no event, of one and of more, and requests of these and other users; many times
    are equal."""
    folder = at / "requests"
    folder.mkdir()
    rng = np.random.default_rng(2)
    users = rng.permutation(USERS)[:-2]
    lengths = np.array([0, 1, *rng.integers(5, 60, len(users) - 2)])
    times = np.concatenate([EPOCH + np.sort(rng.integers(0, 40, length)) for length in lengths])
    rows = {
        "user_id": pa.array(users),
        "item_ids": lists(rng, lengths, rng.integers(0, 500, lengths.sum())),
        "when": lists(rng, lengths, times),
        "kinds": lists(rng, lengths, rng.integers(0, 4, lengths.sum()), kind="int32"),
    }
    pl.DataFrame(pa.table(rows)).write_parquet(folder / "histories.parquet", row_group_size=3)
    asked = {
        "request_id": np.arange(REQUESTS),
        "user_id": rng.integers(0, USERS, REQUESTS),
        "ts": EPOCH + np.sort(rng.integers(0, 45, REQUESTS)),
    }
    pl.DataFrame(asked).write_parquet(folder / "requests.parquet", row_group_size=16)
    seen = {"user_id": range(USERS), "first_ts": np.full(USERS, EPOCH), "last_ts": np.full(USERS, EPOCH + 40)}
    pl.DataFrame(seen).write_parquet(folder / "users.parquet")
    return folder
