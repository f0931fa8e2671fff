"""The base classes of all nodes, and the job that the nodes of one graph share.

All nodes have the same state, that of the job: the number of rows that every rank has passed (`fsdata.order.progress`).
It is a small JSON-able dict, equal on all ranks, and any number of ranks can resume from it. (Where the source is a
loader of the user, the state is that of this loader, see `fsdata.tensors.parts`.)
"""

import weakref
from abc import abstractmethod
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from torchdata.nodes import BaseNode

from fsdata.nodes.guards import check_group
from fsdata.nodes.status_exchange import CLOSED, RESTARTED, StatusExchange
from fsdata.order.progress import Progress
from fsdata.order.status_word import StatusWord
from fsranks.rank_context import RankContext

T = TypeVar("T", covariant=True)
ExchangeT = TypeVar("ExchangeT", bound=StatusExchange)
GRACE_S = 5.0
"""How long a rank that closes its loader waits for ranks that are busy with a step, before it breaks the exchange."""


class Planner(Protocol):
    """Plans steps, and may adapt to the measured times of earlier steps."""

    def state_dict(self) -> dict[str, Any] | None:
        """What it has learned, JSON-able."""

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Replace what it has learned by a saved state."""

    def forget(self) -> None:
        """Reset it to its initial state."""


class Job:
    """The lifecycle that the nodes of one graph share. The first node creates it, every further node joins it.

    Per epoch: `begin`, then `stop` and `end`; once: `close`. `fail`, `leave` and `close` notify the other ranks, if
    ranks exchange anything in steps.

    Attributes:
        exchange: how ranks communicate in steps; None where they need not, see `connect`.
        meets_in_steps: ranks use the exchange in every step; False: only between segments.
        planner: plans balanced steps; None without balancing.
        exchange_offset: the number that the exchange gives to a step, minus the number of this step in `Progress`.
        steps_ended: no step follows in this epoch; of followed data, in this segment.
        over: the epoch has ended on this rank, regularly or by an error: there is no further exchange in it.
        dropped: rows of this rank that were dropped at the ends of epochs.
    """

    def __init__(self, first: "First[Any]") -> None:
        # Weak references: nodes refer to the job. Without a reference cycle, a loader that the user drops is freed at
        # once, with its threads and memory, and not by the next run of the garbage collector.
        self._first = weakref.ref(first)
        self._of_segments: list[weakref.ref[Node[Any]]] = []  # nodes that begin with every segment
        self._nodes: list[weakref.ref[Node[Any]]] = [self._first]  # nodes behind them: they begin with every epoch
        self._began = Progress.start(0, 1)
        self.exchange: StatusExchange | None = None
        self.meets_in_steps = False
        self.planner: Planner | None = None
        self.exchange_offset = 0
        self.steps_ended = False
        self.over = False
        self.dropped = 0

    def join(self, node: "Node[Any]") -> None:
        """Add a node behind those that have joined."""
        self._nodes.append(weakref.ref(node))

    def begin_by_segments(self) -> None:
        """Let all nodes that have joined so far begin in `begin_segment` instead of `begin`."""
        self._of_segments, self._nodes = [*self._of_segments, *self._nodes], []

    def connect(self, context: RankContext, why: str, timeout_s: float, kind: type[ExchangeT]) -> ExchangeT:
        """The exchange of the job; creates it if there is none yet, which is collective.

        Raises:
            ValueError: the ranks cannot communicate, or the exchange is of another kind. `why` names what needs it.
        """
        if isinstance(self.exchange, kind):
            return self.exchange
        if self.exchange is not None:
            raise ValueError(
                f"{why} needs a {kind.__name__}, and another node behind these rows has made a "
                f"{type(self.exchange).__name__}: build a new graph, beginning with Units"
            )
        check_group(context, why)
        self.exchange = exchange = kind(context, timeout_s=timeout_s)
        return exchange

    def reset(self, state: dict[str, Any] | None, changed: str | Collection[str] = ()) -> None:
        """Begin at a saved state, or with the next epoch. The current epoch is abandoned; if ranks exchange anything in
        its steps, the others get a PeerError in their next step, unless they reset as well. Blocks until they take it.

        changed: what may differ from the run of the state, see `FreeScaleDataLoader.load_state_dict`.

        Raises:
            StateError: the state is of another version, or of other data or another order.
        """
        first: Any = self._first()  # alive: all nodes behind it refer to it
        place: Progress = first.place_of(state, changed)
        if state is not None:
            self.forget()
        elif self.planner is not None:
            place = replace(place, tuning=self.planner.state_dict())
        self.leave(RESTARTED)
        self.begin(place)

    def begin(self, progress: Progress) -> None:
        """Begin an epoch at a position."""
        self._begin(_alive(self._nodes), progress)

    def begin_segment(self, progress: Progress) -> None:
        """Begin a segment, in the nodes of `begin_by_segments`."""
        self._begin(_alive(self._of_segments), progress)

    def _begin(self, nodes: "list[Node[Any]]", progress: Progress) -> None:
        self._began = progress
        self.over = self.steps_ended = False
        if self.planner is not None:
            self.planner.load_state_dict(progress.tuning)
        for node in nodes:  # in order: a node may use what the nodes before it have begun
            BaseNode.reset(node, None)  # torchdata takes items only from nodes that were reset
            node.on_begin(progress)

    def end_steps(self) -> None:
        """No step follows in this epoch; of followed data, in this segment."""
        self.steps_ended = True
        # Followed data has further segments, and ranks still exchange words between them.
        if not self._of_segments:
            self.over = True

    def report(self, compute_seconds: float, after: Progress) -> None:
        """Send with the next status word how long this rank computed on the batch that led to `after`."""
        # The offset belongs to the current segment: a batch of the segment before has no number in it.
        if after.step > self._began.step and self.planner is not None and self.exchange is not None:
            self.exchange.report(compute_seconds, after.step - 1 + self.exchange_offset)

    def forget(self) -> None:
        """Reset the planner: the next state is of another position in the job."""
        if self.planner is not None:
            self.planner.forget()

    def fail(self, error: BaseException, at: Progress) -> None:
        """Report to the other ranks that this rank failed after the step before `at`, if they take another step.

        Blocks until they take it. Returns; the caller raises its own error.
        """
        # If ranks communicate between segments only, the others may train for long before they could get the message.
        if self.exchange is not None and self.meets_in_steps and not self.over:
            self.exchange.fail(error, StatusWord(epoch=at.epoch, step=at.step))
        self.over = True

    def leave(self, why: str, grace_s: float | None = None) -> None:
        """Report to the other ranks that this one leaves the epoch, if they take another step. See `StatusExchange`."""
        if self.exchange is not None and not self.over:
            self.over = True  # first: `leave` may raise, and must not be repeated then
            self.exchange.leave(why, grace_s)

    def abort(self, why: str) -> None:
        """Break the exchange, from any thread: a step that waits for other ranks raises."""
        if self.exchange is not None:
            self.exchange.abort(why)

    def stop(self) -> None:
        """Stop waiting for new data; only followed data is waited for."""
        for node in self._all():
            node.on_stop()

    def end(self) -> None:
        """End the epoch: nodes start no further work until the next `begin`; running work completes."""
        for node in reversed(self._all()):
            node.on_end()

    def close(self, why: str = CLOSED) -> None:
        """End threads and groups. A second call does nothing. why: the reason that other ranks read."""
        self.end()
        for node in reversed(self._all()):
            node.on_close()
        # Take part in the next step of the others first, so that they get the reason and not only a broken connection.
        self.leave(why, GRACE_S)
        if self.exchange is not None:
            self.exchange.close(why)

    def _all(self) -> "list[Node[Any]]":
        return _alive([*self._of_segments, *self._nodes])


def _alive(nodes: "list[weakref.ref[Node[Any]]]") -> "list[Node[Any]]":
    """The nodes that still exist: the user may drop a graph and build another one behind the same `Rows`."""
    return [node for reference in nodes if (node := reference()) is not None]


class Node(BaseNode[T]):
    """One operator between files and batches.

    Its job calls `on_begin`, `on_stop` and `on_end` once per epoch, and `on_close`. Users call `reset` and
    `state_dict`, as for any node of torchdata, and `close`.

    Attributes:
        source: the node before this one.
    """

    def __init__(self, source: "Node[Any]") -> None:
        super().__init__()
        self.source: Any = source
        self.job: Job = source.job
        self.job.join(self)

    @property
    def units(self) -> Any:
        """The first node, see `fsdata.nodes.units`."""
        return self.source.units

    def reset(self, initial_state: dict[str, Any] | None = None, *, changed: str | Collection[str] = ()) -> None:
        """See `Job.reset`."""
        self.job.reset(initial_state, changed)

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.units.state_of(self.place())
        return state

    def place(self) -> Progress:
        """The position of the job after the last item of this node."""
        place: Progress = self.source.place()
        return place

    def close(self) -> None:
        """End threads and groups of all nodes. A second call does nothing."""
        self.job.close()

    def on_begin(self, progress: Progress) -> None:
        """An epoch, or a segment, begins at this position. The nodes before this one have begun already."""

    def on_stop(self) -> None:
        """Stop waiting for new data."""

    def on_end(self) -> None:
        """Start no further work until the next `on_begin`. Running work may complete."""

    def on_close(self) -> None:
        """End threads, close files; `on_end` was called before. A second call does nothing."""


class First(Node[T]):
    """A source node: it maps states to positions in its data."""

    def __init__(self) -> None:
        BaseNode.__init__(self)
        self.job = Job(self)

    @property
    def units(self) -> Any:
        return self

    def place_of(self, state: dict[str, Any] | None, changed: str | Collection[str] = ()) -> Progress:
        """The position of a state, or the beginning of the next epoch. Raises: see `Job.reset`."""
        raise NotImplementedError

    def state_of(self, progress: Progress) -> dict[str, Any]:
        """The state of a position."""
        raise NotImplementedError


class StepNode(Node[T]):
    """A node whose items are steps. After the last step or an error it takes no further step in this epoch.

    `source.defers_next` is True if the epoch, or segment, ends before the next step.
    """

    def next(self) -> T:
        """Raises StopIteration at the end of the epoch, and what `step` raises."""
        # Ranks exchange words in `step`. If this rank called it once more after the others have ended, it would wait
        # for them in vain; so every way out of it, errors and Ctrl-C included, ends the steps here.
        try:
            if self.job.steps_ended or self.source.defers_next:
                raise StopIteration
            return self.step()
        except BaseException:
            self.job.end_steps()
            raise

    @abstractmethod
    def step(self) -> T:
        """The next step. Raises StopIteration if there is none."""
