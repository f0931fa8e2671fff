"""The binding of a sharded module of TorchRec, of which all sharding groups are served, or some of them. `bind` makes
it of a module that `requirements` found to be served."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.types import LazyNoWait
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from fscomm.plan.group_plan import AskedIds
from fscomm.plan.sharding_group import CHUNK_BYTES, GroupLayout, Pooling
from fscomm.tables.binding import Binding, ForwardSize, MakePart
from fscomm.tables.forward_guard import ForwardGuard
from fscomm.tables.group_tables import Codecs, as_they_are
from fscomm.tables.torchrec import sharded
from fscomm.tables.torchrec.features import forward_size, has_strays, one_sample_without_ids, output_tensors
from fscomm.tables.torchrec.module_view import InputDist, Keep, dist_input, output, pass_by
from fscomm.tables.torchrec.requirements import MakeCodecs
from fsranks.libraries import keep_fx_notice_away

keep_fx_notice_away()


@dataclass(slots=True, kw_only=True)
class TorchRecBinding(Binding):
    """See `Binding`.

    Attributes:
        numbers: [G] of the served groups among those of the module.
        input_dists: [G] in host memory; they bucketize ids by owner, and send nothing.
        input_dists_created: whether the module has its own input dists.
    """

    numbers: list[int]
    input_dists: list[Callable[[Any], Any]]
    input_dists_created: bool = False

    @property
    def _rows(self) -> Any:
        """The collection that has the tables."""
        return sharded.rows_of(self.module)

    @property
    def _asks(self) -> Any:
        """The module whose input dists send the ids."""
        return self.module

    def create_input_dists(self, features: KeyedJaggedTensor) -> None:
        if not self.input_dists_created:  # TorchRec creates the input dists when it sees the first features
            nothing_sent = [pass_by] * len(self._rows._lookups)
            # Only the keys matter, and the copy of the batch to the device may be incomplete, so its values and lengths
            # must not be read. Kernels such as that of index dedup need at least one sample.
            one = one_sample_without_ids(features)
            dist_input(self._asks, nothing_sent, self.module.create_context(), one)
            self.input_dists_created = True

    def prepare(
        self, features: KeyedJaggedTensor, on_host: KeyedJaggedTensor | None
    ) -> tuple[list[Any], list[AskedIds]]:
        """([context of the module's forward, KJT of each group], what each served group requests) of one part.

        Index dedup notes in the context which unique id each id was. Unique ids are found on the device, as fbgemm has
        no such kernel for the host.
        """
        if features.stride() == 0:
            return [], [asks_nothing(layout) for layout in self.layouts]
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
        asked = [asked_of(dist, layout.pooling is not None) for dist, layout in zip(dists, self.layouts, strict=True)]
        return [context, *split], asked

    def output(self, features: KeyedJaggedTensor, given: list[Any], rows: list[torch.Tensor]) -> Any:
        if features.stride() == 0:
            return self._output_of_nothing(features, rows)
        context, *split = given
        if self.partly_served:
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
        given = self.output(one, [context, *split], rows).wait()
        part = _samples(given, 0, 0)
        return part.make([tensor[of_part] for tensor, of_part in zip(output_tensors(given), part.rows, strict=True)])

    def cut(self, output: Any, ends: Sequence[int]) -> tuple[list[torch.Tensor], list[MakePart]]:
        given = output.wait()
        return output_tensors(given), [_samples(given, *edges) for edges in pairwise([0, *ends])]

    def forward_sizes(self, features: Any) -> list[ForwardSize]:
        parts: list[tuple[str, str, Any]] = [(self.name, "", None)]
        return [
            ForwardSize(name, *forward_size(self._rows, features, sharding), self.plainly.get(name))
            for name, _, sharding in (sharded.groups(self.name, self.module) if self.partly_served else parts)
        ]

    def on_gradient(self, output: Any, then: Callable[[], None]) -> None:
        def watch(result: Any) -> Any:
            for each in {id(tensor): tensor for tensor in output_tensors(result)}.values():
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


def asked_of(dist: InputDist, pooled: bool) -> AskedIds:
    """What a part requests of the owners of a group; to be read before the input dist is called again."""
    sent = dist.sent
    ids = sent.values().long()
    if not pooled:
        back = getattr(dist.dist, "unbucketize_permute_tensor", None)
        return AskedIds(ids, sent.length_per_key(), back)
    weights = sent.weights_or_none()
    if weights is not None:  # TorchRec's look-up ignores integers, and its input dist gives weights no gradient either
        weights = weights.detach() if weights.is_floating_point() else None
    return AskedIds(ids, sent.length_per_key(), None, sent.lengths().view(len(sent.keys()), -1), weights)


def asks_nothing(layout: GroupLayout) -> AskedIds:
    """The request of a part without a sample, which TorchRec does not accept."""
    features = int(layout.features.sum())
    lengths = None if layout.pooling is None else torch.empty(features, 0)
    return AskedIds(torch.empty(0, dtype=torch.int64), [0] * features, None, lengths)


def _samples(given: Any, start: int, end: int) -> MakePart:
    """What makes the samples from `start` to `end` of what a forward returned."""
    if isinstance(given, KeyedTensor):
        keys, widths = given.keys(), given.length_per_key()
        return MakePart([slice(start, end)], lambda tensors: LazyNoWait(KeyedTensor(keys, widths, *tensors)))
    rows = [slice(*each.offsets()[[start, end]].tolist()) for each in given.values()]

    def make(tensors: list[torch.Tensor]) -> Any:
        parts = zip(given.items(), tensors, rows, strict=True)
        return LazyNoWait({key: _jagged(each, start, end, values, of) for (key, each), values, of in parts})

    return MakePart(rows, make)


def _jagged(whole: JaggedTensor, start: int, end: int, values: torch.Tensor, rows: slice) -> JaggedTensor:
    weights = whole.weights_or_none()  # the ids, where the module returns them (need_indices)
    return JaggedTensor(values, lengths=whole.lengths()[start:end], weights=None if weights is None else weights[rows])


def unquantised(module: Any, sharding: str, given: torch.dtype, dim: int) -> Codecs:
    """The codecs of a model without quantised communication: see `MakeCodecs`."""
    return as_they_are(given, dim)


def bind(
    name: str,
    module: Any,
    *,
    ranks_per_host: int = 1,
    plainly: Mapping[str, str] = MappingProxyType({}),
    make_codecs: MakeCodecs = unquantised,
    kind: type[TorchRecBinding] = TorchRecBinding,
    guard: ForwardGuard | None = None,
    dedups: bool = False,
) -> TorchRecBinding:
    """Describe `module`, of this `name` in the model. No collective.

    plainly: why groups are not served, by name. kind: of what an extension serves; guard: of a module whose forward may
    reassign rows; dedups: see `GroupLayout`.
    """
    group = module._env.process_group
    rows = sharded.rows_of(module)
    guard = guard or ForwardGuard()
    reassigns = guard.reassigns is not None
    binding = kind(
        name=name,
        module=module,
        device=sharded.where(module),
        process_group=group,
        layouts=[],
        codecs=[],
        divide_by=[],
        kernels=[],
        proxied=[],
        plain=module.forward,
        numbers=[],
        input_dists=[],
        plainly={part: plainly[part] for part in sharded.group_names(name, module) if part in plainly},
        guard=guard,
    )
    for number, (part, sharding_type, sharding) in enumerate(sharded.groups(name, module)):
        if part in binding.plainly:
            continue
        dim = sharded.row_columns(module, sharding_type, sharding)
        of_group = make_codecs(rows, sharding_type, sharded.output_dtype(sharding), dim)
        assert not isinstance(of_group, str), of_group  # such a group is not served
        layout = GroupLayout(
            module=name,
            sharding=sharding_type,
            rank=group.rank(),
            world_size=group.size(),
            dim=dim,
            dtype=of_group.rows.dtype,
            width=of_group.rows.width,
            runs=sharded.runs(sharding),
            rows=tuple(table.local_rows for table in sharded.tables(sharding)[group.rank()]),
            kernels=sharded.tables_of_kernels(sharding, group.rank()),
            chunk_bytes=CHUNK_BYTES[binding.device.type],
            pooling=_pooling(module, sharding_type, sharding, dim) if sharded.is_pooled(module) else None,
            ranks_per_host=1 if reassigns else ranks_per_host,
            reassigns=reassigns,
            dedups=dedups,
        )
        kernels = sharded.kernels(rows._lookups[number])
        binding.numbers.append(number)
        binding.layouts.append(layout)
        binding.codecs.append(of_group)
        binding.divide_by.append(_divide_by(layout))
        binding.kernels.append(kernels)
        binding.proxied.append(kernels or [rows._lookups[number]])
        if not reassigns:  # else TorchRec makes them when it sees the first features
            dist = sharding.create_input_dist(device=sharded.HOST)  # plans are made in host memory
            dist._dist = Keep()
            binding.input_dists.append(dist)
    return binding


def _divide_by(layout: GroupLayout) -> Sequence[int]:
    if not get_gradient_division():
        return ()
    owners = 1 if layout.pooling is None else layout.pooling.owners
    # TorchRec divides gradients of vectors that lie on the ranks of one host twice, the last time by these ranks. Each
    # division rounds: one by the product would not be bitwise the same.
    return layout.world_size // owners, owners


def _pooling(module: Any, kind: str, sharding: Any, dim: int) -> Pooling:
    owners = sharded.owners(module, kind, sharding)
    return Pooling(
        strips=tuple(
            tuple(table.local_cols // dim for table in of_rank for _ in range(table.num_features()))
            for of_rank in sharded.tables(sharding)
        ),
        owners=1 if owners is None else owners.size(),
        mean=any(config.pooling == PoolingType.MEAN for config in sharded.configs(sharding)),
    )
