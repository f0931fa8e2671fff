"""Predictions of published runs: what is fitted, and that the load is that of the published figures."""

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from validation import published

from freescale_tools.model.durations import FLOAT, step
from freescale_tools.model.hardware import load_hardware
from freescale_tools.model.step import PLAIN_DEDUP

HARDWARE = load_hardware("mi350x-roce")
SLOW = dataclasses.replace(HARDWARE, network=10.0, nvlink=100.0)


@pytest.mark.parametrize("hardware", [HARDWARE, SLOW], ids=["as bundled", "slow links"])
def test_one_run_is_fitted_and_the_others_follow_from_its_computation(hardware) -> None:
    (fitted, *others) = published._STEPS.items()
    (way, ranks), step_ms = fitted
    load = published._reference()
    assert (way, ranks) == (PLAIN_DEDUP, 8), "the run that communicates least"
    assert published._step_ms(hardware, load, ranks, way=way) == pytest.approx(step_ms)
    compute_ms = published._compute(hardware, load, way, ranks, step_ms)
    assert 0 < compute_ms < step_ms
    for (way, ranks), _ in others:
        found = step(hardware, dataclasses.replace(load, compute_ms=compute_ms), way, ranks=ranks)
        assert published._step_ms(hardware, load, ranks, way=way) == pytest.approx(found["step_ms"])


def test_predictions_do_not_depend_on_the_published_outcomes(monkeypatch) -> None:
    """Outcomes that are predicted change errors and verdicts only."""
    monkeypatch.setattr(published, "_DRAWS", 2)
    monkeypatch.setattr(published, "hstu", lambda: published._dlrm(500.0))
    before = [one["predicted"] for one in published._rows()]
    first, *others = published._STEPS
    changed = {first: published._STEPS[first], **dict.fromkeys(others, 1.0)}
    monkeypatch.setattr(published, "_STEPS", changed)
    monkeypatch.setattr(published, "_SCALING", 9.0)
    monkeypatch.setattr(published, "_PAGEABLE_MS", 1.0)
    after = list(published._rows())
    assert [one["predicted"] for one in after] == before
    assert {one["verdict"] for one in after if one["unit"] == "ms" and one["fitted"] is None} == {"missed"}


def test_as_many_bytes_leave_a_rank_as_its_trace_shows() -> None:
    load = published._reference(value_bytes=FLOAT)
    leaving = load.value_bytes * load.dim * load.events * 7 / 8
    assert leaving == pytest.approx(published._EXCHANGED, rel=0.01)
    assert 1 - load.distinct == pytest.approx(0.98, abs=0.006)
