"""Work on many items: order, bounded hand-over, what is lost; threads and a Ray cluster agree."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from patience import PATIENCE_S
from tools_kit import write

from freescale_tools.console.errors import UsageError
from freescale_tools.profile.measure import Columns, full
from freescale_tools.scan import engines
from freescale_tools.scan.engines import AGAIN, Lost, Threads, ahead, cluster
from freescale_tools.scan.files import open_files


def test_results_come_in_the_order_of_the_items():
    """Every second item ends only after the one behind it."""
    ended = [threading.Event() for _ in range(20)]

    def work(item):
        assert item % 2 or ended[item + 1].wait(PATIENCE_S)
        ended[item].set()
        return item * item

    assert list(Threads(4).run(work, range(20))) == [(n, n * n) for n in range(20)]
    assert list(Threads(2).run(work, [])) == []


def test_only_oserrors_lose_an_item():
    def work(item):
        if item == 1:
            raise OSError("link down")
        if item == 3:
            raise KeyError("a mistake")
        return item

    run = Threads(1).run(work, range(5))
    assert [next(run) for _ in range(3)] == [(0, 0), (1, Lost(reason="link down")), (2, 2)]
    with pytest.raises(KeyError, match="a mistake"):
        next(run)


def test_few_items_are_taken_ahead():
    taken = []

    def items():
        for item in range(1000):
            taken.append(item)
            yield item

    run = ahead(items(), lambda item: -item, count=5)
    assert next(run) == (0, 0)
    assert len(taken) == 5
    assert len(list(run)) == 999


def test_stopping_early_cancels_what_has_not_begun(monkeypatch):
    """The second item runs until the pool is told to stop; what waits behind it must not begin then."""
    begun, go = [], threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            go.set()
            super().shutdown(wait=wait)

    def work(item):
        begun.append(item)
        assert not item or go.wait(PATIENCE_S)
        return item

    monkeypatch.setattr(engines, "ThreadPoolExecutor", Pool)
    run = Threads(1).run(work, range(100))
    assert next(run) == (0, 0)
    run.close()
    assert len(begun) <= 2


def test_a_missing_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'freescale\[ray\]'"), cluster():
        pass


@pytest.fixture(scope="module")
def ray_engine():
    """A Ray of one core on this machine, gone at the end: every worker that it starts costs seconds."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'freescale[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        try:
            with cluster() as found:
                yield found
            assert ray.is_initialized()  # it was not started by the engine
        finally:
            ray.shutdown()


@pytest.mark.long
def test_ray_gives_the_same_profile(ray_engine, tmp_path):
    rng = np.random.default_rng(1)
    for file in range(5):
        rows = [None if n == 0 else [1] * n for n in rng.integers(0, 30, 200).tolist()]
        table = {"items": pa.array(rows, pa.list_(pa.int64())), "when": rng.integers(0, 1000, 200)}
        write(tmp_path / f"{file}.parquet", table, group=64)
    (tmp_path / "4.parquet").write_bytes(b"PAR1 no more")
    gone = tmp_path / "3.parquet"
    files = open_files([str(tmp_path)])
    gone.unlink()
    columns = Columns(sequences=("items",), time="when")
    ours, theirs = (
        {**full(files, columns, paths=["here"], engine=one), "created": None} for one in (Threads(3), ray_engine)
    )
    assert theirs == ours
    assert [one["file"] for one in ours["skipped"]] == ["4.parquet", "3.parquet"]


@pytest.mark.long
def test_a_failed_ray_task_is_tried_again_and_lost_at_last(ray_engine, tmp_path):
    def work(item):
        with open(tmp_path / f"tries-{item}", "a") as tries:
            tries.write(".")
        count = os.path.getsize(tmp_path / f"tries-{item}")
        if item.startswith("dies") and (count == 1 or "always" in item):
            os._exit(1)
        if item.startswith("out of reach") and (count == 1 or "always" in item):
            raise OSError("link down")
        if item == "mistaken":
            raise KeyError("a mistake")
        return count

    items = ["dies once", "out of reach once", "out of reach always", "fine", "dies always"]
    found = dict(ray_engine.run(work, items))
    assert f"lost {AGAIN + 1} times" in found.pop("dies always").reason
    lost = Lost(reason="link down")
    assert found == {"dies once": 2, "out of reach once": 2, "out of reach always": lost, "fine": 1}
    assert os.path.getsize(tmp_path / "tries-out of reach always") == AGAIN + 1
    with pytest.raises(KeyError, match="a mistake"):
        list(ray_engine.run(work, ["mistaken"]))
