"""The operations of one class, as the worker of that class does them (Algorithm 2 of the paper, sends ordered by
`WireGate`).

Collision rows and gradients go in one piece. Exclusive ones go in chunks, each held back while collision operations
run.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import torch

from fscomm.exchange.handed_over import ExchangedIds, Gradients
from fscomm.exchange.operations import Class, Kind, Operation
from fscomm.exchange.wire_gate import WireGate
from fscomm.plan.group_plan import WayBack
from fscomm.plan.sharding_group import GroupLayout
from fscomm.plan.ways import Apply, Lookup, PassOn, SendGradients
from fscomm.report.recorder import Recorder
from fscomm.tables.shadow_kernels import GroupTables
from fscomm.transports.transport import Handle, Transport
from fsranks.control_group import AllToAll

IN_FLIGHT = 2  # collision parts: the next one is ready when one ends


class RowExchange:
    """Operations of `of_class`, one after the other. They block until they are over.

    tables: [G] this worker's own shadows. wire_gate: holds exclusive operations back; None for the collision class.
    """

    def __init__(
        self,
        of_class: Class,
        layouts: Sequence[GroupLayout],
        tables: Sequence[GroupTables],
        *,
        of_rows: Transport,
        of_gradients: Transport,
        wire_gate: WireGate | None,
        recorder: Recorder,
    ) -> None:
        self._class = of_class
        self._name = of_class.value
        self._layouts = layouts
        self._tables = tables
        self._of_rows = of_rows
        self._of_gradients = of_gradients
        self._wire_gate = wire_gate
        self._recorder = recorder

    def run(self, operation: Operation) -> None:
        """Of an operation whose ids have arrived. Nothing of the collision class travels if no step follows."""
        assert operation.ids is not None
        ids, groups, gradients = operation.ids.result(), operation.groups, operation.gradients
        if operation.kind is Kind.FETCH:
            if ids.verdict.stop is None:
                self.fetch(ids, [g for g in groups if ids.groups[g] is not None])
            return
        assert gradients is not None
        if self._collision and (ids.verdict.stop is not None or ids.verdict.ended):
            return
        if operation.kind is Kind.SEND_BACK:
            self.send_back(gradients, ids.back, groups)
        else:
            self.update(gradients, ids.back, groups)

    def fetch(self, ids: ExchangedIds, groups: Sequence[int]) -> None:
        """Look up the rows of the class and fill the step's buffers with those from all owners."""
        self._await_wire()
        with self._recorder.span(f"{self._name} lookup", step=ids.number):
            mine = {g: self._tables[g].lookup(self._lookup(ids, g)) for g in groups}
        with self._recorder.span(f"{self._name} rows", step=ids.number):
            parts = (part for g in groups for part in self._row_parts(ids, g, mine[g]))
            exchange(self._of_rows, parts, self._wire_gate)
            passed = {g: on for g in groups if (on := self._passed_on(ids, g)) is not None}
            parts = (part for g, on in passed.items() for part in self._passed_parts(ids, g, on))
            exchange(self._of_rows, parts, self._wire_gate)

    def send_back(self, gradients: Gradients, back: Sequence[WayBack | None], groups: Sequence[int]) -> None:
        """Send the gradients of the class to the owners on their way `back`.

        All `groups` travel, so that ranks agree on sizes, also one without gradient: an output that the loss did not
        use.
        """
        self._await_wire()
        came = {g: self._new_gradients(g, self._back(back, g)[1].total) for g in groups}
        with self._recorder.span(f"{self._name} gradients", step=gradients.number):
            parts = [self._gradient_parts(gradients, g, *self._back(back, g), came[g]) for g in groups]
            exchange(self._of_gradients, (part for of_group in parts for part in of_group), self._wire_gate)
        gradients.came[self._name].update(came)
        if self._collision:
            gradients.kept.update({g: came[g] for g in groups if self._layouts[g].pooling is not None})

    def update(self, gradients: Gradients, back: Sequence[WayBack | None], groups: Sequence[int]) -> None:
        """Apply the gradients that came. A group that no gradient was sent of leaves its tables untouched."""
        with self._recorder.span(f"{self._name} apply", step=gradients.number):
            for g in groups:
                came = gradients.came[self._name].pop(g)
                kept = None if self._collision else gradients.kept.pop(g, None)
                if g in gradients.by_group:
                    self._tables[g].apply(self._back(back, g)[1], came, gradients.hypers[g], kept)

    def meet(self) -> None:
        """Return when all ranks have come here."""
        self._of_rows.meet()

    @property
    def _collision(self) -> bool:
        return self._class is Class.COLLISION

    def _await_wire(self) -> None:
        """Exclusive work leaves wire and cores to collision work: to copy exclusive rows would slow that down, too."""
        if self._wire_gate is not None:
            self._wire_gate.wait()

    def _lookup(self, ids: ExchangedIds, group: int) -> Lookup:
        ahead = ids.ahead(group)
        return ahead.collision if self._collision else ahead.exclusive

    def _passed_on(self, ids: ExchangedIds, group: int) -> PassOn | None:
        ahead = ids.ahead(group)
        return ahead.collision_passed if self._collision else ahead.exclusive_passed

    def _back(self, back: Sequence[WayBack | None], group: int) -> tuple[SendGradients, Apply]:
        way = back[group]
        assert way is not None
        if self._collision:
            return way.collision_send, way.collision_apply
        return way.exclusive_send, way.exclusive_apply

    def _rows_of_class(self, ids: ExchangedIds, group: int) -> torch.Tensor:
        """[n, row width] where they are received: those of owners, then those that are passed on."""
        ahead = ids.ahead(group)
        first = ahead.merge.exclusive_total
        return ahead.buffer[first:] if self._collision else ahead.buffer[:first]

    def _new_gradients(self, group: int, number: int) -> torch.Tensor:
        tables = self._tables[group]
        codec = tables.codecs.gradients
        return torch.empty(number, codec.width, dtype=codec.dtype, device=tables.where)

    def _row_parts(self, ids: ExchangedIds, group: int, mine: torch.Tensor) -> Iterator[AllToAll]:
        merge, sent = ids.ahead(group).merge, self._lookup(ids, group).splits
        received = merge.collision if self._collision else merge.exclusive
        target = self._rows_of_class(ids, group)[: sum(map(sum, received))]
        return self._parts(ids.number, group, "rows", target, mine, received, sent)

    def _passed_parts(self, ids: ExchangedIds, group: int, on: PassOn) -> Iterator[AllToAll]:
        rows = self._rows_of_class(ids, group)
        from_owners = len(rows) - sum(map(sum, on.received))
        mine = rows[:from_owners].index_select(0, on.index)
        return self._parts(ids.number, group, "rows", rows[from_owners:], mine, on.received, on.sent)

    def _gradient_parts(
        self, gradients: Gradients, group: int, send: SendGradients, apply: Apply, came: torch.Tensor
    ) -> Iterator[AllToAll]:
        if group in gradients.by_group:
            strips = gradients.by_group[group].reshape(-1, self._layouts[group].dim)
            mine = self._tables[group].codecs.gradients.encode(strips.index_select(0, send.index))
        else:
            mine = self._new_gradients(group, len(send.index)).zero_()
        return self._parts(gradients.number, group, "gradients", came, mine, apply.splits, send.splits)

    def _parts(
        self,
        step: int,
        group: int,
        what: str,
        out: torch.Tensor,
        mine: torch.Tensor,
        received: list[list[int]],
        sent: list[list[int]],
    ) -> Iterator[AllToAll]:
        """Chunk by chunk."""
        layout = self._layouts[group]
        row_bytes = mine.shape[1] * mine.element_size()
        for number, (of_out, of_mine) in enumerate(
            zip(out.split([sum(s) for s in received]), mine.split([sum(s) for s in sent]), strict=True)
        ):
            here = [(sum(s[number][layout.host]) - s[number][layout.rank]) * row_bytes for s in (sent, received)]
            moved = [(sum(s[number]) - sum(s[number][layout.host])) * row_bytes for s in (sent, received)]
            self._recorder.bytes(layout.module, step, f"{self._name} {what}", *moved)
            if layout.ranks_per_host > 1:
                self._recorder.bytes(layout.module, step, f"{self._name} {what}, in host", *here)
            yield of_out, of_mine, received[number], sent[number]


def exchange(transport: Transport, parts: Iterable[AllToAll], wire_gate: WireGate | None) -> None:
    """Exchange (out, inp, out_splits, in_splits) in order, a few at a time, or each when `wire_gate` lets it. Blocks.

    Each part is taken from `parts` just before it may be issued. Raises what the transport or `parts` raise; parts that
    were issued are then not waited for, and no longer count as under way.
    """
    handles: deque[Handle] = deque()
    sizes: deque[int] = deque()

    def finish_oldest() -> None:
        handles.popleft().wait()
        nbytes = sizes.popleft()
        if wire_gate is not None:
            wire_gate.exclusive_done(nbytes)

    try:
        for out, inp, out_splits, in_splits in parts:
            nbytes = max(out.nbytes, inp.nbytes)
            while not (len(handles) < IN_FLIGHT if wire_gate is None else wire_gate.try_exclusive(nbytes)):
                if handles:
                    finish_oldest()
                elif wire_gate is not None:
                    wire_gate.wait_exclusive(nbytes)
            sizes.append(nbytes)
            handles.append(transport.all_to_all_v(out, inp, out_splits, in_splits))
        while handles:
            finish_oldest()
    finally:
        if wire_gate is not None:
            wire_gate.exclusive_done(sum(sizes))
