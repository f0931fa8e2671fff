"""The rows and gradients of a step on their way: what the collision and the exclusive worker do.

The collision worker carries the collision class, one step after the other: gradients, their update, look-up and rows of
the same table rows for the next step. The exclusive worker carries the exclusive class in chunks, each held back while
collision work runs (Algorithm 2 of the paper, with the sends ordered by `WireGate`).
"""

from collections.abc import Iterator, Sequence

import torch

from fscomm.exchange.parts import exchange
from fscomm.exchange.step import ExchangedIds, Gradients
from fscomm.exchange.wire_gate import WireGate
from fscomm.plan.group_plan import WayBack
from fscomm.plan.sharding_group import GroupLayout
from fscomm.plan.ways import Apply, Lookup, PassOn, SendGradients
from fscomm.report.recorder import Recorder
from fscomm.tables.plain_kernels import Update
from fscomm.tables.shadow_kernels import GroupTables
from fscomm.transports.transport import Transport
from fsranks.control_group import AllToAll


class RowExchange:
    """One class of rows and their gradients in one worker.

    GroupTables are this worker's own shadows. Methods run in the worker and block until the exchange is over.
    """

    def __init__(
        self,
        kind: str,
        layouts: Sequence[GroupLayout],
        tables: Sequence[GroupTables],
        *,
        of_rows: Transport,
        of_gradients: Transport,
        wire_gate: WireGate | None,
        recorder: Recorder,
    ) -> None:
        self._kind = kind
        self._layouts = layouts
        self._tables = tables
        self._of_rows = of_rows
        self._of_gradients = of_gradients
        self._wire_gate = wire_gate
        self._recorder = recorder

    def send_rows(self, ids: ExchangedIds, groups: Sequence[int], *, collision: bool) -> None:
        """Look up the rows of a class of a step and fill its buffers with those from all owners."""
        self._await_wire()
        with self._recorder.span(f"{self._kind} lookup", step=ids.number):
            mine = {g: self._tables[g].lookup(_lookup(ids, g, collision)) for g in groups}
        with self._recorder.span(f"{self._kind} rows", step=ids.number):
            parts = (part for g in groups for part in self._row_parts(ids, g, mine[g], collision))
            exchange(self._of_rows, parts, self._wire_gate)
            passed = {g: on for g in groups if (on := _passed_on(ids, g, collision)) is not None}
            parts = (part for g, on in passed.items() for part in self._passed_parts(ids, g, on, collision))
            exchange(self._of_rows, parts, self._wire_gate)

    def update(
        self, gradients: Gradients, back: Sequence[WayBack | None], groups: Sequence[int], *, collision: bool
    ) -> None:
        """Send the gradients of a class to the owners on their way `back`, and apply those that came.

        All `groups` travel, so that ranks agree on sizes; a group without gradient, an output that the loss did not
        use, leaves its tables untouched.
        """
        self._await_wire()
        ways = {g: _back(back, g, collision) for g in groups}
        received = {g: self._new_gradients(g, apply.total) for g, (_, apply) in ways.items()}
        with self._recorder.span(f"{self._kind} gradients", step=gradients.number):
            parts = [self._gradient_parts(gradients, g, *ways[g], received[g]) for g in groups]
            exchange(self._of_gradients, (part for of_group in parts for part in of_group), self._wire_gate)
        for g in groups:
            if collision and self._layouts[g].pooling is not None:
                gradients.kept[g] = received[g]
        with self._recorder.span(f"{self._kind} apply", step=gradients.number):
            for g in groups:
                if g in gradients.by_group:
                    kept = None if collision else gradients.kept.get(g)
                    self._tables[g].apply(ways[g][1], received[g], gradients.hypers[g], kept)

    def meet(self) -> None:
        """Return when all ranks have come here."""
        self._of_rows.meet()

    def _await_wire(self) -> None:
        """Exclusive work leaves wire and cores to collision work: to copy exclusive rows would slow that down, too."""
        if self._wire_gate is not None:
            self._wire_gate.wait()

    def _new_gradients(self, group: int, number: int) -> torch.Tensor:
        tables = self._tables[group]
        codec = tables.codecs.gradients
        return torch.empty(number, codec.width, dtype=codec.dtype, device=tables.where)

    def _row_parts(self, ids: ExchangedIds, group: int, mine: torch.Tensor, collision: bool) -> Iterator[AllToAll]:
        merge, sent = ids.ahead(group).merge, _lookup(ids, group, collision).splits
        received = merge.collision if collision else merge.exclusive
        target = _rows_of_class(ids, group, collision)[: sum(map(sum, received))]
        return self._parts(ids.number, group, "rows", target, mine, received, sent)

    def _passed_parts(self, ids: ExchangedIds, group: int, on: PassOn, collision: bool) -> Iterator[AllToAll]:
        rows = _rows_of_class(ids, group, collision)
        from_owners = len(rows) - sum(map(sum, on.received))
        mine = rows[:from_owners].index_select(0, on.index)
        return self._parts(ids.number, group, "rows", rows[from_owners:], mine, on.received, on.sent)

    def _gradient_parts(
        self, gradients: Gradients, group: int, send: SendGradients, apply: Apply, received: torch.Tensor
    ) -> Iterator[AllToAll]:
        if group in gradients.by_group:
            strips = gradients.by_group[group].reshape(-1, self._layouts[group].dim)
            mine = self._tables[group].codecs.gradients.encode(strips.index_select(0, send.index))
        else:
            mine = self._new_gradients(group, len(send.index)).zero_()
        return self._parts(gradients.number, group, "gradients", received, mine, apply.splits, send.splits)

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
        for number, (of_out, of_mine) in enumerate(
            zip(out.split([sum(s) for s in received]), mine.split([sum(s) for s in sent]), strict=True)
        ):
            row_bytes = mine.shape[1] * mine.element_size()
            here = [(sum(s[number][layout.host]) - s[number][layout.rank]) * row_bytes for s in (sent, received)]
            moved = [(sum(s[number]) - sum(s[number][layout.host])) * row_bytes for s in (sent, received)]
            self._recorder.bytes(layout.module, step, f"{self._kind} {what}", *moved)
            if layout.ranks_per_host > 1:
                self._recorder.bytes(layout.module, step, f"{self._kind} {what}, in host", *here)
            yield of_out, of_mine, received[number], sent[number]


