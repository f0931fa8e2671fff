"""Which memory goes from one stream of a device to another, and what orders its uses: every such edge, once.

A stream is named by what issues to it: `compute`, the thread that trains; `copy`, batches on their way to the device;
`ids`, the worker that exchanges ids; the classes of operations; `wire`, the transports. `host` is no stream: it is the
thread of a transport that waits for the device before it touches staging buffers. Reassigned rows go as collision rows
do.

Memory belongs to the stream that allocated it: once Python has freed it, that stream may reuse it, whatever another
stream still does with it. So an edge also says what keeps the memory until the second stream is done: the worker
(`Worker._under_way`), the transport, or the allocator, to which `Device.reads` names the second stream.

`tests/comm/exchange/test_stream_order.py` plays training loops on streams: a use that no edge orders is an error there,
and so are an edge that is not in this file and one in this file that no loop needs.
"""

from collections.abc import Set
from dataclasses import dataclass

CLASSES = "collision", "exclusive"
TABLES = "compute", *CLASSES, "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What is made, written or read in one of the streams `first` is used in one of the streams `then`.

    Attributes:
        by: what orders them. kept: what keeps the memory meanwhile.
    """

    what: str
    first: tuple[str, ...]
    then: tuple[str, ...]
    by: str
    kept: str


EDGES = (
    Edge(
        what="batch",
        first=("copy",),
        then=("compute", "ids"),
        by="Moved.mark: after it in Moving.end, behind it in Executor.exchange_ids",
        kept="Device.reads in Moving.end; the ids worker",
    ),
    Edge(
        what="batch",
        first=("compute",),
        then=("ids",),
        by="ids that come from the device: behind all that was issued when the batch was announced",
        kept="the ids worker",
    ),
    Edge(
        what="features",  # those that the module's output needs
        first=("ids",),
        then=("compute",),
        by="Step.arrived",
        kept="Device.reads in Engine.output",
    ),
    Edge(what="plan", first=("ids",), then=("compute",), by="Step.arrived", kept="Device.reads in Engine.output"),
    Edge(what="plan", first=("ids",), then=CLASSES, by="Operation.ids", kept="the worker of the operation"),
    Edge(
        what="rows",  # received ahead of a step; `ids` makes their buffer
        first=("ids",),
        then=("wire",),
        by="Operation.ids, then the mark with which an exchange is issued",
        kept="the worker of the operation; Device.reads in HostStaged",
    ),
    Edge(
        what="rows",
        first=("wire",),
        then=("compute",),
        by="Handle.follow, then Fetched.done",
        kept="Device.reads in Engine.output",
    ),
    Edge(
        what="gradients",  # and what else the update of a plain forward uses
        first=("compute",),
        then=(*CLASSES, "plain"),
        by="behind all that was issued when the operation was submitted",
        kept="the worker of the operation",
    ),
    Edge(
        what="received gradients",  # in one buffer, which the class makes that comes first
        first=CLASSES,
        then=("wire",),
        by="the mark that Gradients.received gives, then the mark with which an exchange is issued",
        kept="the worker of the operation; Device.reads in HostStaged",
    ),
    Edge(
        what="received gradients",
        first=("wire",),
        then=CLASSES,
        by="Handle.follow; Operation.after where exclusive rows get theirs with the collision class",
        kept="the worker of the operation",
    ),
    Edge(
        what="sent",  # rows and gradients, in the order in which they travel; slots of a transport
        first=CLASSES,
        then=("wire",),
        by="the mark with which an exchange is issued",
        kept="the transport, until the exchange is done; Device.reads in HostStaged",
    ),
    Edge(
        what="staging",
        first=("wire",),
        then=("host",),
        by="the host waits for Piece.down, and for the mark after what the buffer held before went up",
        kept="HostStaged",
    ),
    Edge(what="staging", first=("host",), then=("wire",), by="a host transport is waited for", kept="HostStaged"),
    Edge(
        what="tables",
        first=TABLES,
        then=TABLES,
        by="Operation.after, by the law of engine/table_order.py; what was issued when an operation was submitted",
        kept="the module",
    ),
)


def pairs() -> Set[tuple[str, str, str]]:
    """(what, first, then), one by one."""
    return {(each.what, a, b) for each in EDGES for a in each.first for b in each.then if a != b}
