"""Balancing around any loader: the same steps as in `FreeScaleDataLoader`, for batches of the user's own type.

This file runs the loader ahead in a thread and stores the state that belongs to the last yielded batch; `tensor_tree`
splits and builds batches, `exchange` moves the samples.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

import torch.distributed as dist

from fsdata.balance.options import Balance
from fsdata.batch.prefetch import STATE_LOADED, Prefetcher
from fsdata.nodes.prefetching_loader import PrefetchingLoader
from fsdata.order.progress import Progress
from fsdata.tensors.balanced_tensors import BalancedTensors
from fsdata.tensors.parts import Last, Lengths, TensorParts, copy_of_state
from fsranks.rank_context import RankContext, resolve

BatchT = TypeVar("BatchT")

_DEPTH = 2


def rebalance(
    loader: Iterable[BatchT],
    *,
    lengths: Lengths,
    balance: Balance | None = None,
    replicate: Collection[str] = (),
    process_group: dist.ProcessGroup | None = None,
    timeout_s: float = 300.0,
) -> "Rebalanced[BatchT]":
    """Wrap any loader so that the samples of every global batch are distributed over the ranks by cost.

    Batches are dataclasses, NamedTuples, dicts, tuples or lists, nested, of CPU tensors, KeyedJaggedTensors and
    `Jagged` whose first dimension is the samples, and of lists, tuples and numpy arrays of objects with one entry per
    sample (str, bytes, int, float, bool, None), such as ids. Yielded batches have the same type and structure. A
    background thread iterates over the loader, two batches ahead; each `iter()` begins a new iterator of it. Ranks
    whose loader ends early receive their share of the others' samples until all loaders have ended.

    Args:
        loader: the loader of this rank, already sharded over the ranks.
        lengths: the lengths of the samples, from which the cost model computes their cost: `batch -> int64 [B]` (seen
            by the cost model as the sequence "length"), `batch -> {sequence: int64 [B]}`, the path of a jagged part
            ("features.item_id" for key `item_id` of the KeyedJaggedTensor `features`), or {sequence: path}.
        balance: default `Balance()`.
        replicate: paths of parts that are the same for all samples; every rank keeps its own value. Do not list values
            that differ between samples: they have to move with their samples.
        process_group: the ranks that share a global batch; default all. A gloo group is created for them.
        timeout_s: how long a rank waits for another, here and in one step. Longer than any pause of a single rank.

    With one rank, batches pass through unchanged. The call is collective: on every rank, on the main thread, in the
    same order.

    Raises:
        DataError: (at the batch concerned) a part that cannot be split by sample, naming its path.
        MismatchError: arguments or structures of batches differ between ranks.
        PeerError: another rank failed, left or did not answer, naming it.
        RuntimeError: at the next batch, where another `iter()` took over, a state was loaded or the process was forked
            in between.
    """
    context = resolve(process_group=process_group)
    return Rebalanced(loader, context, lengths=lengths, balance=balance, replicate=replicate, timeout_s=timeout_s)


class Rebalanced(PrefetchingLoader, Generic[BatchT]):
    """The loader that `rebalance` returns. Close it, or use it in `with`."""

    def __init__(
        self,
        loader: Iterable[BatchT],
        context: RankContext,
        *,
        lengths: Lengths,
        balance: Balance | None,
        replicate: Collection[str],
        timeout_s: float,
    ) -> None:
        balance = Balance() if balance is None else balance
        self._loader = loader
        self._parts = TensorParts(loader, lengths, replicate, context, balance, timeout_s)
        self._balanced: BalancedTensors | None = None
        if context.world_size > 1:
            self._balanced = BalancedTensors(self._parts, balance, timeout_s=timeout_s)
        self._yielded: tuple[Last, tuple[Any, ...], Progress] | None = None  # see `_next_of`, of the last yielded batch
        super().__init__(self._parts.job, self._parts.timing)

    def __iter__(self) -> Iterator[BatchT]:
        if self._closed:
            raise ValueError("this rebalance(...) is closed: make a new one")
        turn = self._guard.acquire()
        self._end_epoch()
        self._guard.bind_process()
        self._job.reset(None)
        next_batch = partial(_next_of, self._parts, self._balanced)
        self._prefetcher = Prefetcher(next_batch, depth=_DEPTH, pin=False)
        return self._batches(self._items(self._prefetcher, turn))

    def _batches(self, items: Iterator[Any]) -> Iterator[BatchT]:
        for batch, *self._yielded in items:
            yield batch

    def __len__(self) -> int:
        """Batches of this rank's own loader; all ranks take as many steps as the longest loader has batches."""
        return len(self._loader)  # type: ignore[arg-type]

    @property
    def last(self) -> Last:
        """Describes the last yielded batch."""
        if self._yielded is None:
            raise ValueError("no batch was yielded yet")
        return self._yielded[0]

    @property
    def state_dict(self) -> Callable[[], Any]:
        """`state_dict()` returns the state of the wrapped loader after the last yielded batch; prefetched batches do
        not count. AttributeError if that loader has no state."""
        # A property, so that hasattr(...) is True only if it is True for the wrapped loader.
        state_now = self._loader_method("state_dict")
        saved = () if self._yielded is None else self._yielded[1]
        return partial(copy_of_state, *saved) if saved else state_now

    @property
    def load_state_dict(self) -> Callable[..., None]:
        """`load_state_dict(state)` passes `state` to the wrapped loader, for the next `iter()`, and `changed=` if it is
        given. A running iterator ends with a RuntimeError. AttributeError if that loader loads no state."""
        load = self._loader_method("load_state_dict")

        def load_state_dict(state: Any, *, changed: str | Collection[str] = ()) -> None:
            self._end_epoch()
            self._guard.revoke(STATE_LOADED)
            load(state, **({"changed": changed} if changed else {}))
            self._yielded = None

        return load_state_dict

    def _loader_method(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] | None = getattr(self._loader, name, None)
        if method is None:
            raise AttributeError(
                f"the {type(self._loader).__name__} in this rebalance(...) has no {name}(): it cannot resume. "
                "Wrap a loader with state_dict() and load_state_dict()"
            )
        return method

    def report_step(self, compute_seconds: float) -> None:
        """Report how long this rank computed on the last yielded batch, *without* waiting for other ranks.

        For `Balance(autotune=True)` and `Balance(method="auto")`.
        """
        if self._yielded is not None:
            self._job.report(compute_seconds, self._yielded[2])


def _next_of(parts: TensorParts, balanced: BalancedTensors | None) -> Any:
    """The next (batch, `Last` of it, state of the loader after it, position), or None at the end."""
    try:
        batch = parts.local_batch() if balanced is None else balanced.next()
    except StopIteration:
        return None
    return batch, parts.last, parts.state, parts.place()
