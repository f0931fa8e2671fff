"""`fscomm.enable` with the interface of TorchRec's train pipelines, for loops that are written for those."""

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch
from torch import nn

from fscomm.comm import Comm, Features, enable

T = TypeVar("T")


class TrainPipelineFreeScale(Generic[T]):
    """One training step per `progress`, with prioritized communication; results are bitwise those of the plain loop.

    In the place of TorchRec's `TrainPipelineSparseDist`: it takes the same arguments. Those that only say how TorchRec
    copies batches and frees memory change nothing here. Building one is collective and serves the model until `close`.

    model: holds sharded modules, gives (losses, output). optimizer: of its dense parameters, or a CombinedOptimizer.
    custom_model_fwd: runs the model in its place, from a batch to (losses, output).
    transport, strict, features, calls, timeout_s: of `fscomm.enable`, and so are the errors.

    Raises:
        ValueError: `execute_all_batches=False` or `apply_jit=True`, which are not supported.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        *,
        execute_all_batches: bool = True,
        apply_jit: bool = False,
        context_type: type | None = None,
        pipeline_postproc: bool = False,
        custom_model_fwd: Callable[[T], tuple[torch.Tensor, Any]] | None = None,
        dmp_collection_sync_interval_batches: int | None = 1,
        enqueue_batch_after_forward: bool = False,
        enable_inplace_copy_batch: bool = False,
        free_features_storage_early: bool = False,
        clear_data_dist_inputs: bool = False,
        async_inplace_copy: bool = False,
        transport: str = "auto",
        strict: bool = False,
        features: Mapping[str, Features] | None = None,
        calls: int = 1,
        timeout_s: float = 300,
    ) -> None:
        if not execute_all_batches or apply_jit:
            raise ValueError(
                "TrainPipelineFreeScale trains on all batches and runs the model as it is: leave out "
                "execute_all_batches=False and apply_jit=True"
            )
        if type(model).__name__ == "DMPCollection":
            raise ValueError("DMPCollection (2D parallel) is not supported: train it with TrainPipelineSparseDist")
        self._model = model
        self._run = custom_model_fwd or model
        self._optimizer = optimizer
        self._enabled = enable(
            model, transport=transport, strict=strict, features=features, calls=calls, timeout_s=timeout_s
        )
        self.comm: Comm = self._enabled.__enter__()
        self._source: _Source[T] = _Source()
        self._batches = self.comm.lookahead(self._source, device)
        self._closed = False

    def progress(self, dataloader_iter: Iterator[T]) -> Any:
        """Train on the next batch, or only run the model if it is in eval mode. Returns the model's output.

        After a change of iterators, first trains on the batch that was fetched from the iterator before. Blocks until
        the iterator gives the batch after the next. Raises StopIteration, at every call, after the last batch.
        """
        self._source.use(dataloader_iter)
        batch = self._next()
        if not self._model.training:
            _, output = self._run(batch)
            return output
        self._optimizer.zero_grad()
        losses, output = self._run(batch)
        losses.sum().backward()
        self._optimizer.step()
        return output

    def close(self) -> None:
        """Complete all updates and give the model back. Idempotent; not collective."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed:
            self._closed = True
            self._enabled.__exit__(kind, error, trace)

    def _next(self) -> T:
        try:
            return next(self._batches)
        except StopIteration:
            if self._source.exhausted:
                raise
        return next(iter(self._batches))  # the last iterator ended, and here is another


class _Source(Generic[T]):
    """One endless iterator over the iterators that the user gives one after the other."""

    def __init__(self) -> None:
        self._iterator: Iterator[T] | None = None
        self.exhausted = False

    def use(self, iterator: Iterator[T]) -> None:
        if iterator is not self._iterator:
            self._iterator, self.exhausted = iterator, False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        assert self._iterator is not None
        try:
            return next(self._iterator)
        except StopIteration:
            self.exhausted = True
            raise
