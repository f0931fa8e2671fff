"""The rows and gradients of a step on their way: what the collision and the exclusive worker do.

The collision worker carries the collision class, one step after the other: gradients, their update, look-up and rows of
the same table rows for the next step. The exclusive worker carries the exclusive class in chunks, each held back while
collision traffic runs (Algorithm 2 of the paper, with the sends ordered by `gate.WireGate`).
"""

from collections.abc import Iterator, Sequence

import torch

from fscomm.exchange.parts import exchange
from fscomm.exchange.step import Step
from fscomm.exchange.wire_gate import WireGate
from fscomm.plan.routes import Apply, Lookup, SendGradients
from fscomm.plan.sharding_group import GroupLayout
from fscomm.report.recorder import Recorder
from fscomm.torchrec.plain_kernels import Update
from fscomm.torchrec.shadow_kernels import Tables
from fscomm.transports.transport import Transport
from fsranks.control_group import AllToAll

Gradients = dict[int, torch.Tensor]


class RowExchange:
    """One class of rows in one worker: gradients go out over one transport, rows over the other.

    Tables are this worker's own shadows. Methods run in the worker and block until the exchange is over.
    """

    def __init__(
        self,
        kind: str,
        layouts: Sequence[GroupLayout],
        tables: Sequence[Tables],
        *,
        gradients: Transport,
        rows: Transport,
        gate: WireGate | None,
        recorder: Recorder,
    ) -> None:
        self._kind = kind
        self._layouts = layouts
        self._tables = tables
        self._gradients = gradients
        self._rows = rows
        self._gate = gate
        self._recorder = recorder

    def send_rows(self, step: Step, groups: Sequence[int], *, collision: bool) -> None:
        """Look up the rows of a class of `step` and fill its buffers with those from all owners."""
        self._await_turn()
        with self._recorder.span(f"{self._kind} lookup", step=step.number):
            mine = {g: self._tables[g].lookup(_lookup(step, g, collision)) for g in groups}
        with self._recorder.span(f"{self._kind} rows", step=step.number):
            parts = (part for g in groups for part in self._row_parts(step, g, mine[g], collision))
            exchange(self._rows, parts, self._gate)

    def update(self, step: Step, gradients: Gradients, groups: Sequence[int], *, collision: bool) -> None:
        """Send the gradients of a class of `step` to the owners and apply those that came.

        All `groups` travel, so that ranks agree on sizes; those without gradient, an output that the loss did not use,
        leave their tables untouched.
        """
        self._await_turn()
        received = {}
        with self._recorder.span(f"{self._kind} gradients", step=step.number):
            parts = []
            for g in groups:
                send, apply = _back(step, g, collision)
                received[g] = self._rows_of(g, apply.total)
                parts.append(self._gradient_parts(step, g, gradients.get(g), send, apply, received[g]))
            exchange(self._gradients, (part for of_group in parts for part in of_group), self._gate)
        with self._recorder.span(f"{self._kind} apply", step=step.number):
            for g in groups:
                if g in gradients:
                    self._tables[g].apply(_back(step, g, collision)[1], received[g], step.hypers[g])

    def meet(self) -> None:
        """Return when all ranks have come here."""
        self._rows.meet()

    def _await_turn(self) -> None:
        """Exclusive work leaves wire and cores to collision work: copying its rows would slow that down, too."""
        if self._gate is not None:
            self._gate.wait()

    def _rows_of(self, group: int, number: int) -> torch.Tensor:
        layout, tables = self._layouts[group], self._tables[group]
        return torch.empty(number, layout.dim, dtype=layout.dtype, device=tables.where)

    def _row_parts(self, step: Step, group: int, mine: torch.Tensor, collision: bool) -> Iterator[AllToAll]:
        ahead = step.groups[group]
        assert ahead is not None
        first = ahead.merge.exclusive_total
        target = ahead.buffer[first:] if collision else ahead.buffer[:first]
        received = ahead.merge.collision if collision else ahead.merge.exclusive
        return self._parts(
            step, group, f"{self._kind} rows", target, mine, received, _lookup(step, group, collision).splits
        )

    def _gradient_parts(
        self,
        step: Step,
        group: int,
        gradient: torch.Tensor | None,
        send: SendGradients,
        apply: Apply,
        received: torch.Tensor,
    ) -> Iterator[AllToAll]:
        if gradient is None:
            mine = self._rows_of(group, len(send.index)).zero_()
        else:
            mine = gradient.index_select(0, send.index)
        return self._parts(step, group, f"{self._kind} gradients", received, mine, apply.splits, send.splits)

    def _parts(
        self,
        step: Step,
        group: int,
        kind: str,
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
            elsewhere = [sum(s[number]) - s[number][layout.rank] for s in (sent, received)]
            self._recorder.bytes(
                layout.module, step.number, kind, elsewhere[0] * layout.row_bytes, elsewhere[1] * layout.row_bytes
            )
            yield of_out, of_mine, received[number], sent[number]


class PlainUpdates:
    """Updates by forwards of TorchRec's own: the gradients are with the owners already. In the plain worker.

    The next forward waits for them, so they stand behind no exchange of rows that nobody waits for yet.
    """

    def __init__(self, tables: Sequence[Tables], recorder: Recorder) -> None:
        self._tables = tables
        self._recorder = recorder

    def update(self, group: int, kernel: int, update: Update) -> None:
        with self._recorder.span("plain apply"):
            update(lambda: self._tables[group].shadows[kernel])


def _lookup(step: Step, group: int, collision: bool) -> Lookup:
    ahead = step.groups[group]
    assert ahead is not None
    return ahead.collision if collision else ahead.exclusive


def _back(step: Step, group: int, collision: bool) -> tuple[SendGradients, Apply]:
    back = step.back[group]
    assert back is not None
    return (back.collision_send, back.collision_apply) if collision else (back.exclusive_send, back.exclusive_apply)
