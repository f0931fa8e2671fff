"""The ids stage: what all ranks ask of all owners in the next step, one step ahead.

Three exchanges for all modules and groups together: sizes and a status word, ids, and the owners' answer which rows the
two batches share. Ranks never guess how many collectives follow: all of it is derived from what was exchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch

from fscomm.exchange.step import GroupAhead, GroupBack, Step, Verdict
from fscomm.exchange.wire_gate import WireGate
from fscomm.plan import routes, row_masks
from fscomm.plan.routes import Request, Served
from fscomm.plan.sharding_group import GroupLayout
from fscomm.plan.shared_rows import RowSet
from fscomm.transports.gloo import Channel
from fsranks.errors import name_ranks

Planned = TypeVar("Planned", routes.Merge, routes.Lookup, routes.SendGradients, routes.Apply)

BATCH, END, FAILED = 0, 1, 2
_WORDS = 3  # status, step number, bits of the modules served


@dataclass(frozen=True, slots=True)
class _Shared:
    """Owner: which occurrences of a step and of the next lie on rows of both, bool[N]; None without such a step."""

    before: torch.Tensor | None
    after: torch.Tensor | None


class IdExchange:
    """Runs in the ids worker, once per announced batch, in order.

    `modules[g]` is the module of group g. Ids and plans are worked on in host memory; what indexes rows goes `where`
    those are.
    """

    def __init__(
        self,
        channel: Channel,
        gate: WireGate,
        layouts: Sequence[GroupLayout],
        modules: Sequence[int],
        where: torch.device,
    ) -> None:
        self._channel = channel
        self._gate = gate
        self._layouts = layouts
        self._modules = modules
        self._where = where
        self._rank = layouts[0].rank
        self._world_size = layouts[0].world_size

    def run(
        self, number: int, before: Step | None, step: Step | None, status: int, requests: list[Request | None]
    ) -> Verdict:
        """Tell the others of step `number` (None with END and FAILED), and plan it and the way back of `before`.

        Sets `step.groups` and `before.back`, but no future.
        """
        words, counts = self._sizes(number, status, requests)
        verdict = judge(words)
        if step is None or verdict.stop is not None:
            step, requests = None, [None] * len(self._layouts)
        self._gate.enter()
        try:
            served = self._ids(requests, counts, verdict.served)
            shared = [self._detect(group, before, step, served[group]) for group in range(len(self._layouts))]
            given = self._answers(before, requests, served, shared)
        finally:
            self._gate.leave()
        for g, answer in enumerate(given):
            if before is not None:
                before.back.append(self._plan_back(g, _group(before, g), shared[g], answer))
            if step is not None:
                step.groups.append(self._plan_ahead(g, step, requests[g], served[g], shared[g], answer))
        return verdict

    def _sizes(
        self, number: int, status: int, requests: list[Request | None]
    ) -> tuple[np.ndarray, list[list[list[int]]]]:
        """[W, words] of every rank, and [G][W][F] how many ids each rank will send this owner."""
        served = sum({1 << self._modules[g] for g, request in enumerate(requests) if request is not None})
        out: list[int] = []
        splits = []
        for owner in range(self._world_size):
            start = len(out)
            out += [status, number, served]
            for layout, request in zip(self._layouts, requests, strict=True):
                out += request.wire.counts[owner] if request is not None else [0] * layout.features_to[owner]
            splits.append(len(out) - start)
        mine = splits[self._rank]
        received = torch.empty(self._world_size * mine, dtype=torch.int64)
        sent = torch.tensor(out, dtype=torch.int64)
        self._channel.all_to_all_v([(received, sent, [mine] * self._world_size, splits)])
        table = received.view(self._world_size, mine).numpy()
        counts, start = [], _WORDS
        for layout in self._layouts:
            features = layout.features_to[self._rank]
            counts.append(table[:, start : start + features].tolist())
            start += features
        return table[:, :_WORDS], counts

    def _ids(self, requests: list[Request | None], counts: list[list[list[int]]], modules: int) -> list[Served | None]:
        given = [request if self._is_served(g, modules) else None for g, request in enumerate(requests)]
        requests[:] = given
        pieces: list[torch.Tensor] = []
        sent = [0] * self._world_size
        starts = [0] * len(given)
        for owner in range(self._world_size):
            for g, request in enumerate(given):
                if request is not None:
                    number = request.wire.occurrences[owner]
                    pieces.append(request.wire.ids[starts[g] : starts[g] + number])
                    starts[g] += number
                    sent[owner] += number
        by_source = [
            [sum(counts[g][source]) if request is not None else 0 for g, request in enumerate(given)]
            for source in range(self._world_size)
        ]
        received = torch.empty(sum(map(sum, by_source)), dtype=torch.int64)
        out = torch.cat(pieces) if pieces else received[:0]
        self._channel.all_to_all_v([(received, out, [sum(sizes) for sizes in by_source], sent)])
        parts = received.split([size for sizes in by_source for size in sizes])
        served: list[Served | None] = []
        for g, (layout, request) in enumerate(zip(self._layouts, given, strict=True)):
            ids = torch.cat(parts[g :: len(given)])
            served.append(routes.serve(ids, counts[g], layout) if request is not None else None)
        return served

    def _is_served(self, group: int, modules: int) -> bool:
        return bool(modules >> self._modules[group] & 1)

    def _detect(self, group: int, before: Step | None, step: Step | None, served: Served | None) -> _Shared:
        """Which occurrences of both steps lie on rows that both steps use; this owner's rows only.

        What a step that is not served uses is not known: all rows of its neighbours count as shared with it.
        """
        ahead = _group(before, group)
        old = ahead.served if ahead is not None else None
        if served is None:
            return _Shared(None if old is None else torch.full((len(old.keys),), step is not None), None)
        if old is None:
            return _Shared(None, torch.full((len(served.keys),), before is not None))
        return _Shared(RowSet(served.keys).contains(old.keys), RowSet(old.keys).contains(served.keys))

    def _answers(
        self, before: Step | None, requests: list[Request | None], served: list[Served | None], shared: list[_Shared]
    ) -> list["_Answer"]:
        """Tell each requester which of its rows are shared, and learn it of all owners."""
        head = np.zeros(1 + 2 * len(served), np.int64)
        out_masks, out_rows, in_rows = [], [], []
        for g, (request, new, found) in enumerate(zip(requests, served, shared, strict=True)):
            old = _group(before, g)
            if old is not None and found.before is not None:
                wire = old.served.wire
                head[1 + 2 * g] = max(routes.per_peer(~found.before, wire.occurrences))
                out_masks.append(found.before[wire.positions])
                out_rows.append(wire.rows)
                in_rows.append(old.request.wire.rows)
            if new is not None and found.after is not None and request is not None:
                mask = found.after[new.wire.positions]
                head[0] |= int(new.irregular) << self._modules[g]
                head[2 + 2 * g] = max(routes.per_peer(~mask, new.wire.rows))
                out_masks.append(mask)
                out_rows.append(new.wire.rows)
                in_rows.append(request.wire.rows)
        sent = row_masks.pack(head, out_masks, out_rows, self._world_size)
        sizes = row_masks.sizes(len(head), in_rows, self._world_size)
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        out_sizes = row_masks.sizes(len(head), out_rows, self._world_size)
        self._channel.all_to_all_v([(received, sent, sizes, out_sizes)])
        heads, masks = row_masks.unpack(received, len(head), in_rows, self._world_size)
        irregular = int(np.bitwise_or.reduce(heads[:, 0]))
        largest = heads.max(0)
        in_order = iter(masks)
        return [
            _Answer(
                before=next(in_order) if found.before is not None else None,
                after=next(in_order) if found.after is not None else None,
                largest_gradients=int(largest[1 + 2 * g]),
                largest_rows=int(largest[2 + 2 * g]),
                irregular=bool(irregular >> self._modules[g] & 1),
            )
            for g, found in enumerate(shared)
        ]

    def _plan_ahead(
        self, group: int, step: Step, request: Request | None, served: Served | None, shared: _Shared, answer: "_Answer"
    ) -> GroupAhead | None:
        """How the rows of `step` travel."""
        if request is None or served is None or answer.after is None or shared.after is None:
            return None
        layout = self._layouts[group]
        rows = shared.after[served.wire.positions]
        merge = routes.merge(request, answer.after, answer.largest_rows, layout.chunk_rows)
        if answer.irregular:
            step.plain[self._modules[group]] = "an id lies outside its table"
        return GroupAhead(
            request=request,
            served=served,
            merge=self._put(merge, "index"),
            exclusive=self._put(routes.lookup(served, ~rows, answer.largest_rows, layout), "ids", "index"),
            collision=self._put(routes.lookup(served, rows, None, layout), "ids", "index"),
            buffer=torch.empty(
                merge.exclusive_total + merge.collision_total, layout.dim, dtype=layout.dtype, device=self._where
            ),
            colliding=int(shared.after.sum()),
        )

    def _plan_back(self, group: int, old: GroupAhead | None, shared: _Shared, answer: "_Answer") -> GroupBack | None:
        """How the gradients of the step before travel."""
        if old is None or shared.before is None or answer.before is None:
            return None
        rows, largest = self._layouts[group].chunk_rows, answer.largest_gradients
        mine = answer.before[old.request.wire.slots]
        return GroupBack(
            collision_send=self._put(routes.send_gradients(old.request, mine, None, rows), "index"),
            collision_apply=self._put(routes.apply(old.served, shared.before, None, rows), "ids", "index"),
            exclusive_send=self._put(routes.send_gradients(old.request, ~mine, largest, rows), "index"),
            exclusive_apply=self._put(routes.apply(old.served, ~shared.before, largest, rows), "ids", "index"),
        )

    def _put(self, planned: Planned, *names: str) -> Planned:
        if self._where.type == "cpu":
            return planned
        return replace(planned, **{name: getattr(planned, name).to(self._where) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What the owners say to this rank about one group.

    `before`, `after`: bool[U] which distinct rows that it asked for are shared, of the step before and of the next.
    `largest_*`: the most rows of a class between any pair of ranks.
    """

    before: torch.Tensor | None
    after: torch.Tensor | None
    largest_gradients: int
    largest_rows: int
    irregular: bool


def judge(words: np.ndarray) -> Verdict:
    """What the status words int64[W, 3] of all ranks amount to, the same on each."""
    status, numbers, served = words.T
    if len(set(numbers.tolist())) > 1:
        return Verdict(stop=f"the ranks are at different steps: {numbers.tolist()} by rank")
    if (status == FAILED).any():
        ranks = np.nonzero(status == FAILED)[0].tolist()
        return Verdict(stop=f"the loader of {name_ranks(ranks)} failed at batch {int(numbers[0])}: see its log")
    ended = np.nonzero(status == END)[0].tolist()
    if 0 < len(ended) < len(words):
        return Verdict(
            stop=f"the loader of {name_ranks(ended)} ended at batch {int(numbers[0])}, the others have more. "
            "Every rank must take the same number of steps: make the loaders equally long"
        )
    return Verdict(served=int(np.bitwise_and.reduce(served)), ended=bool(ended))


def _group(step: Step | None, group: int) -> GroupAhead | None:
    return step.groups[group] if step is not None and step.groups else None
