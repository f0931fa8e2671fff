"""The hardware that steps are simulated on: from a TOML file of `clusters` or the user's, or as a run has shown it.

Its numbers have a unit and limits, and say where they come from. Those of a workload are such `parameters`, too.
"""

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from freescale_tools.calibrate.calibration import Calibration
from freescale_tools.console.errors import UsageError

ALL_TO_ALLS = "all-to-alls of"
"""Stands in the source of what all-to-alls have shown, before the number of their ranks."""
_CLUSTERS = Path(__file__).parent / "clusters"
_GIVEN = ("value", "unit", "source")


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Hosts of GPUs and what joins them. Bandwidths are per GPU and direction.

    Raises ValueError on numbers out of range and on parameters without a source.
    """

    name: str
    gpus_per_host: float = number("GPUs", whole=True)
    gpus_per_nvlink: float = number("GPUs", whole=True)
    """GPUs of a host that are connected by NVLink. Other GPUs of the host are reached over PCIe."""
    nvlink: float = number("GB/s")
    pcie: float = number("GB/s")
    pageable: float = number("GB/s")
    """Copies to the GPU from host memory that is not pinned: the driver stages them through pinned buffers."""
    network: float = number("GB/s")
    gpus_per_leaf: float = number("GPUs", whole=True)
    """GPUs below one leaf switch, or one group of rails. Bytes for other GPUs go over the spine."""
    oversubscription: float = number("times", least=1)
    """Bandwidth from the hosts into the leaf over that into the spine; 1: the spine is as wide."""
    exchange_efficiency: float = number("share", most=1)
    """Share of the bandwidths that all-to-alls of rows, gradients and ids reach."""
    allreduce_efficiency: float = number("share", most=1)
    exchange_latency: float = number("us", zero=True)
    peer_latency: float = number("us", zero=True)
    """Latency for each other rank of an exchange."""
    id_metadata: float = number("ms/M events", zero=True)
    """Time of an ID exchange besides its bytes: sizes, permutes, synchronisation. In proportion to a rank's events."""
    peak_flops: float = number("TFLOP/s")
    flops_efficiency: float = number("share", most=1)
    memory: float = number("GB/s")
    kernel_floor: float = number("us", zero=True)
    """Least time of a look-up or an update, however few its rows: the launches of its kernels."""
    memory_contention: float = number("share", most=1, zero=True)
    """How much longer dense kernels take while rows are looked up or updated beside them."""
    own_cost: float = number("ms", zero=True)
    """What prioritized communication itself takes of the training thread in a step, whatever the rows."""
    contention: float = number("share", most=1, zero=True)
    """How much longer dense kernels take while communication kernels run beside them."""
    loader: float = number("M events/s")
    host_network: float = number("GB/s")
    sources: Mapping[str, str]
    """Parameter -> its source."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name is empty: the hardware needs one")
        check(self)
        for field in numbers(self):
            if not self.sources.get(field.name):
                raise ValueError(f"{field.name} has no source: say where the number comes from, or 'assumed'")
        if self.gpus_per_leaf < self.gpus_per_host:
            raise ValueError(f"gpus_per_leaf = {self.gpus_per_leaf} is below gpus_per_host = {self.gpus_per_host}")
        if self.gpus_per_nvlink > self.gpus_per_host:
            raise ValueError(
                f"gpus_per_nvlink = {self.gpus_per_nvlink} is above gpus_per_host = {self.gpus_per_host}: NVLink joins "
                "GPUs of one host"
            )


def bundled() -> list[str]:
    """Names of the files that come with the package."""
    return sorted(file.stem for file in _CLUSTERS.iterdir())


def load_hardware(name_or_path: str | Path) -> Hardware:
    """A bundled file by its name, or any file by its path. Of hardware that it is `like`, a file has the differences.

    Raises UsageError if it is not there or not TOML, and on missing, unknown or wrong parameters, all in one
    message.
    """
    known = bundled()
    path = _CLUSTERS / f"{name_or_path}.toml" if str(name_or_path) in known else Path(name_or_path)
    if not path.is_file():
        raise UsageError(f"no hardware {str(name_or_path)!r}: give {', '.join(known)}, or the path of a TOML file")
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        if "like" in document:
            like = document.pop("like")
            if like not in known:
                raise ValueError(f"like = {like!r}: there are {', '.join(known)}")
            same = {one["name"]: {key: one[key] for key in _GIVEN} for one in parameters(load_hardware(like))}
            document = same | document
        return _from_toml(document)
    except (OSError, ValueError) as error:
        raise UsageError(f"hardware {name_or_path}: {error}") from error


def _from_toml(document: Mapping[str, Any]) -> Hardware:
    units = {field.name: field.metadata["unit"] for field in numbers(Hardware)}
    wrong = [] if isinstance(document.get("name"), str) else ["name is missing: a text"]
    for key in document.keys() - units.keys() - {"name"}:
        close = difflib.get_close_matches(key, units, n=1)
        wrong.append(f"{key!r} is not a parameter" + (f", did you mean {close[0]!r}?" if close else ""))
    for name, unit in units.items():
        given = document.get(name)
        if name not in document:
            wrong.append(f'[{name}] is missing ({unit}); like = "h100-ib" takes what is missing from there')
        elif not isinstance(given, dict):
            wrong.append(f"[{name}] must be a table of value, unit and source")
        elif given.keys() != set(_GIVEN):
            there = ", ".join(sorted(given)) or "nothing"
            wrong.append(f"[{name}] has {there}: value, unit and source are needed, no others")
        else:
            if given["unit"] != unit:
                wrong.append(f"[{name}] is in {given['unit']!r}: convert it to {unit!r}")
            if not isinstance(given["source"], str) or not given["source"].strip():
                wrong.append(f"[{name}] has no source: say where the number comes from, or 'assumed'")
    if wrong:
        raise ValueError("; ".join(sorted(wrong)))
    return Hardware(
        name=document["name"],
        **{name: document[name]["value"] for name in units},
        sources={name: document[name]["source"] for name in units},
    )


def calibrated(hardware: Hardware, calibration: Calibration) -> Hardware:
    """`hardware` with the bandwidth and latency of the run's all-to-alls, and what fscomm took itself.

    They are those of the slowest link that the ranks of the run used: NVLink if all of them fit, else PCIe within a
    host, else the network. Other links stay as they are. Hardware of a run that shows no exchange stays as it is.
    """
    changes: dict[str, Any] = {}
    sources = dict(hardware.sources)
    if calibration.fscomm_s is not None:
        changes["own_cost"] = 1e3 * calibration.fscomm_s
        sources["own_cost"] = f"{calibration.source}, its run with fscomm"
    ranks, bandwidth, latency = calibration.ranks, calibration.bytes_per_s, calibration.latency_s
    if bandwidth is not None and latency is not None and ranks > 1:
        near, host = min(ranks, hardware.gpus_per_nvlink), min(ranks, hardware.gpus_per_host)
        if ranks > host:
            link, left = "network", ranks - host
        elif host > near:
            link, left = "pcie", host - near
        else:
            link, left = "nvlink", near - 1
        crossing = bandwidth * left / ranks / 1e9  # of the bytes that a rank gives, those that cross this link
        changes[link] = crossing / hardware.exchange_efficiency
        changes["exchange_latency"] = max(1e6 * latency - hardware.peer_latency * (ranks - 1), 0.0)
        sources |= dict.fromkeys((link, "exchange_latency"), f"{calibration.source}, {ALL_TO_ALLS} {ranks} ranks")
    return dataclasses.replace(hardware, **changes, sources=sources)
