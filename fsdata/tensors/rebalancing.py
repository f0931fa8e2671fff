"""Balancing around any loader: the same step as the FreeScale DataLoader's, for batches of the user's own type.

This file runs the loader ahead in a thread and keeps what belongs to the batch last yielded; `tensor_tree` takes
batches apart and builds them, `exchange` moves the samples.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch.distributed as dist

from fsdata.balance.options import Balance
from fsdata.batch.prefetch import STATE_LOADED, IteratorGuard, Prefetcher
from fsdata.errors import PeerError
from fsdata.nodes.status_exchange import CLOSED, RESTARTED
from fsdata.order.progress import Progress
from fsdata.tensors.balanced_tensors import BalancedTensors
from fsdata.tensors.parts import Last, Lengths, TensorParts, copy_of_state
from fsranks.errors import describe
from fsranks.machine.at_exit import before_pools_end, why_over
from fsranks.rank_context import RankContext, resolve

BatchT = TypeVar("BatchT")

_DEPTH = 2
_GRACE_S = 5.0


def rebalance(
    loader: Iterable[BatchT],
    *,
    lengths: Lengths,
    balance: Balance | None = None,
    replicate: Collection[str] = (),
    process_group: dist.ProcessGroup | None = None,
    timeout_s: float = 300.0,
) -> "Rebalanced[BatchT]":
    """Wrap any loader so that the samples of every global batch are dealt out evenly by cost.

    Batches are dataclasses, NamedTuples, dicts, tuples or lists, nested, of CPU tensors, KeyedJaggedTensors and
    `Jagged` whose first dimension is the samples, and of lists, tuples and numpy arrays of objects with one entry per
    sample (str, bytes, int, float, bool, None), such as ids. What is yielded has the same type and structure. The
    loader is iterated in a background thread, two batches ahead, each `iter()` anew; ranks whose loader ends early get
    their share of the others' samples until all have ended.

    Args:
        loader: this rank's, already sharded over the ranks.
        lengths: what a sample costs: `batch -> int64 [B]` (seen by the cost model as the sequence "length"),
            `batch -> {sequence: int64 [B]}`, the path of a jagged part ("features.item_id" for key `item_id` of the
            KeyedJaggedTensor `features`), or {sequence: path}.
        balance: default `Balance()`.
        replicate: paths of parts that are the same for all samples; every rank keeps its own value. What differs by
            sample is no such part: it moves with its samples.
        process_group: the ranks that share a global batch; default all. A group of gloo's is made from them.
        timeout_s: how long a rank waits for another, here and in one step. Longer than any pause of a single rank.

    With one rank, batches pass through unchanged. Constructing it is collective: every rank, main thread, same order.

    Raises:
        DataError: (at the batch concerned) a part that cannot be split by sample, naming its path.
        MismatchError: ranks with other arguments or batches of another structure.
        PeerError: another rank failed, left or did not answer, naming it.
        RuntimeError: at the next batch, where another `iter()` took over, a state was loaded or the process was forked
            in between.
    """
    context = resolve(process_group=process_group)
    return Rebalanced(loader, context, lengths=lengths, balance=balance, replicate=replicate, timeout_s=timeout_s)


class Rebalanced(Generic[BatchT]):
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
        self._job = self._parts.job
        self._balanced: BalancedTensors | None = None
        if context.world_size > 1:
            if context.group is None:
                raise ValueError(
                    f"this is rank {context.rank} of {context.world_size}, but torch.distributed is not initialized: "
                    "call torch.distributed.init_process_group() first"
                )
            self._balanced = BalancedTensors(self._parts, balance, timeout_s=timeout_s)
        self._prefetcher: Prefetcher[Any] | None = None
        self._made: tuple[Last, tuple[Any, ...], Progress] | None = None
        self._closed = False
        self._guard = IteratorGuard()
        if self._balanced is not None:
            self._guard.bind_process()
        before_pools_end(self._end_at_exit)

    def __iter__(self) -> Iterator[BatchT]:
        if self._closed:
            raise ValueError("this rebalance(...) is closed: make a new one")
        turn = self._guard.acquire()
        self._end_epoch()
        self._guard.bind_process()
        self._job.reset(None)
        self._prefetcher = Prefetcher(_maker(self._parts, self._balanced), depth=_DEPTH, pin=False)
        return self._batches(self._prefetcher, turn)

    def _batches(self, prefetcher: Prefetcher[Any], turn: object) -> Iterator[BatchT]:
        self._guard.check(turn)
        while (made := prefetcher.take()) is not None:
            batch, *self._made = made
            yield batch
            self._guard.check(turn)  # else batches made ahead would follow, and move the place
        self._guard.check(turn)
        if self._prefetcher is prefetcher:
            self._end_epoch()

    def __len__(self) -> int:
        """Batches of this rank's own loader; the ranks take as many steps as the longest of them has batches."""
        return len(self._loader)  # type: ignore[arg-type]

    @property
    def last(self) -> Last:
        """Of the batch last yielded."""
        if self._made is None:
            raise ValueError("no batch was yielded yet")
        return self._made[0]

    @property
    def state_dict(self) -> Callable[[], Any]:
        """`state_dict()` gives the wrapped loader's own state as of the batch last yielded: batches made ahead do not
        count. AttributeError where that loader has none."""
        ask = self._of_loader("state_dict")
        taken = () if self._made is None else self._made[1]
        return partial(copy_of_state, *taken) if taken else ask

    @property
    def load_state_dict(self) -> Callable[[Any], None]:
        """`load_state_dict(state)` hands `state` to the wrapped loader, for the next `iter()`. A running iterator ends
        with a RuntimeError. AttributeError where that loader takes no state."""
        load = self._of_loader("load_state_dict")

        def load_state_dict(state: Any) -> None:
            self._end_epoch()
            self._guard.revoke(STATE_LOADED)
            load(state)
            self._made = None

        return load_state_dict

    def _of_loader(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] | None = getattr(self._loader, name, None)
        if method is None:
            raise AttributeError(
                f"the {type(self._loader).__name__} in this rebalance(...) has no {name}(): there is no place to go on "
                "from. Wrap a loader with state_dict() and load_state_dict()"
            )
        return method

    def report_step(self, compute_seconds: float) -> None:
        """How long this rank computed on the batch last yielded, without waiting for others.

        For `Balance(autotune=True)` and `Balance(method="auto")`.
        """
        if self._made is not None:
            self._job.report(compute_seconds, self._made[2])

    def close(self) -> None:
        """End the thread and the group. Twice is fine. The wrapped loader stays the caller's.

        What nobody closes is closed when Python ends.
        """
        self._close(CLOSED)

    def _end_at_exit(self) -> None:
        self._close(why_over())

    def _close(self, why: str) -> None:
        """why: what this rank did, for the others."""
        if self._closed:
            return
        self._closed = True
        if self._guard.forked:
            return  # the thread and the connections are those of the other process
        self._end_epoch(why, _GRACE_S)
        self._job.close(why)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, PeerError) and not self._guard.forked:
            self._job.abort(f"lost the others: {error}")  # the others take no next step, in which this rank could leave
        self._close(CLOSED if error is None else f"raised {describe(error)}")

    def _end_epoch(self, why: str = RESTARTED, grace_s: float | None = None) -> None:
        """End the thread of the epoch under way and tell the others why; wait for them at most `grace_s`."""
        self._guard.check_process()
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is None:
            return
        prefetcher.end(grace_s, lambda: self._job.abort(why))
        self._job.leave(why, grace_s)


def _maker(parts: TensorParts, balanced: BalancedTensors | None) -> Callable[[], Any]:
    """What makes the next (batch, what is known of it, state of the loader after it, place), or None at the end."""

    def make() -> Any:
        try:
            batch = parts.alone() if balanced is None else balanced.next()
        except StopIteration:
            return None
        return batch, parts.last, parts.state, parts.place()

    return make
