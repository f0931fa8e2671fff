"""What all ranks ask of all owners in the next step, exchanged one step ahead.

Three exchanges for all modules and groups together: numbers and a status word; ids; and, once each owner has compared
the rows of the two steps, the class of every unit that it serves. Ranks never guess how many collectives follow: all of
it is derived from what was exchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from fscomm.compose import group_plan
from fscomm.device import Device
from fscomm.exchange.handed_over import ExchangedIds, GroupAhead, Verdict
from fscomm.exchange.operations import REASSIGNED
from fscomm.exchange.wire_gate import CHUNKS_UNDER_WAY, WireGate
from fscomm.exchange.worker import Pending
from fscomm.plan.arrays import segments, starts_of, transposed
from fscomm.plan.group_plan import Ahead, Back, GroupPlan, OwnerReply, Shared
from fscomm.plan.masks import mask_sizes, pack_masks, unpack_masks
from fscomm.plan.row_plan import Mapped, RowPlan, outputs
from fscomm.plan.sharding_group import chunk_bytes
from fscomm.report.recorder import Recorder
from fscomm.report.report import Collisions
from fscomm.tables.binding import ServedModules
from fsranks.control_group import AnyGroup
from fsranks.errors import name_ranks

BATCH, END, FAILED, DEPENDS = range(4)
_NOTHING = np.empty(0, np.int64)
Parts = Sequence[tuple[Any, Any]]
"""[k] The features of a module in each part of a step, and the same in host memory or None."""


class _Side(NamedTuple):
    """One group in one of the two steps that are compared: what this rank asks for, what it serves, and what of that
    both steps use. back: the step before, whose gradients travel; else the new one, whose rows do."""

    group: int
    back: bool
    plan: GroupPlan
    request: Any
    served: Any
    shared: Shared

    @property
    def num_masks(self) -> int:
        return self.plan.num_masks(self.served.ids.parts, back=self.back)

    def ahead(self, reply: OwnerReply) -> Ahead:
        return self.plan.ahead(self.request, self.served, self.shared, reply)

    def go_back(self, reply: OwnerReply) -> Back:
        return self.plan.back(self.request, self.served, self.shared, reply)


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
        measured: Sequence[int] = (),
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
            ids = self.exchange(number, before.result() if before else None, status, requests, parts, measured, states)
        for m, given_to in enumerate(prepared):
            mapped = [ids.mapped[g] for g in served.groups[m]]
            if given_to is not None and mapped[0] is not None:
                served.modules[m].learn(given_to[0], mapped)
        self._count(ids)
        return replace(ids, given=prepared)

    def exchange(
        self,
        number: int,
        before: ExchangedIds | None,
        status: int,
        requests: Sequence[Any],
        parts: int = 1,
        measured: Sequence[int] = (),
        states: Mapping[int, Any] = MappingProxyType({}),
    ) -> ExchangedIds:
        """Announce step `number` to all ranks; plan it, and the way back of the step `before` it.

        `requests`: [G]; None where this rank cannot serve the module, and everywhere with END and FAILED.
        parts: of the step, the same on all ranks. measured: numbers whose largest ones all ranks get; as many on each.
        """
        bits = sum({1 << m for m, request in zip(self._modules, requests, strict=True) if request is not None})
        pace = self._wire_gate.us_per_mb
        words, numbers = self._sizes([status, number, bits, pace, *measured], requests, parts)
        verdict = judge(words)
        self._cut_by(verdict.us_per_mb)
        goes_on = status in (BATCH, DEPENDS) and verdict.stop is None
        given = [
            request if goes_on and verdict.served >> m & 1 else None
            for request, m in zip(requests, self._modules, strict=True)
        ]
        records = [
            module.guard.begin(before.records[m] if before is not None else None, states.get(m))
            for m, module in enumerate(self._served.modules)
        ]
        served, id_bytes = self._ids(given, numbers, parts, records)
        replies, irregular = self._reply(self._compare(before, goes_on, given, served))
        aheads, backs = {}, {}
        for side, reply in replies:
            if side.back:
                backs[side.group] = side.go_back(reply)
            else:
                aheads[side.group] = side.ahead(reply)
        aheads, backs = self._placed(aheads, backs)
        groups = {
            side.group: self._group_ahead(side, aheads[side.group], id_bytes[side.group])
            for side, _ in replies
            if not side.back
        }
        every = range(len(given))
        return ExchangedIds(
            number=number,
            verdict=verdict,
            groups=[groups.get(g) for g in every],
            back=[backs.get(g) for g in every],
            irregular=irregular,
            records=records,
            mapped=self._report_rows(given, served),
        )

    def _prepare(self, m: int, features: Parts) -> tuple[Any, list[Any]]:
        """(What `Binding.prepare` gives for each part, the requests of the groups of module m); nothing where that
        fails because another thread compiles: the module runs plainly then.

        While torch.compile traces in the training thread, torch says so in all threads (torch 2.13). TorchRec takes
        that for an export, and refuses a KJT without ids (TorchRec 1.9).
        """
        prepare, groups = self._served.modules[m].prepare_step, self._served.groups[m]
        try:
            given, asked = prepare(features)
        except RuntimeError:
            if torch.compiler.is_compiling():
                return None, [None] * len(groups)
            # It has ended compiling since, or the error is another one and comes again.
            given, asked = prepare(features)
        return given, [self._plans[g].request(parts) for g, parts in zip(groups, asked, strict=True)]

    def _count(self, ids: ExchangedIds) -> None:
        """Record what the step will look up, where to, and the ids that were exchanged for it."""
        self._recorder.buffers(sum(ahead.buffer.nbytes for ahead in ids.groups if ahead is not None))
        for layout, ahead in zip(self._served.layouts, ids.groups, strict=True):
            if ahead is not None:
                self._recorder.count(layout.module, ids.number, ahead.collisions)
                self._recorder.bytes(layout.module, ids.number, "ids", *ahead.id_bytes)
        for module, record in zip(self._served.modules, ids.records, strict=True):
            for table, counts in module.guard.counts(record).items():
                self._recorder.managed(f"{module.name}.{table}", ids.number, counts)

    def _cut_by(self, us_per_mb: int) -> None:
        """Chunks are cut by the pace of the slowest rank's link: all ranks have to cut alike."""
        for plan in self._plans:
            plan.chunk_bytes = chunk_bytes(plan.layout.chunk_bytes, us_per_mb)
        self._wire_gate.budget_bytes = CHUNKS_UNDER_WAY * max(plan.chunk_bytes for plan in self._plans)

    def _sizes(self, status: Sequence[int], requests: Sequence[Any], parts: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """int64[W, words] the `status` of every rank; [G] int64[W, n] the numbers that each rank sends this owner of
        its ids."""
        numbers_to = np.stack(
            [np.full(self._world_size, len(status)), *(plan.numbers_to(parts) for plan in self._plans)]
        )
        numbers = [
            plan.numbers(request) if request is not None else np.zeros(each.sum(), np.int64)
            for plan, request, each in zip(self._plans, requests, numbers_to[1:], strict=True)
        ]
        # The status goes to every rank in front of the numbers for it, so it takes no round of its own.
        mine = numbers_to[:, self._rank]
        incoming = np.full(self._world_size, mine.sum())
        words = np.tile(np.array(status, np.int64), self._world_size)
        received = self._all_to_all(_by_peer([words, *numbers], numbers_to), numbers_to.sum(0), incoming)
        by_group = np.split(received.reshape(self._world_size, -1), np.cumsum(mine)[:-1], axis=1)
        first, *of_groups = map(np.ascontiguousarray, by_group)  # kernels are compiled for arrays without gaps
        return first, of_groups

    def _assign(self, g: int, words: np.ndarray, numbers: np.ndarray, records: Sequence[Any]) -> Mapped:
        """Which rows of this owner ids get, and which rows are reassigned. Fills the record of the module."""
        m = self._modules[g]
        guard, group = self._served.modules[m].guard, g - self._served.groups[m].start
        by_feature = guard.assign(records[m], group, transposed(words, numbers), numbers.sum(0))
        rows = transposed(by_feature, np.ascontiguousarray(numbers.T))
        return Mapped(rows, guard.reassigned(records[m], group))

    def _report_rows(self, given: Sequence[Any], served: Sequence[Any]) -> list[np.ndarray | None]:
        """[G] int64[N] the row, among those of all ranks, of each local output; None where the module does not use
        it."""
        found: list[np.ndarray | None] = [None] * len(served)
        modules = [self._served.modules[m] for m in self._modules]
        wanted = [g for g, each in enumerate(served) if each is not None and modules[g].tells_rows]
        if not wanted:
            return found
        rows = []
        for g in wanted:
            ids = served[g].ids
            first = modules[g].guard.first_rows(g - self._served.groups[self._modules[g]].start)
            rows.append(ids.ids[ids.positions] + np.tile(first, self._world_size).repeat(ids.by_table))
        out, into = (np.stack([each[g].ids.units for g in wanted]) for each in (served, given))
        received = self._all_to_all(_by_peer(rows, out), out.sum(0), into.sum(0))
        for g, of_units in zip(wanted, _by_group(received, into), strict=True):
            found[g] = outputs(given[g], of_units)
        return found

    def _ids(
        self, given: list[Any], numbers: list[np.ndarray], parts: int, records: Sequence[Any]
    ) -> tuple[list[Any], list[tuple[int, int]]]:
        """[G] what the ranks ask of this owner, in the groups that this rank asks for, too; bytes sent and received.

        records: [M] what guards do with the ids is added to them.
        """
        nothing = _NOTHING, np.zeros(self._world_size, np.int64)
        asked = [
            plan.words(request) if request is not None else nothing
            for plan, request in zip(self._plans, given, strict=True)
        ]
        out = np.stack([sizes for _, sizes in asked])
        into = np.stack(
            [
                plan.words_from(of_group, parts) if request is not None else nothing[1]
                for plan, request, of_group in zip(self._plans, given, numbers, strict=True)
            ]
        )
        # All sizes follow from the numbers of the round before.
        received = self._all_to_all_first(_by_peer([words for words, _ in asked], out), out.sum(0), into.sum(0))
        served: list[Any] = []
        for g, words in enumerate(_by_group(received, into)):
            plan = self._plans[g]
            if given[g] is None:
                served.append(None)
            elif plan.layout.reassigns and isinstance(plan, RowPlan):
                served.append(plan.serve(words, numbers[g], parts, self._assign(g, words, numbers[g], records)))
            else:
                served.append(plan.serve(words, numbers[g], parts))
        return served, [(self._bytes(sent), self._bytes(here)) for sent, here in zip(out, into, strict=True)]

    def _all_to_all(self, mine: np.ndarray, sent: np.ndarray, incoming: np.ndarray) -> np.ndarray:
        """What all ranks send here, so much each, for what this rank sends them."""
        received = np.empty(incoming.sum(), mine.dtype)
        self._group.all_to_all(torch.from_numpy(received), torch.from_numpy(mine), incoming.tolist(), sent.tolist())
        return received

    def _all_to_all_first(self, mine: np.ndarray, sent: np.ndarray, incoming: np.ndarray) -> np.ndarray:
        """The same while exclusive rows are kept off the link: all ranks are here, so none waits for another one."""
        self._wire_gate.enter()
        try:
            return self._all_to_all(mine, sent, incoming)
        finally:
            self._wire_gate.leave()

    def _bytes(self, words: np.ndarray) -> int:
        """Between this rank and others."""
        return 8 * int(words.sum() - words[self._rank])

    def _compare(
        self, before: ExchangedIds | None, goes_on: bool, given: Sequence[Any], served: Sequence[Any]
    ) -> list[_Side]:
        """The groups that are served in the step before, then those in the new step. Looks at this owner's rows only.

        A row is shared if any call of the module in the other step uses it. The rows of a step in which no call is
        served are not known: all rows of its neighbours count as shared with it, and as those that are urgent.
        """
        aheads = list(before.groups) if before is not None else [None] * len(given)
        old = [ahead.served if ahead is not None else None for ahead in aheads]
        classes_back = [self._unshared(g, each, served, goes_on, back=True) for g, each in enumerate(old)]
        classes = [self._unshared(g, each, old, before is not None, back=False) for g, each in enumerate(served)]
        # One pass marks both sides: a row of the new step that the old one uses, too, is urgent in both directions.
        for g, new in enumerate(served):
            for other in self._same_tables[g]:
                last = old[other]
                if new is not None and last is not None:
                    several = last.ids.parts > 1
                    later = self._plans[g].needed_later(new) if several else np.zeros(len(new.rows), np.uint8)
                    new.rows.mark_common(last.rows, later, classes[g], classes_back[other])
        sides = []
        for g, (plan, ahead) in enumerate(zip(self._plans, aheads, strict=True)):
            if ahead is not None:
                shared = plan.shared(ahead.served, classes_back[g], back=True)
                sides.append(_Side(g, True, plan, ahead.request, ahead.served, shared))
        for g, (plan, new) in enumerate(zip(self._plans, served, strict=True)):
            if new is not None:
                if plan.layout.reassigns:  # after the marks: a reassigned row that both steps use is not shared
                    classes[g][new.reassigned] = REASSIGNED
                sides.append(_Side(g, False, plan, given[g], new, plan.shared(new, classes[g], back=False)))
        return sides

    def _unshared(
        self, g: int, served: Any, others: Sequence[Any], there_is_another: bool, *, back: bool
    ) -> np.ndarray:
        """uint8[R] the class of rows that the other step does not use: exclusive; urgent, if there is another step and
        nothing is known of its rows."""
        if served is None:
            return np.empty(0, np.uint8)
        known = any(others[other] is not None for other in self._same_tables[g])
        exclusive = self._plans[g].unit_classes(served.ids.parts, back=back)
        return np.full(len(served.rows), 0 if there_is_another and not known else exclusive, np.uint8)

    def _reply(self, sides: Sequence[_Side]) -> tuple[list[tuple[_Side, OwnerReply]], frozenset[int]]:
        """Send each requester the classes of its units. Returns what owners sent for each side, and irregular modules.

        Every owner also sends the most strips that it exchanges with one rank, so all ranks know the same bounds.
        """
        irregular = {1 << self._modules[side.group] for side in sides if not side.back and side.served.irregular}
        bounds = [side.shared.bounds for side in sides]
        head = np.array([sum(irregular), *(bound for of_side in bounds for bound in of_side)], np.int64)
        masks = [side.plan.masks(side.served, side.shared, back=side.back) for side in sides]
        number = [side.num_masks for side in sides]
        out_units, in_units = (
            [units for units, masks_of_side in zip(of_sides, number, strict=True) for _ in range(masks_of_side)]
            for of_sides in (
                [side.served.ids.units for side in sides],
                [side.request.ids.units for side in sides],
            )
        )
        # Classes travel as bits: a reply of a byte for each unit would take eight times as long on a slow link.
        sent = pack_masks(head, [mask for of_side in masks for mask in of_side], out_units, self._world_size)
        out_sizes, sizes = (mask_sizes(len(head), units, self._world_size) for units in (out_units, in_units))
        received = self._all_to_all_first(sent, out_sizes, sizes)
        heads, incoming = unpack_masks(received, len(head), in_units, self._world_size)
        of_modules = int(np.bitwise_or.reduce(heads[:, 0]))
        ends, last = np.cumsum([1, *map(len, bounds)]), np.cumsum([0, *number])
        replies = [
            (side, side.plan.reply(incoming[last[i] : last[i + 1]], heads[:, ends[i] : ends[i + 1]]))
            for i, side in enumerate(sides)
        ]
        return replies, frozenset(m for m in self._modules if of_modules >> m & 1)

    def _group_ahead(self, side: _Side, ahead: Ahead, id_bytes: tuple[int, int]) -> GroupAhead:
        served, rows = side.served, side.shared.rows
        distinct = served.distinct(rows) if side.plan.layout.reassigns else rows
        return GroupAhead(
            request=side.request,
            served=served,
            merge=ahead.merge,
            fetch=ahead.fetch,
            buffer=ahead.merge.new_buffer(side.plan.layout, self._device.where),
            collisions=Collisions(
                occurrences=len(served.ids.ids),
                colliding=side.plan.colliding(served, rows),
                unique=len(distinct),
                unique_colliding=int(np.count_nonzero(distinct == 0)),
            ),
            id_bytes=id_bytes,
        )

    def _placed(self, aheads: dict[int, Ahead], backs: dict[int, Back]) -> tuple[dict[int, Ahead], dict[int, Back]]:
        """The same plans with their tensors where the tables are, by one copy.

        Indices travel as int32: half of the bytes.
        """
        if self._device.where.type == "cpu":
            return aheads, backs
        found: list[torch.Tensor] = []

        def note(name: str, tensor: torch.Tensor) -> torch.Tensor:
            found.append(tensor.int() if name == "index" else tensor)
            return tensor

        for plan in (*aheads.values(), *backs.values()):
            with_tensors(plan, note)
        there = iter(self._device.put(found))
        new = {g: with_tensors(plan, lambda *_: next(there)) for g, plan in aheads.items()}
        return new, {g: with_tensors(plan, lambda *_: next(there)) for g, plan in backs.items()}


def with_tensors(part: Any, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Any:
    """The same part of a plan, with `change(its name, it)` in the place of every tensor."""
    if isinstance(part, list) and part and is_dataclass(part[0]):
        return [with_tensors(each, change) for each in part]
    if not is_dataclass(part) or isinstance(part, type):
        return part
    changed = {}
    for name in (each.name for each in fields(part)):
        value = getattr(part, name)
        is_tensor = isinstance(value, torch.Tensor)
        changed[name] = change(name, value) if is_tensor else with_tensors(value, change)
    return replace(part, **changed)


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


def judge(words: np.ndarray) -> Verdict:
    """What the words int64[W, n] of all ranks amount to, the same on each: status, step number, bits of the modules
    served, pace of the link, and what was measured."""
    # Every rank judges the same words, so all raise, or none does, without another exchange.
    status, numbers, served, pace = words.T[:4]
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
    return Verdict(
        served=int(np.bitwise_and.reduce(served)),
        ended=bool(ended),
        depends=depends,
        us_per_mb=int(pace.max()),
        measured=tuple(words[:, 4:].max(0).tolist()),
    )
