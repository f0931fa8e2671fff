"""A job of one process per namespace, told what to do through a store on the bridge.

    with World(ranks=4, module="exposure.rank") as world:
        answers = world.call("block", mode="plain", steps=8)    # block(state, **arguments) on every rank

The ranks stay between calls, so what was built stays warm; links may be shaped anew in between.
"""

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from network.namespaces import DEVICE, Network

BENCHMARKS = Path(__file__).parent.parent


class RankError(RuntimeError):
    """A rank ended before it answered; the message holds the end of what it printed."""


class World:
    """Processes of `network.rank` with a gloo group over their links.

    `module` (in benchmarks/) holds the functions that `call` may name: `function(state, **arguments)`, where `state` is
    a dict that lives as long as the rank; what they return goes through JSON.
    """

    def __init__(self, *, ranks: int, module: str) -> None:
        self.network = Network(ranks)
        self._ranks = ranks
        self._module = module
        self._calls = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.network.__enter__()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._post(None, {})
            for process in self._processes:
                process.wait(timeout=60)
        self.close()

    def close(self) -> None:
        """End the ranks, whatever they do, and take the network down."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()
        self.network.close()

    def call(self, function: str, *, timeout_s: float = 300, **arguments: Any) -> list[Any]:
        """What the function returned on every rank; blocks until all have answered.

        Raises:
            RankError: a rank ended, or one did not answer in time.
        """
        number = self._post(function, arguments)
        keys = [f"answer/{number}/{rank}" for rank in range(self._ranks)]
        end = time.monotonic() + timeout_s
        while not self._store.check(keys):
            self._look(end)
            time.sleep(0.02)
        return [json.loads(self._store.get(key)) for key in keys]

    def _post(self, function: str | None, arguments: dict[str, Any]) -> int:
        number, self._calls = self._calls, self._calls + 1
        self._store.set(f"call/{number}", json.dumps({"function": function, "arguments": arguments}))
        return number

    def _look(self, end: float) -> None:
        for rank, process in enumerate(self._processes):
            if process.poll() is not None:
                raise RankError(f"rank {rank} ended with status {process.returncode}:\n{self._printed(rank)}")
        if time.monotonic() > end:
            printed = "\n".join(f"rank {rank}: {self._printed(rank)}" for rank in range(self._ranks))
            raise RankError(f"the ranks did not answer in time\n{printed}")

    def _printed(self, rank: int) -> str:
        return Path(self._folder.name, f"rank{rank}.log").read_text(errors="replace")[-3000:]

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="freescale-network-")
        host = self.network.address(None)
        self._store = dist.TCPStore(
            host, 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=60)
        )
        # OpenMP threads that spin while waiting would take the cores from those who work.
        path = os.pathsep.join([str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])])
        settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": DEVICE, "PYTHONPATH": path}
        for rank in range(self._ranks):
            place = [str(rank), str(self._ranks), host, str(self._store.port), self._module]
            with open(Path(self._folder.name, f"rank{rank}.log"), "wb") as log:
                command = [*self.network.enter(rank), sys.executable, "-m", "network.rank", *place]
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=BENCHMARKS, env=os.environ | settings
                )
            self._processes.append(process)
