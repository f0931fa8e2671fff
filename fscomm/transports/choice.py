"""Which transport the ranks take, from what all of them offer, in words that name the ranks which lack something.

NCCL's zero-CTA collectives run since 2.28 inside one NVLink domain and since 2.30.7 across hosts, where a thread on the
CPU takes part; only cuda.bindings offers stream waits. What no record can show, that rows arrive and that no kernel
moves them, the warm-up does (`selftest`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fscomm.transports.capabilities import NVLINK, Capabilities
from fsranks.errors import name_ranks

Records = Sequence[Capabilities]
Rule = Callable[[Records], str | None]

PROVEN = ("gloo",)  # shown bitwise exact on hardware; `auto` uses no other
NAMES = ("gloo", "nccl", "nccl-ce", "copy-engine", "host-staged")
# The best first, for an exchange that runs beside compute, and why the others come later.
_ORDER = {
    "cpu": {"gloo": "", "copy-engine": "it serves one host", "host-staged": "it copies rows once more"},
    "cuda": {
        "copy-engine": "",
        "nccl-ce": "it pads pieces to one size or needs another library",
        "host-staged": "rows take the way through host memory",
        "nccl": "its kernels take multiprocessors from compute",
    },
}

ZERO_CTA = (2, 28)
ZERO_CTA_ACROSS_HOSTS = (2, 30, 7)
_NO_NVLINK = "no NVLink between"
BATCH_COPIES = 12080  # the driver that can be asked for copies which leave SMs alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the ranks agree on; alike on all of them.

    Attributes:
        asked: the name that was asked for, or auto.
        name: the transport, or None if there is none.
        why_not: the reason for every other transport.
        warnings: what works but not well.
    """

    asked: str
    name: str | None
    why_not: dict[str, str]
    warnings: tuple[str, ...] = ()

    def line(self) -> str:
        """What was chosen, and why each other was not."""
        found = f"rows travel by {self.name}" if self.name else "there is no transport for these rows"
        # A user who asked for a transport by name reads about that one first.
        names = sorted(self.why_not, key=lambda name: name != self.asked)
        parts = [f"{found} (transport={self.asked!r})", *(f"not {name}: {self.why_not[name]}" for name in names)]
        return ". ".join([*parts, *(f"Warning: {text}" for text in self.warnings)])


def choose(records: Records, asked: str) -> Choice:
    """From the records of all ranks, in their order. `asked` is a name, or auto.

    By name, whatever these ranks can use. `auto` keeps to `PROVEN`: a transport that has not been shown to be exact on
    hardware has to be asked for.
    """
    if asked not in ("auto", *NAMES):
        raise ValueError(f"transport must be one of auto, {', '.join(NAMES)}, got {asked!r}")
    if not records:
        raise ValueError("choosing a transport needs the record of every rank, got none")
    if len(records) == 1:
        return _alone(records[0].device, asked)
    problems = {name: problem(name, records) for name in NAMES}
    order = _ORDER[records[0].device]
    able = [name for name in order if not problems[name]]
    wanted = [name for name in able if name == asked or (asked == "auto" and name in PROVEN)]
    name = wanted[0] if wanted else None
    others = [other for other in NAMES if other != name]
    why_not = {other: problems[other] or _passed_over(other, name, asked, able, order) for other in others}
    return Choice(asked=asked, name=name, why_not=why_not, warnings=warnings(name, records))


def _alone(device: str, asked: str) -> Choice:
    name = next(iter(_ORDER[device])) if asked == "auto" else asked
    return Choice(asked=asked, name=name, why_not={other: "one rank sends nothing" for other in NAMES if other != name})


def _passed_over(other: str, name: str | None, asked: str, able: Sequence[str], order: Mapping[str, str]) -> str:
    """Why a transport that could be used is not taken."""
    if asked == name:
        return f"{asked} was asked for"
    later = f"; after {able[0]}, as {order[other]}" if other != able[0] else ""
    if asked == "auto" and other in PROVEN:
        return f"these ranks can use it{later}"
    why = ": auto keeps to what hardware has shown to be exact" if asked == "auto" else ""
    return f"these ranks can use it when asked for transport={other!r}{why}{later}"


def problem(name: str, records: Records) -> str | None:
    """Why these ranks cannot use the transport: all reasons, so that they can be mended at once; None if they can."""
    devices = {record.device for record in records}
    if len(devices) > 1:
        return _listed(records, lambda record: True, lambda record: f"tables on {record.device}")
    return "; ".join(text for rule in _RULES[name, devices.pop()] if (text := rule(records))) or None


