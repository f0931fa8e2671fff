"""Balancing behind the embedding stage: rows of looked-up values move to the ranks of a plan, outputs come home.

    with Dispatcher(planner) as dispatcher:
        handle = dispatcher.plan({"uih": lengths})      # one exchange of lengths, then every rank plans alike
        values = dispatch(values, handle)               # this rank's samples after balancing
        outputs = combine(model(values), handle)        # one row per sample, at home again, in the order they left

Backward mirrors it: gradients of outputs go where the outputs were made, gradients of values go home. Labels and losses
never move. Nothing is added up on the way, so a model that treats every sample alone gives bit for bit what it gives at
home (paper, section 1: dispatch and combine).

Every call is collective and blocks; ranks make the same calls in the same order, backward passes included. A rank that
has no samples takes part all the same.

`EmbeddingBalance` does it for a model, by hooks.

Letters: K keys, n samples of this rank before, m after, W ranks, T items before, U after.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fsdata.balance.kernels.called import BALANCING
from fsdata.balance.options import AUTO, Balance, StepPlanner
from fsdata.balance.step_plan import GlobalBatch, Planner
from fsdata.embedding.kernels.jagged_ops import Ranges, ranged_combine, ranged_dispatch
from fsdata.errors import MismatchError
from fsdata.kernels import ranges
from fsdata.kernels.warm import make_ready
from fsdata.order.status_word import StatusWord
from fsranks.control_group import ControlGroup
from fsranks.libraries import compile_kernel
from fsranks.rank_context import resolve

_CALLS = ("dispatch", "dispatch_samples", "combine", "plan")
_PLAN = _CALLS.index("plan")


class Dispatcher:
    """Plans steps and moves values over a gloo group of its own. Making it is collective.

    planner: as for a loader; the same function on every rank. Values on CUDA travel over `process_group` (default: the
    default group, which needs a backend for CUDA); control stays on gloo.

    Raises ValueError without an initialised process group.
    """

    def __init__(
        self, planner: Planner, *, process_group: dist.ProcessGroup | None = None, timeout_s: float = 300.0
    ) -> None:
        self.context = resolve(process_group=process_group)
        if self.context.group is None:
            raise ValueError("a Dispatcher needs torch.distributed: call init_process_group first")
        self._planner = planner
        self._group = ControlGroup(self.context, timeout_s=timeout_s) if self.context.world_size > 1 else None
        self._number = 0

    def plan(self, lengths: Mapping[str, Tensor]) -> "Handle":
        """Where this step's samples go. lengths: key -> integers [n], the same keys in the same order on every rank.

        The handle serves any number of dispatches and combines. Lengths on CUDA are waited for.

        Raises:
            MismatchError: on all ranks, where keys differ; ValueError where a rank's lengths do among themselves.
            PeerError: a rank died, left, or did not come within `timeout_s`.
        """
        mine = _table(lengths)
        device = next(iter(lengths.values())).device
        counts, everywhere = self._gather(list(lengths), mine)
        home = np.repeat(np.arange(len(counts)), counts)
        number, self._number = self._number, self._number + 1
        statuses = tuple(StatusWord(epoch=0, step=number) for _ in counts)
        batch = GlobalBatch(
            number=number, lengths=dict(zip(lengths, everywhere, strict=True)), home=home, statuses=statuses
        )
        assignment = self._planner(batch)
        return _handle(
            self, number, tuple(lengths), everywhere, counts, np.asarray(assignment.rank), self.context.rank, device,
            (assignment.straggler_before, assignment.straggler_after),
        )  # fmt: skip

    def close(self) -> None:
        """Leave no connection. Idempotent."""
        if self._group is not None:
            self._group.close("closed its Dispatcher")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._group is not None:
            self._group.abort(f"raised {type(error).__name__}: {error}")
        self.close()

    def _gather(self, keys: list[str], mine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64 [W] samples, int64 [K, N] lengths of the global batch, by home rank."""
        if self._group is None:
            return np.array([mine.shape[1]]), mine
        named = zlib.crc32("\0".join(keys).encode())
        words = self._group.all_gather(np.array([_PLAN, self._number, len(keys), named, mine.shape[1]], np.int64))
        if (words[:, :4] != words[0, :4]).any():
            raise MismatchError(
                f"ranks do not plan the same step: on rank {self.context.rank} it is step {self._number} with the keys "
                f"{keys}; [call, step, keys, their checksum] by rank: {words[:, :4].tolist()}"
            )
        counts = words[:, 4]
        padded = np.zeros((len(keys), int(counts.max())), np.int64)
        padded[:, : mine.shape[1]] = mine
        gathered = self._group.all_gather(padded)
        parts = [gathered[rank, :, :count] for rank, count in enumerate(counts)]
        return counts, np.concatenate(parts, axis=1)

    def exchange(self, word: np.ndarray, out: Tensor, mine: Tensor, received: list[int], sent: list[int]) -> None:
        """Items to and from every rank, once all ranks have said the same `word`.

        Sizes that disagree would end the process inside gloo, so ranks that do different things have to be told apart
        before.
        """
        if self._group is None:
            out.copy_(mine)
            return
        words = self._group.all_gather(word)
        if (words != words[0]).any():
            raise MismatchError(f"ranks are at different exchanges: {'; '.join(map(_said, words.tolist()))} (by rank)")
        if out.device.type == "cpu":
            self._group.all_to_all(out, mine, received, sent)
        else:
            dist.all_to_all_single(out, mine, received, sent, group=self.context.group)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Leg:
    """One way: pack, exchange, unpack. sent, received: [W] items."""

    dispatcher: Dispatcher = field(repr=False)
    step: int
    plan: int  # checksum
    call: str
    pack: Ranges
    sent: list[int]
    received: list[int]
    unpack: Ranges

    def run(self, values: Tensor, *, back: bool) -> Tensor:
        with torch.no_grad():
            mine = self.pack.apply(values)
            out = torch.empty((sum(self.received), *values.shape[1:]), dtype=values.dtype, device=values.device)
            word = np.array([_CALLS.index(self.call), self.step, self.plan, back, _width(values)])
            self.dispatcher.exchange(word, out, mine, self.received, self.sent)
            return self.unpack.apply(out)

    @property
    def inverse(self) -> "_Leg":
        return replace(self, pack=self.unpack.inverse, sent=self.received, received=self.sent, unpack=self.pack.inverse)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handle:
    """Where one step's samples are before and after; reusable.

    Attributes:
        keys: K.
        lengths: int64 [K, m], of this rank's samples after balancing, in order of (home rank, row).
        items: [K] sums of these lengths, known without waiting for the device.
        origin: int64 [m, 2], home rank and row of each of them.
        straggler_before, straggler_after: planned share of waiting, if the planner says.
        moved: share of the global batch's items that change rank.
    """

    keys: tuple[str, ...]
    lengths: Tensor
    items: list[int]
    origin: Tensor
    straggler_before: float | None
    straggler_after: float | None
    moved: float
    _values: _Leg = field(repr=False)
    _samples: _Leg = field(repr=False)
    _outputs: _Leg = field(repr=False)

    @property
    def num_samples(self) -> int:
        """m."""
        return self.lengths.shape[1]


