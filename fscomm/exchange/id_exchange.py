"""What all ranks ask of all owners in the next step, exchanged one step ahead.

Three exchanges for all modules and groups together: sizes and a status word, ids, and which rows the two batches share,
as the owners see it. Ranks never guess how many collectives follow: all of it is derived from what was exchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from fscomm.exchange.step import ExchangedIds, GroupAhead, GroupBack, Verdict
from fscomm.exchange.wire_gate import WireGate
from fscomm.plan import routes, row_masks
from fscomm.plan.routes import Request, Served
from fscomm.plan.sharding_group import GroupLayout
from fscomm.plan.shared_rows import RowSet
from fscomm.transports.gloo import Channel
from fsranks.errors import name_ranks

Planned = TypeVar("Planned", routes.Merge, routes.Lookup, routes.SendGradients, routes.Apply)

BATCH, END, FAILED, DRAWS = range(4)
_WORDS = 3  # status, step number, bits of the modules served


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One group in one of the two steps that are compared, as this rank sees it.

    Attributes:
        request, served: this rank as requester and as owner.
        shared: bool[N] which of the occurrences served lie on rows that both steps use.
        largest: the most exclusive gradients (of the step before) or rows (of the new step) of any requester here.
    """

    request: Request
    served: Served
    shared: torch.Tensor
    largest: int

    @property
    def shared_rows(self) -> torch.Tensor:
        """bool[U] by distinct row."""
        return self.shared[self.served.wire.positions]


class _Told(NamedTuple):
    """A side after all owners told this rank of their rows."""

    side: _Side
    shared: torch.Tensor  # bool[U] which of the distinct rows that this rank asked for both steps use
    largest: int  # the most exclusive gradients or rows between any two ranks


Pair = tuple[_Side | None, _Side | None]  # of the step before, and of the new step


