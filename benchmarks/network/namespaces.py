"""N network namespaces joined by a bridge, what each of them sends held to a rate.

    with Network(ranks=4) as network:
        network.shape(200)          # Mbit/s that each rank may send; None: as fast as the machine copies
        subprocess.Popen([*network.enter(0), "python", ...])

Everything is taken down by a guard: a process in a session of its own that waits for the end of a pipe which the owner
holds. Leaving the block closes the pipe, and so does the owner's death, whatever killed it: there is one way to clean
up, and it always runs.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

DEVICE = "eth0"  # the link's name inside a namespace
# What a link may send at once after a pause: 3.9 ms at 200 Mbit/s. Must exceed the 64 KiB packets that the kernel hands
# around between namespaces: a smaller bucket splits them in software, which triples the CPU time of an exchange.
BURST_BYTES = 96 * 1024
QUEUE_BYTES = 1024 * 1024  # what waits before packets are dropped: 42 ms at 200 Mbit/s
_SYSCTLS = {
    # Cubic is refused in child namespaces on some machines; reno is everywhere.
    "net/ipv4/tcp_congestion_control": "reno",
    # A training job's links pause between exchanges; a fabric does not start over after each pause.
    "net/ipv4/tcp_slow_start_after_idle": "0",
}


def why_not() -> str | None:
    """The reason why namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"`{tool}` (package iproute2) is not installed"
    name = f"fsprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"this machine does not allow network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


class Network:
    """Namespaces, links and a bridge that exist inside the `with` block.

    Rank r has `address(r)`, the machine itself `address(None)` on the bridge. Needs root.

    Raises:
        RuntimeError: a command failed; what was made until then is taken down.
    """

    def __init__(self, ranks: int) -> None:
        if not 1 <= ranks <= 250:
            raise ValueError(f"ranks must be 1 to 250, got {ranks}")
        mark = f"{os.getpid() % 0xFFFFF:x}"
        self.ranks = ranks
        self.bridge = f"fsb{mark}"
        self.namespaces = [f"fsn{mark}-{rank}" for rank in range(ranks)]
        self._links = [f"fsl{mark}-{rank}" for rank in range(ranks)]
        self._subnet = f"198.18.{os.getpid() % 256}"  # the range set aside for benchmarks of networks
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._guard = self._start_guard()
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take everything down; blocks until it is gone."""
        guard, self._guard = self._guard, None
        if guard is not None:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait()

    def address(self, rank: int | None) -> str:
        """IPv4 of a rank, or of the machine on the bridge."""
        return f"{self._subnet}.{1 if rank is None else rank + 2}"

    def enter(self, rank: int) -> list[str]:
        """What to put before a command so that it runs in a rank's namespace."""
        return ["ip", "netns", "exec", self.namespaces[rank]]

    def shape(self, rate_mbit: float | None) -> None:
        """Hold what every rank sends to a rate, or (None) let it go.

        One bucket per rank, on its sending side: a second one on the receiving side makes TCP lose a third of the rate,
        and exchanges between all ranks load both directions alike.
        """
        for namespace in self.namespaces:
            qdisc = ["tc", "-n", namespace, "qdisc"]
            subprocess.run([*qdisc, "del", "dev", DEVICE, "root"], capture_output=True)
            if rate_mbit is not None:
                bucket = ["tbf", "rate", f"{rate_mbit}mbit", "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES)]
                _run([*qdisc, "add", "dev", DEVICE, "root", *bucket])

    def _set_up(self) -> None:
        _run(["ip", "link", "add", self.bridge, "type", "bridge"])
        _run(["ip", "addr", "add", f"{self.address(None)}/24", "dev", self.bridge])
        _run(["ip", "link", "set", self.bridge, "up"])
        for rank, (namespace, link) in enumerate(zip(self.namespaces, self._links, strict=True)):
            inside = ["ip", "-n", namespace]
            _run(["ip", "netns", "add", namespace])
            _run(["ip", "link", "add", link, "type", "veth", "peer", "name", DEVICE, "netns", namespace])
            _run(["ip", "link", "set", link, "master", self.bridge, "up"])
            _run([*inside, "addr", "add", f"{self.address(rank)}/24", "dev", DEVICE])
            for device in ("lo", DEVICE):
                _run([*inside, "link", "set", device, "up"])
            for name, value in _SYSCTLS.items():
                _run([*self.enter(rank), "sh", "-c", f"echo {value} > /proc/sys/{name}"])

    def _start_guard(self) -> "subprocess.Popen[bytes]":
        links = " ".join([*self._links, self.bridge])
        script = (
            "cat > /dev/null\n"
            f"for n in {' '.join(self.namespaces)}; do kill -9 $(ip netns pids $n); ip netns del $n; done\n"
            f"for l in {links}; do ip link del $l; done\n"
        )
        # Its own session: Ctrl-C in the terminal must reach the owner only.
        return subprocess.Popen(
            ["sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed with status {done.returncode}: {done.stderr.strip()}")