def dispatch(values: Tensor, handle: Handle) -> Tensor:
    """[U, ...] the values of this rank's samples after balancing, from [T, ...]; both key-major.

    Differentiable: gradients go home. Raises ValueError for another number of items than was planned, MismatchError
    where ranks are at different exchanges, PeerError where one is gone.
    """
    return _Exchange.apply(values, handle._values)


def dispatch_samples(rows: Tensor, handle: Handle) -> Tensor:
    """[m, ...] from [n, ...]: what belongs to samples as a whole, such as dense features. As `dispatch` otherwise."""
    return _Exchange.apply(rows, handle._samples)


def combine(outputs: Tensor, handle: Handle) -> Tensor:
    """[n, ...] from [m, ...]: one row per sample goes home, to the place of the sample. As `dispatch` otherwise."""
    return _Exchange.apply(outputs, handle._outputs)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, leg: _Leg) -> Tensor:
        ctx.leg = leg
        return leg.run(values, back=False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.leg.inverse.run(gradient, back=True), None


def _handle(
    dispatcher: Dispatcher,
    number: int,
    keys: tuple[str, ...],
    everywhere: np.ndarray,
    counts: np.ndarray,
    rank: np.ndarray,
    me: int,
    device: torch.device,
    stragglers: tuple[float | None, float | None],
) -> Handle:
    """everywhere: int64 [K, N]; counts: int64 [W] samples by home rank; rank: [N] where each goes."""
    world_size = len(counts)
    first = np.cumsum(counts) - counts
    home = np.repeat(np.arange(world_size), counts)
    mine, here = slice(int(first[me]), int(first[me] + counts[me])), np.flatnonzero(rank == me)
    came = home[here]
    before, after, to, of, origin, *ones = _moved_to(
        device,
        [
            everywhere[:, mine],
            everywhere[:, here],
            rank[mine],
            came,
            np.stack([came, here - first[came]], axis=1),
            np.ones((1, counts[me]), np.int64),
            np.ones((1, len(here)), np.int64),
        ],
    )
    digest = zlib.crc32(np.ascontiguousarray(rank, np.int64).tobytes())

    def leg(call: str, items: np.ndarray, lengths: tuple[Tensor, Tensor]) -> _Leg:
        """items: [N] of each sample; lengths: [K, n] and [K, m], on the device."""
        sent, received = _sums(rank[mine], items[mine], world_size), _sums(came, items[here], world_size)
        return _Leg(
            dispatcher=dispatcher,
            step=number,
            plan=digest,
            call=call,
            pack=ranged_dispatch(lengths[0], to, items=sum(sent)),
            sent=sent,
            received=received,
            unpack=ranged_combine(lengths[1], of, items=sum(received)),
        )

    items = everywhere.sum(0)
    samples = leg("dispatch_samples", np.ones_like(items), (ones[0], ones[1]))
    return Handle(
        keys=keys,
        lengths=after,
        items=everywhere[:, here].sum(1).tolist(),
        origin=origin,
        straggler_before=stragglers[0],
        straggler_after=stragglers[1],
        moved=float(items[rank != home].sum() / max(items.sum(), 1)),
        _values=leg("dispatch", items, (before, after)),
        _samples=samples,
        _outputs=replace(samples.inverse, call="combine"),
    )


def _moved_to(device: torch.device, arrays: list[np.ndarray]) -> list[Tensor]:
    """int64 tensors there, by one copy: each of several would wait for the device."""
    flat = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays], dtype=np.int64))
    parts = flat.to(device, non_blocking=True).split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def _width(values: Tensor) -> int:
    """Bytes of an item: ranks that send items of another size may not meet."""
    return values[:0].flatten(1).shape[1] * values.element_size() if values.dim() > 1 else values.element_size()


