"""The ways of training that are compared. Each: `mode(trained, batches, stepped) -> list` for one block of steps.

`stepped()` is called after every step. What a mode says about itself, one entry per step, goes into the raw results.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    return _served(comm.report()).to_dict()["steps"]


def plain_in_parts(trained: Trained, batches: Sequence[Batch], stepped: Stepped, parts: int) -> list[Any]:
    """One look-up and one update of the tables for the whole batch; everything else part by part."""
    averaged = trained.model._dmp_wrapped_module
    for batch in batches:
        trained.optimizer.zero_grad()
        given = trained.model.module.look_up(batch.features)
        leaves = [each.detach().requires_grad_() for each in given]
        cut = [leaf.view(len(batch.labels), -1).tensor_split(parts) for leaf in leaves]
        for number, part in enumerate(batch.parts(parts)):
            rows = [of_leaf[number].reshape(-1, leaf.shape[1]) for of_leaf, leaf in zip(cut, leaves, strict=True)]
            with contextlib.nullcontext() if number == parts - 1 else averaged.no_sync():
                loss, _ = trained.model(replace(part, rows=rows))
                loss.backward()
        torch.autograd.backward(given, [leaf.grad for leaf in leaves])
        trained.optimizer.step()
        stepped()
    return []


def fscomm_in_parts(trained: Trained, batches: Sequence[Batch], stepped: Stepped, parts: Any) -> list[Any]:
    """The loop in parts inside `fscomm.enable`."""
    import fscomm

    with fscomm.enable(trained.model, parts=parts) as comm:
        for step in comm.lookahead(batches):
            trained.optimizer.zero_grad()
            for part in step.parts():
                loss, _ = trained.model(part)
                loss.backward()
            trained.optimizer.step()
            stepped()
    report = _served(comm.report())
    return [step | {"parts": report.parts} for step in report.to_dict()["steps"]]


MODES: dict[str, Callable[[Trained, Sequence[Batch], Stepped], list[Any]]] = {
    "compute": plain,
    "plain": plain,
    "sparse dist": sparse_dist,
    "pec": pec,
    "fscomm": fscomm,
}
IN_PARTS = {"plain": plain_in_parts, "fscomm": fscomm_in_parts}


def mode_of(name: str) -> Callable[[Trained, Sequence[Batch], Stepped], list[Any]]:
    """Such as "plain", or "plain in 4 parts"."""
    if name in MODES:
        return MODES[name]
    kind, _, parts, _ = name.split(" ")
    return partial(IN_PARTS[kind], parts=parts if parts == "auto" else int(parts))


def _step(trained: Trained, batch: Batch) -> None:
    trained.optimizer.zero_grad()
    loss, _ = trained.model(batch)
    loss.backward()
    trained.optimizer.step()
    if clock.after_s:
        clock.spend(clock.after_s)


def _served(report: Any) -> Any:
    if report.fallbacks:
        raise RuntimeError(f"fscomm does not serve the model of the benchmark: {report.fallbacks}")
    return report


def _pipeline(kind: Any, trained: Trained, batches: Sequence[Batch], stepped: Stepped) -> list[Any]:
    pipeline = kind(trained.model, trained.optimizer, CPU)
    iterator: Iterator[Batch] = iter(batches)
    try:
        with contextlib.suppress(StopIteration):
            while True:
                pipeline.progress(iterator)
                stepped()
        if not pipeline._pipelined_modules:
            raise RuntimeError(
                f"{kind.__name__} finds no module of the benchmark to pipeline: it would time a plain loop"
            )
    finally:
        pipeline.detach()
    return []


class _NoEvent:
    """In the place of torch.cuda.Event where there is no CUDA."""

    def record(self, stream: Any = None) -> None:
        pass


def _nothing(tensor: torch.Tensor, stream: Any) -> None:
    """In the place of Tensor.record_stream, which the CPU does not have."""
