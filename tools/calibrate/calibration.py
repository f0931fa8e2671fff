"""What other commands take from `freescale calibrate`: the costs of a step as a training run has shown them."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from freescale_tools.calibrate.cost_model import VERSION, calibrate, doubt
from freescale_tools.calibrate.measured_steps import read_steps
from freescale_tools.console.errors import UsageError
from fsdata.balance.cost import Polynomial

_FLOAT = 4  # bytes


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
    doubtful = doubt(document)
    if doubtful is not None:
        raise UsageError(f"{path}: {doubtful}")
    run, exchange = document["run"], document["run"]["all_to_all"]
    try:
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
