"""Prefetches one batch: the next one is announced, and on its way to the device, before the user gets the current one.

States, as the user sees them: nothing fetched -> held 0 -> (held n, ahead n+1) -> ... -> (held last, ahead the end) ->
ended. The batch after the first one is pulled when it is asked for. By then it is known which features the model reads,
and whether loader and training step draw from the same random numbers. If they do, the order of their draws matters, so
every batch is pulled when it is asked for. A loader that writes into an earlier batch while it makes the next one is
refused.
"""

import copy
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from fscomm.device import not_compiled
from fscomm.loop.kjt_paths import BatchSnapshot
from fscomm.loop.moving import Moved, Moving
from fscomm.loop.random_numbers import IN_TURN, Draws
from fsranks.errors import PeerError

T = TypeVar("T")
Rng = Literal["shared", "own"]
ASKED_FOR = "lookahead(early=False) pulls no batch before it is asked for"
READ_EARLY = (
    "the loader read served tables, or called a served module, while it made the next batch, which was pulled early. "
    "Without fscomm the step on the batch before comes first. All steps so far are those of that loop; this batch is "
    "not. Pass early=False to lookahead() where the loader depends on the training step"
)
REUSED = (
    "the loader wrote into the {kind} that it gave before, or replaced tensors in it, while it made the next one. "
    "fscomm pulls one batch ahead, so that batch is still to be trained on. Give every batch memory of its own, for "
    "example by copy.deepcopy(batch) in the loader"
)


class Listener:
    """Is notified of what is fetched and what is handed out. Its errors reach the user at once.

    This one ignores all of it: where nothing is served, nothing is gained by pulling early.
    """

    elsewhere = False
    """Whether batches are asked for by another thread than the one that trains; set by `resume`."""

    def resume(self, epoch: Any) -> bool:
        """The user asks `epoch` for a batch. Returns whether another epoch was asked since: announcements are void."""
        return False

    def forwards(self) -> int | None:
        """Forwards in training so far; None: not known."""
        return None

    def looks(self) -> int:
        """How often this thread has read or written served tables, or called a served module."""
        return 0

    def waiting(self) -> list[Any]:
        """The batches that were handed out and not trained on."""
        return []

    def announce(self, moved: Moved[Any], *, depends: bool, in_turn: str | None) -> None:
        """The next batch. depends: on this rank the loader depends on the training step: both draw from the same random
        numbers, or the loader reads tables. in_turn: why the batch was not pulled early; None: it was, or it is not
        known yet whether it may be."""

    def depends(self) -> bool:
        """Whether the newest batch `depends` on any rank: then no batch is pulled early. Blocks until all ranks have
        announced it."""
        return True

    def hold(self, batch: Any) -> Any:
        """What the user gets for this batch."""
        return batch

    def end(self) -> None:
        """No batch follows for now: the loader is exhausted, the next batch is not pulled early, or a loop was left."""

    def finish(self) -> None:
        """The loop is about to get StopIteration."""

    def fail(self, error: BaseException) -> None:
        """The loader raised `error`; the user gets it after the current batch, and may continue afterwards."""


class Ahead(Generic[T]):
    """What was prefetched: a batch, or the loader's error, which may be StopIteration.

    It outlives the loop and does not refer to the loader. So the `finally` of a generator runs when the loop over it is
    left, as without fscomm.
    """

    def __init__(self, moving: Moving) -> None:
        self._moving = moving
        self.value: Moved[T] | BaseException | None = None

    @property
    def unconsumed(self) -> T | None:
        return self._moving.end(self.value) if isinstance(self.value, Moved) else None


