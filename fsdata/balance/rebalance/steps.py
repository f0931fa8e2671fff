"""The steps of one epoch of `rebalance`: pull a batch, exchange it, build what the plan gives this rank."""

import copy
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fsdata.balance.exchange import Assignment, GlobalBatch, StatusWord, StepExchange, StepResult, told
from fsdata.balance.options import StepPlanner
from fsdata.balance.rebalance.template_text import from_text, to_text
from fsdata.balance.rebalance.tensor_tree import LENGTH, Measure, TakenApart, Template, take_apart
from fsdata.batch.batch import StepStats, loss_weight
from fsdata.errors import DataError, MismatchError
from fsranks.meeting import differences

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A batch on its way to the training loop; `state` is (the loader's state after it,), or () if it has none."""

    batch: Any
    last: Last
    number: int
    state: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """A batch of the wrapped loader; `apart` is None at the loader's end."""

    batch: Any
    apart: TakenApart | None
    state: tuple[Any, ...]


class WrappedLoader:
    """The wrapped loader, and what its batches have in common: known from the first one on, over all epochs."""

    def __init__(self, loader: Any, measure: Measure, replicate: Collection[str]) -> None:
        self._loader = loader
        self._measure = measure
        self._replicate = replicate
        self._iterator: Iterator[Any] | None = None
        self.template: Template | None = None
        self.constants: dict[str, Any] = {}

    def restart(self) -> None:
        self._iterator = None

    def pull(self) -> Pulled:
        """The next batch by reference, and the loader's state after it.

        Raises DataError if the batch cannot be split, or is built otherwise than the first.
        """
        if self._iterator is None:
            self._iterator = iter(self._loader)
        try:
            batch = next(self._iterator)
        except StopIteration:
            return Pulled(batch=None, apart=None, state=self._state())
        apart = take_apart(batch, self._replicate, self._measure)
        if self.template is not None:
            _check_alike(self.template, apart.template)
        self.template = apart.template
        self.constants = apart.constants
        return Pulled(batch=batch, apart=apart, state=self._state())

    def _state(self) -> tuple[Any, ...]:
        if not hasattr(self._loader, "state_dict"):
            return ()
        return (copy.deepcopy(self._loader.state_dict()),)


class RebalanceSteps:
    """One epoch; `next` runs in the background thread. Without an exchange (one rank) batches pass through."""

    def __init__(self, loader: WrappedLoader, exchange: StepExchange | None, planner: StepPlanner, epoch: int) -> None:
        self._loader = loader
        self._exchange = exchange
        self._planner = planner
        self._epoch = epoch
        self._step = 0
        self._met = False
        self._over = False

    def next(self) -> Made | None:
        """The next batch, None when all ranks have ended. Blocks on the loader and on peers."""
        if self._over:
            return None
        try:
            made = self._alone() if self._exchange is None else self._together(self._exchange)
        except BaseException:
            self._over = True
            raise
        self._step += 1
        return made

    def _alone(self) -> Made | None:
        pulled = self._loader.pull()
        if pulled.apart is None:
            self._over = True
            return None
        rows, spec = pulled.apart.rows, pulled.apart.template.spec
        lengths = dict(zip(spec.groups, spec.group_lengths(rows.spans().length), strict=True))
        stats = StepStats(
            epoch=self._epoch,
            step=self._step,
            world_size=1,
            samples=rows.num_rows,
            global_samples=rows.num_rows,
            global_items={name: int(values.sum()) for name, values in _measured(lengths).items()},
        )
        origin = torch.stack([torch.zeros(rows.num_rows, dtype=torch.int64), torch.arange(rows.num_rows)], dim=1)
        return Made(batch=pulled.batch, last=Last(stats=stats, origin=origin), number=self._step, state=pulled.state)

    def _together(self, exchange: StepExchange) -> Made | None:
        status = StatusWord(epoch=self._epoch, step=self._step)
        with told(exchange, status):
            pulled = self._loader.pull()
        if not self._met:
            everyone = self._introduce(exchange, status)
            with told(exchange, status):
                self._adopt(everyone, exchange.context.rank)
            self._met = True
        template = self._loader.template
        if template is None:
            self._over = True
            return None  # no rank has a batch
        rows = None if pulled.apart is None else pulled.apart.rows
        step = exchange.step(rows, template.spec, self._plan, replace(status, ended=rows is None))
        self._over = step.ended
        if step.ended and not step.global_samples:
            return None
        with told(exchange, status):
            return self._make(step, pulled, template, unchanged=step.rows is rows)

    def _make(self, step: StepResult, pulled: Pulled, template: Template, *, unchanged: bool) -> Made:
        stats = StepStats(
            epoch=self._epoch,
            step=self._step,
            world_size=len(step.statuses),
            samples=step.rows.num_rows,
            global_samples=step.global_samples,
            global_items=_measured(step.global_items),
            straggler_before=step.straggler_before,
            straggler_after=step.straggler_after,
            moved=step.moved,
        )
        batch = pulled.batch if unchanged else template.build(step.rows, self._loader.constants)
        last = Last(stats=stats, origin=torch.from_numpy(step.origin))
        return Made(batch=batch, last=last, number=step.number, state=pulled.state)

    def _plan(self, batch: GlobalBatch) -> Assignment:
        return self._planner(replace(batch, lengths=_measured(batch.lengths)))

    def _introduce(self, exchange: StepExchange, status: StatusWord) -> dict[int, dict[str, Any]]:
        """How the batches of every rank that has one are built; MismatchError on all ranks if they differ."""
        template = self._loader.template
        mine = {} if template is None else {"fields": template.describe(), **_written(template)}
        everyone = [json.loads(text) for text in exchange.gather(json.dumps(mine).encode(), status)]
        known = {rank: other for rank, other in enumerate(everyone) if other}
        text = differences({rank: other["fields"] for rank, other in known.items()}) if known else ""
        if text:
            raise MismatchError(f"the batches of the ranks are built differently: {text}. {_REMEDY}")
        return known

    def _adopt(self, known: dict[int, dict[str, Any]], rank: int) -> None:
        """Take the structure from another rank if this one has no batch of its own."""
        if self._loader.template is not None or not known:
            return
        first = min(known)
        template, why = None, known[first].get("error", "")
        if not why:
            template = from_text(known[first]["template"])
            if template.constants:
                why = f"it holds replicated values {list(template.constants)}, of which this rank has none"
        if why:
            raise DataError(
                f"rank {rank} has no batch of its own and cannot make one like those of rank {first}: {why}. Give "
                "every rank at least one batch"
            )
        self._loader.template = template


def _measured(by_group: Mapping[str, Any]) -> dict[str, Any]:
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
