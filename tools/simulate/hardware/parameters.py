"""Reads the parameters of a cluster from a TOML file. Every number has a unit and a source."""

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from freescale_tools.console.errors import UsageError

GIVEN = {"value", "unit", "source"}


def _number(unit: str, *, least: float = 0, most: float = math.inf, whole: bool = False, zero: bool = False) -> Any:
    limits = {"least": least, "most": most, "whole": whole, "zero": zero}
    return dataclasses.field(metadata={"unit": unit, **limits})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Hosts of GPUs and what joins them. Bandwidths are per GPU and direction.

    Raises ValueError on numbers out of range and on parameters without a source.
    """

    name: str
    gpus_per_host: float = _number("GPUs", whole=True)
    gpus_per_nvlink: float = _number("GPUs", whole=True)
    """GPUs of a host that are connected by NVLink. Other GPUs of the host are reached over PCIe."""
    nvlink: float = _number("GB/s")
    pcie: float = _number("GB/s")
    network: float = _number("GB/s")
    gpus_per_leaf: float = _number("GPUs", whole=True)
    """GPUs below one leaf switch, or one group of rails. Bytes for other GPUs go over the spine."""
    oversubscription: float = _number("times", least=1)
    """Bandwidth from the hosts into the leaf over that into the spine; 1: the spine is as wide."""
    exchange_efficiency: float = _number("share", most=1)
    """Share of the bandwidths that all-to-alls of rows, gradients and ids reach."""
    allreduce_efficiency: float = _number("share", most=1)
    exchange_latency: float = _number("us", zero=True)
    peer_latency: float = _number("us", zero=True)
    """Latency for each other rank of an exchange."""
    id_metadata: float = _number("ms/M events", zero=True)
    """Time of an ID exchange besides its bytes: sizes, permutes, synchronisation.

    In proportion to a rank's events.
    """
    peak_flops: float = _number("TFLOP/s")
    flops_efficiency: float = _number("share", most=1)
    memory: float = _number("GB/s")
    kernel_floor: float = _number("us", zero=True)
    """Least time of a look-up or an update, however few its rows: the launches of its kernels."""
    memory_contention: float = _number("share", most=1, zero=True)
    """How much longer dense kernels take while rows are looked up or updated beside them."""
    own_cost: float = _number("ms", zero=True)
    """What prioritized communication itself takes of the training thread in a step, whatever the rows."""
    contention: float = _number("share", most=1, zero=True)
    """How much longer dense kernels take while communication kernels run beside them."""
    loader: float = _number("M events/s")
    host_network: float = _number("GB/s")
    sources: Mapping[str, str]
    """Parameter -> its source."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name is empty: the hardware needs one")
        for field in numbers():
            _check(field, getattr(self, field.name))
            if not self.sources.get(field.name):
                raise ValueError(f"{field.name} has no source: say where the number comes from, or 'assumed'")
        if self.gpus_per_leaf < self.gpus_per_host:
            raise ValueError(f"gpus_per_leaf = {self.gpus_per_leaf} is below gpus_per_host = {self.gpus_per_host}")
        if self.gpus_per_nvlink > self.gpus_per_host:
            raise ValueError(
                f"gpus_per_nvlink = {self.gpus_per_nvlink} is above gpus_per_host = {self.gpus_per_host}: NVLink joins "
                "GPUs of one host"
            )

    def parameters(self) -> list[dict[str, Any]]:
        """All parameters as {name, value, unit, source}."""
        return [
            {
                "name": field.name,
                "value": getattr(self, field.name),
                "unit": field.metadata["unit"],
                "source": self.sources[field.name],
            }
            for field in numbers()
        ]


def numbers() -> list[dataclasses.Field[Any]]:
    """The fields of Hardware that a file gives."""
    return [field for field in dataclasses.fields(Hardware) if "unit" in field.metadata]


def bundled() -> list[str]:
    """Names of the files that come with the package."""
    folder = resources.files(__package__)
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_hardware(name_or_path: str | Path) -> Hardware:
    """A bundled file by its name, or any file by its path.

    Raises UsageError if it is not there or not TOML, and on missing, unknown or wrong parameters, all in one
    message.
    """
    known = bundled()
    if str(name_or_path) in known:
        text = resources.files(__package__).joinpath(f"{name_or_path}.toml").read_text(encoding="utf-8")
    else:
        path = Path(name_or_path)
        if not path.is_file():
            raise UsageError(f"no hardware {str(name_or_path)!r}: give {', '.join(known)}, or the path of a TOML file")
        text = path.read_text(encoding="utf-8")
    try:
        return _from_toml(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise UsageError(f"hardware {name_or_path}: {error}") from error


def _from_toml(document: Mapping[str, Any]) -> Hardware:
    fields = {field.name: field for field in numbers()}
    wrong = [_unknown(key, fields) for key in document if key not in fields and key != "name"]
    wrong += [
        f"[{name}] is missing ({field.metadata['unit']})" for name, field in fields.items() if name not in document
    ]
    for name in (name for name in fields if name in document):
        wrong += _faults(name, document[name], fields[name].metadata["unit"])
    if not isinstance(document.get("name"), str):
        wrong.append("name is missing: a text")
    if wrong:
        raise ValueError("; ".join(sorted(wrong)))
    return Hardware(
        name=document["name"],
        **{name: document[name]["value"] for name in fields},
        sources={name: document[name]["source"] for name in fields},
    )


def _unknown(key: str, fields: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, fields, n=1)
    return f"{key!r} is not a parameter" + (f", did you mean {close[0]!r}?" if close else "")


def _faults(name: str, given: Any, unit: str) -> list[str]:
    """The faults of one parameter's table."""
    if not isinstance(given, dict):
        return [f"[{name}] must be a table of value, unit and source"]
    if given.keys() != GIVEN:
        return [f"[{name}] has {', '.join(sorted(given)) or 'nothing'}: value, unit and source are needed, no others"]
    found = []
    if given["unit"] != unit:
        found.append(f"[{name}] is in {given['unit']!r}: convert it to {unit!r}")
    if not isinstance(given["source"], str) or not given["source"].strip():
        found.append(f"[{name}] has no source: say where the number comes from, or 'assumed'")
    return found


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    limits = field.metadata
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{field.name} = {value!r}: a finite number is needed")
    if value < limits["least"] or (value == 0 and not limits["zero"]) or value > limits["most"]:
        least = f"{limits['least']:g} or more" if limits["zero"] or limits["least"] else "above 0"
        most = f", at most {limits['most']:g}" if limits["most"] < math.inf else ""
        raise ValueError(f"{field.name} = {value:g} {limits['unit']}: {least}{most} is needed")
    if limits["whole"] and value != int(value):
        raise ValueError(f"{field.name} = {value:g}: a whole number is needed")
