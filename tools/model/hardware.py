"""The hardware that steps are simulated on: from a TOML file of `clusters` or the user's, or as a run has shown it."""

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from freescale_tools.calibrate.calibration import Calibration
from freescale_tools.console.errors import UsageError
from freescale_tools.model.parameters import check, number, numbers, parameters

GIVEN = {"value", "unit", "source"}


ALL_TO_ALLS = "all-to-alls of"
"""Stands in the source of what all-to-alls have shown, before the number of their ranks."""


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
    """Time of an ID exchange besides its bytes: sizes, permutes, synchronisation.

    In proportion to a rank's events.
    """
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
    return sorted(item.name.removesuffix(".toml") for item in _clusters().iterdir())


def _clusters() -> Any:
    return resources.files(__package__) / "clusters"


def load_hardware(name_or_path: str | Path) -> Hardware:
    """A bundled file by its name, or any file by its path. Of hardware that it is `like`, a file has the differences.

    Raises UsageError if it is not there or not TOML, and on missing, unknown or wrong parameters, all in one
    message.
    """
    known = bundled()
    if str(name_or_path) in known:
        text = (_clusters() / f"{name_or_path}.toml").read_text(encoding="utf-8")
    else:
        path = Path(name_or_path)
        if not path.is_file():
            raise UsageError(f"no hardware {str(name_or_path)!r}: give {', '.join(known)}, or the path of a TOML file")
        text = None
    try:
        return _from_toml(tomllib.loads(path.read_text(encoding="utf-8") if text is None else text))
    except (OSError, ValueError) as error:
        raise UsageError(f"hardware {name_or_path}: {error}") from error


def _from_toml(document: Mapping[str, Any]) -> Hardware:
    fields = {field.name: field for field in numbers(Hardware)}
    if "like" in document:
        if document["like"] not in bundled():
            raise ValueError(f"like = {document['like']!r}: there are {', '.join(bundled())}")
        usual = load_hardware(document["like"])
        same = {one["name"]: {key: one[key] for key in GIVEN} for one in parameters(usual)}
        document = {**same, **{key: value for key, value in document.items() if key != "like"}}
    wrong = [_unknown(key, fields) for key in document if key not in fields and key != "name"]
    wrong += [
        f'[{name}] is missing ({field.metadata["unit"]}); like = "h100-ib" takes what is missing from there'
        for name, field in fields.items()
        if name not in document
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
