"""Where the calling thread reads or writes tables itself: earlier updates are completed first."""

from collections.abc import Iterable

from fscomm.engine.forward_modes import in_backward
from fscomm.engine.table_access import TableAccess
from fscomm.engine.updates import Updates
from fscomm.exchange.served_modules import ServedModules
from fscomm.exchange.wire_gate import WireGate
from fscomm.report.recorder import Recorder


class Flushing:
    """Waits for updates of this rank. No collective."""

    def __init__(
        self, served: ServedModules, updates: Updates, tables: TableAccess, wire_gate: WireGate, recorder: Recorder
    ) -> None:
        self._served = served
        self._updates = updates
        self._tables = tables
        self._wire_gate = wire_gate
        self._recorder = recorder

    def flush(self, modules: Iterable[int] | None = None) -> None:
        """Wait until all gradients that came back are applied to the tables of `modules` (None: all). In any thread."""
        self._updates.end_failed_pass()
        self._wire_gate.settle()
        with self._recorder.wait("exclusive gradients"):
            for m in range(len(self._served.modules)) if modules is None else modules:
                self._tables.wait(m)

    def before_look(self, m: int) -> None:
        """The program looks at the tables of module m; maybe in a hook inside backward."""
        if in_backward():
            self._updates.send_gathered(self._served.groups[m].start)
        self.flush([m])

    def before_read(self, group: int) -> None:
        """A kernel of `group` is about to read in a plain forward; maybe inside backward (activation checkpointing)."""
        self._updates.send_gathered(group)
        self.flush([self._served.module_of[group]])
