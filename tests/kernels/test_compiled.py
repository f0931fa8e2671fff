"""The Triton kernels as Triton compiles them for Hopper: that they do compile, and how wide they move. Without a GPU.

What a launch gives is recorded, so that the compiler gets the same types, options and hints as at a real one: which
pointers and numbers are multiples of 16, and which numbers are 1.
"""

import re
import sys
from collections.abc import Callable
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

from fsdata.kernels import ranges_triton  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
KERNELS = {
    "benchmarks/parts/contention_kernel.py": ["_copy"],
    "fsdata/kernels/ranges_triton.py": ["_copy", "_add", "_by_rank"],
    "tests/gpu/transports/spin.py": ["_spin"],
}
_POINTERS = {torch.uint8: "*u8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64", torch.float32: "*fp32"}
_WIDTH = re.compile(r"\b(ld|st)\.(?:volatile\.)?global\.(?:v(\d)\.)?[bsuf](\d+)")


class Recorder:
    """In the place of a kernel: keeps what it is launched with."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._keep

    def _keep(self, *args: Any, **options: Any) -> None:
        self.args, self.options = args, options


def ptx(module: ModuleType, name: str, launch: Callable[[], object], **instead: Any) -> str:
    """Kernel `name` of `module` as `launch()` would have it compiled for Hopper; `instead` replaces options of it."""
    kernel, recorder = getattr(module, name), Recorder()
    with mock.patch.object(module, name, recorder):
        launch()
    options = {**recorder.options, **instead}
    names = kernel.arg_names
    given = dict(zip(names, recorder.args, strict=False))
    constants = {each: options.pop(each) for each in names if each in options}
    constants |= {each: value for each, value in given.items() if isinstance(value, int) and value == 1}
    source = ASTSource(
        fn=kernel,
        signature={each: "constexpr" if each in constants else _type(given[each]) for each in names},
        constexprs=constants,
        attrs={(names.index(each),): [["tt.divisibility", 16]] for each in names if _by_16(given.get(each))},
    )
    return triton.compile(source, target=HOPPER, options={"enable_fp_fusion": True, **options}).asm["ptx"]


def bytes_at_once(text: str, what: str) -> set[int]:
    """How many bytes a thread moves with each global `ld` or `st`."""
    return {int(v or 1) * int(bits) // 8 for kind, v, bits in _WIDTH.findall(text) if kind == what}


def _by_16(value: Any) -> bool:
    number = value.data_ptr() if isinstance(value, torch.Tensor) else value
    return isinstance(number, int) and number % 16 == 0


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    return "i32" if -(2**31) <= value < 2**31 else "i64"


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # else an older build might be looked at


def test_all_kernels_are_looked_at() -> None:
    found = {}
    for folder in ("benchmarks", "fscomm", "fsdata", "fsmeter", "fsranks", "tests/gpu", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            if names := re.findall(r"^@triton\.jit\b.*\ndef (\w+)", path.read_text(), re.MULTILINE):
                found[path.relative_to(ROOT).as_posix()] = names
    assert found == KERNELS


@pytest.mark.parametrize(
    ("size", "width", "widest"), [(1, 1, 1), (8, 3, 8), (1, 32, 8), (2, 32, 16), (4, 32, 16), (8, 32, 16)]
)
def test_copying_ranges_is_wide(size: int, width: int, widest: int) -> None:
    """Of items of 16 words or a multiple a thread copies its 8 words of a block in steps of 16 bytes at most."""
    source, target = (torch.zeros(64 * width, dtype=WORDS[size]) for _ in range(2))
    given = [torch.zeros(4, dtype=torch.int64) for _ in range(3)]
    made = ptx(ranges_triton, "_copy", lambda: ranges_triton.launch(source, target, *given, width))
    assert bytes_at_once(made, "st") == {widest}
    assert bytes_at_once(made, "ld") == {8, widest}  # 8: starts, places, lengths


@pytest.mark.parametrize("width", [1, 32])
def test_adding_ranges_compiles(width: int) -> None:
    source, target = (torch.zeros(64 * width) for _ in range(2))
    given = [torch.zeros(4, dtype=torch.int64) for _ in range(2)]
    lengths, row = torch.ones(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    assert ptx(ranges_triton, "_add", lambda: ranges_triton.launch_add(source, target, *given, lengths, row, 1, width))


@pytest.mark.parametrize(("keys", "dtype"), [(1, torch.int32), (3, torch.int64)], ids=str)
def test_planning_by_rank_compiles(keys: int, dtype: torch.dtype) -> None:
    lengths, rank = torch.ones(keys, 7, dtype=dtype), torch.zeros(7, dtype=torch.int64)
    assert ptx(ranges_triton, "_by_rank", lambda: ranges_triton.launch_by_rank(lengths, rank))


def test_a_spinning_kernel_reads_its_flag_from_memory_in_every_turn() -> None:
    flag, arrived = (torch.zeros(1, dtype=torch.int32) for _ in range(2))
    made = ptx(spin, "_spin", lambda: spin.launch(flag, arrived, count=528, limit=60 * 10**9), ON_A_GPU=True)
    _, loop = made.split("Inner Loop Header")
    assert "ld.volatile.global" in loop
    assert "%globaltimer" in loop, "its limit ends it"
    assert spin.programs(132, 2048) == 528, "programs of 512 threads fill an H100"


def test_the_kernel_of_contention_copies_16_bytes_at_once() -> None:
    """As NCCL's do; a slower one would contend for less."""
    inp, out = (torch.zeros(1 << 16, dtype=torch.int32) for _ in range(2))
    made = ptx(contention_kernel, "_copy", lambda: contention_kernel.copy(out, inp, blocks=16))
    assert bytes_at_once(made, "ld") == bytes_at_once(made, "st") == {16}
