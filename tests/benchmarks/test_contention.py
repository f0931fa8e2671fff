"""Figure 10 without a GPU: the arithmetic of what computes beside transfers, the table, and one line in its place."""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import silu

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # at the end: a file there is named like a module of Python's

import contention  # noqa: E402
from common.table import emit  # noqa: E402
from contention import CASES, COLUMNS, Turn, largest, rows_of  # noqa: E402
from parts.contention_compute import ATTENTION, HEADS, PRODUCT, compute, hstu_attention  # noqa: E402


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(v)
    heads, events, _ = v.shape
    for head in range(heads):
        for query in range(events):
            for key in range(query + 1):
                out[head, query] += silu(q[head, query] @ k[head, key]) * v[head, key] / events
    return out


@pytest.mark.parametrize("block", [1, 4, 5, 13, 64])
def test_attention_is_what_its_definition_says(block: int) -> None:
    q, k, v = torch.randn(3, 2, 13, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(hstu_attention(q, k, v, block=block), naive(q, k, v))


@pytest.mark.parametrize(("name", "size", "shape"), [(PRODUCT, 16, (16, 4096)), (ATTENTION, 16, (HEADS, 16, 128))])
def test_what_computes_has_the_shapes_that_the_table_tells(name: str, size: int, shape: tuple[int, ...]) -> None:
    call, number = compute(name, size, torch.device("cpu"))
    out = call()
    assert isinstance(out, torch.Tensor)
    assert (out.shape, out.dtype) == (shape, torch.bfloat16)
    assert number >= 1


def test_the_table_has_a_line_for_each_compute_size_and_way(tmp_path, capsys) -> None:
    ways = (contention.KERNEL, "copy-engine")
    turns = [
        Turn(compute=name, size=size, way=way, alone_ms=2.0, beside_ms=2.0 + cost, gb_per_s=50.0)
        for name, size in CASES
        for way, costs in zip(ways, ((0.1, 0.2, 0.6), (0.0, 0.0, 0.1)), strict=True)
        for cost in costs
    ]
    rows = rows_of(turns, ways)
    assert [row[:3] for row in rows] == [[name, size, way] for name, size in CASES for way in ways]
    assert rows[0][3:] == pytest.approx([2.0, 2.2, 10.0, 5.0, 30.0, 50.0])
    emit("contention", "title", COLUMNS, rows, notes=largest(rows), data="random", results=tmp_path)
    shown = capsys.readouterr().out
    for line in (
        "matrix product of 32768 tokens beside copy by a kernel: 10.0 % slower.",
        "HSTU attention of 8192 tokens beside copy-engine: 0.0 % slower.",
    ):
        assert line in shown
    assert shown.count("% slower.") == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure for minutes")
def test_without_a_gpu_one_line_is_printed_and_nothing_is_written(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["contention.py", "--results", str(tmp_path / "results")])
    with pytest.raises(SystemExit) as ended:
        contention.main()
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.count("\n") == 1
    assert "there is none here: nothing measured" in shown.out
    assert not (tmp_path / "results").exists()
