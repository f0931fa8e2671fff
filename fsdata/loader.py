"""The FreeScale DataLoader: yields one rank's share of the global batches of Parquet sources.

This file composes the nodes (`fsdata.nodes`) and decides which epoch and position comes next; its base class runs them
ahead of the training loop.
"""

import logging
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial, wraps
from itertools import islice
from typing import Any, Generic, Self

import torch.distributed as dist
from typing_extensions import TypeVar

from fsdata.batch.batch import Batch
from fsdata.batch.prefetch import STATE_LOADED, Prefetcher
from fsdata.compose.stepping import Balancing, balanced_steps, check_balance, followed_steps
from fsdata.nodes.batches import Adapted, Batches, BatchWithProgress
from fsdata.nodes.loader_options import LoaderOptions, Uneven, can_pin, check_adapt
from fsdata.nodes.local_steps import LocalSteps
from fsdata.nodes.node import Node
from fsdata.nodes.prefetching_loader import PrefetchingLoader
from fsdata.nodes.rows import Rows
from fsdata.nodes.step_numbers import OnStep, StepNumbers, check_on_step
from fsdata.nodes.steps import Steps
from fsdata.nodes.units import Units
from fsdata.options import bytes_of, integer
from fsdata.order.mix import Mix
from fsdata.order.progress import Progress
from fsdata.schema import Schema
from fsdata.sources import ParquetSource
from fsranks.machine.cores import cores_of_this_rank

BatchT = TypeVar("BatchT", default=Batch)

_LOG = logging.getLogger("fsdata")
_CLOSED = "this loader was closed; make a new one"


