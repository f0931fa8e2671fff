"""What the kernels rely on, read from the code that Triton makes of them for Hopper. No GPU is needed.

What a launch gives is recorded, so that the compiler gets the same types, options and hints as at a real one: which
pointers and numbers are multiples of 16, and which numbers are 1. Triton brings NVIDIA's assembler and `cuobjdump`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch

triton = pytest.importorskip("triton", reason="needs triton")
ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks/parts"))

import contention_kernel  # noqa: E402
import spin  # noqa: E402
from ranges_cases import WORDS  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from fsdata.kernels.jagged import ranges_triton  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
REGISTERS_OF_AN_SM, THREADS_OF_AN_SM = 65536, 2048
KERNELS = {
    "benchmarks/parts/contention_kernel.py": ["_copy"],
    "fsdata/kernels/jagged/ranges_triton.py": ["_copy", "_add", "_by_rank"],
    "tests/gpu/transports/spin.py": ["_spin"],
}
_POINTERS = {torch.uint8: "*u8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64", torch.float32: "*fp32"}
_WIDTH = re.compile(r"\b(ld|st)\.(?:volatile\.)?global\.(?:v(\d)\.)?[bsuf](\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """threads: of a program. registers: of a thread. spilled: bytes, of a thread. shared: bytes, of a program."""

    ptx: str
    threads: int
    registers: int
    spilled: int
    shared: int

    def bytes_at_once(self, what: str) -> set[int]:
        """How many bytes a thread moves with each global `ld` or `st` of the kernel."""
        return {int(v or 1) * int(bits) // 8 for kind, v, bits in _WIDTH.findall(self.ptx) if kind == what}


class Recorder:
    """In the place of a kernel: keeps what it is launched with."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._keep

    def _keep(self, *args: Any, **options: Any) -> None:
        self.args, self.options = args, options


def compiled(folder: Path, module: ModuleType, name: str, launch: Callable[[], None], **instead: Any) -> Compiled:
    """Kernel `name` of `module` as `launch()` would have it compiled for Hopper; `instead` replaces options of it."""
    kernel, recorder = getattr(module, name), Recorder()
    with mock.patch.object(module, name, recorder):
        launch()
    options = {**recorder.options, **instead}
    names = kernel.arg_names
    given = dict(zip(names, recorder.args, strict=False))
    constants = {each: options.pop(each) for each in names if each in options}
    constants |= {each: value for each, value in given.items() if isinstance(value, int) and value == 1}
    made = triton.compile(
        ASTSource(
            fn=kernel,
            signature={each: "constexpr" if each in constants else _type(given[each]) for each in names},
            constexprs=constants,
            attrs={(names.index(each),): [["tt.divisibility", 16]] for each in names if _by_16(given.get(each))},
        ),
        target=HOPPER,
        options={"enable_fp_fusion": True, **options},
    )
    cubin = folder / f"{name}.cubin"
    cubin.write_bytes(made.asm["cubin"])
    command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = {each: int(number) for each, number in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", told)}
    return Compiled(
        ptx=made.asm["ptx"],
        threads=32 * made.metadata.num_warps,
        registers=used["REG"],
        spilled=used["LOCAL"] + used["STACK"],
        shared=max(used["SHARED"], made.metadata.shared),
    )


def _by_16(value: Any) -> bool:
    number = value.data_ptr() if isinstance(value, torch.Tensor) else value
    return isinstance(number, int) and number % 16 == 0


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    return "i32" if -(2**31) <= value < 2**31 else "i64"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))  # else an older build might be looked at
    return tmp_path


