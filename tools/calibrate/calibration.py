"""The document of `freescale calibrate`: made of measured steps, and what other commands take of it."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from freescale_tools.calibrate.fits import (
    SIMULATED,
    TOKENS,
    arrays,
    cost_of,
    explain,
    intervals,
    measured_straggler,
    own_costs,
    run_costs,
    speeds,
    straggler_left,
)
from freescale_tools.calibrate.measured_steps import Step, read_steps
from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import header
from fsdata.balance.cost import Polynomial, fit

VERSION = 2
FEWEST = 4
_SLOW = 0.03
_EXPLAINED = 0.9  # R2 of a model that is worth planning with
_FLOAT = 4  # bytes


def calibrate(
    steps: Sequence[Step],
    *,
    ranks: int | None = None,
    fscomm: Sequence[Step] = (),
    balanced: Sequence[Step] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """The document of a calibration: a cost model, compared with one that only counts tokens, and all else of a run.

    Args:
        ranks: of the simulated balancing. Default: as many as were measured, at least 2.
        fscomm, balanced: steps of the same training with prioritized communication, or with balanced batches: what
            these take themselves.

    Raises UsageError if no model can be fitted to the steps.
    """
    batches = {(step.lengths.lengths.tobytes(), step.lengths.counts.tobytes(), step.candidates) for step in steps}
    if len(batches) == 1 < len(steps):
        raise UsageError(
            f"all {len(steps)} rows have the same lengths: how time grows with length does not follow from equal "
            "batches. Measure batches that differ, such as those of unbalanced training"
        )
    try:
        model = fit([arrays(step) for step in steps], [step.seconds for step in steps])
    except ValueError as error:
        raise UsageError(str(error)) from error
    fitted, tokens = explain(model, steps), explain(TOKENS, steps)
    measured_on = sorted({step.rank for step in steps})
    width = ranks or max(len(measured_on), 2)
    left = straggler_left(fitted, tokens, steps, ranks=width, seed=seed)
    return {
        **header("calibrate", version=VERSION),
        "rows": len(steps),
        "steps": len({step.step for step in steps}),
        "ranks": len(measured_on),
        "samples": sum(step.lengths.rows for step in steps),
        "sequence": steps[0].sequence,
        "cost_model": repr(model),
        "seconds_per_cost": fitted.scale,
        "constant_s": fitted.constant,
        "intervals": intervals(steps, model, seed=seed),
        "r2": fitted.r2,
        "r2_tokens": tokens.r2,
        "typical_error": float(np.std(fitted.ratio)),
        "typical_error_tokens": float(np.std(tokens.ratio)),
        "measured_straggler": measured_straggler(steps),
        "simulated": {"ranks": width, "steps": SIMULATED, **left},
        "speeds": speeds(fitted, steps),
        "run": run_costs(steps, seed=seed),
        "own": own_costs(
            steps,
            lambda step: fitted.scale * cost_of(model, step),
            fscomm=fscomm,
            balanced=balanced,
            seed=seed,
        ),
    }


def advice(document: dict[str, Any]) -> list[str]:
    """Warnings for the user of the model."""
    said = []
    if document["rows"] < 50:
        said.append(f"Only {document['rows']} rows: 50 or more give a steadier fit.")
    slow = [one for one in document["speeds"] if one["ratio"] > 1 + _SLOW and one["steps"] >= FEWEST]
    if slow:
        named = ", ".join(f"{one['rank']} (+{one['ratio'] - 1:.0%})" for one in slow)
        said.append(f"Slower than the model says: rank {named}. Balance(autotune=True) gives such ranks less.")
    return said


def doubt(document: dict[str, Any]) -> str | None:
    """Why the model is not reliable; None if it explains the measured seconds."""
    if document["r2"] >= _EXPLAINED:
        return None
    return (
        f"R2 is {document['r2']:.2f}, below {_EXPLAINED}: time does not follow from lengths alone, and plans made with "
        "this model leave ranks waiting. Measure compute without waiting for other ranks, leave warm-up out (--skip), "
        "keep other work off the machine"
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Seconds and bytes of one rank and step. What the run did not show is None."""

    source: str
    """Where the numbers come from, for lists of parameters."""
    ranks: int
    """Of the run: exchanges are those of as many ranks."""
    cost: Polynomial
    seconds_per_cost: float
    constant_s: float
    """Of forward, backward and optimizer, whatever the samples."""
    forward: float | None
    """Share of forward in forward and backward, above 0 and below 1."""
    lookup_s: float | None
    """Of the rows of one event."""
    update_s: float | None
    dim: float | None
    """Floats exchanged per event, with all its fields: of the bytes of embeddings that a rank gave."""
    latency_s: float | None
    """Of an all-to-all."""
    bytes_per_s: float | None
    """Of an all-to-all: bytes that a rank gives, its own part included."""
    fscomm_s: float | None = None
    """What prioritized communication itself takes of the training thread."""
    balancing_s: float | None = None
    """The same of balancing, with waiting for the loader."""


