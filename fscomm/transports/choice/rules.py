"""The transport on which ranks agree from what all of them offer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fscomm.transports.choice.requirements import Records, problem, warnings

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
