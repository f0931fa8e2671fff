"""The trace file: tracks, slices and flows as the Trace Event Format wants them."""

import json
from pathlib import Path

from fscomm.report.recorder import Recorder
from fscomm.report.trace import Span, trace_events

SPANS = [
    Span("exclusive rows", "exclusive", 10.004, 10.009, 1, "ebc"),
    Span("ids", "ids", 10.000, 10.002, 1, "ebc"),
    Span("ids", "MainThread", 10.001, 10.003, 1, blocked=True),
    Span("flush", "exclusive", 10.010, 10.011),
    Span("ids", "ids", 10.005, 10.006, 2, "ebc"),
]


def test_every_lane_is_a_named_track() -> None:
    events = trace_events(SPANS, rank=3)
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert tracks == {0: "ids", 1: "MainThread", 2: "exclusive"}
    assert all(event["pid"] == 3 for event in events)
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["rank 3"]


def test_spans_are_slices_in_microseconds() -> None:
    slices = [event for event in trace_events(SPANS, rank=0) if event["ph"] == "X"]
    assert [event["name"] for event in slices] == ["ids", "wait: ids", "exclusive rows", "ids", "flush"]
    assert [round(event["dur"]) for event in slices] == [2000, 2000, 5000, 1000, 1000]
    assert slices[0]["args"] == {"step": 1, "module": "ebc"}
    assert slices[1]["cat"] == "exposed"
    assert slices[4]["args"] == {}


def test_the_spans_of_a_step_are_one_flow_in_order_of_time() -> None:
    events = trace_events(SPANS, rank=0)
    flow = [event for event in events if event.get("cat") == "step"]
    assert [event["ph"] for event in flow] == ["s", "t", "f"]  # step 2 has one span: nothing to join
    assert {event["id"] for event in flow} == {"0.1"}
    for event in flow:
        inside = [s for s in events if s["ph"] == "X" and s["tid"] == event["tid"] and s["ts"] == event["ts"]]
        assert len(inside) == 1, "an arrow must begin and end on a slice"


def test_the_file_is_json_with_one_slice_per_span(tmp_path: Path) -> None:
    recorder = Recorder(rank=1)
    for step in range(3):
        with recorder.span("ids", step=step, module="a"), recorder.wait("agreement", step=step):
            pass
    recorder.report().save_trace(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 6
    assert all(event["dur"] >= 0 and event["ts"] > 1e15 for event in slices)  # since the epoch: ranks can be joined


def test_no_spans() -> None:
    assert [event["name"] for event in trace_events([], rank=0)] == ["process_name"]