def load_calibration(path: Path) -> Calibration:
    """Read what `freescale calibrate --out` wrote, or fit the run that a BubbleMeter saved.

    Raises UsageError for other files, and if lengths do not explain the seconds.
    """
    document = calibrated_run(path)
    try:
        doubtful = doubt(document)
        if doubtful is not None:
            raise UsageError(f"{path}: {doubtful}")
        run, exchange = document["run"], document["run"]["all_to_all"]
        return Calibration(
            source=f"calibration: {path.name}, {document['rows']:,} rows",
            ranks=document["ranks"],
            cost=_polynomial(document["cost_model"]),
            seconds_per_cost=document["seconds_per_cost"],
            constant_s=document["constant_s"],
            forward=_forward(run["passes_s"]),
            lookup_s=_per_event(run, "lookup"),
            update_s=_per_event(run, "update"),
            dim=run["bytes"].get("embeddings", 0) / _FLOAT / run["events"] or None,
            latency_s=exchange and exchange["latency_s"]["value"],
            bytes_per_s=exchange and exchange["bytes_per_s"]["value"],
            fscomm_s=_own(document, "fscomm"),
            balancing_s=_own(document, "balancing"),
        )
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise UsageError(f"{path} is no whole calibration: {type(error).__name__}: {error}") from error


def calibrated_run(path: Path) -> dict[str, Any]:
    """The document of `freescale calibrate` at `path`, or of the run there. Raises UsageError for other files."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"no calibration {path}: {error.strerror}") from error
    except ValueError:
        document = None  # a CSV of measured steps, or nonsense, which its reader names
    if not isinstance(document, dict) or document.get("kind") != "calibrate":
        return calibrate(read_steps(path))
    if document.get("version") != VERSION:
        raise UsageError(
            f"{path} has version {document.get('version')!r}, this program reads {VERSION}: calibrate the run again"
        )
    return document


def _polynomial(text: str) -> Polynomial:
    if not re.fullmatch(r"Polynomial\((\w+=\d+(, )?)+\)", text):
        raise UsageError(f"the calibration's cost model is {text!r}: Polynomial(...) is needed")
    return Polynomial(**{name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", text)})


def _forward(passes_s: Mapping[str, float]) -> float | None:
    forward, backward = passes_s.get("forward", 0.0), passes_s.get("backward", 0.0)
    return forward / (forward + backward) if forward > 0 and backward > 0 else None


def _own(document: Mapping[str, Any], name: str) -> float | None:
    measured = document["own"][name]
    return measured and max(measured["value"], 0.0)


def _per_event(run: Mapping[str, Any], kind: str) -> float | None:
    fit = run[kind]
    return fit and fit["seconds"]["value"] * run["rows"].get(kind, 0) / run["events"]
