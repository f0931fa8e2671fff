"""The exchange of one step between ranks: gathers lengths, compares plans, moves samples.

Stages I and II are one all-gather: every rank receives the status words of all ranks and the lengths of their samples.
From these each rank computes the whole plan, and a second small all-gather checks that the plans are equal. Stage III
is one all-to-all of whole samples. Everything runs over a gloo group of the loader's own, in the prefetch thread, while
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
    """The share of one rank in a step, after the exchange.

    Attributes:
        number: of the exchange, counted from 0 per StepExchange; `report` refers to it.
        rows: this rank's samples, in order of (origin rank, origin row).
        origin: int64 [n, 2], the rank that read the sample, and its row among those that this rank contributed.
        statuses: [W], of all ranks.
        counts: int64 [W], samples of every rank after the exchange.
        lengths: group -> int64 [N], elements of the samples of all ranks, in order of home rank and row.
        straggler_before, straggler_after: from the plan; None in a step without samples.
        moved: share of the global batch's elements (of its samples where nothing is jagged) that changed rank.
        carried: samples of all ranks that the plan deferred. The next step has to begin with them.
        rest: those of this rank, the last ones that it contributed.
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
        """Whether all ranks have ended and no sample is carried over; this step may still have samples."""
        return self.carried == 0 and all(status.ended for status in self.statuses)

    @property
    def global_samples(self) -> int:
        return int(self.counts.sum())


class StepExchange(StatusExchange):
    """A status exchange that also redistributes samples: call `step` in place of `agree`.

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
        first_events: Mapping[str, np.ndarray] | None = None,
        rows_of: RowsOf | None = None,
    ) -> StepResult:
        """Contribute samples (None: none), receive this rank's share of the global batch.

        Args:
            first_events: sequence -> int64 [n], see `GlobalBatch`; all ranks pass the same sequences.
            rows_of: makes rows from the received columns, if they need more than the values that travel.

        A rank without further samples keeps calling this, with `ended` set, until a result has `ended`. An error of the
        planner is raised unchanged on its own rank, and as PeerError on the others.
        """
        own = rows if rows is not None else no_rows(len(spec.names))
        spans = own.spans()
        batch, lengths = self._global_batch(spans, spec, status, first_events or {})
        plan = self._plan(planner, batch)
        part = _taking_part(batch.home, plan.rows)
        home, lengths = batch.home[part], lengths[:, part]
        own, rest = _cut(own, int((home == self.context.rank).sum()))
        counts = np.bincount(home, minlength=len(batch.statuses))
        carried = int((~part).sum())
        if carried:
            # Even if all ranks have ended there is a next step, and a rank that leaves has to announce it there.
            self._between_epochs = False
        moves = plan.rank != home
        begin = time.perf_counter_ns()
        if moves.any():  # the same on all ranks, as the plans are equal: all or none enter the all-to-all
            own, origin = self._transfer.move(own, spans, spec, lengths, counts, plan.rank, rows_of)
        else:
            row = np.arange(own.num_rows)
            origin = np.stack([np.full_like(row, self.context.rank), row], axis=1)
        self._moving_ns = time.perf_counter_ns() - begin
        counted = lengths[: len(spec.counted)]
        elements = counted.sum(axis=0) if len(counted) else np.ones(len(home), np.int64)
        return StepResult(
            number=batch.number,
            rows=own,
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
        self, spans: Spans, spec: RecordSpec, status: StatusWord, first_events: Mapping[str, np.ndarray]
    ) -> tuple[GlobalBatch, np.ndarray]:
        """The global batch of this step, and int64 [G, N], the lengths of all groups."""
        with failures_reported_to_peers(self, status):
            own_lengths = check_lengths(spans, spec)
        number, longest = self._group.number, int(own_lengths.max(initial=0))  # _words increments the number
        status = replace(status, rows=spans.num_rows, longest=longest)
        text = b"".join([encode_lengths(own_lengths, longest), *(first.tobytes() for first in first_events.values())])
        statuses, texts = self._words(status, spec.digest, text)
        texts, all_first_events = cut_first_events(statuses, texts, len(first_events))
        lengths = decode_lengths(statuses, texts, len(spec.groups))
        batch = GlobalBatch(
            number=number,
            lengths=dict(zip(spec.counted, lengths, strict=False)),  # not strict: the last groups are not counted
            home=np.repeat(np.arange(len(statuses)), [other.rows for other in statuses]),
            statuses=statuses,
            first_events=dict(zip(first_events, all_first_events, strict=True)),
        )
        return batch, lengths

    def _plan(self, planner: Planner, batch: GlobalBatch) -> Assignment:
        """The plan, after all ranks have confirmed that theirs are equal.

        With different plans a rank would send sizes that the receiver does not expect: gloo then ends the process.
        """
        total, world_size = len(batch.home), len(batch.statuses)
        if total == 0:
            return Assignment(rank=batch.home)
        error: BaseException | None = None
        digest, text = -1, b""  # -1: planning failed on this rank; a CRC is never negative
        try:
            plan = planner(batch)
            _check_plan(plan, int(_taking_part(batch.home, plan.rows).sum()), world_size)
            digest = zlib.crc32(np.append(plan.rank, plan.rows or 0).astype(np.int32).tobytes())
        except BaseException as caught:  # raised after the gather: the other ranks wait there for this one
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
    """int64 [G, n], none above `longest`, in the narrowest integers. The status word has `longest`, and so the type."""
    return lengths.astype(np.min_scalar_type(longest)).tobytes()


def cut_first_events(
    statuses: tuple[StatusWord, ...], texts: list[bytes], groups: int
) -> tuple[list[bytes], list[np.ndarray]]:
    """Splits the texts: (encoded lengths, first events of each group, int64 [N])."""
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
    """int64 [G, N] from the results of `encode_lengths` on all ranks."""
    parts = []
    for rank, (status, text) in enumerate(zip(statuses, texts, strict=True)):
        dtype = np.min_scalar_type(status.longest)
        if len(text) != groups * status.rows * dtype.itemsize:
            raise MismatchError(
                f"rank {rank} reported {status.rows} samples, but sent {len(text)} bytes for their lengths"
            )
        parts.append(np.frombuffer(text, dtype).reshape(groups, status.rows))
    return np.concatenate(parts, axis=1, dtype=np.int64)


def _taking_part(home: np.ndarray, rows: int | None) -> np.ndarray:
    """bool [N]: the samples among the first `rows` of their home rank."""
    if rows is None:
        return np.ones(len(home), bool)
    # `home` is ascending, so searchsorted gives the first sample of each home rank.
    return np.arange(len(home)) - np.searchsorted(home, home) < rows


def _cut(rows: RowRefs, count: int) -> tuple[RowRefs, RowRefs]:
    """The first `count` samples, and the others."""
    if count == rows.num_rows:  # nearly always: no copy of the references
        return rows, rows.take(slice(0, 0))
    return rows.take(slice(count)), rows.take(slice(count, None))


def _check_plan(plan: Assignment, total: int, world_size: int) -> None:
    rank = plan.rank
    if rank.shape != (total,) or not (rank.min() >= 0 and rank.max() < world_size):
        raise ValueError(
            f"a plan holds one rank in 0..{world_size - 1} for each of {total} samples, got shape {rank.shape} and "
            f"values from {rank.min(initial=0)} to {rank.max(initial=-1)}"
        )
