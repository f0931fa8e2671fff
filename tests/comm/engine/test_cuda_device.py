"""What CUDA's side of `fscomm.device` asks of torch, on torch without a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fscomm.device import Cuda

WHERE = torch.device("cuda", 0)


class Mark:
    """An event that is done when it was asked for so often."""

    def __init__(self, asks: float) -> None:
        self.asks = asks

    def query(self) -> bool:
        self.asks -= 1
        return self.asks <= 0


def test_waiting_ends_when_the_device_is_done_and_at_the_latest_at_the_limit() -> None:
    device = Cuda(WHERE)
    device.wait(None, 0.0)
    device.wait(Mark(1), 0.0)
    device.wait(Mark(20), 60.0)
    with pytest.raises(TimeoutError, match=r"cuda:0 did not come to the end .* within 0.05 s.*raise timeout_s"):
        device.wait(Mark(float("inf")), 0.05)


@pytest.mark.parametrize("use", [lambda device: device.mark(), lambda device: device.after(Mark(1))])
def test_a_stream_whose_work_goes_into_a_graph_is_refused(monkeypatch: pytest.MonkeyPatch, use: Any) -> None:
    issued: list[str] = []
    stream = SimpleNamespace(record_event=lambda: issued.append("record"), wait_event=lambda _: issued.append("wait"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda where: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="a CUDA graph is being captured"):
        use(Cuda(WHERE))
    assert issued == []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    use(Cuda(WHERE))
    assert len(issued) == 1


def test_an_event_that_may_not_be_asked_for_during_a_capture_says_so() -> None:
    class Captured(Mark):
        def query(self) -> bool:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    class Lost(Mark):
        def query(self) -> bool:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="a CUDA graph is being captured"):
        Cuda(WHERE).is_done(Captured(1))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        Cuda(WHERE).is_done(Lost(1))
