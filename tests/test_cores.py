"""Where the system does not tell which cores a process may use, as on macOS."""

import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.profile.measure import Columns, full
from freescale_tools.scan.files import open_files
from fsdata import FreeScaleDataLoader, ParquetSource, Schema
from fsranks.machine.cores import usable_cores

ROOT = Path(__file__).parents[1]


def test_the_affinity_counts_where_it_is_known(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3}, raising=False)
    assert usable_cores() == 2


def test_without_affinity_loading_and_profiling_work(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores() == 3
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"user": [1, 2, 3], "items": [[1], [2, 3], []]}), path)
    with FreeScaleDataLoader(ParquetSource(path), Schema(context=("user",)), batch_size=2) as loader:
        assert [len(batch.origin) for batch in loader] == [2, 1]
    profile = full(open_files([path]), Columns(sequences=("items",)), paths=[path])
    assert profile["sequences"]["items"]["events"] == 3


def test_nobody_else_asks_the_system():
    packages = [ROOT / name for name in ("fsdata", "fscomm", "fsmeter", "fsranks", "tools", "benchmarks")]
    asking = [
        str(path.relative_to(ROOT))
        for package in packages
        for path in package.rglob("*.py")
        if re.search(r"\bsched_getaffinity\b", path.read_text())
    ]
    assert asking == ["fsranks/machine/cores.py"]
