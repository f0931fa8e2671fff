"""Numbers with a unit and limits, as fields of dataclasses whose `sources` say where each number comes from."""

import dataclasses
import math
from typing import Any


def number(
    unit: str, *, least: float = 0, most: float = math.inf, whole: bool = False, zero: bool = False,
    default: Any = dataclasses.MISSING,
) -> Any:  # fmt: skip
    """A field. `zero`: whether the number may be 0. With the default None it may be unknown."""
    limits = {"least": least, "most": most, "whole": whole, "zero": zero}
    return dataclasses.field(default=default, metadata={"unit": unit, **limits})


def numbers(of: Any) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass, or of an instance of one, that were made by `number`."""
    return [field for field in dataclasses.fields(of) if "unit" in field.metadata]


def check(of: Any) -> None:
    """Raise ValueError for the first number of an instance that is out of its limits."""
    for field in numbers(of):
        value, limits = getattr(of, field.name), field.metadata
        if value is None and field.default is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{field.name} = {value!r}: a finite number is needed")
        if value < limits["least"] or (value == 0 and not limits["zero"]) or value > limits["most"]:
            least = f"{limits['least']:g} or more" if limits["zero"] or limits["least"] else "above 0"
            most = f", at most {limits['most']:g}" if limits["most"] < math.inf else ""
            raise ValueError(f"{field.name} = {value:g} {limits['unit']}: {least}{most} is needed")
        if limits["whole"] and value != int(value):
            raise ValueError(f"{field.name} = {value:g}: a whole number is needed")


def parameter(name: str, value: Any, unit: str, source: str) -> dict[str, Any]:
    """One line of a list of parameters."""
    return {"name": name, "value": value, "unit": unit, "source": source}


def parameters(of: Any) -> list[dict[str, Any]]:
    """The numbers of an instance that are known and have a source."""
    return [
        parameter(field.name, getattr(of, field.name), field.metadata["unit"], of.sources[field.name])
        for field in numbers(of)
        if of.sources.get(field.name) and getattr(of, field.name) is not None
    ]
