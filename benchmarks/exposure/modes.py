"""The ways of training that are compared. Each: `mode(trained, batches, stepped) -> list` for one block of steps.

`stepped()` is called after every step. What a mode says about itself, one entry per step, goes into the raw results.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from exposure.model import CPU, Batch, clock
from torch import nn
from torchrec.distributed.train_pipeline.pec_train_pipeline import TrainPipelinePEC
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineSparseDist

Stepped = Callable[[], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A model and what updates it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer


def plain(trained: Trained, batches: Sequence[Batch], stepped: Stepped) -> list[Any]:
    """The loop everybody writes. Also the compute alone, on the model without embeddings."""
    for batch in batches:
        _step(trained, batch)
        stepped()
    return []


def sparse_dist(trained: Trained, batches: Sequence[Batch], stepped: Stepped) -> list[Any]:
    """TorchRec's TrainPipelineSparseDist."""
    return _pipeline(TrainPipelineSparseDist, trained, batches, stepped)


def pec(trained: Trained, batches: Sequence[Batch], stepped: Stepped) -> list[Any]:
    """TorchRec's TrainPipelinePEC, which is for CUDA: two stubs make it run here. Its updates are wrong."""
    with mock.patch.object(torch.cuda, "Event", _NoEvent), mock.patch.object(torch.Tensor, "record_stream", _nothing):
        return _pipeline(TrainPipelinePEC, trained, batches, stepped)


def fscomm(trained: Trained, batches: Sequence[Batch], stepped: Stepped) -> list[Any]:
    """The plain loop inside `fscomm.enable`."""
    import fscomm

    with fscomm.enable(trained.model) as comm:
        for batch in comm.lookahead(batches):
            _step(trained, batch)
            stepped()
    report = comm.report()
    if report.fallbacks:
        raise RuntimeError(f"fscomm does not serve the model of the benchmark: {report.fallbacks}")
    return report.to_dict()["steps"]


MODES: dict[str, Callable[[Trained, Sequence[Batch], Stepped], list[Any]]] = {
    "compute": plain,
    "plain": plain,
    "sparse dist": sparse_dist,
    "pec": pec,
    "fscomm": fscomm,
}


def _step(trained: Trained, batch: Batch) -> None:
    trained.optimizer.zero_grad()
    loss, _ = trained.model(batch)
    loss.backward()
    trained.optimizer.step()
    if clock.after_s:
        clock.spend(clock.after_s)


def _pipeline(kind: Any, trained: Trained, batches: Sequence[Batch], stepped: Stepped) -> list[Any]:
    pipeline = kind(trained.model, trained.optimizer, CPU)
    iterator: Iterator[Batch] = iter(batches)
    try:
        with contextlib.suppress(StopIteration):
            while True:
                pipeline.progress(iterator)
                stepped()
    finally:
        pipeline.detach()
    return []


class _NoEvent:
    """In the place of torch.cuda.Event where there is no CUDA."""

    def record(self, stream: Any = None) -> None:
        pass


def _nothing(tensor: torch.Tensor, stream: Any) -> None:
    """In the place of Tensor.record_stream, which the CPU does not have."""
