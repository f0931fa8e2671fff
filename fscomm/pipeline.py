"""`fscomm.enable` with the interface of TorchRec's train pipelines, for loops that are written for those."""

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, Self, TypeVar

import torch
from torch import nn

from fscomm.comm import Comm, Features, enable
from fscomm.loop.lookahead import Lookahead

T = TypeVar("T")
MOST_ITERATORS = 4  # that were not used up: one to train on, others to evaluate
MOST_DROPPED = 64  # others that are remembered


class TrainPipelineFreeScale(Generic[T]):
    """One training step per `progress`, with prioritized communication; results are bitwise those of the plain loop.

    In the place of TorchRec's `TrainPipelineSparseDist`: it takes the same arguments, and has its `progress`, `attach`,
    `detach` and `reset`. Arguments that only say how TorchRec copies batches and frees memory change nothing here.
    Building one is collective and serves the model until `close`.

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
        *,
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
        self._device = device
        self._enable = partial(
            enable, transport=transport, strict=strict, features=features, calls=calls, timeout_s=timeout_s
        )
        self._enabled: enable | None = None
        self._closed = False
        self._ahead: OrderedDict[int, tuple[Iterator[T], Lookahead[T]]] = OrderedDict()  # by iterator, last used last
        self._kept: dict[int, tuple[Iterator[T], T]] = {}  # fetched ahead when the model was detached
        # The newest iterators whose batch fetched ahead was dropped, by `id`; None for those that do not live any more.
        self._dropped: OrderedDict[int, Callable[[], Any]] = OrderedDict()
        self.comm: Comm
        self.attach()

    def progress(self, dataloader_iter: Iterator[T]) -> Any:
        """Train on the next batch, or only run the model if it is in eval mode. Returns the model's output.

        Every iterator has one batch fetched ahead, which waits while another iterator is given: of up to four that have
        not ended. Blocks until the iterator gives the batch after the next. Raises StopIteration, at every call, after
        its last batch.

        Raises:
            RuntimeError: more than four iterators take turns, so that a batch of this one was dropped.
        """
        if self._enabled is None:
            self.attach()
        try:
            batch = next(self._batches(dataloader_iter))
        except StopIteration:
            self._ahead.pop(id(dataloader_iter), None)
            raise
        if not self._model.training:
            _, output = self._run(batch)
            return output
        self._optimizer.zero_grad()
        losses, output = self._run(batch)
        losses.sum().backward()
        self._optimizer.step()
        return output

    def attach(self, model: nn.Module | None = None, sparse_dist: bool = True) -> None:
        """Serve the model again after `detach`, or another one. Collective; `progress` does it where it was forgotten.

        sparse_dist: of TorchRec; changes nothing here.
        """
        del sparse_dist
        if self._closed:
            raise RuntimeError("this pipeline is closed: build a new one")
        if model is not None and model is not self._model:
            self.detach()
            self._run = model if self._run is self._model else self._run
            self._model = model
        if self._enabled is None:
            enabled = self._enable(self._model)
            self.comm = enabled.__enter__()
            self._enabled = enabled

    def detach(self) -> nn.Module:
        """Complete all updates and give the model back, which is returned. Batches fetched ahead are kept for
        `progress`."""
        for number, (iterator, ahead) in self._ahead.items():
            if ahead.unconsumed is not None:
                self._kept[number] = iterator, ahead.unconsumed
        self._ahead.clear()
        self._leave()
        return self._model

    def reset(self) -> None:
        """Drop the batches that were fetched ahead."""
        self._kept.clear()
        while self._ahead:
            self._ahead.popitem()[1][1].close()

    def close(self) -> None:
        """Complete all updates and give the model back. Idempotent; not collective."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._closed = True
        self._leave(*error)

    def _leave(self, *error: Any) -> None:
        enabled, self._enabled = self._enabled, None
        if enabled is not None:
            enabled.__exit__(*(error or (None, None, None)))

    def _batches(self, iterator: Iterator[T]) -> Iterator[T]:
        number = id(iterator)  # it is kept, so no other one has this number
        if number not in self._ahead:
            if self._dropped.pop(number, lambda: None)() is iterator:
                raise RuntimeError(
                    f"more than {MOST_ITERATORS} iterators take turns in this pipeline, and a batch fetched ahead from "
                    "this one was dropped for others: use fewer, or a pipeline for each"
                )
            _, first = self._kept.pop(number, (None, None))
            source = iterator if first is None else itertools.chain([first], iterator)
            self._ahead[number] = iterator, self.comm.lookahead(source, self._device)
            while len(self._ahead) > MOST_ITERATORS:
                self._drop(*self._ahead.popitem(last=False))
        self._ahead.move_to_end(number)
        return self._ahead[number][1]

    def _drop(self, number: int, used: tuple[Iterator[T], Lookahead[T]]) -> None:
        """Close the look-ahead of an iterator that others have displaced, as those of past evaluations are."""
        iterator, ahead = used
        if ahead.unconsumed is not None:
            try:
                self._dropped[number] = weakref.ref(iterator)
            except TypeError:  # of a built-in type, which holds no workers
                self._dropped[number] = lambda: iterator
            while len(self._dropped) > MOST_DROPPED:
                self._dropped.popitem(last=False)
        ahead.close()
