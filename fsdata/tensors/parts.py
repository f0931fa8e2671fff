"""Batches of a user's loader as parts of steps: their tensors are split into samples, and batches are built again."""

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
_IMMUTABLE = frozenset({int, float, bool, str, bytes, type(None)})
_REMEDY = "Pad to a fixed shape, or use jagged tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """The step of the last yielded batch; `global_mean` takes it in place of a batch.

    Attributes:
        stats: counts and planned balance of the step.
        origin: int64 [B, 2], the rank that read each sample and the row of the batch in which it was read.
    """

    stats: StepStats
    origin: torch.Tensor

    @property
    def loss_weight(self) -> float:
        """samples * W / global samples: scales a mean over this rank's samples."""
        return loss_weight(self.stats)


def copy_of_state(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy of the state of a loader, as `copy.deepcopy` makes it, but faster for plain lists and dicts.

    A state is copied after every batch: any of them may be the one that is saved, while the loader is batches ahead.
    memo: id -> copy, as that of deepcopy.
    """
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)]
    if kind is list:
        copied: Any = value.copy()
        memo[id(value)] = copied  # before its entries, which may refer to it
        if not _IMMUTABLE.issuperset(map(type, value)):
            copied[:] = [copy_of_state(entry, memo) for entry in value]
    elif kind is dict and _IMMUTABLE.issuperset(map(type, value)):
        copied = value.copy()
        memo[id(value)] = copied
        if not _IMMUTABLE.issuperset(map(type, value.values())):
            copied.update((key, copy_of_state(entry, memo)) for key, entry in value.items())
    else:
        copied = copy.deepcopy(value, memo)
    return copied


class TensorParts(First[Part]):
    """One batch of `source` is this rank's part of a step. See `fsdata.rebalance`. The constructor is collective.

    Attributes:
        batch: of the last part, as the source made it; None after the end of the source.
        template: the structure that all batches have; None before the first batch.
        last: describes the last batch that was passed on, see `advance`.
        state: (a copy of the state of the source after this batch,), or () if the source has no state.
    """

    defers_next = False
    position = 0  # a batch is read as a whole: there are no rows to count

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
        # A worker process with data of its own may use this, as long as it needs no other rank.
        check_worker("rebalance(...)", context, own_share=True)
        with Meeting(context, what="rebalance", timeout_s=timeout_s) as meeting:
            if isinstance(replicate, str):
                raise TypeError(f"replicate is a collection of paths, got a string: write replicate=({replicate!r},)")
            self._measure, self._replicate = _measure(lengths), tuple(replicate)
            make_ready((*BALANCING, *COPYING))
            meeting.agree({"balance": repr(balance), "replicate": repr(sorted(replicate))})
        self._source = source
        self.context = context
        self.timing = Timing()
        self._iterator: Iterator[Any] | None = None
        self._initial_state: Any = None
        self._changed: dict[str, Any] = {}
        self._constants: dict[str, Any] = {}
        self._structure_compared = False
        self._place = Progress.start(-1, context.world_size)
        self.batch: Any = None
        self.template: Template | None = None
        self.last: Last | None = None
        self.state: tuple[Any, ...] = ()

    @property
    def spec(self) -> RecordSpec:
        assert self.template is not None
        return self.template.spec

    def place(self) -> Progress:
        return self._place

    def place_of(self, state: dict[str, Any] | None, changed: str | Collection[str] = ()) -> Progress:
        self._initial_state, self._changed = None, {"changed": changed} if changed else {}
        if state is None:
            return Progress.start(self._place.epoch + 1, self.context.world_size)
        try:
            self._initial_state, epoch, step = state["source"], int(state["epoch"]), int(state["step"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"not a state of batches that were dealt out ({error!r}): {str(state)[:160]}") from error
        return replace(Progress.start(epoch, self.context.world_size), step=step)

    def state_of(self, progress: Progress) -> dict[str, Any]:
        if not hasattr(self._source, "state_dict"):
            raise TypeError(f"{type(self._source).__name__} has no state_dict(): there is no state to resume from")
        source = copy_of_state(self.state[0]) if self.state else self._source.state_dict()
        return {"epoch": progress.epoch, "step": progress.step, "source": source}

    def on_begin(self, progress: Progress) -> None:
        # A node is resumed by `reset`; any other source by the state, before it is iterated.
        if isinstance(self._source, BaseNode):
            self._source.reset(self._initial_state, **self._changed)
        elif self._initial_state is not None:
            self._source.load_state_dict(self._initial_state, **self._changed)  # type: ignore[attr-defined]
        self._initial_state, self._iterator, self.state, self._changed = None, None, (), {}
        self._place = progress

    def next(self) -> Part:
        part = self.part()
        if part.rows is None:
            raise StopIteration
        return part

    def status(self) -> StatusWord:
        return StatusWord(epoch=self._place.epoch, step=self._place.step)

    def part(self) -> Part:
        """This rank's next batch; a part without rows after the end of the source. Blocks.

        Errors are reported to the other ranks. Raises StopIteration if no rank has a batch.
        """
        status, exchange = self.status(), self.job.exchange
        with failures_reported_to_peers(exchange, status):
            apart = self._read_batch()
        if exchange is not None and not self._structure_compared:
            # Once, with the first batches: a rank without a batch needs the structure to build its share of samples.
            templates = self._compare_structures(exchange, status)
            with failures_reported_to_peers(exchange, status):
                self._adopt_structure(templates)
            self._structure_compared = True
        if self.template is None:
            raise StopIteration  # no rank has a batch
        return Part(None if apart is None else apart.rows, replace(status, ended=apart is None))

    def local_batch(self) -> Any:
        """The next batch unchanged, for one rank. Raises StopIteration at the end."""
        part = self.part()
        if part.rows is None:
            raise StopIteration
        count = part.rows.num_rows
        lengths = dict(zip(self.spec.groups, self.spec.group_lengths(part.rows.spans().length), strict=True))
        items = {name: int(length.sum()) for name, length in measured_lengths(lengths).items()}
        origin = torch.stack([torch.zeros(count, dtype=torch.int64), torch.arange(count)], dim=1)
        self.advance(self.stats(count, count, items), origin, None)
        return self.batch

    def build(self, rows: RowRefs) -> Any:
        """A batch of these samples. Replicated values are those of this rank."""
        assert self.template is not None
        return self.template.build(rows, self._constants)

    def advance(self, stats: StepStats, origin: torch.Tensor, tuning: dict[str, Any] | None) -> None:
        """Proceed to the next step. stats, origin: of the batch that is passed on. tuning: see `Progress`."""
        # Positions count no rows: the source has its own state, and only the number of the step matters.
        self.last = Last(stats=stats, origin=origin)
        self._place = self._place.moved([0] * self.context.world_size, 1, tuning)

    def stats(self, samples: int, of_all: int, items: dict[str, int], **balance: Any) -> StepStats:
        """Statistics of the current step. balance: further fields of `StepStats`."""
        return StepStats(
            epoch=self._place.epoch,
            step=self._place.step,
            world_size=self.context.world_size,
            samples=samples,
            global_samples=of_all,
            global_items=items,
            **balance,
        )

    def _read_batch(self) -> TakenApart | None:
        """Read `batch`; its samples by reference, None at the end of the source.

        Raises DataError if the batch cannot be split, or has another structure than the first one.
        """
        if self._iterator is None:
            self._iterator = iter(self._source)
        end = object()
        batch = next(self._iterator, end)
        apart = None
        if batch is not end:
            apart = not_the_end("lengths", partial(take_apart, batch, self._replicate, self._measure, self.template))
            self._check_replicated(apart)
        if hasattr(self._source, "state_dict"):
            # Now, in the thread that iterates: the source is further on when this batch is yielded.
            self.state = (copy_of_state(self._source.state_dict()),)
        if apart is None:
            self.batch = None
            return None
        if self.template is not None:
            _check_same_structure(self.template, apart.template)
        self.batch, self.template, self._constants = batch, apart.template, apart.constants
        return apart

    def _check_replicated(self, apart: TakenApart) -> None:
        """DataError if a replicated list seems to have one entry per sample: moved samples would get those of others.

        A list that is the same in every batch does not, even if it has as many entries as a batch has samples.
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

    def _compare_structures(self, exchange: StatusExchange, status: StatusWord) -> dict[int, dict[str, Any]]:
        """rank -> structure of its batches, of all ranks that have one; MismatchError on all ranks if they differ."""
        own = {} if self.template is None else {"fields": self.template.describe(), **_as_text(self.template)}
        of_ranks = [json.loads(text) for text in exchange.gather(json.dumps(own).encode(), status)]
        structures = {rank: structure for rank, structure in enumerate(of_ranks) if structure}
        fields = {rank: structure["fields"] for rank, structure in structures.items()}
        text = differences(fields) if fields else ""
        if text:
            raise MismatchError(f"the batches of the ranks have different structures: {text}. {_REMEDY}")
        return structures

    def _adopt_structure(self, structures: dict[int, dict[str, Any]]) -> None:
        """Take the structure of another rank if this one has no batch of its own."""
        if self.template is not None or not structures:
            return
        first = min(structures)
        template, why = None, structures[first].get("error", "")
        if not why:
            template = from_text(structures[first]["template"])
            if template.constants:
                why = f"it holds replicated values {template.constants}, of which this rank has none"
        if why:
            raise DataError(
                f"rank {self.context.rank} has no batch of its own and cannot make one like those of rank {first}: "
                f"{why}. Give every rank at least one batch"
            )
        self.template = template


def measured_lengths(by_group: Mapping[str, Any]) -> dict[str, Any]:
    """The groups that the cost model sees, under the names of the user."""
    return {name.removeprefix(LENGTH): value for name, value in by_group.items() if name.startswith(LENGTH)}


def _as_text(template: Template) -> dict[str, str]:
    # An error travels in place of the text: it matters only to a rank without a batch, which raises it.
    try:
        return {"template": to_text(template)}
    except DataError as error:
        return {"error": str(error)}


def _check_same_structure(first: Template, other: Template) -> None:
    was, now = first.describe(), other.describe()
    for path in {**was, **now}:  # a dict, not a set: the same first difference in every process
        if was.get(path) != now.get(path):
            raise DataError(
                f"all batches must have the same structure: {path!r} was {was.get(path, 'absent')} and is "
                f"{now.get(path, 'absent')}. {_REMEDY}"
            )


def _measure(lengths: Lengths | None) -> Measure:
    """A function that returns the lengths that the cost model sees."""
    if isinstance(lengths, str):
        return _by_path({lengths.rpartition(".")[2]: lengths})
    if isinstance(lengths, Mapping):
        return _by_path(dict(lengths))
    if not callable(lengths):
        raise TypeError(f"lengths must be a function of the batch, a path or a mapping of paths, got {lengths!r}")

    def call(batch: Any, _: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        returned = lengths(batch)
        if not isinstance(returned, Mapping):
            returned = {"length": returned}
        return {name: _integers(name, values) for name, values in returned.items()}

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
