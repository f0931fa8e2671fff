"""An exchange of many parts: collision parts a few at a time, exclusive parts each when the wire gate lets it go."""

from collections import deque
from collections.abc import Iterable

from fscomm.exchange.wire_gate import WireGate
from fscomm.transports.transport import Handle, Transport
from fsranks.control_group import AllToAll

IN_FLIGHT = 2  # collision parts: the next one is ready when one ends


def exchange(transport: Transport, parts: Iterable[AllToAll], wire_gate: WireGate | None) -> None:
    """Exchange (out, inp, out_splits, in_splits) in order; with a `wire_gate`, as exclusive rows. Blocks until done.

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
