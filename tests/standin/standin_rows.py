"""A stand-in for TorchRec: row-wise sharded tables whose forward gives every id its row, and the binding of it.

TorchRec and fbgemm are not imported: the engine, its lanes, marks, streams and transports run without them, on a CPU or
with two processes on one GPU.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from patience import PATIENCE_S
from standin_kernel import Kernel
from torch import nn

from fscomm.comm import Comm
from fscomm.compose import compile_kernels
from fscomm.engine.agreement import Agreement
from fscomm.loop.feature_finder import FeatureFinder
from fscomm.plan.group_plan import AskedIds
from fscomm.plan.sharding_group import CHUNK_BYTES, GroupLayout
from fscomm.tables.binding import Binding, ForwardSize
from fscomm.tables.group_tables import as_they_are

HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Ids:
    """A KeyedJaggedTensor's readable part: values by key, then by sample."""

    names: list[str]
    ids: torch.Tensor
    sizes: torch.Tensor  # [keys * samples]
    samples: int

    def keys(self) -> list[str]:
        return self.names

    def values(self) -> torch.Tensor:
        return self.ids

    def lengths(self) -> torch.Tensor:
        return self.sizes

    def weights_or_none(self) -> None:
        return None

    def stride(self) -> int:
        return self.samples

    def to(self, where: torch.device, non_blocking: bool = False) -> "Ids":
        return Ids(self.names, self.ids.to(where), self.sizes.to(where), self.samples)


class Sent:
    """The ids of a batch as they go to the owners: by owner, then by feature, then by sample."""

    def __init__(self, features: Ids, blocks: Sequence[int], world_size: int) -> None:
        """blocks: rows of the table of each feature that one owner has."""
        ids, count = features.values().to(HOST), len(blocks)
        per_feature = features.lengths().to(HOST).view(count, -1).sum(1)
        feature = torch.arange(count).repeat_interleave(per_feature)
        block = torch.tensor(blocks)[feature]
        owner = torch.div(ids, block, rounding_mode="floor")
        order = torch.argsort(owner * count + feature, stable=True)
        self.ids = (ids - owner * block)[order]
        self.counts = torch.bincount(owner * count + feature, minlength=world_size * count).view(world_size, count)
        self.place = torch.empty_like(order)  # where each id of the batch went
        self.place[order] = torch.arange(len(order))


