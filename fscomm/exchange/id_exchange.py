"""What all ranks ask of all owners in the next step, exchanged one step ahead.

Three exchanges for all modules and groups together: sizes and a status word, ids, and which rows the two batches share,
as the owners see it. Ranks never guess how many collectives follow: all of it is derived from what was exchanged.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fscomm.device import Device
from fscomm.exchange.handed_over import ExchangedIds, GroupAhead, Verdict
from fscomm.exchange.operations import REASSIGNED
from fscomm.exchange.wire_gate import WireGate
from fscomm.exchange.worker import Pending
from fscomm.plan.group_plan import GroupPlan, group_plan, mask_sizes, pack_masks, unpack_masks
from fscomm.plan.number_of_parts import NOTHING, Took
from fscomm.plan.routes import Mapped, RowPlan, by_feature, by_peer
from fscomm.plan.two_levels import TwoLevelPlan
from fscomm.plan.ways import (
    Back,
    RowsAhead,
    Shared,
    Told,
    classes_back,
    exchanges,
    segments,
    starts_of,
    with_tensors,
)
from fscomm.report.recorder import Recorder
from fscomm.report.report import Collisions
from fscomm.tables.binding import ServedModules
from fsranks.control_group import AnyGroup
from fsranks.errors import name_ranks

BATCH, END, FAILED, DEPENDS = range(4)
WORDS = 3 + len(NOTHING)  # status, step number, bits of the modules served; what an earlier step took
_NOTHING = np.empty(0, np.int64)
Parts = Sequence[tuple[Any, Any]]
"""[k] The features of a module in each part of a step, and the same in host memory or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One group in one of the two steps that are compared, as this rank sees it.

    Attributes:
        plan: of the group. request, served: this rank as requester and as owner.
        shared: what it serves that both steps use.
        classes: C of the units. two_levels: whether its rows travel so.
    """

    plan: GroupPlan
    request: Any
    served: Any
    shared: Shared
    classes: int
    two_levels: bool

    @property
    def masks(self) -> list[np.ndarray]:
        """[C] bool[U] which units that this owner serves are in each class."""
        return [self.shared.units == of for of in range(self.classes)]

    def sent(self, rank: int) -> np.ndarray:
        """int64[2P + 3]: the exclusive strips of all other ranks than this one; of each piece the most strips of one
        rank; and of each piece the most of these rows that one rank passes on to another one."""
        strips = self.shared.strips
        passed = [0] * len(strips)
        if self.two_levels and isinstance(self.plan, TwoLevelPlan):
            passed = self.plan.most_passed_on(self.served, self.shared)
        return np.array([strips[-1].sum() - strips[-1, rank], *strips.max(1), *passed], np.int64)

    def told(self, masks: Sequence[np.ndarray], asking: np.ndarray | None, of_all: np.ndarray) -> Told:
        """masks: [C] as owners gave them. of_all: int64[W, 2P + 3] what `sent` gave, by owner. asking: bool[U * H]."""
        layout, pieces = self.plan.layout, len(self.shared.strips)
        largest, *most = of_all[:, : pieces + 1].max(0).tolist()
        passed = of_all[:, pieces + 1 :].sum(0).tolist()  # from several owners: no more than the most of each together
        chunks = exchanges(largest, layout.chunk_rows)
        for of_pieces in (most, passed):
            of_pieces[-1] = math.ceil(of_pieces[-1] / chunks)
        classes = np.full(len(masks[0]), len(masks), np.uint8)
        for of, mask in enumerate(masks):  # a unit is in one of them at most
            classes -= mask.view(np.uint8) * np.uint8(len(masks) - of)
        by_unit = None if asking is None else asking.reshape(-1, layout.ranks_per_host)
        return Told(mine=classes, asking=by_unit, largest=largest, most=most, most_passed=passed)

    def ahead(self, told: Told) -> RowsAhead:
        """How the rows of the new step travel."""
        return self.plan.ahead(self.request, self.served, self.shared, told)

    def back(self, told: Told) -> Back:
        """How the gradients of the step before travel."""
        return self.plan.back(self.request, self.served, self.shared, told)


class IdExchange:
    """Runs in the ids worker, once per announced batch, in order.

    Ids and plans are worked on in host memory; what indexes rows goes to the `device`.
    """

    def __init__(
        self,
        group: AnyGroup,
        wire_gate: WireGate,
        served: ServedModules,
        device: Device,
        recorder: Recorder,
    ) -> None:
        self._group = group
        self._wire_gate = wire_gate
        self._served = served
        self._recorder = recorder
        self._plans = [group_plan(layout) for layout in served.layouts]
        self._modules = served.module_of
        self._same_tables = [served.same_tables(g) for g in range(len(self._plans))]
        self._device = device
        self._rank = served.layouts[0].rank
        self._world_size = served.layouts[0].world_size

    def run(
        self,
        number: int,
        before: Pending[ExchangedIds] | None,
        status: int,
        given: Sequence[Parts | None],
        parts: int = 1,
        took: Took = NOTHING,
        states: Mapping[int, Any] = MappingProxyType({}),
    ) -> ExchangedIds:
        """Exchange what is asked of the owners. given: [M] for each module its features in each of the `parts` of a
        step, and the same in host memory; None where it is not served. states: by module, what its guard begins with
        where it has to start over."""
        self._wire_gate.wait_for_ids()  # collision rows of the step before are needed sooner than these ids
        served = self._served
        prepared: list[Any] = [None] * len(served.modules)
        requests: list[Any] = [None] * len(served.layouts)
        with self._recorder.span("ids", step=number if status in (BATCH, DEPENDS) else None):
            for m, features in enumerate(given):
                if features is not None:
                    groups = served.groups[m]
                    prepared[m], requests[groups.start : groups.stop] = self._prepare(m, features)
            ids = self.exchange(number, before.result() if before else None, status, requests, parts, took, states)
        for m, given_to in enumerate(prepared):
            mapped = [ids.mapped[g] for g in served.groups[m]]
            if given_to is not None and mapped[0] is not None:
                served.modules[m].learn(given_to[0], mapped)
        self._count(ids)
        return replace(ids, parts=prepared)

    def exchange(
        self,
        number: int,
        before: ExchangedIds | None,
        status: int,
        requests: Sequence[Any],
        parts: int = 1,
        took: Took = NOTHING,
        states: Mapping[int, Any] = MappingProxyType({}),
    ) -> ExchangedIds:
        """Tell the others of step `number`, and plan it and the way back of the step `before` it.

        `requests`: [G]; None where this rank cannot serve the module, and everywhere with END and FAILED.
        parts: of the step, the same on all ranks. took: a step that this rank measured.
        """
        words, numbers = self._sizes([status, number, _modules_of(requests, self._modules), *took], requests, parts)
        verdict = judge(words)
        goes_on = status in (BATCH, DEPENDS) and verdict.stop is None
        given = [
            request if goes_on and verdict.served >> m & 1 else None
            for request, m in zip(requests, self._modules, strict=True)
        ]
        records = [
            module.guard.begin(before.records[m] if before is not None else None, states.get(m))
            for m, module in enumerate(self._served.modules)
        ]
        served, moved = self._ids(given, numbers, parts, records)
        sides = self._compare(before, goes_on, given, served)
        told, irregular = self._tell(sides)
        count = len(given)
        aheads, backs = self._placed(
            [each and each[0].ahead(each[1]) for each in told[count:]],
            [each and each[0].back(each[1]) for each in told[:count]],
        )
        return ExchangedIds(
            number=number,
            verdict=verdict,
            groups=[
                self._group_ahead(side, ahead, of_group) if side is not None and ahead is not None else None
                for side, ahead, of_group in zip(sides[count:], aheads, moved, strict=True)
            ],
            back=backs,
            irregular=irregular,
            records=records,
            mapped=self._tell_rows(given, served),
        )

    def _prepare(self, m: int, features: Parts) -> tuple[Any, list[Any]]:
        """As `Binding.prepare`; nothing where that fails because another thread compiles: the module runs plainly then.

        While torch.compile traces in the training thread, torch says so in all threads (torch 2.13). TorchRec takes
        that for an export, and refuses a KJT without ids (TorchRec 1.9).
        """
        prepare = self._served.modules[m].prepare
        try:
            return prepare(features)
        except RuntimeError:
            if torch.compiler.is_compiling():
                return None, [None] * len(self._served.groups[m])
        return prepare(features)  # it has ended compiling since, or the error is another one and comes again

    def _count(self, ids: ExchangedIds) -> None:
        """Tell the recorder what the step will look up, where to, and the ids that were exchanged for it."""
        self._recorder.buffers(sum(ahead.buffer.nbytes for ahead in ids.groups if ahead is not None))
        for layout, ahead in zip(self._served.layouts, ids.groups, strict=True):
            if ahead is not None:
                unique, unique_colliding = ahead.rows
                found = Collisions(
                    occurrences=ahead.occurrences,
                    colliding=ahead.colliding,
                    unique=unique,
                    unique_colliding=unique_colliding,
                )
                self._recorder.count(layout.module, ids.number, found)
                self._recorder.bytes(layout.module, ids.number, "ids", *ahead.id_bytes)
        for module, record in zip(self._served.modules, ids.records, strict=True):
            for table, counts in module.guard.counts(record).items():
                self._recorder.managed(f"{module.name}.{table}", ids.number, counts)

    def _sizes(self, said: Sequence[int], requests: Sequence[Any], parts: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """int64[W, words] what every rank `said`; [G] int64[W, n] the numbers that each rank tells this owner of its
        ids."""
        numbers_to = np.stack([np.full(self._world_size, WORDS), *(plan.numbers_to(parts) for plan in self._plans)])
        told = [
            plan.numbers(request) if request is not None else np.zeros(each.sum(), np.int64)
            for plan, request, each in zip(self._plans, requests, numbers_to[1:], strict=True)
        ]
        mine = numbers_to[:, self._rank]
        coming = np.full(self._world_size, mine.sum())
        words = np.tile(np.array(said, np.int64), self._world_size)
        received = self._all_to_all(_by_peer([words, *told], numbers_to), numbers_to.sum(0), coming)
        by_group = np.split(received.reshape(self._world_size, -1), np.cumsum(mine)[:-1], axis=1)
        first, *numbers = map(np.ascontiguousarray, by_group)  # kernels are compiled for arrays without gaps
        return first, numbers

    def _assign(self, g: int, words: np.ndarray, numbers: np.ndarray, records: Sequence[Any]) -> Mapped:
        """Which rows of this owner ids get, and which rows are reassigned. Fills the record of the module."""
        m = self._modules[g]
        guard, group = self._served.modules[m].guard, g - self._served.groups[m].start
        rows = guard.assign(records[m], group, by_feature(words, numbers), numbers.sum(0))
        return Mapped(by_peer(rows, numbers), guard.reassigned(records[m], group))

    def _tell_rows(self, given: Sequence[Any], served: Sequence[Any]) -> list[np.ndarray | None]:
        """[G] int64[N] the row, among those of all ranks, of each local output; None where no forward returns it."""
        found: list[np.ndarray | None] = [None] * len(served)
        modules = [self._served.modules[m] for m in self._modules]
        wanted = [g for g, each in enumerate(served) if each is not None and modules[g].tells_rows]
        if not wanted:
            return found
        rows = []
        for g in wanted:
            wire, group = served[g].wire, g - self._served.groups[self._modules[g]].start
            first = modules[g].guard.first_rows(group)
            rows.append(wire.ids[wire.positions] + np.tile(first, self._world_size).repeat(wire.by_table))
        out, into = (np.stack([each[g].units for g in wanted]) for each in (served, given))
        received = self._all_to_all(_by_peer(rows, out), out.sum(0), into.sum(0))
        for g, of_units in zip(wanted, _by_group(received, into), strict=True):
            found[g] = given[g].outputs(of_units)
        return found

    def _ids(
        self, given: list[Any], numbers: list[np.ndarray], parts: int, records: Sequence[Any]
    ) -> tuple[list[Any], list[tuple[int, int]]]:
        """[G] what the ranks ask of this owner, in the groups that this rank asks for, too; bytes sent and received.

        records: [M] what guards do with the ids is put there.
        """
        words, sent, coming = [], [], []
        for plan, request, told in zip(self._plans, given, numbers, strict=True):
            none = _NOTHING, np.zeros(self._world_size, np.int64)
            of_group, sizes = plan.words(request) if request is not None else none
            words.append(of_group)
            sent.append(sizes)
            coming.append(plan.words_of(told, parts) if request is not None else none[1])
        out, into = np.stack(sent), np.stack(coming)
        received = self._all_to_all_first(_by_peer(words, out), out.sum(0), into.sum(0))
        served: list[Any] = []
        for g, came in enumerate(_by_group(received, into)):
            plan = self._plans[g]
            if given[g] is None:
                served.append(None)
            elif plan.layout.managed and isinstance(plan, RowPlan):
                served.append(plan.serve(came, numbers[g], parts, self._assign(g, came, numbers[g], records)))
            else:
                served.append(plan.serve(came, numbers[g], parts))
        return served, [(self._bytes(gone), self._bytes(came)) for gone, came in zip(out, into, strict=True)]

    def _all_to_all(self, mine: np.ndarray, sent: np.ndarray, coming: np.ndarray) -> np.ndarray:
        """What all ranks send here, so much each, for what this rank sends them."""
        received = np.empty(coming.sum(), mine.dtype)
        self._group.all_to_all(torch.from_numpy(received), torch.from_numpy(mine), coming.tolist(), sent.tolist())
        return received

    def _all_to_all_first(self, mine: np.ndarray, sent: np.ndarray, coming: np.ndarray) -> np.ndarray:
        """The same while exclusive rows stay off the wire: all ranks have come here, and none waits for another."""
        self._wire_gate.enter()
        try:
            return self._all_to_all(mine, sent, coming)
        finally:
            self._wire_gate.leave()

    def _bytes(self, words: np.ndarray) -> int:
        """Between this rank and others."""
        return 8 * int(words.sum() - words[self._rank])

    def _compare(
        self, before: ExchangedIds | None, goes_on: bool, given: Sequence[Any], served: Sequence[Any]
    ) -> list[_Side | None]:
        """[2 G] the groups in the step before, then in the new step; None where they are not served. Looks at this
        owner's rows only.

        A row is shared if any call of the module in the other step uses it. The rows of a step in which no call is
        served are not known: all rows of its neighbours count as shared with it, and as those that are urgent.
        """
        aheads = list(before.groups) if before is not None else [None] * len(given)
        old_served = [ahead.served if ahead is not None else None for ahead in aheads]
        old_classes = [self._alone(g, each, served, goes_on, back=True) for g, each in enumerate(old_served)]
        new_classes = [self._alone(g, each, old_served, before is not None) for g, each in enumerate(served)]
        for g, new in enumerate(served):
            for other in self._same_tables[g]:
                old = old_served[other]
                if new is not None and old is not None:
                    later = new.in_later_parts if old.parts > 1 else np.zeros(len(new.rows), np.uint8)
                    new.rows.mark_common(old.rows, later, new_classes[g], old_classes[other])
        for plan, new, classes in zip(self._plans, served, new_classes, strict=True):
            if plan.layout.managed and new is not None:
                classes[new.evicted] = REASSIGNED
        sides: list[_Side | None] = []
        for plan, ahead, rows in zip(self._plans, aheads, old_classes, strict=True):
            sides.append(_side(plan, ahead.request, ahead.served, rows, back=True) if ahead is not None else None)
        for plan, request, of_owner, rows in zip(self._plans, given, served, new_classes, strict=True):
            sides.append(_side(plan, request, of_owner, rows, back=False) if of_owner is not None else None)
        return sides

    def _alone(
        self, group: int, served: Any, others: Sequence[Any], there_is_another: bool, *, back: bool = False
    ) -> np.ndarray:
        """uint8[R] the class of rows of which the other step has none: exclusive; urgent, if there is another step and
        nothing is known of its rows."""
        if served is None:
            return np.empty(0, np.uint8)
        known = any(others[g] is not None for g in self._same_tables[group])
        exclusive = classes_back(served.parts) if back else self._plans[group].layout.classes_ahead
        return np.full(len(served.rows), 0 if there_is_another and not known else exclusive, np.uint8)

    def _tell(self, sides: list[_Side | None]) -> tuple[list[tuple[_Side, Told] | None], frozenset[int]]:
        """Tell each requester the classes of its rows. Returns the sides with what owners told, and irregular
        modules."""
        new = sides[len(self._plans) :]
        irregular = {1 << m for side, m in zip(new, self._modules, strict=True) if side and side.served.irregular}
        there, fanned = [side for side in sides if side], [side for side in sides if side and side.two_levels]
        numbers = [side.sent(self._rank) for side in there]
        head = np.array([sum(irregular), *itertools.chain(*numbers)], np.int64)
        masks = [mask for side in there for mask in side.masks] + [side.served.asking.ravel() for side in fanned]
        with_masks = [side for side in there for _ in range(side.classes)] + fanned
        bits = [1] * (len(with_masks) - len(fanned)) + [side.plan.layout.ranks_per_host for side in fanned]
        out_rows, in_rows = (
            [units * each for units, each in zip(rows, bits, strict=True)]
            for rows in ([side.served.units for side in with_masks], [side.request.units for side in with_masks])
        )
        sent = pack_masks(head, masks, out_rows, self._world_size)
        out_sizes, sizes = (mask_sizes(len(head), rows, self._world_size) for rows in (out_rows, in_rows))
        received = self._all_to_all_first(sent, out_sizes, sizes)
        heads, came = unpack_masks(received, len(head), in_rows, self._world_size)
        of_sides = iter(np.split(heads[:, 1:], np.cumsum([len(each) for each in numbers])[:-1], axis=1))
        classes, asking = iter(came[: len(masks) - len(fanned)]), iter(came[len(masks) - len(fanned) :])
        told: list[tuple[_Side, Told] | None] = []
        for side in sides:
            if side is None:
                told.append(None)
                continue
            of_masks = list(itertools.islice(classes, side.classes))
            told.append((side, side.told(of_masks, next(asking) if side.two_levels else None, next(of_sides))))
        of_modules = int(np.bitwise_or.reduce(heads[:, 0]))
        return told, frozenset(m for m in self._modules if of_modules >> m & 1)

    def _group_ahead(self, side: _Side, ahead: RowsAhead, moved: tuple[int, int]) -> GroupAhead:
        shared = side.shared
        return GroupAhead(
            request=side.request,
            served=side.served,
            merge=ahead.merge,
            fetch=ahead.fetch,
            buffer=ahead.merge.new_buffer(side.plan.layout, self._device.where),
            occurrences=int(shared.ids.sum()),
            colliding=int(shared.colliding.sum()),
            rows=_distinct(side),
            id_bytes=moved,
        )

    def _placed(
        self, aheads: list[RowsAhead | None], backs: list[Back | None]
    ) -> tuple[list[RowsAhead | None], list[Back | None]]:
        """The same plans with their tensors where the tables are, by one copy.

        Indices go as int32: half of the bytes.
        """
        if self._device.where.type == "cpu":
            return aheads, backs
        found: list[torch.Tensor] = []

        def note(name: str, tensor: torch.Tensor) -> torch.Tensor:
            found.append(tensor.int() if name == "index" else tensor)
            return tensor

        for plan in (*aheads, *backs):
            with_tensors(plan, note)
        there = iter(self._device.put(found))
        new, old = ([with_tensors(plan, lambda *_: next(there)) for plan in plans] for plans in (aheads, backs))
        return new, old


def _side(plan: GroupPlan, request: Any, served: Any, rows: np.ndarray, *, back: bool) -> _Side:
    """rows: uint8[R] their classes. back: of the step before, whose gradients travel."""
    shared = plan.shared(served, rows, back=back)
    two_levels = plan.layout.two_levels and not back
    classes = classes_back(served.parts) if back else plan.layout.classes_ahead
    return _Side(plan=plan, request=request, served=served, shared=shared, classes=classes, two_levels=two_levels)


def _distinct(side: _Side) -> tuple[int, int]:
    """Rows that are asked for, and how many of them are shared. Rows are evicted that nobody asks for."""
    rows = side.shared.rows
    if side.plan.layout.managed:
        asked = np.zeros(len(rows), np.bool_)
        asked[side.served.numbers] = True
        rows = rows[asked]
    return len(rows), int(np.count_nonzero(rows == 0))


def _by_peer(values: list[np.ndarray], sizes: np.ndarray) -> np.ndarray:
    """All values for one peer, then for the next. values: [G] by peer; sizes: int64[G, W]."""
    if len(values) == 1:
        return values[0]
    before = starts_of(np.array([len(each) for each in values]))
    starts = np.cumsum(sizes, axis=1) - sizes + before[:, None]
    return segments(np.concatenate(values), starts.T, sizes.T)


def _by_group(values: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """[G] The inverse of `_by_peer`."""
    if len(sizes) == 1:
        return [values]
    starts = starts_of(sizes.T.ravel()).reshape(sizes.T.shape).T
    return [segments(values, first, size) for first, size in zip(starts, sizes, strict=True)]


def _modules_of(requests: Sequence[Any], modules: Sequence[int]) -> int:
    """The bits of the modules of which this rank has requests; requests, modules: [G]."""
    return sum({1 << m for request, m in zip(requests, modules, strict=True) if request is not None})


def judge(words: np.ndarray) -> Verdict:
    """What the words int64[W, WORDS] of all ranks amount to, the same on each."""
    status, numbers, served = words.T[:3]
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
    depends = bool((status == DEPENDS).any())
    took = Took(*words[:, 3:].max(0).tolist())
    return Verdict(served=int(np.bitwise_and.reduce(served)), ended=bool(ended), depends=depends, took=took)
