"""Kernels are compiled before they are needed: all of them, by several processes at once, and none by loaders later."""

import json
import os
import subprocess
import sys
from pathlib import Path

import as_of_data
import golden_loader
import golden_ranks
import histories
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from golden_data import FILES
from numba.core.dispatcher import Dispatcher
from patience import PATIENCE_S
from typer.testing import CliRunner
from worlds import shared_world

from freescale_tools.cli import app
from fsdata import FreeScaleDataLoader, Join, ParquetSource, Schema
from fsdata.compose import reading
from fsdata.histories.kernels import resolve
from fsdata.histories.resolver import TableResolver
from fsdata.kernels import warm
from fsdata.nodes import units
from fsdata.order.deal import COMPILED_FROM, deal
from fsranks.libraries import compile_kernel

ALONE = {"rank": 0, "world_size": 1}
SMALL = ("fsdata.balance.kernels.packing.zigzag", "fsdata.balance.kernels.packing.sums")
"""Compiled in a fraction of a second."""


def types_of_kernels() -> dict[str, set[object]]:
    """Name of each kernel of fsdata -> the types with which this process has it."""
    modules = [module for name, module in sys.modules.items() if name.startswith("fsdata.")]
    found = {each for module in modules for each in vars(module).values() if isinstance(each, Dispatcher)}
    return {f"{each.py_func.__module__}.{each.py_func.__name__}": set(each.signatures) for each in found}


def compiled_by_loaders(rank: int, size: int, folder: Path) -> list[str]:
    """Kernels with types that they do not have of `warm`."""
    for kernel in reading.all_kernels():
        compile_kernel(kernel)
    before = types_of_kernels()
    for options in golden_loader.ORDERS.values():
        with golden_loader.loader(FILES, 0, 1, **options) as loader:
            list(loader)
    golden_loader.others(FILES)
    for options in golden_ranks.CASES.values():
        with golden_ranks.loader(FILES, **options) as loader:
            list(loader)
    with histories.loader_on(folder / "rows", **ALONE) as loader:
        list(loader)
    for name in ("stored_once", "empty"):
        as_of_data.read(folder / name, **ALONE)
    for source in (ParquetSource(str(folder / "pages.parquet"), limit=10), ParquetSource(str(folder / "rare.parquet"))):
        with FreeScaleDataLoader(source, Schema(context=("row",)), batch_size=4, **ALONE) as loader:
            list(loader)
    deal(np.ones(COMPILED_FROM, np.int64), 3)
    return [name for name, types in types_of_kernels().items() if types != before[name]]


def test_loaders_compile_nothing_that_was_not_compiled_before(tmp_path):
    """In new processes: where a kernel was called, it is there."""
    histories.write(tmp_path / "rows")
    as_of_data.Data.drawn(0).write(tmp_path / "stored_once")
    as_of_data.Data(requests=[(0, 0, 5)], histories={0: []}).write(tmp_path / "empty")
    table = pa.table({"row": range(2000)})
    pq.write_table(table, tmp_path / "pages.parquet", write_page_index=True, data_page_size=1000)
    rare = {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}
    pq.write_table(table, tmp_path / "rare.parquet", **rare)
    assert shared_world(2, "nothing compiled").run(compiled_by_loaders, tmp_path) == [[], []]


def python(*arguments: str, cache: Path | None = None) -> str:
    """What Python prints, where numba keeps kernels in `cache`; None: where this process does."""
    environment = {**os.environ, **({"NUMBA_CACHE_DIR": str(cache)} if cache else {})}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WARM = """
import os, subprocess
from fsdata.kernels import columns, warm
from fsdata.nodes import units
from fsdata.balance.kernels import packing

def started(command, **options):
    print("beside:", *command[-2:], flush=True)
    return popen(command, **options)

popen, subprocess.Popen = subprocess.Popen, started
print(warm.compile_missing([packing.zigzag, packing.sums], 2, print), *warm.folders_of([packing.sums]))
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child")
"""


def test_what_lacks_is_compiled_by_two_processes_and_kept(tmp_path):
    beside, *names, count, child = python("-c", WARM, cache=tmp_path).splitlines()
    assert beside == " ".join(["beside:", *SMALL])
    assert sorted(names) == sorted(SMALL)
    assert count.startswith(f"2 {tmp_path}")
    assert child == "no child"
    again, child = python("-c", WARM, cache=tmp_path).splitlines()
    assert again.startswith(f"0 {tmp_path}")


def test_kernels_are_compiled_where_no_process_can_be_started(tmp_path):
    code = WARM.replace("return popen(command, **options)", "raise OSError")
    _, *names, count, child = python("-c", code, cache=tmp_path).splitlines()
    assert (sorted(names), count[:2], child) == (sorted(SMALL), "2 ", "no child")


