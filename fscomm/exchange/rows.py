"""The operations of one class, as a worker does them (Algorithm 2 of the paper, with the sends ordered by the wire).

Collision rows and gradients go piece by piece, exclusive ones in chunks.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch

from fscomm.device import Device, Mark
from fscomm.exchange.handed_over import ExchangedIds, Gradients
from fscomm.exchange.operations import Class, Kind, Operation
from fscomm.plan.sharding_group import GroupLayout
from fscomm.plan.ways import Back, PassOn, Splits
from fscomm.report.recorder import Recorder
from fscomm.tables.group_tables import GroupTables
from fscomm.transports.transport import Chunk as Part
from fscomm.transports.transport import Transport


class Wire(Protocol):
    """Which parts of an exchange go when."""

    def wait(self) -> None:
        """Block until an operation may begin."""

    def exchange(self, transport: Transport, parts: Iterable[Part]) -> None:
        """Exchange `parts` in order; each is taken just before it may be issued.

        Blocks until all are done, or, where a device does it, until what the thread issues next finds them done. Raises
        what the transport or `parts` raise; parts that were issued are then not waited for.
        """


class RowExchange:
    """Operations of `of_class`, one after the other. They block as their `wire` does.

    tables: [G] shadows of the thread that does them.
    """

    def __init__(
        self,
        of_class: Class,
        layouts: Sequence[GroupLayout],
        tables: Sequence[GroupTables],
        *,
        of_rows: Transport,
        of_gradients: Transport,
        wire: Wire,
        device: Device,
        recorder: Recorder,
    ) -> None:
        self._class = of_class
        self._name = of_class.value
        self._layouts = layouts
        self._tables = tables
        self._of_rows = of_rows
        self._of_gradients = of_gradients
        self._wire = wire
        self._device = device
        self._recorder = recorder

    def run(self, operation: Operation) -> None:
        """Of an operation whose ids have arrived. What two steps share does not travel if no step follows."""
        assert operation.ids is not None
        ids, groups, gradients = operation.ids.result(), operation.groups, operation.gradients
        if operation.kind is Kind.FETCH:
            if ids.verdict.stop is None:
                self.fetch(ids, [g for g in groups if ids.groups[g] is not None], operation.piece)
            return
        assert gradients is not None
        if self._class is not Class.EXCLUSIVE and (ids.verdict.stop is not None or ids.verdict.ended):
            return
        if operation.kind is Kind.SEND_BACK:
            self.send_back(gradients, ids, groups, operation.piece)
        else:
            self.update(gradients, ids.back, groups, operation.piece)

    def fetch(self, ids: ExchangedIds, groups: Sequence[int], piece: int) -> None:
        """Look up the rows of the piece and fill the step's buffers with those from all owners."""
        self._wire.wait()
        with self._recorder.span(f"{self._name} lookup", step=ids.number):
            mine = {g: self._tables[g].lookup(ids.ahead(g).fetch[piece].lookup) for g in groups}
        with self._recorder.span(f"{self._name} rows", step=ids.number):
            parts = (part for g in groups for part in self._row_parts(ids, g, piece, mine[g]))
            self._wire.exchange(self._of_rows, parts)
            passed = {g: on for g in groups if (on := ids.ahead(g).fetch[piece].passed_on) is not None}
            parts = (part for g, on in passed.items() for part in self._passed_parts(ids, g, piece, on))
            self._wire.exchange(self._of_rows, parts)

    def send_back(self, gradients: Gradients, ids: ExchangedIds, groups: Sequence[int], piece: int) -> None:
        """Send the gradients of the piece to the owners, on the way back that came with `ids`, of the step after.

        All `groups` travel, so that ranks agree on sizes, also one without gradient: an output that the loss did not
        use.
        """
        self._wire.wait()
        with self._recorder.span(f"{self._name} gradients", step=gradients.number):
            parts = [self._gradient_parts(gradients, g, _of(ids.back, g), piece) for g in groups]
            self._wire.exchange(self._of_gradients, (part for of_group in parts for part in of_group))

    def update(self, gradients: Gradients, back: Sequence[Back | None], groups: Sequence[int], of_class: int) -> None:
        """Apply the gradients that came for rows of a class. A group that no gradient was sent of leaves its tables
        untouched."""
        with self._recorder.span(f"{self._name} apply", step=gradients.number):
            for g in groups:
                if gradients.used(g):
                    way = _of(back, g)
                    self._tables[g].apply(way.applies[of_class], self._came(gradients, g, way), gradients.hypers[g])

    def meet(self) -> None:
        """Return when all ranks have come here."""
        self._of_rows.barrier()

    def _came(self, gradients: Gradients, group: int, way: Back) -> torch.Tensor:
        def make() -> tuple[torch.Tensor, Mark]:
            return self._new_gradients(group, way.starts[-1]), self._device.mark()

        came, made = gradients.came(group, make)
        self._device.after(made)  # maybe in the stream of another class, which may still use what was there before
        return came

    def _new_gradients(self, group: int, number: int) -> torch.Tensor:
        tables = self._tables[group]
        codec = tables.codecs.gradients
        return torch.empty(number, codec.width, dtype=codec.dtype, device=tables.where)

    def _rows_of(self, ids: ExchangedIds, group: int, piece: int) -> torch.Tensor:
        """[n, row width] where they are received: those of owners, then those that are passed on."""
        ahead = ids.ahead(group)
        return _slice(ahead.buffer, ahead.merge.starts, piece)

    def _row_parts(self, ids: ExchangedIds, group: int, piece: int, mine: torch.Tensor) -> Iterator[Part]:
        way = ids.ahead(group).fetch[piece]
        target = self._rows_of(ids, group, piece)[: sum(map(sum, way.received))]
        return self._parts(ids.number, group, "rows", target, mine, way.received, way.lookup.splits, way.most)

    def _passed_parts(self, ids: ExchangedIds, group: int, piece: int, on: PassOn) -> Iterator[Part]:
        rows = self._rows_of(ids, group, piece)
        from_owners = len(rows) - sum(map(sum, on.received))
        mine = rows[:from_owners].index_select(0, on.index)
        return self._parts(ids.number, group, "rows", rows[from_owners:], mine, on.received, on.sent, on.most)

    def _gradient_parts(self, gradients: Gradients, group: int, way: Back, piece: int) -> Iterator[Part]:
        go, given = way.pieces[piece], gradients.strips(group, way, piece, self._layouts[group].dim)
        if given is None:
            mine = self._new_gradients(group, len(go.index)).zero_()
        else:
            mine = self._tables[group].codecs.gradients.encode(given.index_select(0, go.index))
        came = _slice(self._came(gradients, group, way), way.starts, piece)
        return self._parts(gradients.number, group, "gradients", came, mine, go.received, go.sent, go.most)

    def _parts(
        self,
        step: int,
        group: int,
        what: str,
        out: torch.Tensor,
        mine: torch.Tensor,
        received: Splits,
        sent: Splits,
        most: int,
    ) -> Iterator[Part]:
        """Chunk by chunk. most: strips from any rank to any in one of them."""
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
            yield Part(of_out, of_mine, received[number], sent[number], most * row_bytes)


def _of(back: Sequence[Back | None], group: int) -> Back:
    """Of a group that is served."""
    found = back[group]
    assert found is not None
    return found


def _slice(strips: torch.Tensor, starts: Sequence[int], piece: int) -> torch.Tensor:
    """piece: -1 is the exclusive one."""
    return strips[starts[piece - 1 if piece < 0 else piece] : starts[piece if piece < 0 else piece + 1]]
