"""What torch prints because of TorchRec stays off the user's terminal; everything else gets there. And what numba does
where it can keep nothing, and when Ctrl-C comes while it compiles."""

import contextlib
import logging
import runpy
import signal
import subprocess
import sys

import pytest
import torch.fx._symbolic_trace as symbolic_trace
from numba import config, njit
from numba.core import caching
from numba.extending import overload

import fscomm.tables.torchrec.binding
from fsdata.batch import torchrec_binding
from fsranks import libraries

BATCH = """
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
KeyedJaggedTensor(["a"], torch.tensor([1]), lengths=torch.tensor([1])).split([1])
"""
BEGIN = "is_fx_tracing will return true"


def test_the_notice_is_dropped_and_other_records_pass(caplog):
    """torch says it at the first call in a process."""
    symbolic_trace.is_fx_tracing_warning.cache_clear()
    symbolic_trace.is_fx_tracing()
    assert [record.getMessage()[: len(BEGIN)] for record in caplog.records] == [BEGIN]
    caplog.clear()
    symbolic_trace.is_fx_tracing_warning.cache_clear()
    libraries.keep_fx_notice_away()
    symbolic_trace.is_fx_tracing()
    logger = logging.getLogger(symbolic_trace.__name__)
    logger.error("other")
    assert [record.getMessage() for record in caplog.records] == ["other"]
    assert logger.filters == [], "the logger is as it was"


def test_it_is_dropped_where_torchrec_is_imported(monkeypatch):
    dropped = []
    monkeypatch.setattr(torchrec_binding, "keep_fx_notice_away", lambda: dropped.append("fsdata"))
    monkeypatch.setattr(libraries, "keep_fx_notice_away", lambda: dropped.append("fscomm"))
    torchrec_binding._torchrec.__wrapped__()
    runpy.run_path(fscomm.tables.torchrec.binding.__file__)
    assert dropped == ["fsdata", "fscomm"]


def errors(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "ours",
    [
        "from fsdata.batch.torchrec_binding import is_keyed_jagged_tensor, keyed_jagged_tensor\n"
        "keyed_jagged_tensor(('a',), torch.tensor([1]), torch.tensor([1]), 1)",
        "import fscomm.tables.torchrec.binding",
    ],
    ids=["fsdata", "fscomm"],
)
def test_nothing_is_printed(ours):
    said = errors(
        f"import logging, torch\n{ours}\n{BATCH}\nlogging.getLogger('torch.fx._symbolic_trace').error('other')"
    )
    assert BEGIN not in said
    assert "other" in said, "the logger is as it was"


def test_kernels_are_compiled_where_numba_can_keep_nothing(monkeypatch, caplog):
    """In a read-only installation without a home folder."""
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    libraries._say_that_nothing_is_kept.cache_clear()
    one, two = libraries.kernel(lambda x: x + 1), libraries.kernel(inline="always")(lambda x: x + 2)
    assert (one(1), two(1)) == (2, 3)
    assert [record.getMessage()[:37] for record in caplog.records] == ["numba finds no folder to keep compiled"[:37]]


def plus_one(x):
    return x + 1


def test_a_kernel_that_another_process_compiles_meanwhile_is_loaded(monkeypatch, tmp_path):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    mine, of_another = libraries.kernel(called_with="int64")(plus_one), njit(cache=True)(plus_one)

    @contextlib.contextmanager
    def while_another_compiles(name):
        of_another(1)
        yield

    monkeypatch.setattr(libraries, "one_at_a_time", while_another_compiles)
    assert not libraries.is_there(mine)
    assert mine(1) == 2
    assert (sum(mine.stats.cache_hits.values()), sum(mine.stats.cache_misses.values())) == (1, 0)
    assert libraries.is_there(mine)


def test_nobody_is_waited_for_where_a_kernel_is_there(monkeypatch, tmp_path):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    njit(cache=True)(plus_one)(1)
    mine = libraries.kernel(called_with="int64")(plus_one)
    monkeypatch.setattr(libraries, "one_at_a_time", None)
    assert libraries.is_there(mine)
    libraries.compile_kernel(mine)
    assert mine(1) == 2


class CtrlC:
    """Comes where Python can raise nothing: what `__del__` raises is printed and dropped."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def typed():
    """What numba calls to learn the type of a call, while it compiles."""


@overload(typed)
def type_of_typed():
    CtrlC()
    return lambda: 5


def test_ctrl_c_is_not_lost_while_a_kernel_is_compiled(monkeypatch):
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])  # each run compiles
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
    try:
        kernel = libraries.kernel(lambda: typed())
        with pytest.raises(KeyboardInterrupt):
            kernel()
        assert kernel() == 5
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
