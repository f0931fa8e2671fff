"""The first node: finds and opens files, compares them over all ranks, and computes which rows each rank reads."""

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, get_args

import numpy as np
import torch.distributed as dist
from torch.utils.data import get_worker_info

from fsdata.catalog.listing.hosts import Hosts
from fsdata.compose.reading import followed_data, kernels_of, open_source
from fsdata.decode.reused_buffers import Pool
from fsdata.kernels.warm import make_ready
from fsdata.nodes.dataset import Dataset
from fsdata.nodes.guards import check_worker
from fsdata.nodes.loader_options import check_sources, checked_order
from fsdata.nodes.node import First
from fsdata.options import integer, one_of
from fsdata.order.mix import Mix
from fsdata.order.progress import Progress
from fsdata.order.stream import Window
from fsdata.schema import Schema
from fsdata.sources import ParquetSource
from fsranks.machine.cores import cores_of_this_rank
from fsranks.meeting import Meeting
from fsranks.rank_context import RankContext, resolve

_LOG = logging.getLogger("fsdata")
_NOT_COMPARED = (
    "rank %d of %d has no process group, so nothing compares its files and options with those of the other ranks: if "
    "they differ (a folder that is being written), rows are read twice or never. All ranks must print the same here: "
    "%s. torch.distributed.init_process_group before making the loader compares them"
)

Also = Callable[[], Mapping[str, str]]
"""Returns further items that must be equal on all ranks; may raise: the other ranks get the error, too."""


class Units(First[Window]):
    """The rows that this rank reads, in order: windows of pieces of row groups. Iterating reads no data.

    The constructor reads footers, and compares files and arguments over all ranks. It is collective: on every rank, in
    the same order, on the main thread. The arguments are those of `FreeScaleDataLoader`.

    Attributes:
        data: the rows of all sources. context: rank and world size.
        pool: memory to which decoded values are copied.
        left: int64 [W], planned rows of each rank from the position at which the epoch, or its segment, began.
    """

    def __init__(
        self,
        sources: ParquetSource | Sequence[ParquetSource],
        schema: Schema,
        *,
        shuffle: bool = False,
        seed: int = 0,
        mix: Mix = "sequential",
        shuffle_window: int | float = 4,
        num_threads: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout_s: float = 300,
        what: str = "fsdata.nodes.Units",
        also: Also | None = None,
    ) -> None:
        super().__init__()
        sources = [sources] if isinstance(sources, ParquetSource | str | os.PathLike) else list(sources)
        threads = cores_of_this_rank() if num_threads is None else num_threads
        threads = integer("num_threads", threads, 1)
        order = checked_order(shuffle, shuffle_window, seed)
        mix = one_of("mix", mix, get_args(Mix))
        rank, world_size = integer("rank", rank, 0, optional=True), integer("world_size", world_size, 1, optional=True)
        self.context = resolve(rank, world_size, process_group)
        worker = get_worker_info()
        own_share = worker is not None and rank is not None and self.context.world_size % worker.num_workers == 0
        self._check_worker = partial(check_worker, what, self.context, own_share=own_share)
        self._check_worker()
        self.pool = Pool()
        # Rows in order are consumed soon after they are decoded, so they can stay in Arrow's memory until then.
        pool = self.pool if shuffle else None
        # All that may fail is inside the meeting: an error on one rank is raised on all, so none waits for another.
        with Meeting(self.context, what=what, timeout_s=timeout_s) as meeting:
            check_sources(sources, schema)
            make_ready(kernels_of(sources, self.context.world_size, sampled=schema.is_sampled))
            hosts = _hosts(self.context, timeout_s)
            show = self.context.rank == 0
            options = {"show": show, "threads": threads, "pool": pool, "hosts": hosts, "seed": order["seed"]}
            opened = [open_source(source, schema, index=index, **options) for index, source in enumerate(sources)]
            order["world_size"] = self.context.world_size
            follow = next((source.follow for source in sources if source.follow is not None), None)
            if follow is not None and len(sources) > 1:
                raise ValueError("a followed source has no end, so it cannot be mixed with others: give it alone")
            self.data: Dataset = (
                Dataset(opened, schema, mix=mix, threads=threads, **order)
                if follow is None
                else followed_data(opened[0], sources[0], schema, **order)
            )
            # What `fingerprint` has only a digest of: errors name the files that differ.
            items = ("files", "footers")
            parts = {f"source {n} {item}": source.parts for n, source in enumerate(opened) for item in items}
            equal = {**self.data.fingerprint, **({} if also is None else also())}
            meeting.agree(equal, parts=parts)
        if self.context.world_size > 1 and self.context.reach() is None:
            # Ranks without a process group cannot compare, but a person can compare the digests in their logs.
            digest = blake2b(repr(sorted(equal.items())).encode(), digest_size=8).hexdigest()
            _LOG.warning(_NOT_COMPARED, self.context.rank, self.context.world_size, digest)
        self.next_epoch = 0
        self._began = Progress.start(0, self.context.world_size)
        self._passed = 0
        self._windows: Iterator[Window] = iter(())
        self.left = np.zeros(self.context.world_size, np.int64)

    @property
    def remote(self) -> bool:
        """Whether some of the files are not local."""
        return any(source.remote for source in self.data.sources)

    def place(self) -> Progress:
        return self.place_after(self._passed)

    def place_after(self, passed: int) -> Progress:
        """The position of the job after this rank has passed so many rows."""
        if passed and self.context.world_size > 1:
            raise RuntimeError(
                "this rank does not know how many rows the others have passed: take the state of a Steps, LocalSteps "
                "or BalancedSteps node behind this one"
            )
        return self._began.moved([passed] * self.context.world_size)

    def place_of(
        self, state: dict[str, Any] | None, changed: str | Collection[str] = (), *, batch_size: int | None = None
    ) -> Progress:
        if state is None:
            return Progress.start(self.next_epoch, self.context.world_size)
        progress, accepted = self.data.place_of(state, changed, batch_size=batch_size)
        if self.context.rank == 0:
            for difference in accepted:
                _LOG.info("resume with a change: %s", difference)
        return progress.on(self.context.world_size)

    def state_of(self, progress: Progress) -> dict[str, Any]:
        return self.data.state_of(progress)

    def on_begin(self, progress: Progress) -> None:
        self._check_worker()  # again: the loader may have been made before the worker was forked
        if self.data.followed and progress.segment is None:
            raise ValueError(
                "a followed source needs a Followed node behind LocalSteps or BalancedSteps, which waits for files"
            )
        self.next_epoch = progress.epoch + 1
        self._began, self._passed = progress, 0
        streams = self.data.streams(progress, self.context.world_size)
        self.left = np.array([stream.rows for stream in streams])
        self._windows = self.data.windows(streams[self.context.rank])

    def next(self) -> Window:
        window = next(self._windows)
        self._passed += window.rows
        return window

    def on_close(self) -> None:
        """Close the files that decoding keeps open."""
        self.data.close()


def _hosts(context: RankContext, timeout_s: float) -> Hosts | None:
    """None if all ranks are known to be on one host, or have no group."""
    one_host = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) >= context.world_size
    network = context.reach()
    return None if network is None or one_host else Hosts(network.store("catalog", timeout_s), timeout_s)
