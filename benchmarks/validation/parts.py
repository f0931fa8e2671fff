"""Predicts steps in parts of `benchmarks/exposed.py --parts` by `durations.work`, and says how far off it is.

As in `held_out`, whose fits are taken as they are. One more number is fitted, on the section with the fewest shared
rows: what a part takes of the training thread. All other sections are held out.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from validation.comparison import fitted_row, row
from validation.held_out import MEDIAN, WORST, Fit, Section, fitted, predicted, read_sections, way_of

_PART_MS = np.arange(0.25, 20, 0.25).tolist()
_OURS = "prioritized"


def against_parts(measured: Mapping[str, Any], held_out: Mapping[str, Any], links: Mapping[str, Any]) -> dict[str, Any]:
    """{fits, rows, notes, best} of three records: every section and mode of `measured`.

    best: by section, the numbers of parts that are predicted and measured to be best, and what each of the two had
    exposed: {predicted, exposed_ms, measured, least_ms}.
    """
    sections, fit = fitted_sections(measured, held_out, links)
    rows, errors, best = [], [], {}
    for section in sections:
        found = {mode: predicted(section, mode, fit) for mode in section.exposed_ms}
        for mode, exposed in section.exposed_ms.items():
            what = f"exposed, {section.name}, {mode}"
            if section is sections[0] and _parts(mode) > 1:
                rows.append(fitted_row(what, "ms", exposed, found[mode]))
                continue
            rows.append(row(what, "ms", exposed, found[mode], within=WORST))
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


def fitted_sections(
    measured: Mapping[str, Any], held_out: Mapping[str, Any], links: Mapping[str, Any]
) -> tuple[list[Section], Fit]:
    """The sections of `measured`, those with the fewest shared rows first, and the fit that predicts their steps."""
    sections = sorted(read_sections(measured, links), key=lambda section: section.load.collision(section.ranks))
    return sections, _with_parts(fitted(read_sections(held_out, links)), sections[0])


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
