"""Ctrl-C and SIGTERM while batches are being made: the process ends, at once and clean; other ranks hear of it."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import sets
from patience import PATIENCE_S
from sets import SCHEMA, samples_of, two_sources, write
from worlds import shared_world

from fsdata import Balance, FreeScaleDataLoader, ParquetSource, PeerError

SCRIPT = """
import os, sys, threading
sys.path.insert(0, {tests!r})
import sets
from sets import SCHEMA
from fsdata import FreeScaleDataLoader, ParquetSource
with FreeScaleDataLoader(ParquetSource({data!r}), SCHEMA, batch_size=2, prefetch=3, shuffle=True) as loader:
    for batch in loader:
        print("batch", flush=True)
        threading.Event().wait()
"""


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_the_process(tmp_path, number, code):
    write(tmp_path / "set", 200)
    script = textwrap.dedent(SCRIPT).format(tests=str(Path(sets.__file__).parent), data=str(tmp_path / "set"))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "batch\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    if number == signal.SIGINT:
        assert errors.strip().splitlines()[-1] == "KeyboardInterrupt"


def interrupted(rank, world_size, folder):
    def train(loader):
        for batch in loader:
            if rank == 1 and batch.stats.step == 5:
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(PATIENCE_S)
            assert len(samples_of(batch)) == 1

    loader = FreeScaleDataLoader(
        ParquetSource(str(folder / "own")), SCHEMA, batch_size=1, balance=Balance(timeout_s=PATIENCE_S)
    )
    with pytest.raises(KeyboardInterrupt if rank == 1 else PeerError) as caught, loader:
        train(loader)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith(("fsdata", "Thread-"))] == []
    return str(caught.value)


def test_ctrl_c_on_one_rank_is_named_on_the_others(tmp_path):
    two_sources(tmp_path)
    texts = shared_world(2).run(interrupted, tmp_path)
    assert "rank 1" in texts[0]
