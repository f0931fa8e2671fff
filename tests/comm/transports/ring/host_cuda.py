"""The real cuda-bindings on host memory: rings of ranks whose libcuda.so.1 is `libcuda.c`.

`run` is a case of a world in which a rank first loads both. Bindings are found where they are installed, and in the
folders of FREESCALE_CUDA_BINDINGS (`pip install --target <folder> --no-deps cuda-bindings==12.9.0`; several are
separated as in PATH). A process can load one version only, so every version has worlds of its own.
"""

import contextlib
import ctypes
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from patience import PATIENCE_S
from transport_jobs import MORE
from worlds import World, shared_world

from fscomm.transports.ring.cuda_driver import CudaDriver, DriverCalls
from fscomm.transports.ring.ring import Ring
from fscomm.transports.transport import Transport
from fsranks.control_group import ControlGroup
from fsranks.rank_context import RankContext

NAME = "copy-engine on host memory"
HERE = torch.device("cpu")
NEWEST = 13000  # the driver; 12080 is one of CUDA 12.8
FOLDERS = "FREESCALE_CUDA_BINDINGS"
_loaded: list[ctypes.CDLL] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A driver of host memory, and rings on it.

    Attributes:
        folder: has the bindings; "" where they are installed.
        driver: the version that the library says it is.
        queues, room: of the hardware, and how many operations one takes.
        slot_bytes: of rings, and the most; None: as by default.
        limit_s: of rings.
    """

    shim: str
    version: str
    folder: str
    driver: int = NEWEST
    queues: int = 32
    room: int = 1024
    slot_bytes: int | None = None
    limit_s: float = PATIENCE_S


def bindings() -> dict[str, str]:
    """By version, the folder that has it."""
    found = {}
    for folder in ["", *filter(None, os.environ.get(FOLDERS, "").split(os.pathsep))]:
        for of in importlib.metadata.distributions(name="cuda-bindings", **({"path": [folder]} if folder else {})):
            found.setdefault(of.version, folder)
    return found


def why_not() -> str | None:
    """Why no test can run here."""
    if shutil.which("cc") is None:
        return "libcuda.c needs a C compiler, cc"
    return None if bindings() else f"needs cuda-bindings: pip install them, or name folders in {FOLDERS}"


def build(folder: Path) -> str:
    """Once for a folder."""
    library = folder / "libcuda.so.1"
    options = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-pthread", "-Wl,-soname,libcuda.so.1"]
    if not library.exists():
        subprocess.run(["cc", *options, "-o", library, Path(__file__).with_name("libcuda.c")], check=True)
    return str(library)


on_host_cuda = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
BINDINGS = bindings()


@pytest.fixture(scope="module", params=BINDINGS or [""])
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """For the modules that name it; with bindings of each version."""
    library = build(tmp_path_factory.getbasetemp())
    return Setup(shim=library, version=request.param, folder=BINDINGS[request.param])


def world_for(setup: Setup, size: int) -> World:
    return shared_world(size, f"cuda-bindings of {setup.folder}, driver {setup.driver}")


def run(rank: int, world_size: int, setup: Setup, case: Callable[..., Any], *args: Any) -> Any:
    """A case of the world; leaves nothing open."""
    load(setup)
    with contextlib.ExitStack() as opened:
        MORE[NAME] = lambda context, timeout_s: _kept(opened, context, setup)
        return case(rank, world_size, *args)


def load(setup: Setup) -> None:
    """In this process, once; a library of that name which is there already is the one that bindings find."""
    if not _loaded:
        _loaded.append(ctypes.CDLL(setup.shim, mode=ctypes.RTLD_GLOBAL))
        if setup.folder:
            for name in [name for name in sys.modules if name.split(".")[0] == "cuda"]:
                del sys.modules[name]  # torch has imported those that are installed
            sys.path.insert(0, setup.folder)
    shim().shim_version(setup.driver)
    shim().shim_hardware_queues(setup.queues)
    shim().shim_room(setup.room)


def shim() -> ctypes.CDLL:
    """Its own functions; see the end of libcuda.c."""
    return ctypes.CDLL("libcuda.so.1")


class CallsOfOneStream(DriverCalls):
    """Torch has no streams here."""

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self._of_the_caller = int(self.stream())

    def current_stream(self) -> int:
        return self._of_the_caller


def driver_for(group: Any) -> CudaDriver:
    """One whose caller issues to a stream of its own."""
    return CudaDriver(group, HERE, cuda=CallsOfOneStream(0))


def open_ring(context: RankContext, timeout_s: float, *, slot_bytes: int | None = None) -> Transport:
    group = ControlGroup(context, timeout_s=timeout_s)
    try:
        sizes = {"slot_bytes": slot_bytes, "most_slot_bytes": slot_bytes} if slot_bytes else {}
        return Ring(driver_for(group), group, name=NAME, **sizes)
    except BaseException:
        group.close("could not open a ring")
        raise


def _kept(opened: contextlib.ExitStack, context: RankContext, setup: Setup) -> Transport:
    ring = open_ring(context, setup.limit_s, slot_bytes=setup.slot_bytes)
    opened.callback(ring.close, "the case is over")
    return ring


@contextlib.contextmanager
def failing(name: str, code: int, *, after: int = 1) -> Iterator[None]:
    """The `after`-th call of a function returns an error."""
    shim().shim_fail(name.encode(), after, code)
    try:
        yield
    finally:
        shim().shim_fail(name.encode(), 0, 0)


def called(name: str) -> int:
    return shim().shim_called(name.encode())
