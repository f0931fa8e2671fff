"""What all nodes have in common: the job that they take part in. Its place, the ranks that meet in it, and its end.

All nodes have one state, that of the job: how many rows every rank has passed (`fsdata.order.progress`). It is a small
JSON-able dict, the same on every rank, and any number of ranks can go on from it. (Behind a source of the user's own
the state is that of this source, see `fsdata.tensors.parts`.)
"""

import weakref
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
_GRACE_S = 5.0


class Planner(Protocol):
    """What plans steps, and may learn from the times of those before."""

    def state_dict(self) -> dict[str, Any] | None:
        """What it has learned, JSON-able."""

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on with what it had learned there."""

    def forget(self) -> None:
        """Be as a new one."""


class Job:
    """Made by the first node of a graph; every node behind takes part in it.

    Once for every epoch: `begin`, then `stop`, `end`; once for all: `close`. `fail`, `leave` and `close` reach the
    other ranks, if ranks meet in steps.

    Attributes:
        exchange: what ranks meet by at every step; None where they need not, see `connect`.
        meets_in_steps: whether they meet by it at every step, or between segments only.
        planner: of steps that are balanced; None where they are not.
        first_number: of the exchange of the first step since this began.
        over: the epoch has ended, here or by an error: ranks do not meet in it any more.
        dropped: rows of this rank that were left out at the ends of epochs.
    """

    def __init__(self, first: "First[Any]") -> None:
        # By weak references: nodes refer to the job, and what no loader refers to any more goes at once, with its
        # threads and its memory.
        self._first = weakref.ref(first)
        self._of_segments: list[weakref.ref[Node[Any]]] = []  # nodes that `begin_segment` begins
        self._nodes: list[weakref.ref[Node[Any]]] = [self._first]  # the others, behind them
        self._began = Progress.start(0, 1)
        self.exchange: StatusExchange | None = None
        self.meets_in_steps = False
        self.planner: Planner | None = None
        self.first_number = 0
        self.over = False
        self.dropped = 0

    def join(self, node: "Node[Any]", *, begins_segments: bool = False) -> None:
        """Take part behind the others. begins_segments: they begin when `node` begins a segment."""
        if begins_segments:
            self._of_segments, self._nodes = [*self._of_segments, *self._nodes], []
        self._nodes.append(weakref.ref(node))

    @property
    def tuning(self) -> dict[str, Any] | None:
        """What the planner of steps has learned, see `Progress`."""
        return None if self.planner is None else self.planner.state_dict()

    def connect(self, context: RankContext, why: str, timeout_s: float, kind: type[ExchangeT]) -> ExchangeT:
        """The exchange that ranks meet by, made where there is none of this kind yet. Collective then.

        ValueError where ranks have no way to meet.
        """
        if isinstance(self.exchange, kind):
            return self.exchange
        if self.exchange is not None:
            raise ValueError(
                f"{why} needs a {kind.__name__}, and another node behind these rows has made a "
                f"{type(self.exchange).__name__}: build a new graph, beginning with Units"
            )
        check_group(context, why)
        self.exchange = made = kind(context, timeout_s=timeout_s)
        return made

    def reset(self, state: dict[str, Any] | None) -> None:
        """Begin at a state, or with the next epoch. What comes of the epoch under way is forgotten; where ranks meet in
        its steps, the others get a PeerError at the next one, unless they begin anew as well. Blocks until they come.

        Raises:
            StateError: the state is of another version, or of other data or another order.
        """
        first: Any = self._first()  # is there, as nodes behind it refer to it
        place: Progress = first.place_of(state)
        if state is None:
            place = replace(place, tuning=self.tuning)
        else:
            self.forget()
        self.leave(RESTARTED)
        self.begin(place)

    def begin(self, progress: Progress) -> None:
        """Begin at this place."""
        self._begin(_alive(self._nodes), progress)

    def begin_segment(self, progress: Progress) -> None:
        """Begin those nodes that begin with a segment."""
        self._begin(_alive(self._of_segments), progress)

    def _begin(self, nodes: "list[Node[Any]]", progress: Progress) -> None:
        self._began = progress
        self.over = False
        if self.planner is not None:
            self.planner.load_state_dict(progress.tuning)
        for node in nodes:
            BaseNode.reset(node, None)  # torchdata takes items only from nodes that were reset
            node.on_begin(progress)

    def end_steps(self) -> None:
        """No step follows in this epoch; of data that is followed, in this segment."""
        if not self._of_segments:
            self.over = True

    def report(self, compute_seconds: float, after: Progress) -> None:
        """With the next status word, say how long the batch that led to `after` computed here."""
        step = after.step - self._began.step - 1  # negative for a batch of the segment before
        if step >= 0 and self.planner is not None and self.exchange is not None:
            self.exchange.report(compute_seconds, self.first_number + step)

    def forget(self) -> None:
        """Forget what the planner has learned: a state of another place in the job comes next."""
        if self.planner is not None:
            self.planner.forget()

    def fail(self, error: BaseException, at: Progress) -> None:
        """Tell the other ranks, if they meet once more in this epoch, that this rank failed after the step before `at`.

        Blocks until they come to that meeting. Returns; the caller raises its own error.
        """
        # Where ranks meet between segments only, the others may train for long before they would get the message.
        if self.exchange is not None and self.meets_in_steps and not self.over:
            self.exchange.fail(error, StatusWord(epoch=at.epoch, step=at.step))
        self.over = True

    def leave(self, why: str, grace_s: float | None = None) -> None:
        """Tell the other ranks, if they meet once more in this epoch, that this one leaves it. See `StatusExchange`."""
        if self.exchange is not None and not self.over:
            self.over = True  # first: `leave` may raise, and must not be repeated then
            self.exchange.leave(why, grace_s)

    def abort(self, why: str) -> None:
        """Break the exchange, from any thread: a step that waits for other ranks raises."""
        if self.exchange is not None:
            self.exchange.abort(why)

    def stop(self) -> None:
        """Wait for no further data; only data that is followed is waited for."""
        for node in self._all():
            node.on_stop()

    def end(self) -> None:
        """Make no further item until the next `begin`; what is under way ends by itself."""
        for node in reversed(self._all()):
            node.on_end()

    def close(self, why: str = CLOSED) -> None:
        """End threads and groups. Twice is fine. why: what the other ranks read."""
        for node in reversed(self._all()):
            node.on_close()
        self.leave(why, _GRACE_S)
        if self.exchange is not None:
            self.exchange.close(why)

    def _all(self) -> "list[Node[Any]]":
        return _alive([*self._of_segments, *self._nodes])


def _alive(nodes: "list[weakref.ref[Node[Any]]]") -> "list[Node[Any]]":
    """Without those of a graph that was given up, where another was built behind the same rows."""
    return [node for each in nodes if (node := each()) is not None]


class Node(BaseNode[T]):
    """A node of the way from files to batches.

    Its job calls `on_begin`, `on_stop` and `on_end` once for every epoch, and `on_close`. Users call `reset` and
    `state_dict`, as of any node of torchdata, and `close`.

    Attributes:
        source: the node before this one.
    """

    def __init__(self, source: "Node[Any]", *, begins_segments: bool = False) -> None:
        super().__init__()
        self.source: Any = source
        self.job: Job = source.job
        self.job.join(self, begins_segments=begins_segments)

    @property
    def units(self) -> Any:
        """The first node, see `fsdata.nodes.units`."""
        return self.source.units

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """See `Job.reset`."""
        self.job.reset(initial_state)

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.units.state_of(self.place())
        return state

    def place(self) -> Progress:
        """Where the job stands after the item last given."""
        place: Progress = self.source.place()
        return place

    def close(self) -> None:
        """End threads and groups of all nodes. Twice is fine."""
        self.job.close()

    def on_begin(self, progress: Progress) -> None:
        """An epoch, or a segment, begins at this place. It has begun for the nodes before this one."""

    def on_stop(self) -> None:
        """Wait for no further data."""

    def on_end(self) -> None:
        """Make no further item until the next `on_begin`. Running decodes may end by themselves."""

    def on_close(self) -> None:
        """End threads, close files. Twice is fine."""


class First(Node[T]):
    """A node without one before it: it knows the places in its data."""

    def __init__(self) -> None:
        BaseNode.__init__(self)
        self.job = Job(self)

    @property
    def units(self) -> Any:
        return self

    def place_of(self, state: dict[str, Any] | None) -> Progress:
        """The place of a state, or the beginning of the next epoch. Raises: see `Job.reset`."""
        raise NotImplementedError

    def state_of(self, progress: Progress) -> dict[str, Any]:
        """The state of a place."""
        raise NotImplementedError