class Lookahead(Generic[T]):
    """Iterates over a loader, one batch ahead, with batches moved as `moving` does it.

    Several may be open at a time, such as one for evaluation inside the loop over another: the prefetched batch of the
    other is announced again when its loop resumes.

    rng: "shared": where the loader draws from torch's, numpy's or Python's global generator, and the training step
    (dropout) too, no batch is pulled early, so that all draw what they draw in the plain loop. "own": the loader draws
    from a stream of its own, which begins like the global one; then batches are pulled early, and the numbers drawn
    differ from those of the plain loop.

    early: False where the loader depends on what the training step does: it weighs batches by the last loss, samples
    by the tables, or replays samples that the model got wrong. Every batch is then pulled when it is asked for, and
    steps run plainly. Nothing else changes. fscomm detects common random numbers, and loaders that read served tables
    or call served modules in the thread that trains; it detects no other dependence.

    Every loop calls `iter(loader)` again, as a loop over the loader itself would. Where the loader is an iterator, a
    new loop resumes with the prefetched batch. To leave a loop and resume it in another, keep `it = iter(lookahead)`
    and loop over that.

    Other public attributes are those of the loader: `sampler`, `dataset`, `batch_size`, `set_epoch`.
    """

    def __init__(
        self,
        loader: Iterable[T],
        *,
        listener: Listener,
        moving: Moving,
        rng: Rng = "shared",
        early: bool = True,
        opened: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """opened: called with every new loop, which has to be closed together with the look-ahead."""
        if rng not in ("shared", "own"):
            raise ValueError(f"rng must be 'shared' or 'own', got {rng!r}")
        self._loader = loader
        self._listener = listener
        self._moving = moving
        self._draws = Draws(own=rng == "own")
        self._early = early
        self._opened = opened
        self.ahead: Ahead[T] = Ahead(self._moving)
        self._epoch: _Epoch[T] | None = None
        self._closed = False

    @not_compiled
    def __iter__(self) -> Iterator[T]:
        """Raises RuntimeError after `close`, and where the loader is an iterator that may resume or start over."""
        self._check_open()
        epoch = self._epoch
        if epoch is not None and epoch.iterator is self._loader and epoch.pending:
            # Generators and other iterators written in C resume; what a method written in Python does is not known.
            if inspect.isfunction(type(self._loader).__iter__):
                raise RuntimeError(
                    f"a second loop over the lookahead, but {type(self._loader).__name__}.__iter__ returns itself: it "
                    "may start over or go on, and a batch was already fetched from it. To go on, keep "
                    "`it = iter(lookahead)` and loop over that; to start over, make a new lookahead"
                )
            return epoch
        self._give_up()
        self._draws.begin()
        with self._draws.of_loader():
            iterator = iter(self._loader)
        self.ahead.value = None
        self._epoch = _Epoch(iterator, self._loader, self._listener, self._moving, self._draws, self._early, self.ahead)
        self._opened(self._epoch)
        return self._epoch

    @not_compiled
    def __next__(self) -> T:
        """The next batch of the epoch that is running; the first call starts one. Blocks on the loader for the batch
        after it.

        What the loader raises while it fetches ahead is raised by the call after the one that gives the batch before;
        a PeerError at once.
        Raises ValueError where the loader writes into the batch before while it makes one; RuntimeError where a batch
        that was pulled early drew random numbers, and then the training step before it did, for the first time; or
        where the loader read tables for the first time while it made that batch.
        """
        self._check_open()
        return next(self._epoch if self._epoch is not None else iter(self))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"the lookahead has no attribute {name!r}")
        try:
            return getattr(self._loader, name)
        except AttributeError as error:
            loader = type(self._loader).__name__
            raise AttributeError(f"neither the lookahead nor its {loader} has an attribute {name!r}") from error

    def __len__(self) -> int:
        """Steps of an epoch. Raises TypeError where the loader does not know."""
        return len(self._loader)  # type: ignore[arg-type]

    @property
    def unconsumed(self) -> T | None:
        """The prefetched batch that was not handed out; None if there is none. Also after `close`."""
        return self.ahead.unconsumed

    def state_dict(self) -> Any:
        """A copy of the loader's `state_dict()` as of the batch the user holds. Raises TypeError if it has none."""
        saved = None if self._epoch is None else self._epoch.saved
        # Where nothing was fetched ahead, or it was without a state, the loader itself is asked.
        return copy.deepcopy(_method(self._loader, "state_dict")() if saved is None else saved.result())

    def load_state_dict(self, state: Any, *, changed: str | Collection[str] = ()) -> None:
        """Hand the loader a state for the next loop; a running one cannot go on. Raises TypeError if it takes none.

        changed: of the loader's own `load_state_dict`, see `fsdata.FreeScaleDataLoader`; passed on only if given.
        """
        load = _method(self._loader, "load_state_dict")
        self._give_up()
        self._epoch = None
        self.ahead.value = None
        load(state, **({"changed": changed} if changed else {}))

    def close(self) -> None:
        """End the epoch and close its iterator. An iterator that was given as the loader is only released: the user may
        resume it, and Python closes it if nothing else refers to it. Idempotent."""
        if self._epoch is not None and not self._closed:
            self._epoch.close()
            self._loader = self._epoch.loader
        self._closed = True

    def _give_up(self) -> None:
        if self._epoch is not None:
            self._epoch.leave()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(
                "this lookahead is closed: it ends with its `fscomm.enable` block. Outside, iterate over the loader; "
                "the batch that was fetched ahead is `unconsumed`"
            )


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Epoch(Iterator[T]):
    """One pass over the loader's iterator. It does not refer to its look-ahead: a cycle would keep the loader until
    Python collects it.

    Attributes:
        saved: the loader's state before it was asked for the prefetched batch; None without such a batch, or where the
            loader has no state.
    """

    iterator: Iterator[T]
    loader: Iterable[T]
    _listener: Listener
    _moving: Moving
    _draws: Draws
    _early: bool
    _fetched: Ahead[T]
    saved: Future[Any] | None = None
    _handed_out: int = 0  # batches
    _trained: int | None = None  # forwards in training, when the first batch was handed out
    _left: bool = False
    _reads: bool = False  # served tables, while the loader made a batch
    _read_early: bool = False  # that was pulled early

    @property
    def pending(self) -> bool:
        """Whether there is a batch, or an error, that was not handed out."""
        return self._fetched.value is not None and not isinstance(self._fetched.value, StopIteration)

    @not_compiled
    def __next__(self) -> T:
        if self._left:
            raise RuntimeError(
                "this loop cannot go on: a newer one was started over the same lookahead, a state was loaded, or its "
                "`fscomm.enable` block has ended. Only the newest loop of a lookahead runs"
            )
        resumed = self._listener.resume(self)
        self._draws.resume(elsewhere=self._listener.elsewhere)
        if self._read_early:
            raise RuntimeError(READ_EARLY)
        if resumed and isinstance(self._fetched.value, Moved):
            self._announce(self._fetched.value, depends=False)
        if self._fetched.value is None:
            self._fetched.value = self._pull()
        if isinstance(self._fetched.value, StopIteration):
            self.saved = None
            self._listener.finish()
            raise StopIteration  # a new one: a traceback that is raised again grows, and keeps its frames
        if isinstance(self._fetched.value, BaseException):
            error, self._fetched.value, self.saved = self._fetched.value, None, None
            raise error
        moved = self._fetched.value
        early = self._pulls_early()
        if early:
            saved = self._save()  # a loader counts a batch as consumed once it gives it
            # Prefetchers keep several batches that are not trained on yet, and a loader may write into any of them.
            # Another thread that trains may write into them meanwhile, too: there only this batch is looked at.
            untrained = [moved.pulled, *([] if self._listener.elsewhere else self._listener.waiting())]
            as_it_was = [BatchSnapshot(batch) for batch in untrained]
            self._fetched.value = self._pull(early=True)  # interrupted, the batch before it is still there
            self.saved = saved
            if any(batch.changed() for batch in as_it_was):
                raise ValueError(REUSED.format(kind=type(moved.pulled).__name__))
        else:
            # Rows that this step shares with the next one are found with the ids of the next one. These are exchanged
            # after this step, which must not wait for them.
            self._listener.end()
        if self._handed_out == 0:
            self._trained = self._listener.forwards()
        self._handed_out += 1
        # Compute waits for the copies only here, after the next batch's were issued. What `hold` raises leaves a batch
        # that was not pulled early in its place, so that it is not lost.
        held: T = self._listener.hold(self._moving.end(moved))
        if not early:
            self._fetched.value = self.saved = None
        self._draws.hand_out()
        return held

    def _pulls_early(self) -> bool:
        """Whether the batch after this one is pulled now; the same on all ranks. Not known before the second batch, and
        before a step on the first one: until then it is unknown whether the training step draws. A thread that only
        pulls does not wait for that, as the draws of two threads have no order anyway."""
        if not self._early:
            return False
        untrained = self._trained is not None and self._listener.forwards() == self._trained
        if self._draws.early is None and untrained and not self._listener.elsewhere:
            return False
        if self._draws.early is not False and self._handed_out > 0:
            self._draws.early = not self._listener.depends()
        return bool(self._draws.early)

    def leave(self) -> None:
        """Pull no more; the prefetched batch can still be asked for."""
        self._left = True
        # As when the plain loop drops its iterator. An iterator that was given as the loader is the user's.
        close = getattr(self.iterator, "close", None)
        runs = getattr(self.iterator, "gi_running", False)  # in another thread, whose next pull is refused
        if close is not None and self.iterator is not self.loader and not runs:
            close()

    def close(self) -> None:
        """Pull no more, and release an iterator that was given as the loader."""
        if not self._left:
            self.leave()
        if self.iterator is self.loader and not hasattr(self.loader, "state_dict"):
            self.iterator = self.loader = iter(())

    def _pull(self, *, early: bool = False) -> Moved[T] | BaseException:
        looks = self._listener.looks()
        try:
            self._look_at_loader()
            with self._draws.of_loader(early=early, again=self.iterator is self.loader):
                pulled = next(self.iterator)
                self._look_at_loader()
            if self._listener.looks() > looks and not self._listener.elsewhere:
                self._reads, self._read_early = True, early
            moved = self._moving.begin(pulled)
        except StopIteration:
            self._listener.end()
            return StopIteration()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._listener.fail(error)
            if isinstance(error, PeerError):  # the batch before it could not be trained on either
                raise
            return error
        self._announce(moved, depends=self._reads or (self._draws.both and (early or self._handed_out > 0)))
        return moved

    def _look_at_loader(self) -> None:
        """Its generators of random numbers may be made with its first batches."""
        if self._handed_out < 2:
            self._draws.look_at(self.iterator, self.loader)

    def _announce(self, moved: Moved[T], *, depends: bool) -> None:
        why = ASKED_FOR if not self._early else IN_TURN if self._draws.early is False else None
        self._listener.announce(moved, depends=depends and self._early, in_turn=why)

    def _save(self) -> Future[Any] | None:
        """The loader's state before it is asked for another batch; an error is raised when the state is asked for."""
        save = getattr(self.loader, "state_dict", None)
        if not callable(save):
            return None
        saved: Future[Any] = Future()
        try:
            saved.set_result(copy.deepcopy(save()))
        except Exception as error:
            saved.set_exception(error)
        return saved


def _method(loader: Any, name: str) -> Any:
    method = getattr(loader, name, None)
    if not callable(method):
        raise TypeError(
            f"the lookahead has the {name}() of its loader, but a {type(loader).__name__} has none: give lookahead() a "
            "loader that can save where it is (not an iterator over it)"
        )
    return method
