"""Predicts steps in parts of `benchmarks/exposed.py --parts` by `durations.work`, and says how far off it is.

As in `held_out`, whose fits are taken as they are. One more number is fitted, on the section with the fewest shared
rows: what a part takes of the training thread. All other sections are held out.
"""

import dataclasses
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from freescale_tools.console.errors import UsageError
from validation.comparison import row
from validation.held_out import (
    MEDIAN,
    WORST,
    Fit,
    Section,
    fitted,
    predicted,
    read_sections,
    shares_reached,
    way_of,
)  # fmt: skip

_PART_MS = np.arange(0.25, 20, 0.25).tolist()
_OURS = "prioritized"


def against_parts(path: Path, held_out: Path, links: Path) -> dict[str, Any]:
    """{fits, rows, notes, best}: every section and mode of `path`. Raises UsageError for other files.

    best: by section, the numbers of parts that are predicted and measured to be best, and what each of the two had
    exposed: {predicted, exposed_ms, measured, least_ms}.
    """
    try:
        sections, fit = fitted_sections(path, held_out, links)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(
            f"{path} is no result of benchmarks/exposed.py --parts: {type(error).__name__}: {error}"
        ) from error
    rows, errors, best = [], [], {}
    for section in sections:
        found = {mode: predicted(section, mode, fit) for mode in section.exposed_ms}
        for mode, exposed in section.exposed_ms.items():
            what = f"exposed, {section.name}, {mode}"
            if section is sections[0] and _parts(mode) > 1:
                rows.append(row(what, "ms", exposed, fitted=found[mode]))
                continue
            rows.append(row(what, "ms", exposed, predicted=found[mode], within=WORST))
            errors += [abs(found[mode] / exposed - 1)] if _parts(mode) > 1 else []
        ours = [mode for mode in found if _parts(mode)]
        chosen, fastest = (min(ours, key=exposed.__getitem__) for exposed in (found, section.exposed_ms))
        best[section.name] = {
            "predicted": _parts(chosen), "exposed_ms": section.exposed_ms[chosen],
            "measured": _parts(fastest), "least_ms": section.exposed_ms[fastest],
        }  # fmt: skip
    return {
        "fits": [
            {"name": "a part", "value": fit.part_ms, "unit": "ms of the training thread", "on": sections[0].name},
        ],
        "rows": rows,
        "notes": [
            f"held-out steps in 2 or more parts: error {statistics.median(errors):.0%} in the median (goal "
            f"{MEDIAN:.0%}), {max(errors):.0%} at worst (goal {WORST:.0%}).",
            *(
                f"{name}: {one['predicted']} parts are predicted to be best, {one['exposed_ms']:.0f} ms exposed as "
                f"measured; best were {one['measured']} with {one['least_ms']:.0f} ms."
                for name, one in best.items()
            ),
        ],
        "best": best,
    }


def fitted_sections(path: Path, held_out: Path, links: Path) -> tuple[list[Section], Fit]:
    """The sections of `path`, those with the fewest shared rows first, and the fit that predicts their steps."""
    measured, usual, alone = (json.loads(file.read_text(encoding="utf-8")) for file in (path, held_out, links))
    reached = shares_reached(alone)
    without_parts = fitted([section for section in read_sections(usual, reached) if section.fitted])
    sections = sorted(read_sections(measured, reached), key=_shared)
    return sections, _with_parts(without_parts, sections[0])


def _shared(section: Section) -> float:
    return section.load.collision(section.ranks)


def _parts(mode: str) -> int:
    """In which fscomm computes a step; 0 of other modes."""
    kind, parts = way_of(mode)
    return parts if kind == _OURS else 0


def _with_parts(fit: Fit, section: Section) -> Fit:
    """`fit` with the cost of a part that a section's steps in parts tell."""

    def error(part_ms: float) -> float:
        other = dataclasses.replace(fit, part_ms=part_ms)
        return sum(
            abs(math.log(predicted(section, mode, other) / exposed))
            for mode, exposed in section.exposed_ms.items()
            if _parts(mode) > 1
        )

    return dataclasses.replace(fit, part_ms=min(_PART_MS, key=error))
