"""`Schema(explode="candidates")`: every candidate of a row is a sample of its own."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from patience import PATIENCE_S
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
from fsdata.balance.exchange.status_word import StatusWord
from fsdata.balance.exchange.step_exchange import GlobalBatch
from fsdata.balance.options import StepPlanner

ROWS = 50


def rows(seed: int = 0) -> list[dict[str, Any]]:
    """Rows with 0 to 5 candidates, a label and a class for each, and a history."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(ROWS):
        count, length = random.integers(0, 6), random.integers(0, 9)
        found.append(
            {
                "row": number,
                "user": int(random.integers(0, 4)),
                "at": int(random.integers(0, 30)),
                "age": float(number) / 2,
                "bought": float(number % 2),
                "item": random.integers(0, 100, length).tolist(),
                "candidate": random.integers(0, 100, count).tolist(),
                "price": random.random(count).astype(np.float32).tolist(),
                "click": random.integers(0, 2, count).tolist(),
                "kind": random.integers(0, 9, count).tolist(),
            }
        )
    return found


def write(folder: Path, table: list[dict[str, Any]]) -> None:
    types = {name: pa.int64() for name in ("row", "user", "at")} | {name: pa.float32() for name in ("age", "bought")}
    types |= {name: pa.list_(pa.int64()) for name in ("item", "candidate", "kind")}
    types |= {name: pa.list_(pa.float32()) for name in ("price", "click")}
    columns = {name: pa.array([row[name] for row in table], kind) for name, kind in types.items()}
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=8)


def schema(**options: Any) -> Schema:
    share = options.pop("share", None)
    return Schema(
        sequences=(Sequence("uih", ("item",), share=share),),
        candidates=Sequence("candidates", ("candidate",), floats=("price",), id_labels=("kind",)),
        context=("row",),
        dense=("age",),
        labels=("bought", "click"),
        **({"explode": "candidates"} | options),
    )


def wanted(table: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (row["row"], row["age"], row["bought"], row["item"], *of)
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
    return list(
        zip(
            features["row"].values().tolist(),
            batch.dense[:, 0].tolist(),
            batch.labels["bought"].tolist(),
            [part.tolist() for part in items.split(lengths.tolist())],
            features["candidate"].values().tolist(),
            batch.jagged["price"].values.tolist(),
            batch.labels["click"].tolist(),
            batch.labels["kind"].tolist(),
            strict=True,
        )
    )


def read(rank: int, size: int, folder: Path, given: Schema, **loading: Any) -> list[dict[str, Any]]:
    """What each batch holds and says of itself."""
    options = {"batch_size": 7, "num_threads": 1, "timeout_s": PATIENCE_S, "uneven": "empty", **loading}
    found = []
    with FreeScaleDataLoader(ParquetSource(folder / "rows.parquet"), given, **options) as loader:
        for batch in loader:
            assert batch.labels["kind"].dtype == torch.int64
            found.append(
                {
                    "samples": samples(batch),
                    "stats": (batch.stats.samples, batch.stats.global_samples),
                    "items": batch.stats.global_items,
                    "origin": batch.origin.tolist(),
                    "ones": float(global_mean(torch.ones(len(batch)), batch)),
                    "events": len(batch.features["item"].values()),
                }
            )
    return found


@pytest.mark.parametrize("share", [None, "row"])
def test_every_candidate_is_a_sample(tmp_path: Path, share: str | None) -> None:
    table = rows()
    write(tmp_path, table)
    batches = read(0, 1, tmp_path, schema(share=share))
    assert [sample for batch in batches for sample in batch["samples"]] == wanted(table)
    for batch in batches:
        count = len(batch["samples"])
        assert batch["stats"] == (count, count)
        events = sum(len(sample[3]) for sample in batch["samples"])
        assert batch["items"]["uih"] == events
        assert batch["items"]["candidates"] == batch["items"]["kind"] == count
        of_rows = {sample[0]: len(sample[3]) for sample in batch["samples"]}
        assert batch["events"] == (events if share is None else sum(of_rows.values()))
        numbers = [row for _, row in batch["origin"]]
        assert len(set(numbers)) == len(of_rows) <= 7
    assert len([row for row in table if row["candidate"]]) > 7 * (len(batches) - 1)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "balance", [None, Balance(timeout_s=PATIENCE_S), Balance(timeout_s=PATIENCE_S, max_tokens=150)]
)
def test_on_several_ranks(tmp_path: Path, size: int, balance: Balance | None) -> None:
    table = rows(1)
    write(tmp_path, table)
    share = "row" if size == 2 else None
    answers = shared_world(size).run(partial(read, balance=balance), tmp_path, schema(share=share))
    assert sorted(sample for batches in answers for batch in batches for sample in batch["samples"]) == sorted(
        wanted(table)
    )
    for step in zip(*answers, strict=True):
        total = sum(len(batch["samples"]) for batch in step)
        assert {batch["stats"][1] for batch in step} == {total}
        assert sum(batch["ones"] for batch in step) == pytest.approx(size)
        if balance is not None:
            events = sum(len(sample[3]) for batch in step for sample in batch["samples"])
            assert all(batch["items"]["uih"] == events for batch in step)
            assert all(batch["items"]["candidates"] == total for batch in step)
            if balance.max_tokens is not None:
                assert all(sum(len(each[3]) + 1 for each in batch["samples"]) <= 150 for batch in step)


