"""One rank of a `network.world.World`: python -m network.rank RANK RANKS HOST PORT MODULE."""

import ctypes
import datetime
import importlib
import json
import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist

_PR_SET_PDEATHSIG = 1
_DAY = datetime.timedelta(days=1)


def main(rank: int, ranks: int, host: str, port: int, module: str) -> None:
    """Answer calls until there is none."""
    # Whatever kills the owner ends the ranks too.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(-15)  # what else runs on the machine would be measured too
    torch.set_num_threads(1)
    store = dist.TCPStore(host, port, is_master=False, timeout=datetime.timedelta(seconds=60))
    dist.init_process_group("gloo", store=dist.PrefixStore("gloo", store), rank=rank, world_size=ranks)
    functions = importlib.import_module(module)
    state: dict[str, Any] = {}
    number = 0
    while True:
        store.wait([f"call/{number}"], _DAY)
        call = json.loads(store.get(f"call/{number}"))
        if call["function"] is None:
            break
        answer = getattr(functions, call["function"])(state, **call["arguments"])
        store.set(f"answer/{number}/{rank}", json.dumps(answer))
        number += 1
    state.clear()
    dist.destroy_process_group()
    sys.stdout.flush()
    # Nothing is left to save; interpreters with open gloo threads may take seconds to end.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
