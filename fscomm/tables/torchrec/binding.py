"""The binding of a sharded module of TorchRec, of which all sharding groups are served, or some of them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.types import LazyNoWait
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from fscomm.compose import group_plan
from fscomm.plan.group_plan import AskedIds
from fscomm.plan.sharding_group import GroupLayout
from fscomm.tables.binding import Binding, ForwardSize, MakePart
from fscomm.tables.torchrec import sharded
from fscomm.tables.torchrec.features import forward_size, forward_size_of_group, has_strays, one_sample_without_ids
from fscomm.tables.torchrec.module_view import InputDist, dist_input, output, pass_by
from fsranks.libraries import keep_fx_notice_away

keep_fx_notice_away()


@dataclass(slots=True, kw_only=True)
class TorchRecBinding(Binding):
    """See `Binding`.

    Attributes:
        numbers: [G] of the served groups among those of the module.
        input_dists: [G] in host memory; they bucketize ids by owner, and send nothing.
        plainly: why the other groups run plainly, by name.
        input_dists_created: whether the module has its own input dists.
    """

    numbers: list[int]
    input_dists: list[Callable[[Any], Any]]
    plainly: Mapping[str, str]
    input_dists_created: bool = False

    @property
    def device(self) -> torch.device:
        return sharded.where(self.module)

    @property
    def _rows(self) -> Any:
        """The collection that has the tables."""
        return sharded.rows_of(self.module)

    @property
    def _asks(self) -> Any:
        """The module whose input dists send the ids."""
        return self.module

    @property
    def process_group(self) -> Any:
        return self.module._env.process_group

    @property
    def in_part(self) -> bool:
        return bool(self.plainly)

    @property
    def whole_batches_only(self) -> str | None:
        if sharded.dedups(self.module):
            return "index dedup adds up the gradients of an id over the whole batch"
        return None

    def divide_by(self, group: int) -> Sequence[int]:
        layout = self.layouts[group]
        if not get_gradient_division():
            return ()
        owners = 1 if layout.pooling is None else layout.pooling.owners
        # TorchRec divides gradients of vectors that lie on the ranks of one host twice, the last time by these ranks.
        # Each division rounds: one by the product would not be bitwise the same.
        return layout.world_size // owners, owners

    def proxy_targets(self, group: int) -> list[Any]:
        return self.kernels[group] or [self._rows._lookups[self.numbers[group]]]

    def create_input_dists(self, features: KeyedJaggedTensor) -> None:
        if not self.input_dists_created:  # TorchRec creates the input dists when it sees the first features
            nothing_sent = [pass_by] * len(self._rows._lookups)
            # Only the keys matter, and the copy of the batch to the device may be incomplete, so its values and lengths
            # must not be read. Kernels such as that of index dedup need at least one sample.
            one = one_sample_without_ids(features)
            dist_input(self._asks, nothing_sent, self.module.create_context(), one)
            self.input_dists_created = True

    def prepare(
        self, parts: Sequence[tuple[KeyedJaggedTensor, KeyedJaggedTensor | None]]
    ) -> tuple[list[list[Any]], list[Any]]:
        given, asked = zip(*(self._prepare(*part) for part in parts), strict=True)
        of_groups = zip(*asked, strict=True)
        plans = map(group_plan, self.layouts)
        return list(given), [plan.request(of_parts) for plan, of_parts in zip(plans, of_groups, strict=True)]

    def _prepare(
        self, features: KeyedJaggedTensor, on_host: KeyedJaggedTensor | None
    ) -> tuple[list[Any], list[AskedIds]]:
        """([context of the module's forward, KJT of each group], what each served group requests) of one part.

        Index dedup notes in the context which unique id each id was. Unique ids are found on the device, as fbgemm has
        no such kernel for the host.
        """
        if features.stride() == 0:
            return [], [_asks_nothing(layout) for layout in self.layouts]
        context = self.module.create_context()
        dists = [InputDist(dist) for dist in self.input_dists]
        of_groups: list[Any] = [pass_by] * len(self._rows._lookups)
        for number, dist in zip(self.numbers, dists, strict=True):
            of_groups[number] = dist
        if sharded.dedups(self.module):
            # Index dedup fails on ids outside of their tables. So they are sent without it: the owners find them, and
            # the step runs plainly. Where forwards reassign rows any id may come: its owner gives it a row.
            strays = self.guard.reassigns is None and has_strays(self.module, features)
            split = dist_input(self._asks, of_groups, context, features, without_dedup=strays)
        elif on_host is None:
            split = dist_input(self._asks, of_groups, context, features)
        else:
            dist_input(self._asks, of_groups, self.module.create_context(), on_host, on_host=True)
            split = dist_input(self._asks, [pass_by] * len(of_groups), context, features)
        asked = [_asked(dist, layout.pooling is not None) for dist, layout in zip(dists, self.layouts, strict=True)]
        return [context, *split], asked

    def output(self, features: KeyedJaggedTensor, given: list[Any], rows: list[torch.Tensor]) -> Any:
        if features.stride() == 0:
            return self._output_of_nothing(features, rows)
        context, *split = given
        if self.in_part:
            context = self.module.create_context()
            own = [pass_by if number in self.numbers else dist for number, dist in enumerate(self.module._input_dists)]
            split = dist_input(self.module, own, context, features)
        of_groups: list[torch.Tensor | None] = [None] * len(self._rows._lookups)
        for number, of_group in zip(self.numbers, rows, strict=True):
            of_groups[number] = of_group
        return output(self._rows, context, split, of_groups)

    def _output_of_nothing(self, features: KeyedJaggedTensor, rows: list[torch.Tensor]) -> Any:
        """The output for features without a sample, which TorchRec's forward does not accept: that for one sample
        without ids, cut to no samples."""
        one = one_sample_without_ids(features)
        context = self.module.create_context()
        split = dist_input(self._asks, [pass_by] * len(self._rows._lookups), context, one)
        if not isinstance(self.module, ShardedEmbeddingCollection):
            rows = [torch.cat([of_group, of_group.new_zeros(1, of_group.shape[1])]) for of_group in rows]
        tensors, (part,) = self.cut(self.output(one, [context, *split], rows), [0])
        return part.make([tensor[of_part] for tensor, of_part in zip(tensors, part.rows, strict=True)])

    def cut(self, output: Any, ends: Sequence[int]) -> tuple[list[torch.Tensor], list[MakePart]]:
        given = output.wait()
        starts = [0, *ends[:-1]]
        if isinstance(given, KeyedTensor):
            keys, lengths = given.keys(), given.length_per_key()
            made = partial(_keyed, keys, lengths)
            return [given.values()], [MakePart([slice(*edges)], made) for edges in zip(starts, ends, strict=True)]
        parts = []
        for start, end in zip(starts, ends, strict=True):
            offsets = [jagged.offsets().tolist() for jagged in given.values()]
            rows = [slice(of[start], of[end]) for of in offsets]
            of_part = {
                key: _lengths_and_weights(jagged, start, end, of_key)
                for (key, jagged), of_key in zip(given.items(), rows, strict=True)
            }
            parts.append(MakePart(rows, partial(_by_key, of_part)))
        return [jagged.values() for jagged in given.values()], parts

    def forward_sizes(self, features: Any) -> list[ForwardSize]:
        if not self.in_part:
            return [ForwardSize(self.name, *forward_size(self._rows, features), None)]
        return [
            ForwardSize(group, *forward_size_of_group(self.module, sharding, features), self.plainly.get(group))
            for group, _, sharding in sharded.groups(self.name, self.module)
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


def _asked(dist: InputDist, pooled: bool) -> AskedIds:
    """What a part requests of the owners of a group; to be read before the input dist is called again."""
    sent = dist.sent
    ids = sent.values().long()
    if not pooled:
        back = getattr(dist.dist, "unbucketize_permute_tensor", None)
        return AskedIds(ids, sent.length_per_key(), back)
    weights = sent.weights_or_none()
    if weights is not None and not weights.is_floating_point():
        weights = None  # as TorchRec's look-up does
    if weights is not None:
        weights = weights.detach()  # TorchRec's input dist gives them no gradient either
    return AskedIds(ids, sent.length_per_key(), None, sent.lengths().view(len(sent.keys()), -1), weights)


def _asks_nothing(layout: GroupLayout) -> AskedIds:
    """The request of a part without a sample, which TorchRec does not accept."""
    features = int(layout.features.sum())
    lengths = None if layout.pooling is None else torch.empty(features, 0)
    return AskedIds(torch.empty(0, dtype=torch.int64), [0] * features, None, lengths)


def _keyed(keys: list[str], lengths: list[int], tensors: list[torch.Tensor]) -> Any:
    (values,) = tensors
    return LazyNoWait(KeyedTensor(keys, lengths, values))


def _by_key(of_part: Mapping[str, tuple[torch.Tensor, torch.Tensor | None]], tensors: list[torch.Tensor]) -> Any:
    return LazyNoWait(
        {
            key: JaggedTensor(values, lengths=lengths, weights=weights)
            for (key, (lengths, weights)), values in zip(of_part.items(), tensors, strict=True)
        }
    )


def _lengths_and_weights(
    jagged: JaggedTensor, start: int, end: int, rows: slice
) -> tuple[torch.Tensor, torch.Tensor | None]:
    weights = jagged.weights_or_none()
    return jagged.lengths()[start:end], None if weights is None else weights[rows]