RANK = """
import sys
sys.path[:0] = sys.argv[1].split(":")

import golden_ranks
import torch.distributed as dist
from golden_data import FILES
from numba.core import event
from fsdata import rebalance
from fsranks.meeting import Meeting

class Late(event.Listener):
    def on_start(self, compiling):
        if met:
            print("late:", compiling.data["dispatcher"].__name__)
    def on_end(self, compiling):
        pass

def meet(self, *args, **options):
    met.append(self)
    return agree(self, *args, **options)

met, agree, Meeting.agree = [], Meeting.agree, meet
event.register("numba:compile", Late())
dist.init_process_group("gloo")
with {loader} as loader:
    print("batches", len(list(loader)))
"""
LOADERS = {
    "loader": 'golden_ranks.loader(FILES, **golden_ranks.CASES["default"])',
    "rebalance": 'rebalance(golden_ranks.Own(dist.get_rank(), 3), lengths="ids.item")',
}


@pytest.mark.long
@pytest.mark.parametrize("loader", LOADERS)
def test_ranks_that_find_nothing_compiled_compile_all_before_they_meet(loader, tmp_path):
    """A rank that compiles later may keep the others waiting for longer than they are told to wait."""
    paths = ":".join(path for path in sys.path if path.startswith(str(Path(__file__).parents[1])))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    (tmp_path / "rank.py").write_text(RANK.replace("{loader}", LOADERS[loader]))
    said = python(*command, sys.executable, str(tmp_path / "rank.py"), paths, cache=tmp_path / "cache")
    assert said.count("batches") == 2
    assert "late" not in said


def test_kernels_of_histories_are_compiled_and_called_for_histories_alone(tmp_path, monkeypatch):
    """They take as long to compile as all others that read."""
    resolving = {resolve.gather_fields, resolve.gather_samples}
    wanted = []
    monkeypatch.setattr(units, "make_ready", wanted.extend)
    as_of_data.Data.drawn(0).write(tmp_path)
    as_of_data.read(tmp_path, **ALONE)
    assert resolve.gather_fields in wanted
    wanted.clear()
    histories.write(tmp_path / "rows")
    monkeypatch.setattr(TableResolver, "gather", None)
    with histories.loader_on(tmp_path / "rows", **ALONE) as loader:
        assert list(loader)
    assert set(warm.READING) <= set(wanted)
    side = Join(ParquetSource("side"), on="user", fields=("age",))
    wanted += reading.kernels_of([ParquetSource("rows", join=side)], world_size=2)
    assert not resolving & set(wanted)


COMMANDS = """
import json, sys
from typer.testing import CliRunner
from freescale_tools.cli import app
from freescale_tools.collisions import kernels
from freescale_tools.scan import level_kernels

def call(*arguments):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout

print(call("warm", "--json", "--fscomm"))
of_commands = [kernels.leave_mark, kernels.tally, kernels.tally_ranks, level_kernels.add_lengths]
before = [kernel.signatures for kernel in of_commands]
for path in sys.argv[1:]:
    call("profile", path, "--sequence", "items", "--ranks", "8", "--batch-size", "16", "--out", f"{path}.report")
call("collisions", path, "--ids", "items", "--batch-size", "8", "--ranks", "2", "--out", f"{path}.report")
print("nothing new" if before == [kernel.signatures for kernel in of_commands] else "new types")
"""


def test_commands_compile_nothing_after_freescale_warm(tmp_path):
    """Whether lists are unpacked or lie in the file as they are read."""
    table = pa.table({"items": [list(range(row % 9)) for row in range(1000)]})
    files = {"packed.parquet": {"compression": "zstd"}, "plain.parquet": {"compression": "none"}}
    for name, options in files.items():
        pq.write_table(table, tmp_path / name, **options)
    said = python("-c", COMMANDS, *(str(tmp_path / name) for name in files))
    document = json.loads(said.splitlines()[0])
    assert {part: counts["kernels"] > 0 for part, counts in document["parts"].items()} == dict.fromkeys(
        ("fsdata", "freescale", "fscomm"), True
    )
    assert all(Path(folder).is_dir() for folder in document["folders"])
    assert said.splitlines()[-1] == "nothing new"


def test_freescale_warm_says_what_it_cannot_do(monkeypatch):
    done = CliRunner().invoke(app, ["warm", "--jobs", "0"])
    assert (done.exit_code, done.stderr) == (2, "error: --jobs must be at least 1, got 0\n")
    monkeypatch.setattr(warm, "folders_of", lambda kernels: [])
    done = CliRunner().invoke(app, ["warm"])
    assert (done.exit_code, "let NUMBA_CACHE_DIR name one that can be written" in done.stderr) == (1, True)
