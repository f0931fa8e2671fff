"""What a document of `freescale calibrate` says: whether its model is reliable, and what other commands take of it."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from freescale_tools.calibrate.fits import VERSION, calibrate
from freescale_tools.calibrate.measured_steps import read_steps
from freescale_tools.console.errors import UsageError
from fsdata.balance.cost import Polynomial

_FEWEST = 4  # steps of a rank that is called slow
_SLOW = 0.03
_EXPLAINED = 0.9  # R2 of a model that is worth planning with
_FLOAT = 4  # bytes


def advice(document: dict[str, Any]) -> list[str]:
    """Warnings for the user of the model."""
    said = []
    if document["rows"] < 50:
        said.append(f"Only {document['rows']} rows: 50 or more give a steadier fit.")
    slow = [one for one in document["speeds"] if one["ratio"] > 1 + _SLOW and one["steps"] >= _FEWEST]
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
    error: float
    """Standard deviation of measured over fitted seconds of a rank and step, as a share."""
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
        model = document["cost_model"]
        if not re.fullmatch(r"Polynomial\((\w+=\d+(, )?)+\)", model):
            raise UsageError(f"the calibration's cost model is {model!r}: Polynomial(...) is needed")
        forward, backward = (run["passes_s"].get(name, 0.0) for name in ("forward", "backward"))
        # Seconds of a row, times the rows of an event.
        lookup_s, update_s = (
            run[kind] and run[kind]["seconds"]["value"] * run["rows"].get(kind, 0) / run["events"]
            for kind in ("lookup", "update")
        )
        # Noise may make a cost come out below 0.
        fscomm_s, balancing_s = (
            own and max(own["value"], 0.0) for own in (document["own"]["fscomm"], document["own"]["balancing"])
        )
        return Calibration(
            source=f"calibration: {path.name}, {document['rows']:,} rows",
            ranks=document["ranks"],
            cost=Polynomial(**{name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", model)}),
            seconds_per_cost=document["seconds_per_cost"],
            error=document["typical_error"],
            constant_s=document["constant_s"],
            forward=forward / (forward + backward) if forward > 0 and backward > 0 else None,
            lookup_s=lookup_s,
            update_s=update_s,
            dim=run["bytes"].get("embeddings", 0) / _FLOAT / run["events"] or None,
            latency_s=exchange and exchange["latency_s"]["value"],
            bytes_per_s=exchange and exchange["bytes_per_s"]["value"],
            fscomm_s=fscomm_s,
            balancing_s=balancing_s,
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
