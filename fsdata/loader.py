"""The FreeScale DataLoader: Parquet sources in, one rank's share of balanced global batches out.

This file puts the nodes together (`fsdata.nodes`), and `batch.prefetch` runs them ahead of the training loop.
"""

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from types import TracebackType
from typing import Any, Generic, Self

import torch
import torch.distributed as dist
from typing_extensions import TypeVar

from fsdata.batch.batch import Batch
from fsdata.batch.host_memory import HostMemory, PageLockedMemory, PooledMemory
from fsdata.batch.prefetch import STATE_LOADED, IteratorGuard, Prefetcher
from fsdata.compose.stepping import Balancing, balanced_steps, check_balance, followed_steps
from fsdata.errors import PeerError
from fsdata.nodes.batches import Adapted, Batches, BatchWithProgress
from fsdata.nodes.guards import check_group
from fsdata.nodes.loader_options import LoaderOptions, Uneven, can_pin, check_adapt
from fsdata.nodes.local_steps import DROPS, TOKENS, LocalSteps
from fsdata.nodes.node import Node
from fsdata.nodes.rows import Rows
from fsdata.nodes.status_exchange import CLOSED, RESTARTED
from fsdata.nodes.steps import Steps
from fsdata.nodes.units import Units
from fsdata.options import bytes_of, integer
from fsdata.order.mix import Mix
from fsdata.order.progress import Progress, from_state, to_state
from fsdata.schema import Schema
from fsdata.sources import ParquetSource
from fsranks.errors import describe
from fsranks.machine.at_exit import before_pools_end, why_over
from fsranks.machine.cores import cores_of_this_rank

BatchT = TypeVar("BatchT", default=Batch)

_LOG = logging.getLogger("fsdata")
_GRACE_S = 5.0
_CLOSED = "this loader was closed; make a new one"


