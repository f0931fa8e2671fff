"""What all ranks ask of all owners in the next step, exchanged one step ahead.

Three exchanges for all modules and groups together: sizes and a status word, ids, and which rows the two batches share,
as the owners see it. Ranks never guess how many collectives follow: all of it is derived from what was exchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from fscomm.exchange.served_modules import ServedModules
from fscomm.exchange.step import ExchangedIds, GroupAhead, Verdict
from fscomm.exchange.wire_gate import WireGate
from fscomm.plan import row_masks
from fscomm.plan.group_plan import GroupPlan, WayBack, group_plan
from fscomm.plan.shared_rows import RowSet
from fscomm.plan.ways import Apply, Lookup, Merge, SendGradients
from fscomm.transports.gloo import Channel
from fsranks.errors import name_ranks

Planned = TypeVar("Planned", Merge, Lookup, SendGradients, Apply)

BATCH, END, FAILED, DRAWS = range(4)
_WORDS = 3  # status, step number, bits of the modules served
_NO_WORDS = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One group in one of the two steps that are compared, as this rank sees it.

    Attributes:
        plan: of the group. request, served: this rank as requester and as owner.
        shared: bool[N] which of the occurrences served lie on rows that both steps use.
        sent: exclusive gradients (of the step before) that come here from all others, or rows (of the new step) that
            go to them.
    """

    plan: GroupPlan
    request: Any
    served: Any
    shared: torch.Tensor
    sent: int

    @property
    def shared_units(self) -> torch.Tensor:
        """bool[U] by distinct row or bag."""
        return self.plan.shared_units(self.served, self.shared)


class _Told(NamedTuple):
    """A side after all owners told this rank of their rows."""

    side: _Side
    shared: torch.Tensor  # bool[U] which of the distinct rows, or bags, that this rank asked for both steps use
    largest: int  # the most exclusive gradients or rows of any owner


Pair = tuple[_Side | None, _Side | None]  # of the step before, and of the new step


