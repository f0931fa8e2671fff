"""A trace has the thread that trains, as torch.profiler records it, and fscomm's workers beside it."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fscomm.report.recorder import Recorder
from fsmeter import trace
from fsranks.observers import observers


class Worker:
    """A thread that does what it is told."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def do(self, work: Callable[[], Any]) -> None:
        self._thread.submit(work).result()


def tracks(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Name of a thread -> its slices of fscomm, in order of time; of threads that have some."""
    events = document["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        if event["name"].startswith("fscomm: "):
            found[names[event["tid"]]].append(event)
    return {name: slices for name, slices in found.items() if slices}


def test_every_thread_is_a_named_track_with_its_work_in_one_time(tmp_path: Path) -> None:
    recorder = Recorder()
    exclusive, ids = Worker("fscomm exclusive"), Worker("fscomm ids")

    def rows() -> None:
        with recorder.span("exclusive rows", step=7):
            pass

    def other() -> None:
        with recorder.span("ids"):
            pass

    with trace(tmp_path / "trace.json"):
        with recorder.wait("agreement", step=7):
            exclusive.do(rows)
            torch.ones(3).sum()
        ids.do(other)
        with recorder.span("plain apply", step=7):
            pass
    exclusive.do(rows)
    document = json.loads((tmp_path / "trace.json").read_text())
    found = tracks(document)
    assert {name: [event["name"].removeprefix("fscomm: ") for event in slices] for name, slices in found.items()} == {
        threading.current_thread().name: ["wait for agreement", "plain apply"],
        "fscomm exclusive_0": ["exclusive rows"],
        "fscomm ids_0": ["ids"],
    }
    (wait, apply), (of_exclusive,), (of_ids,) = found.values()
    assert of_exclusive["args"] == {"step": 7}
    assert of_ids["args"] == {}
    ends = [event["ts"] + event["dur"] for event in (wait, of_exclusive, of_ids)]
    assert wait["ts"] - 5000 <= of_exclusive["ts"] <= ends[1] <= ends[0] + 5000  # microseconds: two clocks
    assert ends[0] - 5000 <= of_ids["ts"] <= ends[2] <= apply["ts"] + 5000
    assert any(event["name"] == "aten::sum" for event in document["traceEvents"])
    assert [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"] == ["rank 0"]


def test_traces_may_begin_and_end_while_workers_work(tmp_path: Path) -> None:
    """What is not within one trace is in none."""
    recorder = Recorder()
    worker = Worker("fscomm exclusive")
    spans = [recorder.span("exclusive rows") for _ in range(3)]
    worker.do(spans[0].__enter__)
    for number in (1, 2):
        path = tmp_path / f"{number}.json"
        with trace(path):
            worker.do(partial(spans[number - 1].__exit__, None, None, None))
            worker.do(spans[number].__enter__)
        assert not any(tracks(json.loads(path.read_text())).values())
    worker.do(partial(spans[2].__exit__, None, None, None))


def test_a_profile_of_all_threads_may_begin_and_end_while_workers_work() -> None:
    """A range of torch's own would fail here, and one that ends in the next such profile writes into freed memory."""
    recorder = Recorder()
    worker = Worker("fscomm exclusive")
    span = recorder.span("exclusive rows")
    worker.do(span.__enter__)
    all_threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(experimental_config=all_threads):
        worker.do(partial(span.__exit__, None, None, None))
    assert recorder.report().total.hidden_ms.keys() == {"exclusive rows"}


def test_after_an_error_nothing_is_written_and_nobody_listens(tmp_path: Path) -> None:
    def failing() -> None:
        with trace(tmp_path / "trace.json"):
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert not list(tmp_path.iterdir())
    assert not observers