def _listed(records: Records, bad: Callable[[Capabilities], bool], what: Callable[[Capabilities], str]) -> str | None:
    """`rank 3 has NCCL 2.27.5, ranks 4, 5 have no NCCL`; None if no record is bad."""
    ranks: dict[str, list[int]] = {}
    for rank, record in enumerate(records):
        if bad(record):
            ranks.setdefault(what(record), []).append(rank)
    parts = [f"{name_ranks(of)} {'has' if len(of) == 1 else 'have'} {text}" for text, of in ranks.items()]
    return ", ".join(parts) or None


def _never(why: str) -> Rule:
    return lambda records: why


def _one_host(records: Records) -> str | None:
    hosts: dict[str, list[int]] = {}
    for rank, record in enumerate(records):
        hosts.setdefault(record.host, []).append(rank)
    if len(hosts) == 1:
        return None
    return f"all ranks must be on one host, {' and '.join(name_ranks(ranks) for ranks in hosts.values())} are apart"


def _pinned(records: Records) -> str | None:
    lacking = _listed(records, lambda record: not record.pinned, lambda record: "no page-locked host memory")
    return lacking and f"{lacking}: look at ulimit -l and at the driver"


def _nccl_from(version: tuple[int, ...]) -> Rule:
    def rule(records: Records) -> str | None:
        lacking = _listed(records, lambda record: (record.nccl or ()) < version, _nccl)
        return lacking and (f"{lacking}, needs {_dotted(version)}" if any(version) else lacking)

    return rule


def _nccl(record: Capabilities) -> str:
    return f"NCCL {_dotted(record.nccl)}" if record.nccl else "no NCCL"


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def _same_nccl(records: Records) -> str | None:
    if len({record.nccl for record in records}) == 1:
        return None
    return f"all ranks must load one version of NCCL: {_listed(records, lambda record: True, _nccl)}"


def _zero_cta_domain(records: Records) -> str | None:
    """Across hosts a newer NCCL is needed; on a host, links between its devices."""
    apart = _one_host(records)
    if apart and (lacking := _nccl_from(ZERO_CTA_ACROSS_HOSTS)(records)):
        return f"{apart}, where {lacking}"
    return _pairs(records, lambda how: how != NVLINK, _NO_NVLINK)


def _joined(records: Records) -> str | None:
    """A word in host memory may overtake copies that go to a peer over PCIe; over NVLink it does not."""
    unknown = _of_pairs(records, lambda seen: not seen, "no view of each other's devices:")
    if unknown:
        unknown += ", so NVLink between them cannot be seen; let every process see all GPUs (CUDA_VISIBLE_DEVICES)"
    return "; ".join(text for text in (_pairs(records, lambda how: how != NVLINK, _NO_NVLINK), unknown) if text) or None


def _pairs(records: Records, bad: Callable[[str], bool], what: str) -> str | None:
    """Ranks of one host whose devices, as far as one of them sees the other's, are joined badly."""
    return _of_pairs(records, lambda seen: any(map(bad, seen)), what)


def _of_pairs(records: Records, bad: Callable[[list[str]], bool], what: str) -> str | None:
    """Ranks of one host with a device each, by what the two see of each other's."""
    found = [
        f"{rank} and {peer}"
        for rank, record in enumerate(records)
        for peer, other in enumerate(records)
        if rank < peer and record.host == other.host and (record.uuid is None or record.uuid != other.uuid)
        if bad([of.reach[at.uuid] for of, at in ((record, other), (other, record)) if at.uuid in of.reach])  # type: ignore[index]
    ]
    return f"{what} ranks {', '.join(found[:4])}{', ...' if len(found) > 4 else ''}" if found else None


def _shared_gpus(records: Records) -> list[int]:
    """The ranks that are not alone on their device."""
    devices = [(record.host, record.uuid) for record in records]
    return [rank for rank, device in enumerate(devices) if device[1] is not None and devices.count(device) > 1]


def _own_gpu(records: Records) -> str | None:
    shared = _shared_gpus(records)
    return f"NCCL wants a GPU per rank, {name_ranks(shared)} share one" if shared else None


def _not_set(name: str, allowed: Callable[[str], bool], why: str) -> Rule:
    """An environment variable, where it is set, must have a value that is `allowed`."""

    def rule(records: Records) -> str | None:
        lacking = _listed(
            records,
            lambda record: name in record.environment and not allowed(record.environment[name]),
            lambda record: f"{name}={record.environment[name]}",
        )
        return lacking and f"{lacking}: {why}"

    return rule


def _zero_policy(value: str) -> bool:
    """2, a sum that holds it, or its name."""
    return "ZERO" in value.upper() or (value.isdigit() and bool(int(value) & 2))


def _bindings(records: Records) -> str | None:
    lacking = _listed(records, lambda record: record.cuda_bindings is None, lambda record: "no cuda.bindings")
    return lacking and f"{lacking}, which stream waits and copies in batches need: pip install cuda-bindings"


