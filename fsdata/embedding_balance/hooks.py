"""`EmbeddingBalance`: dispatch behind a sharded embedding module, combine behind the dense one, by hooks."""

from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from fsdata.balance.options import AUTO, Balance, StepPlanner
from fsdata.embedding_balance.dispatch import Dispatcher, Handle, combine, dispatch, dispatch_samples
from fsranks.rank_context import resolve


class EmbeddingBalance:
    """Balance the dense part of a model: its inputs are moved after the look-up, its outputs come home.

        with EmbeddingBalance(model.embeddings, model.dense) as balanced:
            for batch in loader:
                rows = model.embeddings(batch.features)         # of this rank's samples after balancing
                logits = model.dense(rows, balanced.move(batch.dense))   # of the samples of `batch`
                loss = criterion(logits, batch.labels)          # labels and loss stay at home

    embedding: a module whose output, or what its awaitable gives, is a dict of JaggedTensors, such as a sharded
    EmbeddingCollection. dense: a module that treats every sample alone and whose output is a tensor [m, ...] with one
    row per sample, or a tuple or dict of such. The hooks last as long as the block; every forward of `embedding` plans
    anew. Collective and blocking: see `fsdata.embedding_balance.dispatch`.

    process_group: the ranks that share a global batch; default all. timeout_s: how long a rank waits for another.

    Raises ValueError without torch.distributed, and for a Balance with autotune or method="auto", which need a
    loader's reports.
    """

    def __init__(
        self,
        embedding: nn.Module,
        dense: nn.Module,
        *,
        balance: Balance | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        balance = balance or Balance()
        if balance.autotune or balance.method == AUTO:
            raise ValueError(
                'autotune=True and method="auto" need the compute times that a loader is told: leave them off here'
            )
        context = resolve(process_group=process_group)
        self._modules = embedding, dense
        self._dispatcher = Dispatcher(
            StepPlanner(balance, context.world_size),
            process_group=process_group,
            timeout_s=timeout_s,
        )
        self._hooks: list[RemovableHandle] = []
        self.handle: Handle | None = None
        """Of the last forward of `embedding`: lengths, origin and planned straggler share."""

    def __enter__(self) -> Self:
        embedding, dense = self._modules
        self._hooks = [embedding.register_forward_hook(self._moved), dense.register_forward_hook(self._home)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._dispatcher.__exit__(kind, error, trace)

    def move(self, rows: torch.Tensor) -> torch.Tensor:
        """[m, ...] from [n, ...]: other inputs of the dense module, one row per sample. After the embeddings' forward.

        Raises RuntimeError before it.
        """
        return dispatch_samples(rows, self._planned())

    def _moved(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        found = output.wait() if hasattr(output, "wait") else output
        if not isinstance(found, dict) or not all(hasattr(jagged, "lengths") for jagged in found.values()):
            raise TypeError(
                f"{type(module).__name__} gave a {type(found).__name__}: EmbeddingBalance moves dicts of JaggedTensors"
            )
        self.handle = handle = self._dispatcher.plan({key: jagged.lengths() for key, jagged in found.items()})
        values = dispatch(torch.cat([jagged.values() for jagged in found.values()]), handle)
        parts = values.split(handle.lengths.sum(1).tolist())
        return {
            key: type(jagged)(values=part, lengths=lengths)
            for (key, jagged), part, lengths in zip(found.items(), parts, handle.lengths, strict=True)
        }

    def _home(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        handle = self._planned()
        if isinstance(output, dict):
            return {name: combine(tensor, handle) for name, tensor in output.items()}
        if isinstance(output, tuple):
            return tuple(combine(tensor, handle) for tensor in output)
        return combine(output, handle)

    def _planned(self) -> Handle:
        if self.handle is None:
            raise RuntimeError("nothing is planned yet: the embedding module's forward comes first")
        return self.handle