def test_all_kernels_are_looked_at() -> None:
    found = {}
    for folder in ("benchmarks", "fscomm", "fsdata", "fsmeter", "fsranks", "tests/gpu", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            if names := re.findall(r"^@triton\.jit\b.*\ndef (\w+)", path.read_text(), re.MULTILINE):
                found[path.relative_to(ROOT).as_posix()] = names
    assert found == KERNELS


@pytest.mark.parametrize(("size", "width"), [(1, 1), (8, 3), *((size, 32) for size in WORDS)])
def test_copying_ranges_is_wide_and_leaves_room_for_other_programs(folder: Path, size: int, width: int) -> None:
    """At least half of the threads of an SM run: enough loads are under way to use its memory fully. Of items of 16
    words or a multiple a thread copies its share of a block in steps as wide as the hardware has.
    """
    source, target = (torch.zeros(64 * width, dtype=WORDS[size]) for _ in range(2))
    given = [torch.zeros(4, dtype=torch.int64) for _ in range(3)]
    made = compiled(folder, ranges_triton, "_copy", lambda: ranges_triton.launch(source, target, *given, width))
    assert made.registers <= 2 * REGISTERS_OF_AN_SM // THREADS_OF_AN_SM
    assert (made.spilled, made.shared) == (0, 0)
    widest = min(16, size * ranges_triton.BLOCK // made.threads) if width % 16 == 0 else size
    assert made.bytes_at_once("st") == {widest}
    assert made.bytes_at_once("ld") == {8, widest}  # 8: starts, places, lengths


@pytest.mark.parametrize("width", [1, 32])
def test_adding_ranges_spills_nothing(folder: Path, width: int) -> None:
    source, target = (torch.zeros(64 * width) for _ in range(2))
    starts, places, lengths, row = (torch.zeros(4, dtype=torch.int64) for _ in range(4))
    made = compiled(
        folder,
        ranges_triton,
        "_add",
        lambda: ranges_triton.launch_add(source, target, starts, places, lengths + 1, row, 1, width),
    )
    assert made.registers <= 2 * REGISTERS_OF_AN_SM // THREADS_OF_AN_SM
    assert (made.spilled, made.shared) == (0, 0)


@pytest.mark.parametrize(("keys", "dtype"), [(1, torch.int32), (3, torch.int64)], ids=str)
def test_the_programs_that_plan_for_512_ranks_run_at_once(folder: Path, keys: int, dtype: torch.dtype) -> None:
    """Then planning takes as long as one of them, on the 132 SMs of an H100 or H200."""
    lengths, rank = torch.ones(keys, 7, dtype=dtype), torch.zeros(7, dtype=torch.int64)
    made = compiled(folder, ranges_triton, "_by_rank", lambda: ranges_triton.launch_by_rank(lengths, rank))
    assert 132 * (REGISTERS_OF_AN_SM // (made.registers * made.threads)) >= 512
    assert made.spilled == 0


def test_only_threads_limit_how_many_spinning_programs_an_sm_holds(folder: Path) -> None:
    """Else less than all of an SM would be held, and other kernels would fit beside them."""
    flag, arrived = (torch.zeros(1, dtype=torch.int32) for _ in range(2))
    count = spin.programs(132, THREADS_OF_AN_SM)
    made = compiled(
        folder, spin, "_spin", lambda: spin.launch(flag, arrived, count=count, limit=60 * 10**9), ON_A_GPU=True
    )
    assert made.registers <= REGISTERS_OF_AN_SM // THREADS_OF_AN_SM
    assert (made.spilled, made.shared) == (0, 0)
    assert count * made.threads == 132 * THREADS_OF_AN_SM
    _, loop = made.ptx.split("Inner Loop Header")
    assert "ld.volatile.global" in loop, "the flag must be read from memory in every turn"
    assert "%globaltimer" in loop


SPIN = """
import torch
from spin import launch, programs
flag, arrived = torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
launch(flag, arrived, count=3, limit=1 << 40)  # the flag ends it: this many turns would take days
print(int(arrived))
flag.zero_()
launch(flag, arrived, count=2, limit=50)  # nobody sets the flag: the limit ends it
print(int(arrived))
print(programs(132, 2048), programs(82, 1536))
"""


@pytest.mark.long
def test_the_spinning_kernel_ends_by_flag_and_by_limit() -> None:
    """Through Triton's interpreter, where its clock is a count of turns."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(spin.__file__).parent)}
    done = subprocess.run([sys.executable, "-c", SPIN], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["3", "5", "528", "246"]


def test_the_kernel_of_contention_copies_16_bytes_at_once(folder: Path) -> None:
    """As NCCL's do; a slower one would contend for less."""
    inp, out = (torch.zeros(1 << 16, dtype=torch.int32) for _ in range(2))
    made = compiled(folder, contention_kernel, "_copy", lambda: contention_kernel.copy(out, inp, blocks=16))
    assert made.bytes_at_once("ld") == made.bytes_at_once("st") == {16}
    assert (made.spilled, made.shared) == (0, 0)
    assert made.registers <= REGISTERS_OF_AN_SM // made.threads, "a program does not fit into an SM"
