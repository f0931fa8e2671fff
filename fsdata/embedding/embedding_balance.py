"""Balances the stage after the embeddings: looked-up rows move to other ranks, outputs return to their home rank.

    with Dispatcher(planner) as dispatcher:
        handle = dispatcher.plan({"uih": lengths})      # one exchange of lengths, then every rank computes the plan
        values = dispatch(values, handle)               # of this rank's samples after balancing
        outputs = combine(model(values), handle)        # one row per sample on its home rank, in the original order

Backward mirrors this: gradients of outputs go to the rank that computed the outputs, gradients of values return to the
home rank. Labels and losses do not move. The exchanges sum nothing, so the outputs of a model that computes every
sample independently are bitwise identical to those without balancing (paper, section 1: dispatch and combine).

Every call is collective and blocks; all ranks make the same calls in the same order, backward passes included. A rank
without samples takes part, too.

`EmbeddingBalance` makes these calls for a model, by hooks.

Letters: K keys, N samples of all ranks, n samples of this rank before, m after, W ranks, T items before, U after.
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
from fsdata.balance.step_plan import Assignment, GlobalBatch, Planner
from fsdata.embedding.kernels.jagged_ops import Ranges, ranged_combine, ranged_dispatch
from fsdata.errors import MismatchError
from fsdata.kernels import ranges
from fsdata.kernels.warm import make_ready
from fsdata.order.status_word import StatusWord
from fsranks.control_group import ControlGroup
from fsranks.libraries import compile_kernel
from fsranks.rank_context import resolve

_CALLS = ("dispatch", "dispatch_samples", "combine", "plan")  # codes of the words that ranks compare
_PLAN = _CALLS.index("plan")


class Dispatcher:
    """Plans steps and moves values over its own gloo group. The constructor is collective.

    planner: as for a loader; the same function on every rank. Values on CUDA are sent over `process_group` (default:
    the default group, which needs a backend for CUDA); control words always over gloo.

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
        """The destinations of this step's samples, for any number of dispatches and combines. Lengths on CUDA are
        copied to the host, which synchronises.

        lengths: key -> integers [n], the same keys in the same order on every rank.

        Raises:
            MismatchError: on all ranks, if keys differ between ranks.
            ValueError: lengths of one rank have different shapes.
            PeerError: a rank died, left, or did not make the call within `timeout_s`.
        """
        counts, all_lengths = self._gather(list(lengths), _length_table(lengths))
        number, self._number = self._number, self._number + 1
        batch = GlobalBatch(
            number=number,
            lengths=dict(zip(lengths, all_lengths, strict=True)),
            home=np.repeat(np.arange(len(counts)), counts),
            statuses=tuple(StatusWord(epoch=0, step=number) for _ in counts),
        )
        return self._handle(batch, self._planner(batch), counts, next(iter(lengths.values())).device)

    def _handle(self, batch: GlobalBatch, assignment: Assignment, counts: np.ndarray, device: torch.device) -> "Handle":
        """counts: int64 [W], samples by home rank; device: of the lengths, and so of the values that will move."""
        # Every rank has the lengths and the ranks of all samples, so sizes of the exchanges need no communication.
        rank, all_lengths = np.asarray(assignment.rank), np.stack(list(batch.lengths.values()))
        me, first = self.context.rank, np.cumsum(counts) - counts
        mine, received = slice(int(first[me]), int(first[me] + counts[me])), np.flatnonzero(rank == me)
        sender = batch.home[received]
        before, after, destinations, senders, origin, ones_before, ones_after = _to_device(
            device,
            [
                all_lengths[:, mine],
                all_lengths[:, received],
                rank[mine],
                sender,
                np.stack([sender, received - first[sender]], axis=1),
                np.ones((1, counts[me]), np.int64),
                np.ones((1, len(received)), np.int64),
            ],
        )
        checksum = zlib.crc32(np.ascontiguousarray(rank, np.int64).tobytes())

        def leg(call: str, items: np.ndarray, before: Tensor, after: Tensor) -> _Leg:
            """items: [N] of each sample; before, after: lengths [K, n] and [K, m], on the device."""
            sent, incoming = (
                _items_by_rank(ranks, items[samples], len(counts))
                for ranks, samples in ((rank[mine], mine), (sender, received))
            )
            return _Leg(
                dispatcher=self,
                step=batch.number,
                plan=checksum,
                call=call,
                pack=ranged_dispatch(before, destinations, items=sum(sent)),
                sent=sent,
                received=incoming,
                unpack=ranged_combine(after, senders, items=sum(incoming)),
            )

        items = all_lengths.sum(0)
        samples = leg("dispatch_samples", np.ones_like(items), ones_before, ones_after)
        return Handle(
            keys=tuple(batch.lengths),
            lengths=after,
            items=all_lengths[:, received].sum(1).tolist(),
            origin=origin,
            straggler_before=assignment.straggler_before,
            straggler_after=assignment.straggler_after,
            moved=float(items[rank != batch.home].sum() / max(items.sum(), 1)),
            _values=leg("dispatch", items, before, after),
            _samples=samples,
            # Outputs take the reverse way of rows per sample, whatever the lengths of the samples.
            _outputs=replace(samples.inverse, call="combine"),
        )

    def close(self) -> None:
        """Close all connections. Idempotent."""
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
        names = zlib.crc32("\0".join(keys).encode())
        # Two exchanges: the second one needs equal sizes on all ranks, which the first one provides and checks.
        words = self._group.all_gather(np.array([_PLAN, self._number, len(keys), names, mine.shape[1]], np.int64))
        if (words[:, :4] != words[0, :4]).any():
            raise MismatchError(
                f"ranks do not plan the same step: on rank {self.context.rank} it is step {self._number} with the keys "
                f"{keys}; [call, step, number of keys, checksum of keys] by rank: {words[:, :4].tolist()}"
            )
        counts = words[:, 4]
        padded = np.zeros((len(keys), int(counts.max())), np.int64)
        padded[:, : mine.shape[1]] = mine
        gathered = self._group.all_gather(padded)
        parts = [gathered[rank, :, :count] for rank, count in enumerate(counts)]
        return counts, np.concatenate(parts, axis=1)

    def exchange(self, word: np.ndarray, out: Tensor, mine: Tensor, received: list[int], sent: list[int]) -> None:
        """All-to-all of items, after all ranks have sent the same control `word`.

        The word is compared first, because sizes that disagree between ranks end the process inside gloo.
        """
        if self._group is None:
            out.copy_(mine)
            return
        words = self._group.all_gather(word)
        if (words != words[0]).any():
            calls = "; ".join(map(_describe, words.tolist()))
            raise MismatchError(f"ranks are at different exchanges: {calls} (by rank)")
        if out.device.type == "cpu":
            self._group.all_to_all(out, mine, received, sent)
        else:
            dist.all_to_all_single(out, mine, received, sent, group=self.context.group)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Leg:
    """One direction of a move: pack, exchange, unpack. sent, received: [W] items."""

    dispatcher: Dispatcher = field(repr=False)
    step: int
    plan: int  # checksum of the ranks of all samples
    call: str
    pack: Ranges
    sent: list[int]
    received: list[int]
    unpack: Ranges

    def run(self, values: Tensor, *, back: bool) -> Tensor:
        with torch.no_grad():  # `_Exchange` defines the backward
            mine = self.pack.apply(values)
            out = torch.empty((sum(self.received), *values.shape[1:]), dtype=values.dtype, device=values.device)
            word = np.array([_CALLS.index(self.call), self.step, self.plan, back, _item_bytes(values)])
            self.dispatcher.exchange(word, out, mine, self.received, self.sent)
            return self.unpack.apply(out)

    @property
    def inverse(self) -> "_Leg":
        return replace(self, pack=self.unpack.inverse, sent=self.received, received=self.sent, unpack=self.pack.inverse)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handle:
    """The placement of one step's samples before and after balancing; reusable.

    Attributes:
        keys: [K].
        lengths: int64 [K, m], of this rank's samples after balancing, in order of (home rank, row).
        items: [K] sums of these lengths, on the host.
        origin: int64 [m, 2], home rank and row of each of these samples.
        straggler_before, straggler_after: planned share of waiting, None if the planner does not compute it.
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

    Differentiable: gradients return to the home rank. Raises ValueError for another number of items than was planned,
    MismatchError if ranks are at different exchanges, PeerError if a rank is lost.
    """
    return _Exchange.apply(values, handle._values)


