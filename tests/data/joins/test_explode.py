"""`Schema(explode="candidates")`: every candidate of a row is a sample. `test_together.py` has what samples hold."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from data_kit import read, write
from global_batches import global_batch

from fsdata import AsOf, Balance, ParquetSource, Polynomial, Schema, SchemaError, Sequence
from fsdata.balance.options import StepPlanner


def test_candidates_may_be_stored_once(tmp_path: Path) -> None:
    candidates = pa.array([[5, 6, 7], [8]], pa.list_(pa.int32()))
    table = {"user": [0, 1], "time": [[1, 2, 3], [1]], "candidate": candidates}
    stored = ParquetSource(write(tmp_path / "table.parquet", table))
    rows = write(tmp_path / "rows.parquet", {"row": [0, 1, 2], "user": [0, 1, 0], "at": [3, 9, 9]})
    of = AsOf(stored, on="user", at="at", time="time", fields=("candidate",))
    given = Schema(candidates=Sequence("candidates", ("candidate",)), context=("row",), explode="candidates")
    samples = [(each["row"], each["candidate"]) for each in read(ParquetSource(rows, join=of), given)]
    assert samples == [(0, 5), (0, 6), (1, 8), (2, 5), (2, 6), (2, 7)]


def share_before(model: Polynomial, place: list[int] | None = None) -> float | None:
    """The planned straggler share of ranks of two rows each; the first row has three candidates, the others one."""
    lengths = {"uih": [10, 4, 5, 5], "candidates": [3, 1, 1, 1]}
    batch = global_batch(lengths, [0, 0, 1, 1], first_events=None if place is None else {"uih": np.array(place)})
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
    candidates, nested = (Sequence("candidates", ("candidate",), nested=names) for names in ((), ("tags",)))
    with pytest.raises(SchemaError, match="explode must be one of 'candidates', None, got"):
        Schema(candidates=candidates, explode="uih")
    with pytest.raises(SchemaError, match="needs Schema"):
        Schema(context=("row",), explode="candidates")
    with pytest.raises(SchemaError, match="without nested fields"):
        Schema(candidates=nested, explode="candidates")
    assert "explode" not in repr(Schema(candidates=candidates))
    assert repr(Schema(candidates=candidates, explode="candidates")).endswith("time=None, explode='candidates')")
