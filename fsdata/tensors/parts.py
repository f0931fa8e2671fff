"""Batches of the user's own as parts of steps: their tensors are taken apart into samples, and built again."""

import copy
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torchdata.nodes import BaseNode

from fsdata.balance.exchange import RecordSpec
from fsdata.balance.kernels.called import BALANCING
from fsdata.balance.options import Balance
from fsdata.batch.batch import StepStats, loss_weight
from fsdata.decode.block import RowRefs
from fsdata.errors import DataError, MismatchError, StateError
from fsdata.kernels.warm import COPYING, make_ready
from fsdata.nodes.guards import check_worker, not_the_end
from fsdata.nodes.node import First
from fsdata.nodes.status_exchange import StatusExchange, failures_reported_to_peers
from fsdata.nodes.steps import Part
from fsdata.nodes.timing import Timing
from fsdata.order.progress import Progress
from fsdata.order.status_word import StatusWord
from fsdata.tensors.entries import may_move
from fsdata.tensors.tensor_tree import LENGTH, Measure, TakenApart, Template, from_text, take_apart, to_text
from fsranks.meeting import Meeting, differences
from fsranks.rank_context import RankContext

Lengths = str | Mapping[str, str] | Callable[[Any], Any]
_LARGEST_SUM = 2**62
_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})
_REMEDY = "Pad to a fixed shape, or use jagged tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """What is known of the batch last yielded; `global_mean` takes it in place of a batch.

    Attributes:
        stats: counts and planned balance of the step.
        origin: int64 [B, 2], the rank that read the sample and its row in the batch it was read in.
    """

    stats: StepStats
    origin: torch.Tensor

    @property
    def loss_weight(self) -> float:
        """samples * W / global samples: scales a mean over this rank's samples."""
        return loss_weight(self.stats)


