"""What the bindings of all kinds of TorchRec's sharded modules have in common."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from fscomm.tables.binding import Binding
from fscomm.tables.torchrec.servable import where
from fsranks.libraries import keep_fx_notice_away

keep_fx_notice_away()


@dataclass(slots=True, kw_only=True)
class TorchRecBinding(Binding):
    """input_dists: [G] in host memory: they bucketize, and keep what they would send."""

    input_dists: list[nn.Module]

    @property
    def device(self) -> torch.device:
        return where(self.module)

    @property
    def process_group(self) -> Any:
        return self.module._env.process_group

    def divide_by(self, group: int) -> Sequence[int]:
        layout = self.layouts[group]
        if not get_gradient_division():
            return ()
        owners = 1 if layout.pooling is None else layout.pooling.owners
        # What is added up on hosts is divided twice, the last time on the host: the bits are not those of one division.
        return layout.world_size // owners, owners

    def proxy_targets(self, group: int) -> list[Any]:
        return self.kernels[group] or [self.module._lookups[group]]

    def asked(self, features: Any) -> tuple[int, int]:
        return asked(self.module, features)

    def on_gradient(self, output: Any, then: Callable[[], None]) -> None:
        def watch(result: Any) -> Any:
            rows = [result.values()] if isinstance(result, KeyedTensor) else [each.values() for each in result.values()]
            for each in {id(tensor): tensor for tensor in rows}.values():
                if each.requires_grad:
                    each.register_hook(lambda _: then())
            return result

        output.callbacks.append(watch)

    def around_wait(self, output: Any, guard: Callable[[], AbstractContextManager[None]]) -> None:
        wait = output._wait_impl

        def guarded() -> Any:
            del output._wait_impl  # it refers to `output`
            with guard():
                return wait()

        output._wait_impl = guarded


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