def _said(word: list[int]) -> str:
    call, step, plan, back, width = word
    return f"{_CALLS[call]}{' backward' * back} of step {step} (plan {plan:08x}, {width} bytes an item)"


def _sums(rank: np.ndarray, items: np.ndarray, world_size: int) -> list[int]:
    """[W] items of the samples of each rank."""
    total = torch.zeros(world_size, dtype=torch.int64)
    return total.index_add_(0, *map(torch.from_numpy, (rank.astype(np.int64), items))).tolist()


def _table(lengths: Mapping[str, Tensor]) -> np.ndarray:
    """int64 [K, n]."""
    if not lengths:
        raise ValueError("lengths is empty: name at least one key")
    shapes = {key: list(given.shape) for key, given in lengths.items()}
    if any(len(shape) != 1 or shape != next(iter(shapes.values())) for shape in shapes.values()):
        raise ValueError(f"lengths must be [n] for every key, with the same n: {shapes}")
    if any(given.is_floating_point() for given in lengths.values()):
        raise TypeError(f"lengths must be integers: { {key: given.dtype for key, given in lengths.items()} }")
    return torch.stack(list(lengths.values())).cpu().numpy().astype(np.int64)


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
    anew. Collective and blocking: see `fsdata.embedding.embedding_balance`.

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
        make_ready(BALANCING)
        compile_kernel(ranges.copy_all)
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
        parts = values.split(handle.items)
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