def copy_of_state(value: Any, known: dict[int, Any] | None = None) -> Any:
    """What `copy.deepcopy` makes of the state of a loader, in a fraction of the time where it is of plain numbers and
    texts. A copy is taken after every batch, as any may be the one that is saved while the loader is batches ahead.

    known: id -> copy, deepcopy's `memo`.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    known = {} if known is None else known
    if id(value) in known:
        return known[id(value)]
    if kind is list:
        found: Any = value.copy()
        known[id(value)] = found
        if not _PLAIN.issuperset(map(type, value)):
            found[:] = [copy_of_state(each, known) for each in value]
    elif kind is dict and _PLAIN.issuperset(map(type, value)):
        found = value.copy()
        known[id(value)] = found
        if not _PLAIN.issuperset(map(type, value.values())):
            found.update((key, copy_of_state(each, known)) for key, each in value.items())
    else:
        found = copy.deepcopy(value, known)
    return found


class TensorParts(First[Part]):
    """One batch of `source` is this rank's part of a step. See `fsdata.rebalance`.

    Attributes:
        template: what batches have in common; None before the first one.
        last: of the batch last given. state: (a copy of the state of the source after it,), or () if it has none.
    """

    defers_next = False
    position = 0

    def __init__(
        self,
        source: Iterable[Any],
        lengths: Lengths | None,
        replicate: Collection[str],
        context: RankContext,
        balance: Balance,
        timeout_s: float,
    ) -> None:
        super().__init__()
        check_worker("rebalance(...)", context, own_share=True)
        with Meeting(context, what="rebalance", timeout_s=timeout_s) as meeting:
            if isinstance(replicate, str):
                raise TypeError(f"replicate is a collection of paths, got a string: write replicate=({replicate!r},)")
            self._measure, self._replicate = _measure(lengths), tuple(replicate)
            make_ready((*BALANCING, *COPYING))
            meeting.agree({"balance": repr(balance), "replicate": repr(sorted(replicate))})
        self._source = source
        self.context = context
        self._iterator: Iterator[Any] | None = None
        self._initial: Any = None
        self._constants: dict[str, Any] = {}
        self._pulled: tuple[Any, TakenApart | None] = (None, None)
        self._met = False
        self._place = Progress.start(-1, context.world_size)
        self.timing = Timing()
        self.template: Template | None = None
        self.last: Last | None = None
        self.state: tuple[Any, ...] = ()

    @property
    def spec(self) -> RecordSpec:
        assert self.template is not None
        return self.template.spec

    def place(self) -> Progress:
        return self._place

    def place_of(self, state: dict[str, Any] | None) -> Progress:
        self._initial = None
        if state is None:
            return Progress.start(self._place.epoch + 1, self.context.world_size)
        try:
            self._initial, epoch, step = state["source"], int(state["epoch"]), int(state["step"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"not a state of batches that were dealt out ({error!r}): {str(state)[:160]}") from error
        return replace(Progress.start(epoch, self.context.world_size), step=step)

    def state_of(self, progress: Progress) -> dict[str, Any]:
        if not hasattr(self._source, "state_dict"):
            raise TypeError(f"{type(self._source).__name__} has no state_dict(): there is no state to go on from")
        source = copy_of_state(self.state[0]) if self.state else self._source.state_dict()
        return {"epoch": progress.epoch, "step": progress.step, "source": source}

    def on_begin(self, progress: Progress) -> None:
        if isinstance(self._source, BaseNode):
            self._source.reset(self._initial)
        elif self._initial is not None:
            self._source.load_state_dict(self._initial)  # type: ignore[attr-defined]
        self._initial, self._iterator, self.state = None, None, ()
        self._place = progress

    def next(self) -> Part:
        part = self.part()
        if part.rows is None:
            raise StopIteration
        return part

    def status(self) -> StatusWord:
        return StatusWord(epoch=self._place.epoch, step=self._place.step)

    def part(self) -> Part:
        """This rank's next batch, nothing where it has no more. Blocks. Where ranks meet, errors reach the others.

        Raises StopIteration where no rank has any.
        """
        status, exchange = self.status(), self.job.exchange
        with failures_reported_to_peers(exchange, status):
            self._pulled = self._pull()
        if exchange is not None and not self._met:
            everyone = self._introduce(exchange, status)
            with failures_reported_to_peers(exchange, status):
                self._adopt(everyone)
            self._met = True
        if self.template is None:
            raise StopIteration  # no rank has a batch
        apart = self._pulled[1]
        return Part(None if apart is None else apart.rows, replace(status, ended=apart is None))

    def alone(self) -> Any:
        """The next batch as it is, where there is one rank. Raises StopIteration at the end."""
        part = self.part()
        if part.rows is None:
            raise StopIteration
        count = part.rows.num_rows
        lengths = dict(zip(self.spec.groups, self.spec.group_lengths(part.rows.spans().length), strict=True))
        items = {name: int(values.sum()) for name, values in measured(lengths).items()}
        origin = torch.stack([torch.zeros(count, dtype=torch.int64), torch.arange(count)], dim=1)
        return self.give(self.pulled, Last(stats=self.stats(count, count, items), origin=origin), None)

    @property
    def pulled(self) -> Any:
        """The batch of the part last given, as the user's source made it; None where it has no more."""
        return self._pulled[0]

    def built(self, rows: RowRefs) -> Any:
        """A batch of these samples. Replicated values are those of this rank."""
        assert self.template is not None
        return self.template.build(rows, self._constants)

    def give(self, batch: Any, last: Last, tuning: dict[str, Any] | None) -> Any:
        """`batch`, which is what the node behind gets; on to the next step."""
        self.last = last
        self._place = self._place.moved([0] * self.context.world_size, 1, tuning)
        return batch

    def stats(self, samples: int, of_all: int, items: dict[str, int], **known: Any) -> StepStats:
        return StepStats(
            epoch=self._place.epoch,
            step=self._place.step,
            world_size=self.context.world_size,
            samples=samples,
            global_samples=of_all,
            global_items=items,
            **known,
        )

    def _pull(self) -> tuple[Any, TakenApart | None]:
        """The next batch and its samples by reference; None at the end of the source.

        Raises DataError if the batch cannot be split, or is built otherwise than the first.
        """
        if self._iterator is None:
            self._iterator = iter(self._source)
        batch = next(self._iterator, self)
        apart = None
        if batch is not self:
            apart = not_the_end("lengths", partial(take_apart, batch, self._replicate, self._measure, self.template))
            self._check_replicated(apart)
        if hasattr(self._source, "state_dict"):
            self.state = (copy_of_state(self._source.state_dict()),)
        if apart is None:
            return None, None
        if self.template is not None:
            _check_alike(self.template, apart.template)
        self.template, self._constants = apart.template, apart.constants
        return batch, apart

    def _check_replicated(self, apart: TakenApart) -> None:
        """DataError where a replicated list seems to have one entry for each sample: samples would get those of others.

        A list that is the same in every batch is none, though it may have as many entries as a batch has samples.
        """
        for path, value in apart.constants.items():
            same = path in self._constants and list(value) == list(self._constants[path]) if may_move(value) else True
            if not same and len(value) == apart.rows.num_rows > 1:
                raise DataError(
                    f"replicate names {path!r}, a {type(value).__name__} with one entry for each of the {len(value)} "
                    "samples of its batch: samples that move to another rank would get the entries of others. Leave "
                    f"it out of replicate, and it moves with its samples. If it does not belong to samples, wrap it in "
                    f"a dict, whose path is {path!r} then"
                )

    def _introduce(self, exchange: StatusExchange, status: StatusWord) -> dict[int, dict[str, Any]]:
        """How the batches of every rank that has one are built; MismatchError on all ranks if they differ."""
        mine = {} if self.template is None else {"fields": self.template.describe(), **_written(self.template)}
        everyone = [json.loads(text) for text in exchange.gather(json.dumps(mine).encode(), status)]
        known = {rank: other for rank, other in enumerate(everyone) if other}
        text = differences({rank: other["fields"] for rank, other in known.items()}) if known else ""
        if text:
            raise MismatchError(f"the batches of the ranks are built differently: {text}. {_REMEDY}")
        return known

    def _adopt(self, known: dict[int, dict[str, Any]]) -> None:
        """Take the structure from another rank if this one has no batch of its own."""
        if self.template is not None or not known:
            return
        first = min(known)
        template, why = None, known[first].get("error", "")
        if not why:
            template = from_text(known[first]["template"])
            if template.constants:
                why = f"it holds replicated values {list(template.constants)}, of which this rank has none"
        if why:
            raise DataError(
                f"rank {self.context.rank} has no batch of its own and cannot make one like those of rank {first}: "
                f"{why}. Give every rank at least one batch"
            )
        self.template = template


