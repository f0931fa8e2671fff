"""`Schema(explode="candidates")`: every candidate of a row is a sample of its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from patience import PATIENCE_S
from rank_loaders import read_and_go_on
from worlds import shared_world

from fsdata import (
    AsOf,
    Balance,
    FreeScaleDataLoader,
    ParquetSource,
    Polynomial,
    Schema,
    SchemaError,
    Sequence,
    expand,
    global_mean,
)
from fsdata.balance.exchange.messages import StatusWord
from fsdata.balance.exchange.step_exchange import GlobalBatch
from fsdata.balance.options import StepPlanner

CANDIDATES = Sequence("candidates", ("candidate",), floats=("price",), id_labels=("kind",))


def write(folder: Path, seed: int) -> list[dict[str, Any]]:
    """50 rows with 0 to 5 candidates, labels and prices along them, and a history."""
    random = np.random.default_rng(seed)
    table = []
    for number in range(50):
        count, length = random.integers(0, 6), random.integers(0, 9)
        table.append(
            {
                "row": number,
                "user": int(random.integers(0, 4)),
                "at": int(random.integers(0, 30)),
                "age": float(number) / 2,
                "item": random.integers(0, 100, length).tolist(),
                "candidate": random.integers(0, 100, count).tolist(),
                "price": random.random(count).astype(np.float32).tolist(),
                "click": random.integers(0, 2, count).astype(float).tolist(),
                "kind": random.integers(0, 9, count).tolist(),
            }
        )
    kinds = {"price": pa.list_(pa.float32()), "click": pa.list_(pa.float32())}
    kinds |= {name: pa.list_(pa.int64()) for name in ("item", "candidate", "kind")}
    columns = {name: pa.array([row[name] for row in table], kinds.get(name)) for name in table[0]}
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=8)
    return table


def schema(share: str | None = None, explode: str | None = "candidates") -> Schema:
    uih = Sequence("uih", ("item",), share=share)
    fields = {"context": ("row",), "dense": ("age",), "labels": ("click",)}
    return Schema(sequences=(uih,), candidates=CANDIDATES, **fields, explode=explode)


def wanted(table: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (row["row"], row["age"], row["item"], *of)
        for row in table
        for of in zip(row["candidate"], row["price"], row["click"], row["kind"], strict=True)
    ]


def samples(batch: Any) -> list[tuple[Any, ...]]:
    features, shared = batch.features, batch.shared.get("uih")
    items, lengths = features["item"].values(), features["item"].lengths()
    if shared is not None:
        items, lengths = expand(items, shared), shared.length
    assert features["candidate"].lengths().eq(1).all()
    assert batch.jagged["price"].lengths.eq(1).all()
    of_samples = (batch.dense[:, 0], features["candidate"].values(), batch.jagged["price"].values)
    age, candidate, price = (each.tolist() for each in of_samples)
    histories = [part.tolist() for part in items.split(lengths.tolist())]
    labels = (batch.labels["click"].tolist(), batch.labels["kind"].tolist())
    return list(zip(features["row"].values().tolist(), age, histories, candidate, price, *labels, strict=True))


def read(rank: int, size: int, folder: Path, given: Schema, balance: Balance | None) -> list[dict[str, Any]]:
    """What each batch holds and says of itself."""
    options = {"batch_size": 7, "num_threads": 1, "timeout_s": PATIENCE_S, "uneven": "empty", "balance": balance}
    found = []
    with FreeScaleDataLoader(ParquetSource(folder / "rows.parquet"), given, **options) as loader:
        for batch in loader:
            found.append(
                {
                    "samples": samples(batch),
                    "stats": batch.stats,
                    "rows": {row for _, row in batch.origin.tolist()},
                    "ones": float(global_mean(torch.ones(len(batch)), batch)),
                    "events": len(batch.features["item"].values()),
                }
            )
    return found


@pytest.mark.parametrize("share", [None, "row"])
def test_every_candidate_is_a_sample(tmp_path: Path, share: str | None) -> None:
    table = write(tmp_path, 0)
    batches = read(0, 1, tmp_path, schema(share), None)
    assert [sample for batch in batches for sample in batch["samples"]] == wanted(table)
    for batch in batches:
        count, stats = len(batch["samples"]), batch["stats"]
        assert (stats.samples, stats.global_samples) == (count, count)
        events = sum(len(sample[2]) for sample in batch["samples"])
        assert stats.global_items["uih"] == events
        assert stats.global_items["candidates"] == stats.global_items["kind"] == count
        of_rows = {sample[0]: len(sample[2]) for sample in batch["samples"]}
        assert batch["events"] == (events if share is None else sum(of_rows.values()))
        assert len(batch["rows"]) == len(of_rows) <= 7
    assert len([row for row in table if row["candidate"]]) > 7 * (len(batches) - 1)


@pytest.mark.parametrize(("size", "balance", "share"), [(2, None, "row"), (3, Balance(max_tokens=150), None)])
def test_on_several_ranks(tmp_path: Path, size: int, balance: Balance | None, share: str | None) -> None:
    table = write(tmp_path, 1)
    answers = shared_world(size).run(read, tmp_path, schema(share), balance)
    seen = [sample for batches in answers for batch in batches for sample in batch["samples"]]
    assert sorted(seen) == sorted(wanted(table))
    for step in zip(*answers, strict=True):
        total = sum(len(batch["samples"]) for batch in step)
        assert {batch["stats"].global_samples for batch in step} == {total}
        assert sum(batch["ones"] for batch in step) == pytest.approx(size)
        if balance is not None:
            events = sum(len(sample[2]) for batch in step for sample in batch["samples"])
            of_all = [batch["stats"].global_items for batch in step]
            assert all((items["uih"], items["candidates"]) == (events, total) for items in of_all)
            assert all(sum(len(each[2]) + 1 for each in batch["samples"]) <= 150 for batch in step)


def test_a_saved_state_goes_on_with_the_next_row(tmp_path: Path) -> None:
    table = write(tmp_path, 2)
    source = ParquetSource(tmp_path / "rows.parquet")
    batches, states = read_and_go_on(
        lambda: FreeScaleDataLoader(source, schema(), batch_size=5, num_threads=1), every=4
    )
    assert [sample for batch in batches for sample in samples(batch)] == wanted(table)
    with (
        FreeScaleDataLoader(source, schema(explode=None), batch_size=5, num_threads=1) as other,
        pytest.raises(ValueError, match="schema"),
    ):
        other.load_state_dict(states[1])


def test_samples_of_one_request_share_a_history_as_of_its_time(tmp_path: Path) -> None:
    table = write(tmp_path, 3)
    times, users = np.sort(np.random.default_rng(3).integers(0, 30, (3, 12))), [0, 1, 2]
    seen = [[100 * user + event for event in range(12)] for user in users]
    histories = {"user": users, "time": times.tolist(), "seen": seen}
    pq.write_table(pa.table(histories), tmp_path / "histories.parquet")
    join = AsOf(ParquetSource(tmp_path / "histories.parquet"), on="user", at="at", time="time", fields=("seen",))
    uih, candidates = Sequence("uih", ("seen",), share="user"), Sequence("candidates", ("candidate",))
    given = Schema(sequences=(uih,), candidates=candidates, context=("row",), explode="candidates")
    source = ParquetSource(tmp_path / "rows.parquet", join=join)
    with FreeScaleDataLoader(source, given, batch_size=50, num_threads=1) as loader:
        (batch,) = loader
    shared = batch.shared["uih"]
    parts = expand(batch.features["seen"].values(), shared).split(shared.length.tolist())
    expected = [
        [event for event, time in zip(seen[row["user"]], times[row["user"]], strict=True) if time < row["at"]]
        if row["user"] in users
        else []
        for row in table
        for _ in row["candidate"]
    ]
    assert [part.tolist() for part in parts] == expected
    assert shared.rows <= len(users)
    assert shared.saved == sum(map(len, expected)) - len(batch.features["seen"].values())


def test_candidates_may_be_stored_once(tmp_path: Path) -> None:
    candidates = pa.array([[5, 6, 7], [8]], pa.list_(pa.int32()))
    table = {"user": [0, 1], "time": [[1, 2, 3], [1]], "candidate": candidates}
    pq.write_table(pa.table(table), tmp_path / "table.parquet")
    pq.write_table(pa.table({"row": [0, 1, 2], "user": [0, 1, 0], "at": [3, 9, 9]}), tmp_path / "rows.parquet")
    of = AsOf(ParquetSource(tmp_path / "table.parquet"), on="user", at="at", time="time", fields=("candidate",))
    given = Schema(candidates=Sequence("candidates", ("candidate",)), context=("row",), explode="candidates")
    source = ParquetSource(tmp_path / "rows.parquet", join=of)
    with FreeScaleDataLoader(source, given, batch_size=3, num_threads=1) as loader:
        (batch,) = loader
    assert batch.features["row"].values().tolist() == [0, 0, 1, 2, 2, 2]
    assert batch.features["candidate"].values().tolist() == [5, 6, 8, 5, 6, 7]


def share_before(model: Polynomial, place: list[int] | None = None) -> float | None:
    """The planned straggler share of ranks of two rows each; the first row has three candidates, the others one."""
    batch = GlobalBatch(
        number=0,
        lengths={"uih": np.array([10, 4, 5, 5]), "candidates": np.array([3, 1, 1, 1])},
        places={} if place is None else {"uih": np.array(place)},
        home=np.array([0, 0, 1, 1]),
        statuses=(StatusWord(epoch=0, step=0),) * 2,
    )
    return StepPlanner(Balance("fbs", cost=model), 2, exploded="candidates")(batch).straggler_before


def test_a_row_costs_what_its_samples_cost() -> None:
    def share(one: int, other: int) -> float:
        return pytest.approx(1 - (one + other) / 2 / max(one, other))

    costs = [3 * (20 + 100 + 5), 8 + 16 + 5, 10 + 25 + 5, 10 + 25 + 5]
    assert share_before(Polynomial(linear=2, quadratic=1, candidate=5)) == share(sum(costs[:2]), sum(costs[2:]))
    fixed = Polynomial(linear=1, quadratic=0, sample=9)
    assert share_before(fixed) == share(3 * (10 + 9) + 4 + 9, 2 * (5 + 9))
    once = Polynomial(linear=0, quadratic=0, shared=7)
    assert share_before(once) == share(3 * 70 + 28, 35 + 35)
    assert share_before(once, [0, 50, 60, 70]) == share(70 + 28, 35 + 35)
    with pytest.raises(ValueError, match=r"up to 3 candidates, each a sample, could sum to more than 2\*\*62"):
        share_before(Polynomial(linear=1 << 56, quadratic=0))


def test_what_cannot_be_exploded_is_refused() -> None:
    with pytest.raises(SchemaError, match="explode must be one of 'candidates', None, got"):
        schema(explode="uih")
    with pytest.raises(SchemaError, match="needs Schema"):
        Schema(context=("row",), explode="candidates")
    nested = Sequence("candidates", ("candidate",), nested=("tags",))
    with pytest.raises(SchemaError, match="without nested fields"):
        Schema(candidates=nested, explode="candidates")
    assert "explode" not in repr(schema(explode=None))
    assert repr(schema()).endswith("time=None, explode='candidates')")
