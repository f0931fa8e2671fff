"""A sharded module of TorchRec that is served, or some of its sharding groups."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from fscomm.plan import bags, routes
from fscomm.tables.binding import Asked, Binding
from fscomm.tables.torchrec import structure
from fscomm.tables.torchrec.own_forward import InputDist, dist_input, output, pass_by
from fsranks.libraries import keep_fx_notice_away

keep_fx_notice_away()


@dataclass(slots=True, kw_only=True)
class TorchRecBinding(Binding):
    """numbers: [G] of the served groups among those of the module. input_dists: [G] in host memory: they bucketize, and
    keep what they would send. plainly: why the other groups run plainly, by what they are called."""

    numbers: list[int]
    input_dists: list[Callable[[Any], Any]]
    plainly: Mapping[str, str]
    met: bool = False

    @property
    def device(self) -> torch.device:
        return structure.where(self.module)

    @property
    def process_group(self) -> Any:
        return self.module._env.process_group

    @property
    def in_part(self) -> bool:
        return bool(self.plainly)

    def divide_by(self, group: int) -> Sequence[int]:
        layout = self.layouts[group]
        if not get_gradient_division():
            return ()
        owners = 1 if layout.pooling is None else layout.pooling.owners
        # What is added up on hosts is divided twice, the last time on the host: the bits are not those of one division.
        return layout.world_size // owners, owners

    def proxy_targets(self, group: int) -> list[Any]:
        return self.kernels[group] or [self.module._lookups[self.numbers[group]]]

    def meet(self, features: KeyedJaggedTensor) -> None:
        if not self.met:  # TorchRec makes the input dists when it sees the first features
            nothing_sent = [pass_by] * len(self.module._lookups)
            dist_input(self.module, nothing_sent, self.module.create_context(), features)
            self.met = True

    def prepare(
        self, features: KeyedJaggedTensor, on_host: KeyedJaggedTensor | None = None
    ) -> tuple[list[Any], list[Any]]:
        """The context of the module's forward, in which index dedup notes which unique id each id was; the KJT of each
        group of the module, as its forward splits them. Unique ids are those of the device: fbgemm has no such kernel
        for the host."""
        context = self.module.create_context()
        dists = [InputDist(dist) for dist in self.input_dists]
        of_groups: list[Any] = [pass_by] * len(self.module._lookups)
        for number, dist in zip(self.numbers, dists, strict=True):
            of_groups[number] = dist
        if on_host is None or structure.dedups(self.module):
            split = dist_input(self.module, of_groups, context, features)
        else:
            dist_input(self.module, of_groups, self.module.create_context(), on_host, on_host=True)
            split = dist_input(self.module, [pass_by] * len(of_groups), context, features)
        requests = [_request(dist, layout) for dist, layout in zip(dists, self.layouts, strict=True)]
        return [context, *split], requests

    def output(self, features: KeyedJaggedTensor, parts: list[Any], rows: list[torch.Tensor]) -> Any:
        context, *given = parts
        if self.in_part:
            context = self.module.create_context()
            own = [pass_by if number in self.numbers else dist for number, dist in enumerate(self.module._input_dists)]
            given = dist_input(self.module, own, context, features)
        of_groups: list[torch.Tensor | None] = [None] * len(self.module._lookups)
        for number, of_group in zip(self.numbers, rows, strict=True):
            of_groups[number] = of_group
        return output(self.module, context, given, of_groups)

    def asked(self, features: Any) -> list[Asked]:
        if not self.in_part:
            return [Asked(self.name, *asked(self.module, features), None)]
        return [
            Asked(part, *asked_of_group(self.module, sharding, features), self.plainly.get(part))
            for part, _, sharding in structure.groups(self.name, self.module)
        ]

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


def _request(dist: InputDist, layout: Any) -> Any:
    """What is asked of the owners of a group."""
    sent = dist.sent
    ids = sent.values().long()
    if layout.pooling is None:
        back = getattr(dist.dist, "unbucketize_permute_tensor", None)
        return routes.request([routes.Part(ids, sent.length_per_key(), back)], layout)
    weights = sent.weights_or_none()
    if weights is not None and not weights.is_floating_point():
        weights = None  # as TorchRec's look-up does
    return bags.request([bags.BagPart(ids, sent.lengths().view(len(sent.keys()), -1), weights)], layout)


def asked(module: Any, features: Any) -> tuple[int, int]:
    """How many ids a forward of a module looks up, and the bytes of the embeddings that it gives for them."""
    if not isinstance(features, KeyedJaggedTensor):
        return 0, 0
    ids = features.values().numel()
    if isinstance(module, ShardedEmbeddingCollection):
        return ids, 4 * ids * module._embedding_dim
    return ids, 4 * features.stride() * sum(getattr(module, "_embedding_dims", []))


def asked_of_group(module: Any, sharding: Any, features: Any) -> tuple[int, int]:
    """The same of one of its groups."""
    if not isinstance(features, KeyedJaggedTensor):
        return 0, 0
    lengths = dict(zip(features.keys(), features.length_per_key(), strict=True))
    ids = sum(lengths[name] for name in set(sharding.feature_names()))
    if structure.is_pooled(module):  # one vector a sample
        return ids, 4 * features.stride() * sum(sharding.embedding_dims())
    return ids, 4 * ids * module._embedding_dim
