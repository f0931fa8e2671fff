"""A link of a stated speed between the ranks of this machine, which otherwise exchange over memory.

Linux gives every process the right to a network of its own (a user namespace with a network namespace), where `tc` may
shape the loopback device. Containers often refuse that. There, `pacing` holds back the exchanges of each rank instead.
Both slow every run down alike, whatever sends.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch.distributed as dist

from freescale_tools.demo.pacing import paced

# What may be sent at once after a pause: more than the 64 KiB packets of the loopback device, which a smaller bucket
# would drop.
_BURST_BYTES = 96 * 1024
_QUEUE_BYTES = 1024 * 1024  # that wait before packets are dropped
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--net")
_LEAST_MBIT = 5  # at which the demo takes half an hour
_UNITS = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One link, which all ranks of the machine share.

    Attributes:
        mbit: bits per second that all ranks together may send, in millions.
        shaped: by `tc` in a network namespace; else the ranks pace their exchanges.
        why_not: the reason why it is not shaped; empty if it is.
    """

    mbit: float
    why_not: str = ""

    @property
    def shaped(self) -> bool:
        return not self.why_not

    def __str__(self) -> str:
        return f"{self.mbit:g} Mbit/s"

    def how(self) -> str:
        """In a sentence, what holds the link to its speed."""
        if self.shaped:
            return f"the ranks share a link of {self}: the loopback device of a network namespace, shaped by `tc tbf`"
        return (
            f"the ranks share a link of {self}, paced inside the processes: every all-to-all, of each run alike, ends "
            f"when its bytes would have passed; a network namespace shaped by tc was not possible: {self.why_not}"
        )

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` where the link can be shaped."""
        if not self.shaped:
            return list(command)
        return [*_NAMESPACE, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Inside the block the link has its speed, else that of memory. Collective, on the default process group."""
        if not self.shaped:
            with paced(self.mbit * 1e6 / 8 / dist.get_world_size()):
                yield
            return
        shapes = dist.get_rank() == 0
        with _tbf(self.mbit) if shapes else nullcontext():
            dist.barrier()
            yield
            dist.barrier()


def parse_link(text: str) -> float:
    """Mbit/s of such as "100mbit" or "1gbit". Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text.strip().lower())
    mbit = float(found[1]) * _UNITS[found[2]] if found else 0
    if mbit < _LEAST_MBIT:
        raise ValueError(
            f"a speed of at least {_LEAST_MBIT} Mbit/s, in kbit, mbit or gbit, such as 100mbit, got {text!r}: a step "
            "moves 25 Mbit"
        )
    return mbit


def open_link(mbit: float) -> Link:
    """The link, shaped if this machine allows it. Tries that once, for some milliseconds."""
    return Link(mbit=mbit, why_not=_refused(mbit))


def _refused(mbit: float) -> str:
    for program, package in (("unshare", "util-linux"), ("ip", "iproute2"), ("tc", "iproute2")):
        if shutil.which(program) is None:
            return f"`{program}` ({package}) is not installed"
    probe = Link(mbit=mbit).inside(_tc("add", mbit))
    tried = subprocess.run(probe, capture_output=True, text=True, check=False)
    why = tried.stderr.strip().splitlines() or [f"`{shlex.join(probe)}` ended with status {tried.returncode}"]
    return why[-1] if tried.returncode else ""


@contextmanager
def _tbf(mbit: float) -> Iterator[None]:
    subprocess.run(_tc("add", mbit), check=True)
    try:
        yield
    finally:
        subprocess.run(_tc("del"), check=True)


def _tc(action: str, mbit: float | None = None) -> list[str]:
    command = ["tc", "qdisc", action, "dev", "lo", "root"]
    if mbit is None:
        return command
    return [
        *command,
        "tbf",
        "rate",
        f"{round(mbit * 1000)}kbit",
        "burst",
        str(_BURST_BYTES),
        "limit",
        str(_QUEUE_BYTES),
    ]
