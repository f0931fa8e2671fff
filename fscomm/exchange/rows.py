"""The operations of one class, as a worker does them (Algorithm 2 of the paper, with the sends ordered by the wire).

Each class of collision rows and gradients travels whole, exclusive ones in chunks.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch

from fscomm.device import Device, Mark
from fscomm.exchange.handed_over import ExchangedIds, Gradients
from fscomm.exchange.operations import Class, Kind, Operation
from fscomm.plan.group_plan import Back, Leg
from fscomm.plan.sharding_group import GroupLayout
from fscomm.report.recorder import Recorder
from fscomm.tables.group_tables import GroupTables
from fscomm.transports.transport import Chunk as Part
from fscomm.transports.transport import Transport


class SendPolicy(Protocol):
    """Which parts of an exchange go when."""

    def wait(self) -> None:
        """Block until an operation may begin."""

    def exchange(self, transport: Transport, parts: Iterable[Part]) -> None:
        """Exchange `parts` in order; each is taken just before it may be issued.

        Blocks until all are done, or, where a device does it, until what the thread issues next finds them done. Raises
        what the transport or `parts` raise; parts that were issued are then not waited for.
        """


class RowExchange:
    """Operations of `of_class`, one after the other. They block as their `policy` does.

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
        policy: SendPolicy,
        device: Device,
        recorder: Recorder,
    ) -> None:
        self._class = of_class
        self._name = of_class.name
        self._layouts = layouts
        self._tables = tables
        self._of_rows = of_rows
        self._of_gradients = of_gradients
        self._policy = policy
        self._device = device
        self._recorder = recorder

    def run(self, operation: Operation) -> None:
        """Of an operation whose ids have arrived. What two steps share does not travel if no step follows."""
        assert operation.ids is not None
        ids, groups, gradients = operation.ids.result(), operation.groups, operation.gradients
        if operation.kind is Kind.FETCH:
            if ids.verdict.stop is None:
                self.fetch(ids, [g for g in groups if ids.groups[g] is not None], operation.number)
            return
        assert gradients is not None
        if self._class is not Class.EXCLUSIVE and (ids.verdict.stop is not None or ids.verdict.ended):
            return
        if operation.kind is Kind.SEND_BACK:
            self.send_back(gradients, ids, groups, operation.number)
        else:
            self.update(gradients, ids.back, groups, operation.number)

    def fetch(self, ids: ExchangedIds, groups: Sequence[int], number: int) -> None:
        """Look up the rows of a class and fill the step's buffers with those from all owners."""
        self._policy.wait()
        fetch = {g: ids.ahead(g).fetch[number] for g in groups}
        with self._recorder.span(f"{self._name} lookup", step=ids.number):
            mine = {g: self._tables[g].lookup(each.call, each.legs[0].index) for g, each in fetch.items()}
        with self._recorder.span(f"{self._name} rows", step=ids.number):
            # Generators: a chunk is cut when it may be issued, so few copies of rows exist at a time.
            parts = (part for g, each in fetch.items() for part in self._rows(ids, g, each.legs[0], mine[g]))
            self._policy.exchange(self._of_rows, parts)
            # What is passed on has to be here first.
            parts = (part for g, each in fetch.items() for leg in each.legs[1:] for part in self._passed(ids, g, leg))
            self._policy.exchange(self._of_rows, parts)

    def send_back(self, gradients: Gradients, ids: ExchangedIds, groups: Sequence[int], number: int) -> None:
        """Send the gradients of a class of strips to the owners, on the way back that is in `ids`, of the step after.

        All `groups` travel, so that ranks agree on sizes, also one without gradient: an output that the loss did not
        use.
        """
        self._policy.wait()
        with self._recorder.span(f"{self._name} gradients", step=gradients.number):
            parts = [self._gradient_parts(gradients, g, _of(ids.back, g), number) for g in groups]
            self._policy.exchange(self._of_gradients, (part for of_group in parts for part in of_group))

    def update(self, gradients: Gradients, back: Sequence[Back | None], groups: Sequence[int], of_class: int) -> None:
        """Apply the received gradients of a class of rows. A group that no gradient was sent of leaves its tables
        untouched."""
        with self._recorder.span(f"{self._name} apply", step=gradients.number):
            for g in groups:
                if gradients.used(g):
                    way = _of(back, g)
                    self._tables[g].apply(way.applies[of_class], self._received(gradients, g, way), gradients.hypers[g])

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        self._of_rows.barrier()

    def _received(self, gradients: Gradients, group: int, way: Back) -> torch.Tensor:
        def make() -> tuple[torch.Tensor, Mark]:
            return self._new_gradients(group, way.legs[-1].end), self._device.mark()

        received, made = gradients.received(group, make)
        self._device.after(made)  # maybe in the stream of another class, which may still use what was there before
        return received

    def _new_gradients(self, group: int, number: int) -> torch.Tensor:
        tables = self._tables[group]
        codec = tables.codecs.gradients
        return torch.empty(number, codec.width, dtype=codec.dtype, device=tables.where)

    def _rows(self, ids: ExchangedIds, group: int, leg: Leg, mine: torch.Tensor) -> Iterator[Part]:
        return self._parts(ids.number, group, "rows", leg, ids.ahead(group).buffer, mine)

    def _passed(self, ids: ExchangedIds, group: int, leg: Leg) -> Iterator[Part]:
        buffer = ids.ahead(group).buffer
        return self._parts(ids.number, group, "rows", leg, buffer, buffer.index_select(0, leg.index))

    def _gradient_parts(self, gradients: Gradients, group: int, way: Back, number: int) -> Iterator[Part]:
        leg, given = way.legs[number], gradients.strips(group, way, number, self._layouts[group].dim)
        if given is None:  # the other ranks expect as many strips of this rank as their plans say
            mine = self._new_gradients(group, len(leg.index)).zero_()
        else:
            mine = self._tables[group].codecs.gradients.encode(given.index_select(0, leg.index))
        received = self._received(gradients, group, way)
        return self._parts(gradients.number, group, "gradients", leg, received, mine)

    def _parts(
        self, step: int, group: int, what: str, leg: Leg, buffer: torch.Tensor, mine: torch.Tensor
    ) -> Iterator[Part]:
        """Exchange by exchange, from `mine` into the buffer."""
        layout = self._layouts[group]
        row_bytes, start, first = mine.shape[1] * mine.element_size(), leg.start, 0
        for send, receive in leg.splits():
            here = [(sum(splits[layout.host]) - splits[layout.rank]) * row_bytes for splits in (send, receive)]
            elsewhere = [(sum(splits) - sum(splits[layout.host])) * row_bytes for splits in (send, receive)]
            self._recorder.bytes(layout.module, step, f"{self._name} {what}", *elsewhere)
            if layout.ranks_per_host > 1:
                self._recorder.bytes(layout.module, step, f"{self._name} {what}, in host", *here)
            end, last = start + sum(receive), first + sum(send)
            yield Part(buffer[start:end], mine[first:last], receive, send, leg.bound * row_bytes)
            start, first = end, last


def _of(back: Sequence[Back | None], group: int) -> Back:
    """Of a group that is served."""
    found = back[group]
    assert found is not None
    return found