class IdExchange:
    """Runs in the ids worker, once per announced batch, in order.

    `modules[g]` is the module of group g. Ids and plans are worked on in host memory; what indexes rows goes `where`
    those are.
    """

    def __init__(
        self,
        channel: Channel,
        wire_gate: WireGate,
        layouts: Sequence[GroupLayout],
        modules: Sequence[int],
        where: torch.device,
    ) -> None:
        self._channel = channel
        self._wire_gate = wire_gate
        self._layouts = layouts
        self._modules = modules
        self._where = where
        self._rank = layouts[0].rank
        self._world_size = layouts[0].world_size

    def run(
        self, number: int, before: ExchangedIds | None, status: int, requests: Sequence[Request | None]
    ) -> ExchangedIds:
        """Tell the others of step `number`, and plan it and the way back of the step `before` it.

        `requests`: [G]; None where this rank cannot serve the module, and everywhere with END and FAILED.
        """
        words, counts = self._sizes(number, status, requests)
        verdict = judge(words)
        goes_on = status in (BATCH, DRAWS) and verdict.stop is None
        given = [
            request if goes_on and verdict.served >> m & 1 else None
            for request, m in zip(requests, self._modules, strict=True)
        ]
        self._wire_gate.enter()
        try:
            served = self._ids(given, counts)
            pairs = [self._compare(g, before, goes_on, given[g], served[g]) for g in range(len(given))]
            told, irregular = self._tell(pairs)
        finally:
            self._wire_gate.leave()
        return ExchangedIds(
            number=number,
            verdict=verdict,
            groups=[new and self._plan_ahead(g, new) for g, new in enumerate(told[1::2])],
            back=[old and self._plan_back(g, old) for g, old in enumerate(told[::2])],
            irregular=irregular,
        )

    def _sizes(
        self, number: int, status: int, requests: Sequence[Request | None]
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

    def _ids(self, given: list[Request | None], counts: list[list[list[int]]]) -> list[Served | None]:
        """[G] what the ranks ask of this owner, in the groups that this rank asks for, too."""
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

    def _compare(
        self, group: int, before: ExchangedIds | None, goes_on: bool, request: Request | None, served: Served | None
    ) -> Pair:
        """Both steps of a group; None where a step is not served. Looks at this owner's rows only.

        The rows of a step that is not served are not known: all rows of its neighbours count as shared with it.
        """
        ahead = before.groups[group] if before is not None else None
        old = new = None
        if ahead is not None:
            keys = ahead.served.keys
            shared = torch.full((len(keys),), goes_on) if served is None else RowSet(served.keys).contains(keys)
            largest = max(routes.per_peer(~shared, ahead.served.wire.occurrences))
            old = _Side(request=ahead.request, served=ahead.served, shared=shared, largest=largest)
        if served is not None and request is not None:
            keys, known = served.keys, before is not None
            shared = torch.full((len(keys),), known) if ahead is None else RowSet(ahead.served.keys).contains(keys)
            largest = max(routes.per_peer(~shared[served.wire.positions], served.wire.rows))
            new = _Side(request=request, served=served, shared=shared, largest=largest)
        return old, new

    def _tell(self, pairs: list[Pair]) -> tuple[list[_Told | None], frozenset[int]]:
        """Tell each requester which of its rows are shared. Returns [2 G] what owners told, and irregular modules."""
        irregular = {1 << m for (_, new), m in zip(pairs, self._modules, strict=True) if new and new.served.irregular}
        sides = [side for pair in pairs for side in pair]
        head = np.array([sum(irregular), *(side.largest if side else 0 for side in sides)], np.int64)
        there = [side for side in sides if side]
        out_rows, in_rows = [side.served.wire.rows for side in there], [side.request.wire.rows for side in there]
        sent = row_masks.pack(head, [side.shared_rows for side in there], out_rows, self._world_size)
        out_sizes, sizes = (row_masks.sizes(len(head), rows, self._world_size) for rows in (out_rows, in_rows))
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        self._channel.all_to_all_v([(received, sent, sizes, out_sizes)])
        heads, masks = row_masks.unpack(received, len(head), in_rows, self._world_size)
        in_order, largest = iter(masks), heads.max(0)[1:].tolist()
        told = [_Told(side, next(in_order), most) if side else None for side, most in zip(sides, largest, strict=True)]
        bits = int(np.bitwise_or.reduce(heads[:, 0]))
        return told, frozenset(m for m in self._modules if bits >> m & 1)

    def _plan_ahead(self, group: int, told: _Told) -> GroupAhead:
        """How the rows of the new step travel."""
        side, layout = told.side, self._layouts[group]
        rows, served = side.shared_rows, side.served
        merge = routes.merge(side.request, told.shared, told.largest, layout.chunk_rows)
        total = merge.exclusive_total + merge.collision_total
        return GroupAhead(
            request=side.request,
            served=served,
            merge=self._put(merge, "index"),
            exclusive=self._put(routes.lookup(served, ~rows, told.largest, layout), "ids", "index"),
            collision=self._put(routes.lookup(served, rows, None, layout), "ids", "index"),
            buffer=torch.empty(total, layout.dim, dtype=layout.dtype, device=self._where),
            colliding=int(side.shared.sum()),
        )

    def _plan_back(self, group: int, told: _Told) -> GroupBack:
        """How the gradients of the step before travel."""
        side, rows = told.side, self._layouts[group].chunk_rows
        mine = told.shared[side.request.wire.slots]
        return GroupBack(
            collision_send=self._put(routes.send_gradients(side.request, mine, None, rows), "index"),
            collision_apply=self._put(routes.apply(side.served, side.shared, None, rows), "ids", "index"),
            exclusive_send=self._put(routes.send_gradients(side.request, ~mine, told.largest, rows), "index"),
            exclusive_apply=self._put(routes.apply(side.served, ~side.shared, told.largest, rows), "ids", "index"),
        )

    def _put(self, planned: Planned, *names: str) -> Planned:
        if self._where.type == "cpu":
            return planned
        return replace(planned, **{name: getattr(planned, name).to(self._where) for name in names})


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
    draws = bool((status == DRAWS).any())
    return Verdict(served=int(np.bitwise_and.reduce(served)), ended=bool(ended), draws=draws)
