"""Triton kernels compiled for a GPU that need not be there: registers, memory, and how wide loads and stores are.

What a launch gives is recorded, so that the compiler gets the same types, options and hints as at a real one: which
pointers and numbers are multiples of 16, and which numbers are 1. Triton brings NVIDIA's assembler and `cuobjdump`.
"""

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
_WIDTH = re.compile(r"\b(ld|st)\.(?:volatile\.)?global\.(?:v(\d)\.)?[bsuf](\d+)")
_POINTERS = {torch.uint8: "*u8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64", torch.float32: "*fp32"}


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


class _Recorder:
    """In the place of a kernel: keeps what it is launched with."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._keep

    def _keep(self, *args: Any, **options: Any) -> None:
        self.args, self.options = args, options


def compiled(folder: Path, module: ModuleType, name: str, launch: Callable[[], None], **instead: Any) -> Compiled:
    """Kernel `name` of `module` as `launch()` would have it compiled for Hopper; `instead` replaces options of it."""
    kernel, recorder = getattr(module, name), _Recorder()
    with mock.patch.object(module, name, recorder):
        launch()
    options = {**recorder.options, **instead}
    names = kernel.arg_names
    given = dict(zip(names, recorder.args, strict=False))
    constants = {each: options.pop(each) for each in names if each in options}
    constants |= {each: value for each, value in given.items() if _is_one(value)}
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


def _is_one(value: Any) -> bool:
    return isinstance(value, int) and value == 1


def _by_16(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.data_ptr() % 16 == 0
    return isinstance(value, int) and value % 16 == 0


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    return "i32" if -(2**31) <= value < 2**31 else "i64"