def _driver_of_bindings(records: Records) -> str | None:
    """Bindings call functions as the CUDA of their major version has them."""
    lacking = _listed(
        records,
        lambda record: record.driver is not None and _major(record) > record.driver // 1000,
        lambda record: f"a driver of CUDA {_cuda(record.driver)} and cuda-bindings {record.cuda_bindings}",  # type: ignore[arg-type]
    )
    return lacking and f"{lacking}, which needs the driver of its CUDA: pip install cuda-bindings of the driver's CUDA"


def _major(record: Capabilities) -> int:
    return _number((record.cuda_bindings or "").partition(".")[0])


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


_NO_BLOCKING = _not_set(
    "CUDA_LAUNCH_BLOCKING", lambda value: value == "0", "every copy would block the thread that issues it"
)


def _queues(least: int, why: str) -> Rule:
    """Streams that share a hardware queue hold up each other."""

    def rule(records: Records) -> str | None:
        lacking = _listed(
            records,
            lambda record: _number(record.environment.get(_CONNECTIONS, _BY_DEFAULT)) < least,
            lambda record: f"{_CONNECTIONS}={record.environment.get(_CONNECTIONS, f'{_BY_DEFAULT} (not set)')}",
        )
        return lacking and f"{lacking}: {why}"

    return rule


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


_CONNECTIONS, _BY_DEFAULT = "CUDA_DEVICE_MAX_CONNECTIONS", "8"
_QUEUES_OF_RINGS = _queues(
    32,
    "three rings have nine streams, beside those of compute and of workers, and one that waits for a peer would hold "
    "up what shares its hardware queue; set it to 32 before the process starts",
)
_QUEUES = _queues(2, "with one hardware queue communication holds up compute; unset it or raise it")
_FOR_NCCL_CE = (
    _bindings,
    _driver_of_bindings,
    _nccl_from(ZERO_CTA),
    _same_nccl,
    _own_gpu,
    _zero_cta_domain,
    _not_set("NCCL_CTA_POLICY", _zero_policy, "it overrides the zero-CTA policy; unset it or set 2"),
    _not_set("NCCL_P2P_DISABLE", lambda value: value == "0", "copies between GPUs are off"),
    _not_set("NCCL_P2P_LEVEL", lambda value: value not in ("LOC", "0"), "copies between GPUs are off"),
    _not_set("NCCL_CUMEM_ENABLE", lambda value: value != "0", "windows need it"),
    _not_set("NCCL_WIN_ENABLE", lambda value: value != "0", "windows are off"),
)
_RULES: dict[tuple[str, str], tuple[Rule, ...]] = {
    ("gloo", "cpu"): (),
    ("host-staged", "cpu"): (),
    ("copy-engine", "cpu"): (_one_host,),
    ("nccl-ce", "cpu"): (_never("the tables are on the CPU"),),
    ("nccl", "cpu"): (_never("the tables are on the CPU"),),
    ("gloo", "cuda"): (_never("the tables are on GPUs; host-staged takes their rows over gloo"),),
    ("host-staged", "cuda"): (_pinned, _NO_BLOCKING),
    ("copy-engine", "cuda"): (
        _one_host,
        _bindings,
        _driver_of_bindings,
        _joined,
        _QUEUES_OF_RINGS,
        _NO_BLOCKING,
    ),
    ("nccl-ce", "cuda"): (*_FOR_NCCL_CE, _NO_BLOCKING),
    ("nccl", "cuda"): (_nccl_from((2,)), _same_nccl, _own_gpu),
}


def warnings(name: str | None, records: Records) -> tuple[str, ...]:
    """What works with the transport, but maybe not well."""
    if name is None or records[0].device == "cpu":
        return ()
    texts = [_differing(records, "torch", lambda record: record.torch)]
    variables = sorted({variable for record in records for variable in record.environment})
    texts += [_differing(records, v, lambda record, v=v: record.environment.get(v, "not set")) for v in variables]  # type: ignore[misc]
    texts.append(_plain_copies(records) if name == "copy-engine" else _QUEUES(records))
    return tuple(text for text in texts if text)


def _plain_copies(records: Records) -> str | None:
    old = [rank for rank, record in enumerate(records) if record.driver is not None and record.driver < BATCH_COPIES]
    lacking = "has an older driver" if len(old) == 1 else "have older drivers"
    return f"{name_ranks(old)} {lacking} than CUDA 12.8, which may copy within a GPU by kernels" if old else None


def _differing(records: Records, what: str, value: Callable[[Capabilities], str]) -> str | None:
    if len({value(record) for record in records}) == 1:
        return None
    return f"the ranks differ in {what}: {_listed(records, lambda record: True, value)}"