def dispatch_samples(rows: Tensor, handle: Handle) -> Tensor:
    """[m, ...] from [n, ...]: one row per sample, such as dense features. Otherwise as `dispatch`."""
    return _Exchange.apply(rows, handle._samples)


def combine(outputs: Tensor, handle: Handle) -> Tensor:
    """[n, ...] from [m, ...]: returns one row per sample to its home rank and row. Otherwise as `dispatch`."""
    return _Exchange.apply(outputs, handle._outputs)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, leg: _Leg) -> Tensor:
        ctx.leg = leg
        return leg.run(values, back=False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        # Collective: autograd runs it in the same order on every rank only if their graphs are equal. The control word
        # of the exchange detects ranks that differ.
        return ctx.leg.inverse.run(gradient, back=True), None


def _to_device(device: torch.device, arrays: list[np.ndarray]) -> list[Tensor]:
    """int64 tensors on the device, by a single copy: each copy from pageable memory waits for the device."""
    flat = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays], dtype=np.int64))
    tensors = flat.to(device, non_blocking=True).split([array.size for array in arrays])
    return [tensor.view(array.shape) for tensor, array in zip(tensors, arrays, strict=True)]


def _item_bytes(values: Tensor) -> int:
    """Part of the control word, so that ranks with items of different sizes do not start an exchange."""
    return values[:0].flatten(1).shape[1] * values.element_size() if values.dim() > 1 else values.element_size()