def test_a_saved_state_goes_on_with_the_next_row(tmp_path: Path) -> None:
    table = rows(2)
    write(tmp_path, table)
    source = ParquetSource(tmp_path / "rows.parquet")
    with FreeScaleDataLoader(source, schema(), batch_size=5, num_threads=1) as loader:
        steps = iter(loader)
        seen = [sample for _ in range(3) for sample in samples(next(steps))]
        state = loader.state_dict()
    with FreeScaleDataLoader(source, schema(), batch_size=5, num_threads=1) as loader:
        loader.load_state_dict(state)
        seen += [sample for batch in loader for sample in samples(batch)]
    assert seen == wanted(table)
    with (
        FreeScaleDataLoader(source, schema(explode=None), batch_size=5, num_threads=1) as other,
        pytest.raises(ValueError, match="schema"),
    ):
        other.load_state_dict(state)


def test_samples_of_one_request_share_a_history_as_of_its_time(tmp_path: Path) -> None:
    table = rows(3)
    write(tmp_path, table)
    times, users = np.sort(np.random.default_rng(3).integers(0, 30, (3, 12))), [0, 1, 2]
    seen = [[100 * user + event for event in range(12)] for user in users]
    histories = {"user": users, "time": times.tolist(), "seen": seen}
    pq.write_table(pa.table(histories), tmp_path / "histories.parquet")
    join = AsOf(ParquetSource(tmp_path / "histories.parquet"), on="user", at="at", time="time", fields=("seen",))
    given = Schema(
        sequences=(Sequence("uih", ("seen",), share="user"),),
        candidates=Sequence("candidates", ("candidate",)),
        context=("row",),
        explode="candidates",
    )
    with FreeScaleDataLoader(
        ParquetSource(tmp_path / "rows.parquet", join=join), given, batch_size=ROWS, num_threads=1
    ) as loader:
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


def planned(model: Polynomial, place: np.ndarray | None = None) -> list[int]:
    batch = GlobalBatch(
        number=0,
        lengths={"uih": np.array([10, 4]), "candidates": np.array([3, 1])},
        places={} if place is None else {"uih": place},
        home=np.array([0, 1]),
        statuses=(StatusWord(epoch=0, step=0),) * 2,
    )
    planner = StepPlanner(Balance(cost=model), 2, exploded="candidates")
    shared = None if place is None else (place, batch.lengths["uih"])
    assert planner._tokens(batch).tolist() == [33, 5]
    return planner._cost(batch, shared).tolist()


def test_a_row_costs_what_its_samples_cost() -> None:
    assert planned(Polynomial(linear=2, quadratic=1, candidate=5)) == [3 * (20 + 100 + 5), 8 + 16 + 5]
    once = Polynomial(linear=0, quadratic=0, shared=7)
    assert planned(once) == [3 * 70, 28]
    assert planned(once, np.array([0, 50])) == [70, 28]
    with pytest.raises(ValueError, match=r"up to 3 candidates, each a sample, could sum to more than 2\*\*62"):
        planned(Polynomial(linear=1 << 57, quadratic=0))


def test_what_cannot_be_exploded_is_refused() -> None:
    with pytest.raises(SchemaError, match="'candidates' or None"):
        schema(explode="uih")
    with pytest.raises(SchemaError, match="needs Schema"):
        Schema(context=("row",), explode="candidates")
    nested = Sequence("candidates", ("candidate",), nested=("tags",))
    with pytest.raises(SchemaError, match="without nested fields"):
        Schema(candidates=nested, explode="candidates")
    assert "explode" not in repr(schema(explode=None))
    assert repr(schema()).endswith("time=None, explode='candidates')")
