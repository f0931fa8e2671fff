"""The options of balancing, and the planner that follows them.

The user passes a `Balance`; `StepPlanner` assigns the samples of a step to ranks, with AutoTune's speeds.
"""

import contextlib
import re
from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from fsdata.balance.autotune import AutoTune
from fsdata.balance.cost import CostModel, Polynomial
from fsdata.balance.method_choice import MethodChoice
from fsdata.balance.packing import Method, OverCapError, Plan, pack
from fsdata.balance.packing.plan import straggler_share
from fsdata.balance.sharing import SHARES, events_shared, sharing_groups
from fsdata.balance.step_plan import Assignment, GlobalBatch
from fsdata.kernels import load_numba
from fsdata.options import boolean, integer, one_of
from fsdata.order.tokens import tokens_of

AUTO: Literal["auto"] = "auto"
_LARGEST_SUM = 2**62
_NO_SPEED = ("fbs",)
_NO_CAP = ("fbs", "vbs-contiguous")
_NO_CARRY = (
    "Only FreeScaleDataLoader(balance=...) can carry rows over to the next step; elsewhere every batch has to fit"
)


@dataclass(frozen=True, slots=True, repr=False)
class Balance:
    """Redistribute every global batch so that all ranks have the same work.

    Args:
        method: see `fsdata.pack`. All but `vbs` and `vbs-contiguous` give every rank the same number of samples, to
            within one. `auto` starts with `fbs+swap`. If moving the samples takes more than a tenth of the compute time
            in the first steps, it continues with `hierarchical` if `ranks_per_node` is set, else with `repair`. The
            choice is part of the state. It needs `loader.report_step(compute_seconds)`.
        cost: lengths -> cost of every sample. If all costs are 0, as without sequences, ranks get the same number of
            candidates or, without candidates, of samples.
            Samples that share a history (`Sequence(share=...)`) stay together under `fbs+swap`, `vbs` and `auto`; then
            ranks get different numbers of samples.
        max_tokens: cap on the elements of one rank, against out of memory: events of all sequences, candidates, and the
            ids of nested fields.
            Where a global batch does not fit, `FreeScaleDataLoader` carries the last rows of every rank over to the
            next step (`StepStats.carried`); a single sample above the cap is an error. `rebalance` and
            `EmbeddingBalance` cannot carry rows over: there such a batch is an error too.
        ranks_per_node: for `hierarchical`, and for `auto` where nodes have more than one rank.
        autotune: give slow ranks less work, by the times of `loader.report_step(compute_seconds)`.

    Raises:
        ValueError: an unknown method, a number out of range, or an option that the method cannot honour.
    """

    method: Method | Literal["auto"] = "fbs+swap"
    _: KW_ONLY
    cost: CostModel = field(default_factory=Polynomial)
    max_tokens: int | None = None
    ranks_per_node: int | None = None
    autotune: bool = False

    def __post_init__(self) -> None:
        checked = {
            "method": one_of("method", self.method, (*get_args(Method), AUTO)),
            "max_tokens": integer("max_tokens", self.max_tokens, 1, optional=True),
            "ranks_per_node": integer("ranks_per_node", self.ranks_per_node, 1, optional=True),
            "autotune": boolean("autotune", self.autotune),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not callable(self.cost):
            raise TypeError(f"cost must be a cost model (lengths -> int64 costs), got {self.cost!r}")
        if self.method != AUTO and (self.method == "hierarchical") != (self.ranks_per_node is not None):
            raise ValueError(
                f"method={self.method!r} with ranks_per_node={self.ranks_per_node}: 'hierarchical' needs the ranks per "
                "node, the other methods do not know nodes"
            )
        if self.max_tokens is not None and self.method in _NO_CAP:
            raise ValueError(
                f"method={self.method!r} cannot keep max_tokens={self.max_tokens}: use 'vbs' or 'fbs+swap'"
            )
        if self.autotune and self.method in _NO_SPEED:
            raise ValueError(f"method={self.method!r} cannot follow the speed of ranks: use 'vbs' or 'fbs+swap'")

    def __repr__(self) -> str:
        """Ranks compare it, so it has no addresses (plain functions as cost models show theirs)."""
        names = ("method", "cost", "max_tokens", "ranks_per_node", "autotune")
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return re.sub(r" at 0x[0-9a-f]+", "", f"Balance({shown})")


class StepPlanner:
    """The planner of one loader on `world_size` ranks: an exchange calls it with every global batch, in order.

    Plans depend only on gathered lengths and reports. With AutoTune it has a state, equal on all ranks.

    carry: whether a plan may carry samples over to the next step if not all fit under `max_tokens`.
    nested: names of nested fields: their ids count as tokens, and cost models do not see them.
    exploded: the group whose elements become samples, each with all other fields of its row; None without `explode`.
    """

    def __init__(
        self,
        balance: Balance,
        world_size: int,
        *,
        carry: bool = False,
        nested: Collection[str] = (),
        exploded: str | None = None,
    ) -> None:
        per_node = balance.ranks_per_node
        if per_node is not None and world_size > 1 and world_size % per_node:
            raise ValueError(f"ranks_per_node={per_node} does not divide the {world_size} ranks")
        self._balance = balance
        self._nested = frozenset(nested)
        self._exploded = exploded
        self._world_size = world_size
        self._carry = carry
        self._tune: AutoTune | None = None
        self._choice: MethodChoice | None = None
        self.forget()
        load_numba()

    def __call__(self, batch: GlobalBatch) -> Assignment:
        """Raises ValueError where no plan keeps `max_tokens` (naming the longest sample) or AutoTune has no reports.

        A planner that may carry raises only for a single sample above `max_tokens`.
        """
        balance, tune = self._balance, self._tune
        tokens = self._tokens(batch)
        shared = next(((first, batch.lengths[name]) for name, first in batch.first_events.items()), None)
        cost = self._cost(batch, shared)
        if not cost.any():
            cost = tokens  # no histories: balance the candidates, or the samples
        _check_fits(tokens, batch, balance.max_tokens)
        speed = None
        reports = [(status.compute_step, status.compute_ns) for status in batch.statuses]
        if self._choice is not None:
            self._choice.observe([status.moving_ns for status in batch.statuses], reports)
        if tune is not None:
            tune.observe(reports)
            speed = tune.speed
        plan, rows, part = self._pack(cost, tokens, batch.home, speed, shared)
        before, after = (
            self._sums(rank, self._world_size, cost[part], _part(shared, part))
            for rank in (batch.home[part], plan.rank)
        )
        if tune is not None:
            tune.planned(batch.number, after.tolist())
        return Assignment(
            rank=plan.rank,
            rows=rows,
            straggler_before=straggler_share(before, speed),
            straggler_after=straggler_share(after, speed),
        )

    def _tokens(self, batch: GlobalBatch) -> np.ndarray:
        """int64 [N]."""
        return tokens_of(batch.lengths, self._exploded, len(batch.home))

    def _cost(self, batch: GlobalBatch, shared: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
        """int64 [N]: what each row costs."""
        model = self._balance.cost
        lengths = {name: length for name, length in batch.lengths.items() if name not in self._nested}
        if not lengths:
            return self._tokens(batch)
        if self._exploded is None:
            return np.asarray(model(lengths))
        # A row becomes `count` samples with one candidate each. They stay on one rank, so their costs add up here.
        count = lengths[self._exploded]
        one = np.asarray(model(lengths | {self._exploded: np.minimum(count, 1)}))
        if int(one.max(initial=0)) * int(count.max(initial=0)) * len(count) > _LARGEST_SUM:
            raise ValueError(
                f"{model} of rows with up to {count.max()} {self._exploded}, each a sample, could sum to more than "
                "2**62, where 64-bit sums start to overflow: divide the coefficients by a common factor"
            )
        if shared is not None and isinstance(model, Polynomial):
            # The samples of a row see the same events, so all but one get them for free.
            return one * count - model.shared * shared[1] * np.maximum(count - 1, 0)
        return one * count

    def _pack(
        self,
        cost: np.ndarray,
        tokens: np.ndarray,
        home: np.ndarray,
        speed: np.ndarray | None,
        shared: tuple[np.ndarray, np.ndarray] | None,
    ) -> tuple[Plan, int | None, np.ndarray | slice]:
        """(plan, rows, samples planned): a plan of the first `rows` samples of every home rank, None for all.

        shared: first event and number of events, int64 [N] each, that samples see of a shared history.

        `rows` is the largest for which bisection finds a plan. One sample of every rank always fits.
        """
        balance = self._balance
        method, ranks_per_node = self.method

        def plan(part: np.ndarray | slice) -> Plan:
            events = _part(shared, part)
            if events is not None and method in SHARES:
                groups = sharing_groups(*events, cost[part], self._world_size)
                costs = self._sums(groups, int(groups.max(initial=-1)) + 1, cost[part], events)
                with contextlib.suppress(OverCapError):  # single samples may fit where groups do not
                    return self._pack_groups(groups, costs, tokens[part], home[part], speed)
            return pack(
                cost[part],
                self._world_size,
                method=method,
                home=home[part],
                tokens=tokens[part],
                max_tokens=balance.max_tokens,
                ranks_per_node=ranks_per_node,
                speed=speed,
            )

        try:
            return plan(slice(None)), None, slice(None)
        except OverCapError as error:
            if not self._carry:
                raise ValueError(f"{error}. {_NO_CARRY}") from error
        # Every rank carries over its own last rows, so that each can still state its position as a number of rows.
        row = np.arange(len(home)) - np.searchsorted(home, home)  # `home` is ascending
        best, fits, too_many = plan(row < 1), 1, int(row.max()) + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            try:
                best, fits = plan(row < middle), middle
            except OverCapError:
                too_many = middle
        return best, fits, row < fits

    def _pack_groups(
        self, groups: np.ndarray, cost: np.ndarray, tokens: np.ndarray, home: np.ndarray, speed: np.ndarray | None
    ) -> Plan:
        """A plan that keeps every group on one rank. cost: of each group; tokens, home: of each sample."""
        sums = np.zeros_like(cost)
        np.add.at(sums, groups, tokens)
        cap = self._balance.max_tokens
        if cap is not None and sums.max(initial=0) > cap:
            raise OverCapError(f"a group of {sums.max()} tokens is above max_tokens={cap}")
        # "vbs": groups have different numbers of samples, so equal numbers of groups would be no equal counts.
        plan = pack(cost, self._world_size, method="vbs", tokens=sums, max_tokens=cap, speed=speed)
        rank = plan.rank[groups]
        return replace(
            plan,
            rank=rank,
            counts=np.bincount(rank, minlength=self._world_size),
            moved=int(tokens[rank != home].sum()) / max(1, int(tokens.sum())),
        )

    def _sums(
        self, owner: np.ndarray, owners: int, cost: np.ndarray, shared: tuple[np.ndarray, np.ndarray] | None
    ) -> np.ndarray:
        """int64 [owners]: the cost of all samples of an owner; an event seen by several of them costs `shared` once."""
        costs = np.zeros(owners, np.int64)
        np.add.at(costs, owner, cost)  # not bincount, which sums in float64
        model = self._balance.cost
        if shared is None or not isinstance(model, Polynomial) or not model.shared:
            return costs
        return costs - model.shared * events_shared(*shared, owner, owners)

    def state_dict(self) -> dict[str, Any] | None:
        """The state after the last plan, JSON-able: AutoTune's, with `auto` also the choice; None if neither."""
        tuning = None if self._tune is None else self._tune.state_dict()
        if self._choice is None:
            return tuning
        return {"autotune": tuning, "choice": self._choice.state_dict()}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore the state. Parts that it lacks, and speeds of another number of ranks, start from the beginning."""
        # States without `auto` are AutoTune's own, as in the first releases.
        tuning, choice = (state["autotune"], state["choice"]) if state and "choice" in state else (state, None)
        if self._tune is not None and tuning is not None:
            self._tune.load_state_dict(tuning)
        if self._choice is not None and choice is not None:
            self._choice.load_state_dict(choice)

    def forget(self) -> None:
        """Reset to a new planner, before the state of another position in the job is loaded."""
        several = self._world_size > 1
        self._tune = AutoTune(self._world_size) if self._balance.autotune and several else None
        self._choice = MethodChoice() if self._balance.method == AUTO and several else None

    @property
    def method(self) -> tuple[Method, int | None]:
        """The method of the next step, and the ranks per node."""
        balance = self._balance
        if self._world_size == 1:
            return "vbs", None  # nothing to balance, but `max_tokens` is kept; no method asks for nodes
        if balance.method != AUTO:
            return balance.method, balance.ranks_per_node
        if self._choice is None or not self._choice.sparing:
            return "fbs+swap", None
        return ("repair", None) if balance.ranks_per_node is None else ("hierarchical", balance.ranks_per_node)


def _part(
    shared: tuple[np.ndarray, np.ndarray] | None, part: np.ndarray | slice
) -> tuple[np.ndarray, np.ndarray] | None:
    return None if shared is None else (shared[0][part], shared[1][part])


def _check_fits(tokens: np.ndarray, batch: GlobalBatch, max_tokens: int | None) -> None:
    longest = int(tokens.argmax())
    if max_tokens is None or tokens[longest] <= max_tokens:
        return
    home = int(batch.home[longest])
    row = longest - int(np.searchsorted(batch.home, home))
    raise ValueError(
        f"max_tokens={max_tokens} is below the longest sample of this step: {tokens[longest]} elements, row {row} of "
        f"rank {home}'s batch (step {batch.statuses[home].step}). Raise max_tokens, or truncate with "
        "Sequence(max_length=...)"
    )