class ShardedRows(nn.Module):
    """Tables {name: (rows, features)} of D columns, a block of rows on every rank. Forward: `Ids` -> [N, D] rows."""

    def __init__(
        self,
        tables: Mapping[str, tuple[int, Sequence[str]]],
        dim: int,
        optimizer: str,
        rate: float,
        where: torch.device,
    ) -> None:
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.dim, self.where = dim, where
        self.rows = [-(-rows // size) for rows, _ in tables.values()]
        self.runs = tuple(len(features) for _, features in tables.values())
        self.table_of = [t for t, run in enumerate(self.runs) for _ in range(run)]
        whole = [torch.randn(-(-rows // size) * size, dim) for rows, _ in tables.values()]
        mine = [table.view(size, -1, dim)[rank].clone() for table in whole]
        self.kernel = Kernel(mine, self.table_of, optimizer, rate, where)

    @property
    def blocks(self) -> list[int]:
        return [self.rows[table] for table in self.table_of]

    def forward(self, features: Ids) -> torch.Tensor:
        size, count = dist.get_world_size(), len(self.table_of)
        sent = Sent(features, self.blocks, size)
        counts = torch.empty_like(sent.counts)
        dist.all_to_all_single(counts, sent.counts)
        out, into = sent.counts.sum(1).tolist(), counts.sum(1).tolist()
        ids = torch.empty(sum(into), dtype=torch.int64)
        dist.all_to_all_single(ids, sent.ids, into, out)
        feature = torch.arange(count).repeat(size).repeat_interleave(counts.flatten())
        order = torch.argsort(feature, stable=True)  # by feature, then by requester
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.sum(0).cumsum(0)])
        rows = self.kernel(ids[order].to(self.where), offsets.to(self.where))
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        came = _Exchange.apply(rows.index_select(0, back.to(self.where)), into, out)
        return came.index_select(0, sent.place.to(self.where))


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, out: list[int], into: list[int]) -> Any:
        ctx.splits = out, into
        return _exchanged(rows, out, into)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        out, into = ctx.splits
        return _exchanged(gradient, into, out).div_(dist.get_world_size()), None, None


def _exchanged(rows: torch.Tensor, out: list[int], into: list[int]) -> torch.Tensor:
    """Through host memory: gloo is there with any number of GPUs."""
    received = torch.empty(sum(into), rows.shape[1])
    dist.all_to_all_single(received, rows.detach().to(HOST).contiguous(), into, out)
    return received.to(rows.device)


@dataclass(slots=True, kw_only=True)
class RowsBinding(Binding):
    @property
    def whole_batches_only(self) -> str:
        return "its output does not say which rows are of which sample"

    def prepare(self, features: Ids, on_host: Ids | None) -> tuple[list[Any], list[AskedIds]]:
        sent = Sent(features, self.module.blocks, self.layouts[0].world_size)
        return [], [AskedIds(sent.ids, sent.counts.flatten().tolist(), sent.place)]

    def output(self, features: Ids, given: list[Any], rows: list[torch.Tensor]) -> torch.Tensor:
        return rows[0]

    def cut(self, output: Any, ends: Sequence[int]) -> Any:
        raise AssertionError("no block in parts is entered")

    def forward_sizes(self, features: Ids) -> list[ForwardSize]:
        return [ForwardSize(self.name, *forward_size(self.module, features), None)]

    def on_gradient(self, output: torch.Tensor, then: Callable[[], None]) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: then())

    def around_wait(self, output: Any, guard: Callable[[], AbstractContextManager[None]]) -> None:
        del output, guard  # its forward waits itself


def bind(name: str, module: ShardedRows) -> RowsBinding:
    layout = GroupLayout(
        module=name,
        sharding="row_wise",
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        dim=module.dim,
        dtype=torch.float32,
        runs=(module.runs,) * dist.get_world_size(),
        rows=tuple(module.rows),
        chunk_bytes=CHUNK_BYTES[module.where.type],
    )
    return RowsBinding(
        name=name,
        module=module,
        device=module.where,
        process_group=dist.group.WORLD,
        layouts=[layout],
        codecs=[as_they_are(torch.float32, module.dim)],
        divide_by=[(layout.world_size,)],
        kernels=[[module.kernel]],
        proxied=[[module.kernel]],
        plain=module.forward,
    )


def make_ids(
    keys: list[str], values: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None, stride: int
) -> Ids:
    return Ids(keys, values, lengths, stride)


def forward_size(module: ShardedRows, features: Ids) -> tuple[int, int]:
    number = len(features.values())
    return number, 4 * number * module.dim


def all_served(model: nn.Module, calls: int) -> Agreement:
    """What ranks agree on for a model of `ShardedRows`, without asking each other."""
    compile_kernels()
    found = {name: each for name, each in model.named_modules() if isinstance(each, ShardedRows)}
    modules: list[Binding] = [bind(name, module) for name, module in found.items() for _ in range(calls)]
    finder = FeatureFinder([module.name for module in modules], {}, problem=lambda _: None, make=make_ids)
    return Agreement(found=found, problems={}, modules=modules, finder=finder, forward_size=forward_size)


@contextlib.contextmanager
def enabled(model: nn.Module, *, transport: str, strict: bool = False, calls: int = 1) -> Iterator[Comm]:
    """As `fscomm.enable`, for a model of `ShardedRows`."""
    agree: Callable[..., Agreement] = lambda **_: all_served(model, calls)  # noqa: E731
    comm = Comm.enter(model, agree, transport=transport, strict=strict, timeout_s=PATIENCE_S)
    try:
        yield comm
    except BaseException as error:
        comm._leave(error)
        raise
    comm._leave(None)