class IdExchange:
    """Runs in the ids worker, once per announced batch, in order.

    Ids and plans are worked on in host memory; what indexes rows goes `where`
    those are.
    """

    def __init__(
        self,
        channel: Channel,
        wire_gate: WireGate,
        served: ServedModules,
        where: torch.device,
    ) -> None:
        self._channel = channel
        self._wire_gate = wire_gate
        self._plans = [group_plan(layout) for layout in served.layouts]
        self._modules = served.module_of
        self._same_tables = [served.same_tables(g) for g in range(len(self._plans))]
        self._where = where
        self._rank = served.layouts[0].rank
        self._world_size = served.layouts[0].world_size

    def run(self, number: int, before: ExchangedIds | None, status: int, requests: Sequence[Any]) -> ExchangedIds:
        """Tell the others of step `number`, and plan it and the way back of the step `before` it.

        `requests`: [G]; None where this rank cannot serve the module, and everywhere with END and FAILED.
        """
        words, numbers = self._sizes(number, status, requests)
        verdict = judge(words)
        goes_on = status in (BATCH, DRAWS) and verdict.stop is None
        given = [
            request if goes_on and verdict.served >> m & 1 else None
            for request, m in zip(requests, self._modules, strict=True)
        ]
        self._wire_gate.enter()
        try:
            served, moved = self._ids(given, numbers)
            pairs = [self._compare(g, before, goes_on, given, served) for g in range(len(given))]
            told, irregular = self._tell(pairs)
        finally:
            self._wire_gate.leave()
        return ExchangedIds(
            number=number,
            verdict=verdict,
            groups=[new and self._plan_ahead(g, new, moved[g]) for g, new in enumerate(told[1::2])],
            back=[old and self._plan_back(g, old) for g, old in enumerate(told[::2])],
            irregular=irregular,
        )

    def _sizes(self, number: int, status: int, requests: Sequence[Any]) -> tuple[np.ndarray, list[list[list[int]]]]:
        """[W, words] of every rank, and [G][W] the numbers that each rank tells this owner of its ids."""
        served = sum({1 << self._modules[g] for g, request in enumerate(requests) if request is not None})
        out: list[int] = []
        splits = []
        for owner in range(self._world_size):
            start = len(out)
            out += [status, number, served]
            for plan, request in zip(self._plans, requests, strict=True):
                out += plan.numbers(request, owner) if request is not None else [0] * plan.numbers_to(owner)
            splits.append(len(out) - start)
        mine = splits[self._rank]
        received = torch.empty(self._world_size * mine, dtype=torch.int64)
        sent = torch.tensor(out, dtype=torch.int64)
        self._channel.all_to_all_v([(received, sent, [mine] * self._world_size, splits)])
        table = received.view(self._world_size, mine).numpy()
        numbers, start = [], _WORDS
        for plan in self._plans:
            end = start + plan.numbers_to(self._rank)
            numbers.append(table[:, start:end].tolist())
            start = end
        return table[:, :_WORDS], numbers

    def _ids(self, given: list[Any], numbers: list[list[list[int]]]) -> tuple[list[Any], list[tuple[int, int]]]:
        """[G] what the ranks ask of this owner, in the groups that this rank asks for, too; bytes sent and received."""
        words = [
            plan.words(request) if request is not None else [_NO_WORDS] * self._world_size
            for plan, request in zip(self._plans, given, strict=True)
        ]
        pieces = [of_group[owner] for owner in range(self._world_size) for of_group in words]
        sent = [sum(len(of_group[owner]) for of_group in words) for owner in range(self._world_size)]
        by_source = [
            [
                plan.words_of(of_group[source]) if request is not None else 0
                for plan, of_group, request in zip(self._plans, numbers, given, strict=True)
            ]
            for source in range(self._world_size)
        ]
        received = torch.empty(sum(map(sum, by_source)), dtype=torch.int64)
        self._channel.all_to_all_v([(received, torch.cat(pieces), [sum(sizes) for sizes in by_source], sent)])
        parts = received.split([size for sizes in by_source for size in sizes])
        served, moved = [], []
        for g, (plan, of_group, request) in enumerate(zip(self._plans, numbers, given, strict=True)):
            came = list(parts[g :: len(given)])
            served.append(plan.serve(came, of_group) if request is not None else None)
            moved.append((self._bytes(words[g]), self._bytes(came)))
        return served, moved

    def _bytes(self, words: list[torch.Tensor]) -> int:
        """Between this rank and others."""
        return sum(each.nbytes for peer, each in enumerate(words) if peer != self._rank)

    def _compare(
        self,
        group: int,
        before: ExchangedIds | None,
        goes_on: bool,
        requests: Sequence[Any],
        all_served: Sequence[Any],
    ) -> Pair:
        """Both steps of a group; None where a step is not served. Looks at this owner's rows only.

        A row is shared if any call of the module in the other step uses it. The rows of a step in which no call is
        served are not known: all rows of its neighbours count as shared with it.
        """
        plan, request, served = self._plans[group], requests[group], all_served[group]
        ahead = before.groups[group] if before is not None else None
        old = new = None
        if ahead is not None:
            keys, after = ahead.served.keys, [all_served[g] for g in self._same_tables[group]]
            shared = _in_any(keys, after, otherwise=goes_on)
            sent = plan.sent_back(ahead.served, shared)
            old = _Side(plan=plan, request=ahead.request, served=ahead.served, shared=shared, sent=sent)
        if served is not None and request is not None:
            aheads = [before.groups[g] for g in self._same_tables[group]] if before is not None else []
            shared = _in_any(served.keys, [each and each.served for each in aheads], otherwise=before is not None)
            sent = plan.sent_ahead(served, shared)
            new = _Side(plan=plan, request=request, served=served, shared=shared, sent=sent)
        return old, new

    def _tell(self, pairs: list[Pair]) -> tuple[list[_Told | None], frozenset[int]]:
        """Tell each requester which of its rows are shared. Returns [2 G] what owners told, and irregular modules."""
        irregular = {1 << m for (_, new), m in zip(pairs, self._modules, strict=True) if new and new.served.irregular}
        sides = [side for pair in pairs for side in pair]
        head = np.array([sum(irregular), *(side.sent if side else 0 for side in sides)], np.int64)
        there = [side for side in sides if side]
        out_rows = [side.plan.served_units(side.served) for side in there]
        in_rows = [side.plan.asked_units(side.request) for side in there]
        sent = row_masks.pack(head, [side.shared_units for side in there], out_rows, self._world_size)
        out_sizes, sizes = (row_masks.sizes(len(head), rows, self._world_size) for rows in (out_rows, in_rows))
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        self._channel.all_to_all_v([(received, sent, sizes, out_sizes)])
        heads, masks = row_masks.unpack(received, len(head), in_rows, self._world_size)
        in_order, largest = iter(masks), heads.max(0)[1:].tolist()
        told = [_Told(side, next(in_order), most) if side else None for side, most in zip(sides, largest, strict=True)]
        bits = int(np.bitwise_or.reduce(heads[:, 0]))
        return told, frozenset(m for m in self._modules if bits >> m & 1)

    def _plan_ahead(self, group: int, told: _Told, moved: tuple[int, int]) -> GroupAhead:
        """How the rows of the new step travel."""
        side, plan = told.side, self._plans[group]
        ahead = plan.ahead(side.request, side.served, side.shared, told.shared, told.largest)
        return GroupAhead(
            request=side.request,
            served=side.served,
            merge=self._put(ahead.merge),
            exclusive=self._put(ahead.exclusive),
            collision=self._put(ahead.collision),
            buffer=ahead.merge.new_buffer(plan.layout, self._where),
            colliding=int(side.shared.sum()),
            rows=plan.distinct_rows(side.served, side.shared, ahead),
            id_bytes=moved,
        )

    def _plan_back(self, group: int, told: _Told) -> WayBack:
        """How the gradients of the step before travel."""
        side = told.side
        back = self._plans[group].back(side.request, side.served, side.shared, told.shared, told.largest)
        return WayBack(
            self._put(back.collision_send),
            self._put(back.collision_apply),
            self._put(back.exclusive_send),
            self._put(back.exclusive_apply),
        )

    def _put(self, planned: Planned) -> Planned:
        """With its tensors where the tables are, but for offsets, which stay in host memory."""
        if self._where.type == "cpu":
            return planned
        tensors: dict[str, Any] = {
            each.name: value.to(self._where)
            for each in fields(planned)
            if isinstance(value := getattr(planned, each.name), torch.Tensor) and each.name != "offsets"
        }
        return replace(planned, **tensors)


def _in_any(keys: torch.Tensor, served: Sequence[Any], *, otherwise: bool) -> torch.Tensor:
    """bool[N] which `keys` are among those of what was `served`, None left out; `otherwise` if that is nothing."""
    others = [each.keys for each in served if each is not None]
    if not others:
        return torch.full((len(keys),), otherwise)
    return RowSet(others[0] if len(others) == 1 else torch.cat(others)).contains(keys)


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
