"""Stands in for the forward of a sharded module: describes the module, prepares requests, makes its output.

Nothing is wrapped: a binding keeps its own copies of what a prefetch needs (input bucketizing), so the module itself,
its parameter names and its process group stay as they are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from fscomm.plan.sharding_group import GroupLayout
from fscomm.torchrec.codecs import Codecs
from fscomm.torchrec.plain_kernels import AccessOrder, EmptyProxy, KernelProxy, LookupProxy
from fscomm.torchrec.pooled_tables import PooledTables
from fscomm.torchrec.servable import where
from fscomm.torchrec.shadow_kernels import GroupTables, Tables
from fsranks.torch_notices import keep_fx_notice_away

keep_fx_notice_away()


@dataclass(slots=True, kw_only=True)
class Binding(ABC):
    """A served module: its groups, and what stands in for its forward.

    Attributes:
        name: as the user sees it.
        layouts: [G] of its sharding groups.
        codecs: [G] how their rows and gradients travel.
        kernels: [G][...] fused kernels on this rank.
        input_dists: [G] in host memory: they bucketize, and keep what they would send.
    """

    name: str
    module: Any
    layouts: list[GroupLayout]
    codecs: list[Codecs]
    kernels: list[list[Any]]
    plain: Callable[..., Any]
    input_dists: list[nn.Module]

    @property
    def device(self) -> torch.device:
        """Where the tables of this rank lie."""
        return where(self.module)

    @property
    def process_group(self) -> Any:
        return self.module._env.process_group

    def tables(self, group: int) -> GroupTables:
        layout = self.layouts[group]
        kind: type[GroupTables] = Tables if layout.pooling is None else PooledTables
        owners = 1 if layout.pooling is None else layout.pooling.owners
        # What is added up on hosts is divided twice, the last time on the host: the bits are not those of one division.
        divide_by = (layout.world_size // owners, owners) if get_gradient_division() else ()
        return kind(
            self.kernels[group], dim=layout.dim, codecs=self.codecs[group], divide_by=divide_by, where=self.device
        )

    def proxy_targets(self, group: int) -> list[Any]:
        """Whose forward reads the tables: the fused kernels, or the look-up itself where this rank has none."""
        return self.kernels[group] or [self.module._lookups[group]]

    def proxies(self, group: int) -> list[Callable[[AccessOrder], LookupProxy]]:
        """What makes the proxies of the group's kernels."""
        kind = KernelProxy if self.kernels[group] else EmptyProxy
        return [partial(kind, target, where=self.device) for target in self.proxy_targets(group)]

    @abstractmethod
    def prepare(self, features: Any) -> tuple[list[Any], list[Any]]:
        """What `output` needs, and [G] what is asked of the owners. No collective. In the ids worker."""

    @abstractmethod
    def output(self, parts: list[Any], rows: list[torch.Tensor]) -> Any:
        """What the module's forward returns, from what `prepare` gave and the output rows of each group."""


def make_features(
    keys: list[str], values: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None, stride: int
) -> KeyedJaggedTensor:
    """A KJT [N] of `keys` [F], with lengths [F * stride]."""
    return KeyedJaggedTensor(keys=keys, values=values, lengths=lengths, weights=weights, stride=stride)


def asked(module: Any, features: Any) -> tuple[int, int]:
    """How many ids a forward of a sharded module looks up, and the bytes of the embeddings that it gives for them."""
    if not isinstance(features, KeyedJaggedTensor):
        return 0, 0
    ids = features.values().numel()
    if isinstance(module, ShardedEmbeddingCollection):
        return ids, 4 * ids * module._embedding_dim
    dims = getattr(module, "_embedding_dims", [])  # of pooled features, each with one vector a sample
    return ids, 4 * features.stride() * sum(dims)


def on_gradient(awaitable: Any, then: Callable[[], None]) -> None:
    """Call `then` whenever backward comes to one of the tensors that a module's forward gave."""

    def watch(result: Any) -> Any:
        rows = [result.values()] if isinstance(result, KeyedTensor) else [each.values() for each in result.values()]
        for each in {id(tensor): tensor for tensor in rows}.values():
            if each.requires_grad:
                each.register_hook(lambda _: then())
        return result

    awaitable.callbacks.append(watch)


def around_wait(awaitable: Any, guard: Callable[[], AbstractContextManager[None]]) -> None:
    """Let a `guard()` be around the wait for what a module's forward gave."""
    wait = awaitable._wait_impl

    def guarded() -> Any:
        del awaitable._wait_impl  # it refers to `awaitable`
        with guard():
            return wait()

    awaitable._wait_impl = guarded


def fused_optimizers(module: Any) -> list[Any]:
    """The optimizers whose state lies in the fused kernels of `module`."""
    return [kernel.fused_optimizer for lookup in module._lookups for kernel in lookup._emb_modules]
