"""What the kernels rely on, read from the code that Triton makes of them for Hopper. No GPU is needed."""

import ast
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="needs triton")
ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks/parts"))

import contention_kernel  # noqa: E402
from compiled import Compiled, compiled  # noqa: E402

from fscomm.transports import spin  # noqa: E402
from fsdata.kernels import ranges, ranges_triton  # noqa: E402

REGISTERS_OF_AN_SM, THREADS_OF_AN_SM = 65536, 2048
KERNELS = {
    "benchmarks/parts/contention_kernel.py": ["_copy"],
    "fscomm/transports/spin.py": ["_spin"],
    "fsdata/kernels/ranges_triton.py": ["_copy", "_add"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))  # else an older build might be looked at
    return tmp_path


def copy_of_ranges(folder: Path, word: torch.dtype, width: int) -> Compiled:
    source, target = (torch.zeros(64 * width, dtype=word) for _ in range(2))
    starts, places, lengths = (torch.zeros(4, dtype=torch.int64) for _ in range(3))
    return compiled(
        folder,
        ranges_triton,
        "_copy",
        lambda: ranges_triton.launch(source, target, starts, places, lengths, width),
    )


def test_all_kernels_are_looked_at():
    found: dict[str, list[str]] = {}
    for folder in ("benchmarks", "fscomm", "fsdata", "fsranks", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and "triton.jit" in map(ast.unparse, node.decorator_list):
                    found.setdefault(path.relative_to(ROOT).as_posix(), []).append(node.name)
    assert found == KERNELS


@pytest.mark.parametrize("word", ranges._WORDS.values(), ids=str)
def test_wide_items_travel_as_vectors(folder, word):
    """Items of 16 words or a multiple: a thread copies its share of a block in steps as wide as the hardware has."""
    made = copy_of_ranges(folder, word, 32)
    widest = min(16, word.itemsize * ranges_triton.BLOCK // made.threads)
    assert made.bytes_at_once("st") == {widest}
    assert made.bytes_at_once("ld") == {8, widest}  # 8: starts, places, lengths


@pytest.mark.parametrize("word", ranges._WORDS.values(), ids=str)
@pytest.mark.parametrize("width", [1, 3, 32])
def test_copying_ranges_leaves_room_for_other_programs(folder, word, width):
    """At least half of the threads of an SM run: enough loads are under way to use its memory fully."""
    made = copy_of_ranges(folder, word, width)
    assert made.registers <= 2 * REGISTERS_OF_AN_SM // THREADS_OF_AN_SM
    assert (made.spilled, made.shared) == (0, 0)
    assert width % 16 == 0 or made.bytes_at_once("st") == {word.itemsize}


@pytest.mark.parametrize("width", [1, 3, 32])
def test_adding_ranges_spills_nothing(folder, width):
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


def test_only_threads_limit_how_many_spinning_programs_an_sm_holds(folder):
    """Else less than all of an SM would be held, and other kernels would fit beside them."""
    flag, arrived = (torch.zeros(1, dtype=torch.int32) for _ in range(2))
    made = compiled(
        folder,
        spin,
        "_spin",
        lambda: spin.launch(flag, arrived, count=spin.programs(132, THREADS_OF_AN_SM), limit=60 * 10**9),
        ON_A_GPU=True,
    )
    assert made.registers <= REGISTERS_OF_AN_SM // THREADS_OF_AN_SM
    assert (made.spilled, made.shared) == (0, 0)
    assert spin.programs(132, THREADS_OF_AN_SM) * made.threads == 132 * THREADS_OF_AN_SM
    _, loop = made.ptx.split("Inner Loop Header")
    assert "ld.volatile.global" in loop, "the flag must be read from memory in every turn"
    assert "%globaltimer" in loop


def test_the_kernel_of_contention_copies_16_bytes_at_once(folder):
    """As NCCL's do; a slower one would contend for less."""
    inp, out = (torch.zeros(1 << 16, dtype=torch.int32) for _ in range(2))
    made = compiled(folder, contention_kernel, "_copy", lambda: contention_kernel.copy(out, inp, blocks=16))
    assert made.bytes_at_once("ld") == made.bytes_at_once("st") == {16}
    assert (made.spilled, made.shared) == (0, 0)
    assert made.registers <= REGISTERS_OF_AN_SM // made.threads, "a program does not fit into an SM"