class FreeScaleDataLoader(Generic[BatchT]):
    """Iterates over batches of Parquet rows, each rank its share, every row once per epoch.

    Each `iter()` is the next epoch, and ends the iterator before it. At every step all ranks deliver `batch_size`
    samples from about the same place of the data; the last global batch is dealt out evenly. With `balance` the
    samples of a global batch are then moved between the ranks so that all have the same work.

    Args:
        sources: one or several `ParquetSource`.
        schema: what a sample is.
        batch_size: samples per rank and step.
        max_tokens: without `balance`: a batch ends before its elements (events of all sequences, candidates, ids of
            nested fields) would be more than this, and has at most `batch_size` samples. Rows that do not fit begin the
            next one. A single sample with more is a ValueError. Ranks then pass different numbers of rows in a step, so
            `uneven` counts. With `balance`, give `Balance(max_tokens=...)`.
        shuffle: permute the order of row groups, and whole rows inside windows of `shuffle_window` row groups; a pure
            function of (seed, epoch).
        seed: of the shuffling.
        balance: a `Balance`: deal every global batch out anew; None keeps samples where they were read. Needs
            torch.distributed.
        mix: how several sources become one order: one after another, interleaved by `ParquetSource(weight=...)`, or
            merged by `Schema(time=...)`. Each source keeps its own order; with `shuffle` the mixed order is shuffled.
        shuffle_window: row groups that are held in memory, twice, to be shuffled together. Or a share of the epoch,
            such as 0.1: then row groups keep their order, and rows of each tenth of them are shuffled together.
        memory: bytes of decoded rows that this rank may hold, a number or a text like "2GB": no row group is decoded
            ahead that has no room in it. The rows that are shuffled together are held in any case. None: no limit but
            `shuffle_window`. Batches, side tables and histories come on top.
        num_threads: decoding threads; None takes the cores of this rank.
        read_ahead: bytes of row groups that are read ahead of decoding, where files are not local: a number, or a text
            like "256MB" (B, kB, MB, GB, KiB, MiB, GiB); per rank. They are read by threads that do nothing else. 0 lets
            the decoding threads read. A row group that is larger is read ahead alone.
        prefetch: batches made ahead; 0 makes them in the calling thread.
        pin_memory: make batches in page-locked memory (CUDA). What `adapt` makes is pinned by the same thread.
        adapt: makes of each `Batch` what the loop gets, in the thread that makes batches ahead, before pinning. Has to
            leave tensors on the CPU, and is no part of the state: a resumed job needs the same one. What is pinned are
            tensors in mappings, lists, tuples and dataclasses, and what has a `pin_memory()` of its own.
        uneven: without `balance`, where rows drop out while reading or `max_tokens` is given: `"drop"` ends the epoch
            on all ranks when the first runs out (the others' rows are counted in `dropped`), `"empty"` gives it batches
            of no samples until all are done.
        drop_last: leave out the last global batch of an epoch if it is not whole; its rows are counted in `dropped`.
        rank: defaults to that in `process_group`, else of torch.distributed, else torchrun's environment, else 0 of 1.
        world_size: in the same way; give both or none.
        process_group: the ranks that share the data, where that is not all of the job (data-parallel beside context- or
            tensor-parallel ranks). A group of gloo's is made from them.
        timeout_s: how long any rank waits for the others, when the loader is made and in every step, before it raises,
            naming the missing ones. A rank may pause the loop (evaluation, checkpoint) while others wait for it: set
            this longer than that.

    Constructing reads footers, compares files and arguments over all ranks, and creates process groups: call it on
    every rank, on the main thread, in the same order. Iterating blocks until the next batch is there.

    Raises:
        ValueError: an argument is out of range.
        SchemaError: the sources cannot be read as the schema; the message lists every mismatch.
        MismatchError: ranks have different files, arguments or versions.
        DataError, CorruptFileError: at the batch concerned, naming file, row group and row.
        What `adapt` raises: at the batch concerned, with a note that names step and rank; PeerError on the other ranks.
        PeerError: another rank failed, left or did not answer, naming it.
        RuntimeError: at the next batch, where another `iter()` took over, a state was loaded or the process was forked
            in between.
    """

    def __init__(
        self,
        sources: ParquetSource | Sequence[ParquetSource],
        schema: Schema,
        *,
        batch_size: int,
        max_tokens: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        balance: Balancing | None = None,
        mix: Mix = "sequential",
        shuffle_window: int | float = 4,
        memory: int | str | None = None,
        num_threads: int | None = None,
        read_ahead: int | str = "256MB",
        prefetch: int = 2,
        pin_memory: bool = False,
        adapt: Callable[[Batch], BatchT] | None = None,
        uneven: Uneven = "drop",
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout_s: float = 300,
    ) -> None:
        self._options = LoaderOptions(
            batch_size=batch_size,
            max_tokens=max_tokens,
            num_threads=cores_of_this_rank() if num_threads is None else num_threads,
            read_ahead=bytes_of(read_ahead, "read_ahead"),
            memory=None if memory is None else bytes_of(memory, "memory"),
            prefetch=prefetch,
            pin=can_pin(pin_memory),
            uneven=uneven,
            drop_last=drop_last,
            timeout_s=timeout_s,
        )
        self._guard = IteratorGuard()
        units = Units(
            sources,
            schema,
            shuffle=shuffle,
            seed=seed,
            mix=mix,
            shuffle_window=shuffle_window,
            num_threads=self._options.num_threads,
            rank=rank,
            world_size=world_size,
            process_group=process_group,
            timeout_s=timeout_s,
            what="FreeScaleDataLoader",
            also=partial(self._also, balance, adapt),
        )
        self._context, self._data, self._job = units.context, units.data, units.job
        if self._needs_peers(units, balance):
            self._guard.bind_process()
        self._memory: HostMemory = PageLockedMemory() if self._options.pin else PooledMemory(units.pool)
        self._rows = Rows(units, num_threads=self._options.num_threads, read_ahead=read_ahead, memory=memory)
        try:
            self._root = self._nodes(balance, adapt)
        except BaseException:
            self._job.close()
            raise
        self._pin = self._options.pin and adapt is not None  # other batches are page-locked as they are made
        self._progress = Progress.start(0, self._context.world_size)
        self._next_epoch = 0
        self._loaded: Progress | None = None
        self._prefetcher: Prefetcher[BatchWithProgress[BatchT]] | None = None
        self._closed = False
        self._warned = False  # of an epoch without a batch
        self._batches = 0
        before_pools_end(self._end_at_exit)

    def _also(self, balance: Balancing | None, adapt: object, units: Units) -> dict[str, str]:
        """What else ranks have to have alike; raises what is wrong with it."""
        check_balance(balance)
        check_adapt(adapt)
        if balance is not None and self._options.max_tokens is not None:
            raise ValueError("max_tokens is for batches without balance: give Balance(max_tokens=...) in its place")
        if self._needs_peers(units, balance):
            tokens = None if self._options.max_tokens is None else TOKENS
            why = "balance" if balance else units.data.meets or tokens or DROPS
            check_group(units.context, why)
        return {**self._options.shared(), "balance": repr(balance)}

    def _needs_peers(self, units: Units, balance: Balancing | None) -> bool:
        """Whether ranks meet in steps."""
        talks = balance is not None or units.data.may_drop or units.data.followed
        talks |= self._options.max_tokens is not None
        return units.context.world_size > 1 and talks

    def _nodes(self, balance: Balancing | None, adapt: Callable[[Batch], BatchT] | None) -> Node[Any]:
        """The way of the data, behind the rows: see `fsdata.nodes`."""
        options, timeout_s = self._options, self._options.timeout_s
        steps = Steps(self._rows, options.batch_size, drop_last=options.drop_last, max_tokens=options.max_tokens)
        dealt: Node[Any]
        if balance is not None and (self._context.world_size > 1 or balance.max_tokens is not None):
            dealt = balanced_steps(steps, balance, timeout_s)
        else:
            dealt = LocalSteps(steps, uneven=options.uneven, timeout_s=timeout_s)
        if self._data.followed:
            loader = weakref.ref(self)  # its thread must not keep a loader that nothing else refers to
            dealt = followed_steps(dealt, timeout_s, lambda: loader() is not None)
        batches = Batches(dealt, memory=self._memory, cost=None if balance is None else balance.cost)
        return batches if adapt is None else Adapted(batches, adapt)

    def __iter__(self) -> Iterator[BatchT]:
        if self._closed:
            raise RuntimeError(_CLOSED)
        turn = self._guard.acquire()
        self._end_epoch()
        loaded, self._loaded = self._loaded, None
        progress = loaded or (
            self._progress
            if self._data.followed
            else Progress.start(self._next_epoch, self._context.world_size, self._progress.tuning)
        )
        self._next_epoch = progress.epoch + 1
        self._progress = progress
        return self._epoch(progress, turn, resumed=loaded is not None)

    @wraps(__init__)  # type: ignore[misc]
    def __new__(cls, *args: Any, **options: Any) -> Self:
        if "num_workers" in options:
            raise TypeError("FreeScaleDataLoader has threads in place of worker processes: give num_threads=")
        return super().__new__(cls)

    def __repr__(self) -> str:
        where = f"rank {self._context.rank} of {self._context.world_size}, batch_size={self._options.batch_size}"
        sources = ", ".join(source.label for source in self._data.sources)
        return f"FreeScaleDataLoader({self._data.rows} rows of {sources}; {where})"

    def __getitem__(self, index: Any) -> Any:
        raise TypeError(
            "iterate over the FreeScaleDataLoader itself: it makes whole batches, ahead of the loop, in threads"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a FreeScaleDataLoader has threads and open files: make one in every process that needs one")

    def __len__(self) -> int:
        """Steps of the next epoch, if no row drops out while reading and `max_tokens` leaves none for the next step.

        Rows that drop out make it fewer; every row left for the next step can make it more. TypeError where a source is
        followed.
        """
        if self._data.followed:
            raise TypeError("a source that is followed has no length: it is not known what will come")
        size, rows = self._context.world_size * self._options.batch_size, self._data.rows_in(self._next_epoch)
        return rows // size if self._options.drop_last else -(-rows // size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, PeerError) and not self._guard.forked:
            self._job.abort(f"lost the others: {error}")  # the others take no next step, in which this rank could leave
        self._close(CLOSED if error is None else f"raised {describe(error)}")

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one. The place within that epoch that a loaded state gave is kept.

        A source that is followed has one epoch only, and every `iter()` goes on where the one before ended.
        """
        epoch = integer("epoch", epoch, 0)
        if self.windows is not None and epoch >= self.windows:
            raise ValueError(f"window {epoch} of time: there are {self.windows}, the first is 0")
        if self._data.followed or (self._loaded is not None and self._loaded.epoch == epoch):
            return
        self._loaded, self._next_epoch = None, epoch
        if self._prefetcher is None:
            self._progress = Progress.start(epoch, self._context.world_size, self._progress.tuning)

    def state_dict(self) -> dict[str, Any]:
        """The job's place right after the batch last yielded; batches made ahead do not count.

        The same small JSON-able dict on every rank; any number of ranks may load any rank's.
        """
        return to_state(self._progress, self._data.fingerprint)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state` at the next `iter()`, bit for bit on the same number of ranks.

        On another number of ranks what is left of the epoch is dealt again: every remaining sample is seen once. Inside
        a loop this ends the loop's iterator: its next batch is a RuntimeError. All ranks load at the same step.

        Raises:
            StateError: of another version, other sources, schema, seed or order; the message lists what differs, and
                the loader stays where it is.
        """
        loaded = from_state(state, self._data.fingerprint, self._data.segment_of).on(self._context.world_size)
        self._end_epoch()
        self._guard.revoke(STATE_LOADED)
        self._progress = self._loaded = loaded
        self._job.forget()

    @property
    def windows(self) -> int | None:
        """How many windows of time there are, each an epoch; None without `anchors(time_window=...)`."""
        bounds = None if self._data.followed else self._data.time_windows
        return None if bounds is None else len(bounds) - 1

    @property
    def share(self) -> float:
        """Share of the data that all ranks have passed, 0 to 1: of all windows of time, else of the epoch."""
        if self._data.followed:
            raise TypeError("a source that is followed has no share: it is not known what will come")
        progress, bounds = self._progress, self._data.time_windows
        passed = sum(map(sum, (*progress.history, progress.positions)))
        if bounds is not None:
            passed += int(bounds[min(progress.epoch, len(bounds) - 1)])
        return passed / self._data.rows if self._data.rows else 1.0

    def report_step(self, compute_seconds: float) -> None:
        """Say how long this rank computed on the batch last yielded, *without* waiting for other ranks.

        `Balance(autotune=True)` and `Balance(method="auto")` learn from it; it reaches the other ranks with the next
        step made ahead. Any other loader ignores it.
        """
        if not 0 <= compute_seconds < float("inf"):
            raise ValueError(f"compute_seconds must be a time of at least 0, got {compute_seconds!r}")
        if self._prefetcher is not None:
            self._job.report(compute_seconds, self._progress)

    @property
    def skipped(self) -> list[Any]:
        """Files and row groups that `on_error="skip"` passed over on this rank, with the reason."""
        return [entry for source in self._data.sources for entry in source.skipped]

    def describe(self) -> list[dict[str, Any]]:
        """What each source is: files, `pruned_files` that `filter` needs nothing of, row groups, rows, bytes of the
        files, schemas, what was skipped so far, and seconds that opening it took, by phase. JSON-able."""
        return [source.describe() for source in self._data.sources]

    def stats(self) -> dict[str, Any]:
        """What this rank has done since the loader was made, for logs: `batches` handed out, batches that are `waiting`
        now, `dropped`, `retries`, `skipped`, what was read from files that are not local, and `seconds` by what they
        went into (see `fsdata.nodes.timing.Timing`). JSON-able, cheap, from any thread.

        `decoded_peak_bytes` is the most that rows took which were decoded and not yet in a batch.
        `remote` has the `bytes` of row groups that were read, `unplanned_reads` of bytes that a decoder asked for and
        that were not read before it (0 is normal), and `read_ahead_peak_bytes`, the most that read-ahead held.

        Batches are made ahead: where `wait` does not grow, loading costs the loop nothing. Where it does, the largest
        of the others says what is too slow; `decode` counts all decoding threads together.
        """
        prefetcher = self._prefetcher  # another thread may end it
        reads = [source.remote_reads for source in self._data.sources]
        return {
            "batches": self._batches,
            "waiting": 0 if prefetcher is None else prefetcher.waiting,
            "dropped": self.dropped,
            "retries": self.retries,
            "skipped": len(self.skipped),
            "decoded_peak_bytes": self._rows.most_bytes,
            "remote": {
                "bytes": sum(size for size, _ in reads),
                "unplanned_reads": sum(count for _, count in reads),
                "read_ahead_peak_bytes": self._rows.read_ahead.peak if self._rows.read_ahead else 0,
            },
            "seconds": {name: round(spent, 6) for name, spent in self._data.timing.seconds().items()},
        }

    @property
    def dropped(self) -> int:
        """Rows of this rank that `uneven="drop"` (as counted by the footers) and `drop_last` left out at the ends of
        epochs."""
        return self._job.dropped

    @property
    def retries(self) -> int:
        """Reads repeated on this rank after transient errors of a remote filesystem."""
        return sum(source.retries for source in self._data.sources)

    def close(self) -> None:
        """End threads and process groups. Twice is fine; the loader is of no use afterwards.

        A loader that is not closed is closed when Python ends.
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
            return  # threads, files and connections are those of the other process
        for source in self._data.sources:
            source.end_retries()
        self._end_epoch(why, _GRACE_S)
        self._job.close(why)

    def _epoch(self, progress: Progress, turn: object, *, resumed: bool) -> Iterator[BatchT]:
        """The rest of an epoch; where a state was saved at an epoch's end, the next one."""
        if self._closed:
            raise RuntimeError(_CLOSED)
        yielded = False
        self._guard.check(turn)
        self._guard.bind_process()
        if self._options.pin:
            self._memory.tensor(1, torch.uint8)  # in this thread, so that CUDA starts on its device and on no other
        self._job.begin(progress)
        self._prefetcher = prefetcher = Prefetcher(
            partial(next_of, self._root), depth=self._options.prefetch, pin=self._pin
        )
        while (made := self._next(prefetcher)) is not None:
            self._progress = made.progress
            yielded = True
            yield made.batch
            self._guard.check(turn)  # else batches made ahead would follow, and move the place
        self._guard.check(turn)
        if self._prefetcher is not prefetcher:
            return  # closed
        self._end_epoch()
        if self._data.followed:
            return
        windows = self.windows
        may_be_empty = windows is not None and progress.epoch < windows and self._data.rows  # a window without rows
        self._progress = Progress.start(self._next_epoch, self._context.world_size, self._progress.tuning)
        if resumed and not yielded:
            yield from iter(self)
        elif not yielded and not self._warned and not may_be_empty:
            self._warned = True
            why = self._why_none()
            _LOG.warning("rank %d got no batch in epoch %d: %s", self._context.rank, progress.epoch, why)

    def _why_none(self) -> str:
        rows, ranks, size = self._data.rows, self._context.world_size, self._options.batch_size
        if not rows:
            return (
                "the sources have no rows. Look at their paths, at `filter`, `skip` and `limit`, and at `where` and "
                "`min_history` of `anchors`"
            )
        if self.windows is not None:
            return (
                f"there are {self.windows} windows of time, each an epoch, and all epochs behind window "
                f"{self.windows - 1} are empty. End the loop over epochs there (`loader.windows`), or go back with "
                "set_epoch"
            )
        if self._options.drop_last and rows < ranks * size:
            return f"drop_last leaves out all {rows} rows, as {ranks} ranks x batch_size {size} are {ranks * size}"
        if self.dropped:
            return f"{self.dropped} of its rows were left out, by drop_last or uneven='drop'; see `dropped`"
        return (
            f"of {rows} rows in the files, all of this rank dropped out as they were read: `filter`, `nulls`, `missing`"
        )

    def _next(self, prefetcher: Prefetcher[BatchWithProgress[BatchT]]) -> BatchWithProgress[BatchT] | None:
        with self._data.timing.of("wait"):
            made = prefetcher.take()
        self._batches += made is not None
        return made

    def _end_epoch(self, why: str = RESTARTED, grace_s: float | None = None) -> None:
        """End the threads of the epoch under way, if there is one, and tell the other ranks why.

        Waits for ranks that are still busy with a step, but after `grace_s` breaks the exchange: good for closing only.
        """
        self._guard.check_process()
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is None:
            return
        self._job.stop()  # so that the step in hand waits for no further data
        prefetcher.end(grace_s, lambda: self._job.abort(why))
        self._job.end()  # the thread that makes steps is through
        self._job.leave(why, grace_s)  # and no other thread uses the exchange


def next_of(root: Node[Any]) -> BatchWithProgress[Any] | None:
    """The next batch, None at the end of the epoch."""
    try:
        batch = root.next()
    except StopIteration:
        return None
    return BatchWithProgress(batch, root.place())