class FreeScaleDataLoader(PrefetchingLoader, Generic[BatchT]):
    """Iterates over batches of Parquet rows: each rank yields its share, and every row occurs once per epoch.

    Each `iter()` begins the next epoch, and ends the iterator before it. In every step all ranks yield `batch_size`
    samples from about the same place of the data; the last global batch is divided evenly. With `balance` the samples
    of a global batch are then moved between the ranks, so that all ranks have equal work.

    Args:
        sources: one or several `ParquetSource`.
        schema: the fields of a sample.
        batch_size: samples per rank and step.
        max_tokens: without `balance`: the most elements of a batch (events of all sequences, candidates, ids of nested
            fields), which also has at most `batch_size` samples. Rows that do not fit begin the next batch. A single
            sample with more elements is a ValueError. Ranks then pass different numbers of rows in a step, so `uneven`
            applies. With `balance`, give `Balance(max_tokens=...)`.
        shuffle: permute the order of row groups, and single rows inside windows of `shuffle_window` row groups; a pure
            function of (seed, epoch).
        seed: of the shuffling, and of the draws of `Sequence(sample=...)`.
        balance: a `Balance`: redistributes every global batch over the ranks; None leaves samples on the rank that
            read them. Needs torch.distributed.
        mix: the order of several sources: one after another, interleaved by `ParquetSource(weight=...)`, or merged by
            `Schema(time=...)`. Each source keeps its own order; with `shuffle` the mixed order is shuffled.
        shuffle_window: number of row groups whose rows are shuffled together; twice as many are held in memory. Or a
            share of the epoch, such as 0.1: then row groups keep their order, and the rows of each tenth of them are
            shuffled together.
        memory: bytes of decoded rows that this rank may hold, a number or a text like "2GB": a row group that does not
            fit is not decoded ahead. The rows that are shuffled together are held in any case. None: `shuffle_window`
            is the only limit. Batches, side tables and histories are not included.
        num_threads: decoding threads; None: one per core of this rank.
        read_ahead: bytes of row groups that are read before they are decoded, if files are not local: a number, or a
            text like "256MB" (B, kB, MB, GB, KiB, MiB, GiB); per rank. Separate threads read them. 0: the decoding
            threads read. A larger row group is read ahead one at a time.
        prefetch: batches made ahead; 0 makes them in the calling thread.
        pin_memory: make batches in page-locked memory (CUDA). Results of `adapt` are pinned in the prefetch thread.
            None follows the device: on in every epoch that begins after this process has started CUDA, as a model on a
            GPU does; off in a loop on the CPU, which then takes no memory of a GPU.
        adapt: a function that converts each `Batch` to what the loop receives, in the prefetch thread, before pinning.
            It has to leave tensors on the CPU, and is not part of the state: a resumed job needs the same function.
            Pinned are tensors in mappings, lists, tuples and dataclasses, and objects with their own `pin_memory()`.
        on_step: a function that gets the numbers of every batch, a dict, in the thread of the loop and before the loop
            gets the batch. Sizes of this batch: `samples`, `tokens` (events of all sequences, candidates, ids of nested
            fields). Since the batch before: `wait_s`, how long the loop waited for data; `decode_s`, the sum over all
            decoding threads; `bytes_read`, see `stats`. Of the step on the batch before, except at the first batch of
            an epoch: `step_s`, seconds from that batch to this one; `samples_per_s`, `tokens_per_s`. With `balance`:
            `straggler_share`, planned, 1 - mean / max of the ranks' cost. `epoch`, `step`; `batches` yielded since the
            loader was made; `waiting`, batches that are ready behind this one. All are of this rank. An error of the
            function reaches the loop in place of the batch, which does not count as yielded.
        uneven: without `balance`, if rows drop out while reading or `max_tokens` is given: `"drop"` ends the epoch on
            all ranks when the first rank runs out of rows (those of the other ranks are counted in `dropped`),
            `"empty"` gives this rank batches without samples until all ranks have ended.
        drop_last: drop the last global batch of an epoch if it is incomplete; its rows are counted in `dropped`.
        rank: default: the rank in `process_group`, else in torch.distributed, else in torchrun's environment, else 0.
        world_size: in the same way, else 1; give both or none.
        process_group: the ranks that share the data, if not all ranks of the job do (data-parallel beside context- or
            tensor-parallel ranks). A gloo group is created for them.
        timeout_s: how long a rank waits for the others, in the constructor and in every step, before it raises an error
            that names the missing ranks. A rank may pause its loop (evaluation, checkpoint) while others wait for it:
            choose a longer time than that.

    The constructor reads footers, compares files and arguments over all ranks, and creates process groups: call it on
    every rank, on the main thread, in the same order. Iterating blocks until the next batch is there.

    Raises:
        ValueError: an argument is out of range.
        SchemaError: the sources cannot be read as the schema; the message lists every mismatch.
        MismatchError: files, arguments or versions differ between ranks.
        DataError, CorruptFileError: at the batch concerned, naming file, row group and row.
        Errors of `adapt`: at the batch concerned, with a note that names step and rank; PeerError on the other ranks.
        PeerError: another rank failed, left or did not answer; the message names it.
        RuntimeError: at the next batch, if another `iter()` took over, a state was loaded or the process was forked
            meanwhile.
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
        pin_memory: bool | None = None,
        adapt: Callable[[Batch], BatchT] | None = None,
        on_step: OnStep | None = None,
        uneven: Uneven = "drop",
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout_s: float = 300,
    ) -> None:
        self._options = options = LoaderOptions(
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
        units = Units(
            sources,
            schema,
            shuffle=shuffle,
            seed=seed,
            mix=mix,
            shuffle_window=shuffle_window,
            num_threads=options.num_threads,
            rank=rank,
            world_size=world_size,
            process_group=process_group,
            timeout_s=timeout_s,
            what="FreeScaleDataLoader",
            also=partial(self._also, balance, adapt, on_step),
        )
        self._units, self._context, self._data = units, units.context, units.data
        self._rows = Rows(units, num_threads=options.num_threads, read_ahead=options.read_ahead, memory=options.memory)
        try:
            self._batches_node = self._nodes(balance)
        except BaseException:
            units.job.close()  # decoding threads and process groups: nothing else would end them
            raise
        self._root: Node[Any] = self._batches_node if adapt is None else Adapted(self._batches_node, adapt)
        self._numbers = None if on_step is None else StepNumbers(on_step, units.data.timing, self._bytes_read)
        self._progress = Progress.start(0, self._context.world_size)
        self._next_epoch = 0
        self._loaded: Progress | None = None
        self._warned = False  # that an epoch had no batch
        self._batches = 0
        # Last: from here on the loader is closed when Python ends, which needs all of the above.
        super().__init__(units.job, units.data.timing)

    def _also(self, balance: Balancing | None, adapt: object, on_step: object) -> dict[str, str]:
        """Further arguments that must be equal on all ranks. Raises if one is invalid: inside the meeting of the ranks,
        so that the others get the error, too."""
        check_balance(balance)
        check_adapt(adapt)
        check_on_step(on_step)
        if balance is not None and self._options.max_tokens is not None:
            raise ValueError("max_tokens is for batches without balance: give Balance(max_tokens=...) in its place")
        return {**self._options.shared(), "balance": repr(balance)}

    def _nodes(self, balance: Balancing | None) -> Batches:
        """The nodes from `Rows` to batches: see `fsdata.nodes`."""
        options, timeout_s = self._options, self._options.timeout_s
        steps = Steps(self._rows, options.batch_size, drop_last=options.drop_last, max_tokens=options.max_tokens)
        # Steps are counted without reading them unless rows drop out of them, or wait for the next one.
        may_carry = balance is not None and balance.max_tokens is not None
        self._steps_known = steps.sizes_known and not may_carry and not self._data.followed
        dealt: Node[Any]
        # `Balance(max_tokens=...)` cuts batches, so its planner is needed on one rank as well.
        if balance is not None and (self._context.world_size > 1 or balance.max_tokens is not None):
            dealt = balanced_steps(steps, balance, timeout_s)
        else:
            dealt = LocalSteps(steps, uneven=options.uneven, timeout_s=timeout_s)
        if self._data.followed:
            # The prefetch thread may wait in this node for files without end: a reference to the loader would keep a
            # loader alive that the user has dropped.
            loader = weakref.ref(self)
            dealt = followed_steps(dealt, timeout_s, lambda: loader() is not None)
        return Batches(dealt, pin_memory=options.pin, cost=None if balance is None else balance.cost)

    def __iter__(self) -> Iterator[BatchT]:
        if self._closed:
            raise RuntimeError(_CLOSED)
        turn = self._guard.acquire()  # first: the iterator before this one must take no batch of the new epoch
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

    @wraps(__init__)  # type: ignore[misc]  # tools that show a signature take that of `__new__`
    def __new__(cls, *args: Any, **options: Any) -> Self:
        if "num_workers" in options:
            raise TypeError("FreeScaleDataLoader uses threads instead of worker processes: give num_threads=")
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
        """Steps of the next epoch, if no row drops out while reading and `max_tokens` defers none to the next step.

        Rows that drop out make it fewer, deferred rows can make it more. TypeError for a followed source.
        """
        if self._data.followed:
            raise TypeError("a followed source has no length: it ends only when no new files come")
        size, rows = self._context.world_size * self._options.batch_size, self._data.rows_in(self._next_epoch)
        return rows // size if self._options.drop_last else -(-rows // size)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one. If a state of this epoch was loaded, its position within the epoch is kept.

        A followed source has only one epoch, and every `iter()` resumes where the one before ended.
        """
        epoch = integer("epoch", epoch, 0)
        if self.windows is not None and epoch >= self.windows:
            raise ValueError(f"window {epoch} of time: there are {self.windows}, the first is 0")
        if self._data.followed or (self._loaded is not None and self._loaded.epoch == epoch):
            return
        self._loaded, self._next_epoch = None, epoch
        if self._prefetcher is None:  # inside a loop, a state is still of its epoch
            self._progress = Progress.start(epoch, self._context.world_size, self._progress.tuning)

    def state_dict(self) -> dict[str, Any]:
        """The position of the job after the last yielded batch; prefetched batches do not count.

        A small JSON-able dict, equal on all ranks; any number of ranks may load that of any rank.
        """
        return self._data.state_of(self._progress, batch_size=self._options.batch_size)

    def load_state_dict(self, state: dict[str, Any], *, changed: str | Collection[str] = ()) -> None:
        """Resume from `state` at the next `iter()`; on the same number of ranks all batches are bitwise identical.

        On another number of ranks the rest of the epoch is dealt again: every remaining sample is seen once. Inside
        a loop this ends the loop's iterator: its next batch is a RuntimeError. All ranks load at the same step.

        Args:
            changed: what may differ from the run of the state, one name or several: `"weights"`, `"sources"` (added
                ones; between epochs also other ones), `"max_length"`. Rows that were not read are mixed anew, and each
                is read once. `"batch_size"` may differ in any case. Each difference is logged.

        Raises:
            StateError: the state is of another version, other sources, schema, seed or order; the message lists the
                differences, and the loader keeps its position.
            ValueError: `changed` has an unknown name.
        """
        # Checked before anything changes: after a StateError the loop can continue.
        self._move_to(self._units.place_of(state, changed, batch_size=self._options.batch_size))

    def skip(self, steps: int) -> int:
        """Move the position of `state_dict()` over `steps` batches, as if the loop had taken and dropped them.

        The next `iter()` begins there. Like `load_state_dict`, it ends the iterator of a running loop; all ranks skip
        the same number. Nothing is decoded if the footers give the sizes of all steps. Otherwise (rows that drop out,
        `max_tokens`, followed sources) the batches are read, and this blocks.

        Returns the number of skipped batches, which is smaller at the end of the epoch.
        """
        steps = integer("steps", steps, 0)
        if self._closed:
            raise RuntimeError(_CLOSED)
        self._move_to(self._progress)
        if not self._steps_known:
            _LOG.info("skip(%d) reads the batches, because their sizes are not known from the footers", steps)
            taken = sum(1 for _ in islice(self, steps))
            self._move_to(self._progress)
            return taken
        after, taken = self._after(self._progress, steps)
        if steps and not taken:  # as `iter()`: from the end of an epoch on the next one
            after, taken = self._after(self._next_after(after), steps)
        self._progress = self._loaded = after if taken == steps else self._next_after(after)
        return taken

    def _next_after(self, progress: Progress) -> Progress:
        """The begin of the next epoch."""
        return Progress.start(progress.epoch + 1, self._context.world_size, progress.tuning)

    def _after(self, progress: Progress, steps: int) -> tuple[Progress, int]:
        """(the position after at most `steps` more steps of the epoch, how many these are)."""
        left = self._data.left(progress, self._context.world_size)
        return progress.skipped(left, steps, batch_size=self._options.batch_size, drop_last=self._options.drop_last)

    def _move_to(self, progress: Progress) -> None:
        """Begin the next `iter()` at a position. Ends the iterator of a running loop."""
        self._end_epoch()
        self._guard.revoke(STATE_LOADED)
        self._progress = self._loaded = progress
        self._job.forget()

    @property
    def windows(self) -> int | None:
        """How many windows of time there are, each an epoch; None without `anchors(time_window=...)`."""
        bounds = None if self._data.followed else self._data.time_windows
        return None if bounds is None else len(bounds) - 1

    @property
    def share(self) -> float:
        """Share of the rows that all ranks have passed, 0 to 1: of all windows of time, else of the epoch."""
        if self._data.followed:
            raise TypeError("a followed source has no share: it ends only when no new files come")
        progress, bounds = self._progress, self._data.time_windows
        passed = progress.passed
        if bounds is not None:
            passed += int(bounds[min(progress.epoch, len(bounds) - 1)])
        rows = self._data.rows_of_epoch(progress) if progress.mixes else self._data.rows
        return passed / rows if rows else 1.0

    def report_step(self, compute_seconds: float) -> None:
        """Report how long this rank computed on the last yielded batch, *without* waiting for other ranks.

        `Balance(autotune=True)` and `Balance(method="auto")` adapt to it; it is sent to the other ranks with the next
        prefetched step. Any other loader ignores it.
        """
        if not 0 <= compute_seconds < float("inf"):
            raise ValueError(f"compute_seconds must be a time of at least 0, got {compute_seconds!r}")
        if self._prefetcher is not None:
            self._job.report(compute_seconds, self._progress)

    @property
    def skipped(self) -> list[Any]:
        """Files and row groups that `on_error="skip"` skipped on this rank, with the reason."""
        return [entry for source in self._data.sources for entry in source.skipped]

    def describe(self) -> list[dict[str, Any]]:
        """Per source: files, `pruned_files` that cannot match the `filter`, row groups, rows, bytes of the files,
        schemas, files and row groups skipped so far, and seconds that opening it took, by phase. JSON-able."""
        return [source.describe() for source in self._data.sources]

    def stats(self) -> dict[str, Any]:
        """Counters of this rank since the loader was made, for logs: `batches` yielded, batches that are `waiting` now,
        `dropped`, `retries`, `skipped`, `bytes_read`, reads of files that are not local, and `seconds` by activity (see
        `fsdata.nodes.timing.Timing`). JSON-able, inexpensive, from any thread.

        `bytes_read` are bytes of the files, as they are stored: the column chunks of the row groups that were decoded,
        local or not, of the columns that the schema needs. A row group that is decoded in two parts is read twice.
        Side tables, tables of histories and footers are not included.
        `decoded_peak_bytes` is the peak size of rows that were decoded and not yet in a batch. `remote` has the `bytes`
        of row groups that were read, `unplanned_reads`: reads of bytes that were not read ahead of the decoder (0 is
        normal), and `read_ahead_peak_bytes`: the peak size of bytes that were read ahead.

        Batches are prefetched: as long as `wait` does not grow, loading costs the loop no time. If it grows, the
        largest of the others is the bottleneck; `decode` is the sum over all decoding threads.
        """
        prefetcher = self._prefetcher  # once: the training thread may end it meanwhile
        reads = [source.remote_reads for source in self._data.sources]
        return {
            "batches": self._batches,
            "waiting": 0 if prefetcher is None else prefetcher.waiting,
            "dropped": self.dropped,
            "retries": self.retries,
            "skipped": len(self.skipped),
            "bytes_read": self._bytes_read(),
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
        """Rows of this rank that `uneven="drop"` (counted by the footers) and `drop_last` dropped at the ends of
        epochs."""
        return self._job.dropped

    @property
    def retries(self) -> int:
        """Reads repeated on this rank after transient errors of a remote filesystem."""
        return sum(source.retries for source in self._data.sources)

    def _bytes_read(self) -> int:
        return sum(source.bytes_read for source in self._data.sources)

    def _before_close(self) -> None:
        for source in self._data.sources:
            source.end_retries()

    def _epoch(self, progress: Progress, turn: object, *, resumed: bool) -> Iterator[BatchT]:
        """The rest of an epoch; if it has no batch left, because the state was saved at its end, the next epoch."""
        if self._closed:
            raise RuntimeError(_CLOSED)
        self._guard.check(turn)
        self._guard.bind_process()
        self._job.begin(progress)
        numbers, batches = self._numbers, self._batches_node
        next_batch = partial(next_of, self._root, batches if numbers is not None else None)
        # Without `adapt`, batches are page-locked as they are made.
        pin = batches.pins and self._root is not batches
        self._prefetcher = prefetcher = Prefetcher(next_batch, depth=self._options.prefetch, pin=pin)
        yielded = False
        if numbers is not None:
            numbers.begin_epoch()
        for item in self._items(prefetcher, turn):
            if numbers is not None:  # first: a batch whose report raises was not yielded
                numbers.report(*item.counted, batches=self._batches + 1, waiting=prefetcher.waiting)
            self._progress = item.progress
            self._batches += 1
            yielded = True
            yield item.batch
        if self._closed or self._data.followed:
            return
        windows = self.windows
        may_be_empty = windows is not None and progress.epoch < windows and self._data.rows  # a window without rows
        # A state saved from here on begins the next epoch.
        self._progress = Progress.start(self._next_epoch, self._context.world_size, self._progress.tuning)
        if resumed and not yielded:
            yield from iter(self)  # all ranks: they have the same state, and see its end in the same step
        elif not yielded and not self._warned and not may_be_empty:
            self._warned = True
            why = self._why_no_batch()
            _LOG.warning("rank %d got no batch in epoch %d: %s", self._context.rank, progress.epoch, why)

    def _why_no_batch(self) -> str:
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


def next_of(root: Node[Any], counted: Batches | None) -> BatchWithProgress[Any] | None:
    """The next batch, None at the end of the epoch. counted: the node whose counts of the batch are reported."""
    try:
        batch = root.next()
    except StopIteration:
        return None
    return BatchWithProgress(batch, root.place(), None if counted is None else counted.counted())