class PlainUpdates:
    """Updates of modules that ran plainly: TorchRec has sent their gradients already. Runs in the plain worker.

    The next forward waits for these updates. In a worker of their own they wait for no exchange of later rows.
    """

    def __init__(self, tables: Sequence[GroupTables], recorder: Recorder) -> None:
        self._tables = tables
        self._recorder = recorder

    def update(self, group: int, kernel: int, update: Update) -> None:
        with self._recorder.span("plain apply"):
            update(lambda: self._tables[group].shadows[kernel])


def _lookup(ids: ExchangedIds, group: int, collision: bool) -> Lookup:
    ahead = ids.ahead(group)
    return ahead.collision if collision else ahead.exclusive


def _passed_on(ids: ExchangedIds, group: int, collision: bool) -> PassOn | None:
    ahead = ids.ahead(group)
    return ahead.collision_passed if collision else ahead.exclusive_passed


def _rows_of_class(ids: ExchangedIds, group: int, collision: bool) -> torch.Tensor:
    """[n, row width] where they are received: those of owners, then those that are passed on."""
    ahead = ids.ahead(group)
    first = ahead.merge.exclusive_total
    return ahead.buffer[first:] if collision else ahead.buffer[:first]


def _back(back: Sequence[WayBack | None], group: int, collision: bool) -> tuple[SendGradients, Apply]:
    way = back[group]
    assert way is not None
    return (way.collision_send, way.collision_apply) if collision else (way.exclusive_send, way.exclusive_apply)