def _describe(word: list[int]) -> str:
    call, step, plan, back, item_bytes = word
    return f"{_CALLS[call]}{' backward' * back} of step {step} (plan {plan:08x}, {item_bytes} bytes an item)"


def _items_by_rank(rank: np.ndarray, items: np.ndarray, world_size: int) -> list[int]:
    """[W] items of the samples of each rank."""
    # Not numpy.bincount: it adds weights in float64.
    total = torch.zeros(world_size, dtype=torch.int64)
    return total.index_add_(0, *map(torch.from_numpy, (rank.astype(np.int64), items))).tolist()


def _length_table(lengths: Mapping[str, Tensor]) -> np.ndarray:
    """int64 [K, n]."""
    if not lengths:
        raise ValueError("lengths is empty: name at least one key")
    shapes = {key: list(tensor.shape) for key, tensor in lengths.items()}
    if any(len(shape) != 1 or shape != next(iter(shapes.values())) for shape in shapes.values()):
        raise ValueError(f"lengths must be [n] for every key, with the same n: {shapes}")
    if any(tensor.is_floating_point() for tensor in lengths.values()):
        raise TypeError(f"lengths must be integers: { {key: tensor.dtype for key, tensor in lengths.items()} }")
    return torch.stack(list(lengths.values())).cpu().numpy().astype(np.int64)


class EmbeddingBalance:
    """Balances the dense part of a model: moves its inputs after the lookup, and returns its outputs to the home ranks.

        with EmbeddingBalance(model.embeddings, model.dense) as balanced:
            for batch in loader:
                rows = model.embeddings(batch.features)         # of this rank's samples after balancing
                logits = model.dense(rows, balanced.move(batch.dense))   # of the samples of `batch`
                loss = criterion(logits, batch.labels)          # labels and loss do not move

    embedding: a module whose output, or the result of its awaitable, is a dict of JaggedTensors, such as a sharded
    EmbeddingCollection. dense: a module that computes every sample independently and whose output is a tensor [m, ...]
    with one row per sample, or a tuple or dict of such. The hooks are removed at the end of the block; every forward of
    `embedding` makes a new plan. Collective and blocking: see `fsdata.embedding.embedding_balance`.

    process_group: the ranks that share a global batch; default all. timeout_s: how long a rank waits for another.

    Raises ValueError without torch.distributed, and for a Balance with autotune or method="auto", which need the
    compute times that a loader measures.
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
                'autotune=True and method="auto" need the compute times that a loader measures: EmbeddingBalance does '
                "not support them"
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
        """The plan of the last forward of `embedding`."""

    def __enter__(self) -> Self:
        embedding, dense = self._modules
        self._hooks = [
            embedding.register_forward_hook(self._dispatch_embeddings),
            dense.register_forward_hook(self._combine_outputs),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._dispatcher.__exit__(kind, error, trace)

    def move(self, rows: torch.Tensor) -> torch.Tensor:
        """[m, ...] from [n, ...]: other inputs of the dense module, one row per sample. After the embeddings' forward.

        Raises RuntimeError before the first one.
        """
        return dispatch_samples(rows, self._current_plan())

    def _dispatch_embeddings(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        embeddings = output.wait() if hasattr(output, "wait") else output
        if not isinstance(embeddings, dict) or not all(hasattr(jagged, "lengths") for jagged in embeddings.values()):
            raise TypeError(
                f"{type(module).__name__} returned a {type(embeddings).__name__}: EmbeddingBalance moves dicts of "
                "JaggedTensors"
            )
        self.handle = handle = self._dispatcher.plan({key: jagged.lengths() for key, jagged in embeddings.items()})
        # All keys in one exchange: the concatenation is key-major, as `dispatch` needs it.
        values = dispatch(torch.cat([jagged.values() for jagged in embeddings.values()]), handle)
        return {
            key: type(jagged)(values=own, lengths=lengths)
            for (key, jagged), own, lengths in zip(
                embeddings.items(), values.split(handle.items), handle.lengths, strict=True
            )
        }

    def _combine_outputs(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        handle = self._current_plan()
        if isinstance(output, dict):
            return {name: combine(tensor, handle) for name, tensor in output.items()}
        if isinstance(output, tuple):
            return tuple(combine(tensor, handle) for tensor in output)
        return combine(output, handle)

    def _current_plan(self) -> Handle:
        if self.handle is None:
            raise RuntimeError("there is no plan yet: run the forward of the embedding module first")
        return self.handle
