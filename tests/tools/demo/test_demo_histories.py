"""The demo on a table of requests: histories as of their time, with and without shared events."""

import numpy as np
import polars as pl
import pytest
import torch
import torch.distributed as dist
from worlds import shared_world

from freescale_tools.demo.data import schema, sources
from freescale_tools.demo.discover import discover
from freescale_tools.demo.launch import history_lengths
from freescale_tools.demo.outcome.equality import difference
from freescale_tools.demo.training.job import Job
from freescale_tools.demo.training.plain_loader import PlainLoader
from freescale_tools.demo.training.train import balanced_loader, train
from fsdata import FreeScaleDataLoader, Polynomial

EPOCH, USERS, REQUESTS = 1_700_000_000, 9, 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Histories of some users, one of them empty, and requests of these and other users; many times are equal."""
    folder = tmp_path_factory.mktemp("requests")
    rng = np.random.default_rng(2)
    users = rng.permutation(USERS)[:-2].tolist()
    lengths = [0, *rng.integers(5, 60, len(users) - 1).tolist()]
    times = [EPOCH + np.sort(rng.integers(0, 40, length)) for length in lengths]
    rows = {
        "user_id": pl.Series(users, dtype=pl.Int64),
        "item_ids": pl.Series([rng.integers(0, 500, length).tolist() for length in lengths], dtype=pl.List(pl.Int64)),
        "when": pl.Series([each.tolist() for each in times], dtype=pl.List(pl.Int64)),
        "kinds": pl.Series([rng.integers(0, 4, length).tolist() for length in lengths], dtype=pl.List(pl.Int32)),
    }
    pl.DataFrame(rows).write_parquet(folder / "histories.parquet", row_group_size=3)
    asked = {
        "request_id": np.arange(REQUESTS),
        "user_id": rng.integers(0, USERS, REQUESTS),
        "ts": EPOCH + np.sort(rng.integers(0, 45, REQUESTS)),
    }
    pl.DataFrame(asked).write_parquet(folder / "requests.parquet", row_group_size=16)
    seen = {"user_id": range(USERS), "first_ts": np.full(USERS, EPOCH), "last_ts": np.full(USERS, EPOCH + 40)}
    pl.DataFrame(seen).write_parquet(folder / "users.parquet")
    return folder


def wanted(folder, max_length):
    """What each request sees, field by field, by comparing the times of all events of its user."""
    histories = {row[0]: row[1:] for row in pl.read_parquet(folder / "histories.parquet").iter_rows()}
    found = []
    for _, user, at in pl.read_parquet(folder / "requests.parquet").iter_rows():
        items, times, kinds = histories.get(user, ([], [], []))
        number = sum(time < at for time in times)
        found.append([each[:number][-max_length:] for each in (items, times, kinds)])
    return found


def test_finds_the_requests_and_what_they_see(folder):
    data = discover(folder, max_length=20, batch_size=8)
    assert [path.name for path in data.tables[0].paths] == ["requests.parquet"]
    assert (data.histories.on, data.histories.at, data.histories.time) == ("user_id", "ts", "when")
    assert "users.parquet" in "\n".join(data.notes)
    lists = wanted(folder, 20)
    assert history_lengths(data).tolist() == [len(items) for items, _, _ in lists]
    batches = list(PlainLoader(data, rank=0, world_size=1, workers=0))
    for place, name in enumerate(("item_ids", "when", "kinds")):
        rows = [row.tolist() for batch in batches for row in batch.features[name].to_dense()]
        assert rows == [fields[place] for fields in lists]


def test_without_requests_whole_histories_are_the_samples(folder):
    data = discover(folder, batch_size=2, requests=False)
    assert data.histories is None
    assert [path.name for path in data.tables[0].paths] == ["histories.parquet"]


def test_a_table_in_which_no_key_comes_back_is_no_table_of_requests(folder, tmp_path):
    pl.read_parquet(folder / "histories.parquet").write_parquet(tmp_path / "histories.parquet")
    pl.read_parquet(folder / "users.parquet").write_parquet(tmp_path / "users.parquet")
    assert discover(tmp_path, batch_size=2).histories is None


def test_files_may_differ_in_their_integers(folder, tmp_path):
    """Keys and times of 32 and 64 bits, and a column that one file has alone."""
    histories, requests = (pl.read_parquet(folder / f"{name}.parquet") for name in ("histories", "requests"))
    narrow = {"user_id": pl.Int16, "item_ids": pl.List(pl.Int32), "when": pl.List(pl.Int32)}
    histories[:3].with_columns(age=pl.lit(3)).write_parquet(tmp_path / "h0.parquet")
    histories[3:].cast(narrow).write_parquet(tmp_path / "h1.parquet")
    requests.cast({"user_id": pl.Int32, "ts": pl.Int32}).write_parquet(tmp_path / "r.parquet")
    data = discover(tmp_path, max_length=20, batch_size=8)
    assert (data.histories.on, [path.name for path in data.histories.paths]) == (
        "user_id",
        ["h0.parquet", "h1.parquet"],
    )
    assert history_lengths(data).tolist() == [len(items) for items, _, _ in wanted(folder, 20)]
    batches = list(PlainLoader(data, rank=0, world_size=1, workers=0))
    assert [row.tolist() for batch in batches for row in batch.features["item_ids"].to_dense()] == [
        items for items, _, _ in wanted(folder, 20)
    ]


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def losses(steps):
    return torch.tensor([step.loss for step in steps], dtype=torch.float64)


def test_shared_histories_change_only_the_order_of_additions(one_rank, folder, tmp_path):
    data = discover(folder, max_length=20, batch_size=16)
    job = Job(data=data, steps=5, seed=0, out=tmp_path / "outcome")
    runs = [train(job, PlainLoader(data, rank=0, world_size=1, workers=0), "", lambda *_: None).ranks[0]]
    for share in (False, True):
        with FreeScaleDataLoader(sources(data), schema(data, share=share), batch_size=16, num_threads=1) as loader:
            runs.append(train(job, loader, "", lambda *_: None).ranks[0])
    plain, unshared, shared = runs
    for one, other in zip(plain, unshared, strict=True):
        np.testing.assert_array_equal(one.lengths, other.lengths)
    assert torch.equal(losses(plain), losses(unshared))
    assert [step.checksum for step in plain] == [step.checksum for step in unshared]
    assert [step.checksum for step in plain] == [step.checksum for step in shared]
    assert plain[0].loss == shared[0].loss
    torch.testing.assert_close(losses(plain), losses(shared), rtol=1e-5, atol=1e-5)
    assert sum(step.held for step in shared) < 0.9 * sum(step.held for step in plain)


def twins(rank, world_size, folder):
    data = discover(folder, max_length=20, batch_size=8)
    job = Job(data=data, steps=5, seed=0, out=folder / "outcome")
    runs = []
    for serve in (False, True):
        with balanced_loader(data, Polynomial(), share=True) as loader:
            runs.append(train(job, loader, "test", lambda *_: None, serve=serve))
    return difference(*runs), dict(runs[1].fallbacks), runs[1].held


def test_prioritized_communication_changes_no_bit_of_shared_histories(folder):
    for where, fallbacks, held in shared_world(2).run(twins, folder):
        assert where is None
        assert fallbacks == {}
        assert held < 0.9
