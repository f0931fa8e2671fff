"""The exchange of one step between ranks: how much each rank has, which rank gets what, and the samples.

Stages I and II are one exchange: every rank hears the status word of every rank and the lengths of its samples. With
those each rank plans alone and comes to the same answer, which a second small exchange makes sure of. Stage III is one
all-to-all of whole samples. All of it runs over a gloo group of the loader's own, in the thread that prefetches, while
the previous step trains (PAPER.md section 1, Algorithm 1).

Letters: F fields, G groups of fields that share lengths, N samples of the global batch, n of one rank, W ranks.
"""

import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fsdata.balance.exchange.route import RecordSpec
from fsdata.balance.exchange.transfer import RowsOf, Transfer, check_lengths
from fsdata.balance.step_plan import Assignment, GlobalBatch, Planner
from fsdata.decode.block import RowRefs, Spans, no_rows
from fsdata.errors import MismatchError
from fsdata.nodes.fitted_gather import FittedGather
from fsdata.nodes.status_exchange import StatusExchange, cut_short, failure_of_others, failures_reported_to_peers
from fsdata.order.status_word import StatusWord
from fsranks.errors import describe
from fsranks.rank_context import RankContext


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one rank has after an exchange.

    Attributes:
        number: counts the exchanges of this StepExchange from 0; what `report` refers to.
        rows: this rank's samples, in order of (origin rank, origin row).
        origin: int64 [n, 2], the rank that read the sample and its row in what that rank gave.
        statuses: what every rank said, W of them.
        counts: int64 [W], samples of every rank after the exchange.
        lengths: group -> int64 [N], elements of the samples of all ranks, in order of home rank and row.
        straggler_before, straggler_after: from the plan; None in a step without samples.
        moved: share of the global batch's elements (of its samples where nothing is jagged) that changed rank.
        carried: samples of all ranks that the plan left out. The next step has to begin with them.
        rest: those of this rank, the last ones of what it gave.
    """

    number: int
    rows: RowRefs
    origin: np.ndarray
    statuses: tuple[StatusWord, ...]
    counts: np.ndarray
    lengths: dict[str, np.ndarray]
    straggler_before: float | None
    straggler_after: float | None
    moved: float
    carried: int
    rest: RowRefs

    @property
    def global_items(self) -> dict[str, int]:
        """Group -> elements over all ranks."""
        return {group: int(length.sum()) for group, length in self.lengths.items()}

    @property
    def ended(self) -> bool:
        """Every rank said that nothing follows, and nothing is carried over; this step may still hold samples."""
        return self.carried == 0 and all(status.ended for status in self.statuses)

    @property
    def global_samples(self) -> int:
        return int(self.counts.sum())


class StepExchange(StatusExchange):
    """A status exchange that deals out samples, too: `step` in place of `agree`.

    Raises (step): as `agree`; MismatchError if ranks planned differently.
    """

    def __init__(self, context: RankContext, *, timeout_s: float = 300.0) -> None:
        super().__init__(context, timeout_s=timeout_s)
        self._plans = FittedGather(self._group)
        self._transfer = Transfer(self._group)

    def step(
        self,
        rows: RowRefs | None,
        spec: RecordSpec,
        planner: Planner,
        status: StatusWord,
        places: Mapping[str, np.ndarray] | None = None,
        rows_of: RowsOf | None = None,
    ) -> StepResult:
        """Contribute samples (None: none), receive this rank's share of the global batch.

        Args:
            places: int64 [n] of them, see `GlobalBatch`; all ranks give those of the same sequences.
            rows_of: makes rows of what arrives, where more than the values that travel is needed.

        A rank that has no samples left goes on calling this, with `ended` set, until the step it gets back has ended.
        An error of the planner is raised as it is where it occurs, and as PeerError on the others.
        """
        mine = rows if rows is not None else no_rows(len(spec.names))
        spans = mine.spans()
        batch, everywhere = self._global_batch(spans, spec, status, places or {})
        plan = self._plan(planner, batch)
        part = _taking_part(batch.home, plan.rows)
        home, everywhere = batch.home[part], everywhere[:, part]
        mine, rest = _cut(mine, int((home == self.context.rank).sum()))
        counts = np.bincount(home, minlength=len(batch.statuses))
        carried = int((~part).sum())
        if carried:
            self._between_epochs = False  # all have ended reading, and yet there is a next step: for the rows left
        moves = plan.rank != home
        begin = time.perf_counter_ns()
        if moves.any():  # on all ranks or on none: they have compared the plan
            mine, origin = self._transfer.move(mine, spans, spec, everywhere, counts, plan.rank, rows_of)
        else:
            row = np.arange(mine.num_rows)
            origin = np.stack([np.full_like(row, self.context.rank), row], axis=1)
        self._moving_ns = time.perf_counter_ns() - begin
        counted = everywhere[: len(spec.counted)]
        elements = counted.sum(axis=0) if len(counted) else np.ones(len(home), np.int64)
        return StepResult(
            number=batch.number,
            rows=mine,
            origin=origin,
            statuses=batch.statuses,
            counts=np.bincount(plan.rank, minlength=len(counts)),
            lengths=dict(zip(spec.counted, counted, strict=True)),
            straggler_before=plan.straggler_before,
            straggler_after=plan.straggler_after,
            moved=int(elements[moves].sum()) / max(1, int(elements.sum())),
            carried=carried,
            rest=rest,
        )

    def _global_batch(
        self, spans: Spans, spec: RecordSpec, status: StatusWord, places: Mapping[str, np.ndarray]
    ) -> tuple[GlobalBatch, np.ndarray]:
        """What all ranks have for this step, and int64 [G, N], the lengths of all groups."""
        with failures_reported_to_peers(self, status):
            lengths = check_lengths(spans, spec)
        number, longest = self._group.number, int(lengths.max(initial=0))
        status = replace(status, rows=spans.num_rows, longest=longest)
        text = b"".join([encode_lengths(lengths, longest), *(of_group.tobytes() for of_group in places.values())])
        statuses, texts = self._words(status, spec.digest, text)
        texts, of_places = cut_places(statuses, texts, len(places))
        everywhere = decode_lengths(statuses, texts, len(spec.groups))
        batch = GlobalBatch(
            number=number,
            lengths=dict(zip(spec.counted, everywhere, strict=False)),
            home=np.repeat(np.arange(len(statuses)), [other.rows for other in statuses]),
            statuses=statuses,
            places=dict(zip(places, of_places, strict=True)),
        )
        return batch, everywhere

    def _plan(self, planner: Planner, batch: GlobalBatch) -> Assignment:
        """The plan, once all ranks have shown that they made the same one.

        Ranks that planned differently would send what the receiver does not expect, which ends the process in gloo.
        """
        total, world_size = len(batch.home), len(batch.statuses)
        if total == 0:
            return Assignment(rank=batch.home)
        error: BaseException | None = None
        digest, text = -1, b""
        try:
            plan = planner(batch)
            _check_plan(plan, int(_taking_part(batch.home, plan.rows).sum()), world_size)
            digest = zlib.crc32(np.append(plan.rank, plan.rows or 0).astype(np.int32).tobytes())
        except BaseException as caught:
            error, text = caught, cut_short(describe(caught))
        words, texts = self._plans.gather(np.array([digest], np.int64), text)
        digests = words[:, 0]
        failed = np.flatnonzero(digests < 0).tolist()
        self._between_epochs = self._between_epochs or bool(failed)
        if error is not None:
            raise error
        if failed:
            status = batch.statuses[self.context.rank]
            raise failure_of_others(failed, texts, f"step {status.step} of epoch {status.epoch}")
        if (digests != digests[0]).any():
            other = int(np.argmax(digests != digests[0]))
            raise MismatchError(
                f"ranks 0 and {other} made different plans of the same global batch (step {batch.number}). A cost "
                "model must be a pure function to integers, and all ranks need the same versions of numpy and numba"
            )
        return plan


def encode_lengths(lengths: np.ndarray, longest: int) -> bytes:
    """int64 [G, n], none above `longest`, in the narrowest integers."""
    return lengths.astype(np.min_scalar_type(longest)).tobytes()


def cut_places(
    statuses: tuple[StatusWord, ...], texts: list[bytes], groups: int
) -> tuple[list[bytes], list[np.ndarray]]:
    """The texts without what stands at their ends, one number of each sample for each group; and these numbers, int64
    [N] by group."""
    if not groups:
        return texts, []
    rest, parts = [], []
    for rank, (status, text) in enumerate(zip(statuses, texts, strict=True)):
        size = 8 * groups * status.rows
        if len(text) < size:
            raise MismatchError(f"rank {rank} sent {len(text)} bytes, where its {status.rows} samples need {size} more")
        rest.append(text[: len(text) - size])
        parts.append(np.frombuffer(text[len(text) - size :], np.int64).reshape(groups, status.rows))
    return rest, list(np.concatenate(parts, axis=1))


def decode_lengths(statuses: tuple[StatusWord, ...], texts: list[bytes], groups: int) -> np.ndarray:
    """int64 [G, N] from what `encode_lengths` gave on every rank."""
    parts = []
    for rank, (status, text) in enumerate(zip(statuses, texts, strict=True)):
        dtype = np.min_scalar_type(status.longest)
        if len(text) != groups * status.rows * dtype.itemsize:
            raise MismatchError(
                f"rank {rank} says that it has {status.rows} samples, and sent {len(text)} bytes for their lengths"
            )
        parts.append(np.frombuffer(text, dtype).reshape(groups, status.rows))
    return np.concatenate(parts, axis=1, dtype=np.int64)


def _taking_part(home: np.ndarray, rows: int | None) -> np.ndarray:
    """bool [N]: which samples are among the first `rows` of their home rank."""
    if rows is None:
        return np.ones(len(home), bool)
    return np.arange(len(home)) - np.searchsorted(home, home) < rows


def _cut(rows: RowRefs, count: int) -> tuple[RowRefs, RowRefs]:
    """The first `count` samples, and the others. All of them are `rows` itself."""
    if count == rows.num_rows:
        return rows, rows.take(slice(0, 0))
    return rows.take(slice(count)), rows.take(slice(count, None))


def _check_plan(plan: Assignment, total: int, world_size: int) -> None:
    rank = plan.rank
    if rank.shape != (total,) or not (rank.min() >= 0 and rank.max() < world_size):
        raise ValueError(
            f"a plan holds one rank in 0..{world_size - 1} for each of {total} samples, got shape {rank.shape} and "
            f"values from {rank.min(initial=0)} to {rank.max(initial=-1)}"
        )
