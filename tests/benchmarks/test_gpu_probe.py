"""The driver probes on fake CUDA: they find two streams that share a hardware queue, and a call that blocks."""

import json
import sys
from pathlib import Path

import pytest
import torch
from fake_cuda import FakeCuda, Stream

from fscomm.transports.ring.cuda_api import Cuda
from fscomm.transports.ring.cuda_driver import CudaStreams

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # at the end: a file there is named like a module of Python's

import gpu_probe  # noqa: E402
from common.checks import Checks  # noqa: E402


class SharedQueue(FakeCuda):
    """Streams 2 and 4 share a hardware queue."""

    def _step(self, number: int, stream: Stream) -> bool:
        return not (number == 4 and self.streams[2].todo) and super()._step(number, stream)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(gpu_probe, "WAIT_S", 0.05)
    monkeypatch.setattr(gpu_probe, "END_S", 2.0)


def streams_on(fake: FakeCuda) -> CudaStreams:
    return CudaStreams(torch.device("cpu"), cuda=Cuda(0, fake), current_stream=lambda: fake.caller)  # type: ignore


def found(folder: Path, name: str) -> dict[str, tuple[str, str]]:
    checks = json.loads((folder / f"{name}.json").read_text())["checks"]
    return {check["name"].split(",")[0]: (check["status"], check["told"]) for check in checks}


@pytest.mark.parametrize("fake", [FakeCuda, SharedQueue])
def test_streams_that_a_waiting_one_holds_up_are_named(fake, tmp_path):
    streams = streams_on(fake())
    queues = {f"ring {number}": streams.stream() for number in range(1, 4)} | {"torch 0": streams.stream()}
    out, inp = {name: torch.zeros(8, dtype=torch.uint8) for name in queues}, torch.ones(8, dtype=torch.uint8)
    word = torch.zeros(1, dtype=torch.int32)
    works = {"copies": lambda name: streams.copy(queues[name], out[name], inp)}
    gpu_probe.stalls(Checks(tmp_path, "stalls"), streams, queues, works, word)
    status, told = found(tmp_path, "stalls")["copies"]
    assert status == "passed"
    if fake is FakeCuda:
        assert told == "0 of 3 streams held up others while they waited"
    else:
        assert told == "1 of 3 streams held up others while they waited; ring 2 held up torch 0"
    assert all(torch.equal(each, inp) for each in out.values())


def test_streams_that_stand_still_by_themselves_prove_nothing(tmp_path):
    fake = FakeCuda()
    streams = streams_on(fake)
    queues = {"ring 1": streams.stream()}
    fake.hold(queues["ring 1"], until=lambda: False)
    word = torch.zeros(1, dtype=torch.int32)
    gpu_probe.stalls(Checks(tmp_path, "stalls"), streams, queues, {"copies": lambda name: None}, word)
    status, told = found(tmp_path, "stalls")["copies"]
    assert status == "failed"
    assert "nothing waits, and yet these stand still: ring 1" in told


def test_calls_that_come_back_only_later_are_told_and_errors_end_nothing(tmp_path):
    fake = FakeCuda()
    streams = streams_on(fake)
    stream = streams.stream()

    def synchronize() -> None:
        while stream.todo:
            fake.run()

    def fail() -> None:
        raise RuntimeError("Function cuMemcpyBatchAsync not found")

    word = torch.zeros(1, dtype=torch.int32)
    actions = {"waits": synchronize, "fails": fail, "returns": lambda: None}
    gpu_probe.growth(Checks(tmp_path, "growth"), gpu_probe.Blocked(streams, stream, word), actions)
    told = found(tmp_path, "growth")
    assert told["waits"] == ("passed", "comes back only when the stream goes on")
    assert told["fails"] == ("failed", "RuntimeError: Function cuMemcpyBatchAsync not found")
    assert told["returns"][0] == "passed"
    assert told["returns"][1].endswith(" ms")


def test_a_second_ring_grows_and_gives_back(tmp_path):
    fake = FakeCuda()
    ring = gpu_probe.SecondRing(streams_on(fake))
    ring.grow()
    assert len(fake.mapped) == 2
    ring.shrink()
    assert fake.mapped == {}


def test_a_check_is_there_while_it_runs(tmp_path):
    checks = Checks(tmp_path, "some")
    with checks.of("a question"):
        assert found(tmp_path, "some") == {"a question": ("running", "")}
    assert found(tmp_path, "some") == {"a question": ("passed", "")}
    assert checks.problems() == 0