def measured(by_group: Mapping[str, Any]) -> dict[str, Any]:
    """What the cost model sees, under the user's names."""
    return {name.removeprefix(LENGTH): value for name, value in by_group.items() if name.startswith(LENGTH)}


def _written(template: Template) -> dict[str, str]:
    try:
        return {"template": to_text(template)}
    except DataError as error:
        return {"error": str(error)}


def _check_alike(first: Template, other: Template) -> None:
    was, now = first.describe(), other.describe()
    for path in {**was, **now}:
        if was.get(path) != now.get(path):
            raise DataError(
                f"batches must all be built alike: {path!r} was {was.get(path, 'absent')} and is "
                f"{now.get(path, 'absent')}. {_REMEDY}"
            )


def _measure(lengths: Lengths | None) -> Measure:
    """What the cost model sees, from the user's `lengths`."""
    if isinstance(lengths, str):
        return _by_path({lengths.rpartition(".")[2]: lengths})
    if isinstance(lengths, Mapping):
        return _by_path(dict(lengths))
    if not callable(lengths):
        raise TypeError(f"lengths must be a function of the batch, a path or a mapping of paths, got {lengths!r}")

    def call(batch: Any, _: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        given = lengths(batch)
        if not isinstance(given, Mapping):
            given = {"length": given}
        return {name: _integers(name, values) for name, values in given.items()}

    return call


def _by_path(paths: dict[str, str]) -> Measure:
    def look_up(_: Any, jagged: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        for path in paths.values():
            if path not in jagged:
                raise DataError(f"lengths={path!r} is no jagged part of the batch, which has {sorted(jagged)}")
        return {name: jagged[path] for name, path in paths.items()}

    return look_up


def _integers(name: str, values: Any) -> np.ndarray:
    array = values.numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min(initial=0) < 0:
        raise DataError(
            f"lengths {name!r} must be one integer of at least 0 per sample, got {array.dtype} of shape {array.shape}"
        )
    if sum(array.tolist()) > _LARGEST_SUM:
        raise DataError(
            f"lengths {name!r} sum to more than 2**62, where 64-bit sums start to overflow: divide them by a common "
            "factor"
        )
    return array.astype(np.int64)
