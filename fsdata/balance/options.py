"""How a global batch is balanced: the options, and the planner they make.

`Balance` is what the user passes; `StepPlanner` turns one step's lengths into ranks, with AutoTune's speeds.
"""

import contextlib
import re
from collections.abc import Collection, Mapping
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
            within one. `auto` begins with `fbs+swap`. If moving the samples takes more than a tenth of the compute time
            in the first steps, it goes on with `hierarchical` where `ranks_per_node` is given, else with `repair`. The
            choice is part of the state. It needs `loader.report_step(compute_seconds)`.
        cost: lengths -> cost of every sample. Where nothing has a cost, as without sequences, ranks get the same number
            of candidates or, without those, of samples.
            Samples that share a history (`Sequence(share=...)`) stay together under `fbs+swap`, `vbs` and `auto`; then
            ranks get different numbers of samples.
        max_tokens: cap on the elements of one rank, against out of memory: events of all sequences, candidates, and the
            ids of nested fields.
            Where a global batch does not fit, `FreeScaleDataLoader` carries the last rows of every rank over to the
            next step (`StepStats.carried`); a single sample above the cap is an error. `rebalance` and
            `EmbeddingBalance` cannot carry rows over: there such a batch is an error too.
        ranks_per_node: for `hierarchical`, and for `auto` where nodes have more than one rank.
        autotune: give slow ranks less, from what `loader.report_step(compute_seconds)` says.

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
        """What ranks compare: without the addresses that plain functions show."""
        names = ("method", "cost", "max_tokens", "ranks_per_node", "autotune")
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return re.sub(r" at 0x[0-9a-f]+", "", f"Balance({shown})")


class StepPlanner:
    """The planner of one loader on `world_size` ranks: an exchange calls it with every global batch, in order.

    A function of the gathered lengths and reports alone; with AutoTune it has a state, the same on every rank.

    carry: whether a plan may leave samples to the next step where not all fit under `max_tokens`.
    nested: names of nested fields: their ids count as tokens, and cost models do not see them.
    exploded: the group whose elements become samples, each with all that its row has, where there is one.
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
        shared = next(((place, batch.lengths[name]) for name, place in batch.places.items()), None)
        cost = self._cost(batch, shared)
        if not cost.any():
            cost = tokens  # no histories: what is left is to give all ranks as many candidates, or samples
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
        count = lengths[self._exploded]
        one = np.asarray(model(lengths | {self._exploded: np.minimum(count, 1)}))
        if int(one.max(initial=0)) * int(count.max(initial=0)) * len(count) > _LARGEST_SUM:
            raise ValueError(
                f"{model} of rows with up to {count.max()} {self._exploded}, each a sample, could sum to more than "
                "2**62, where 64-bit sums start to overflow: divide the coefficients by a common factor"
            )
        if shared is not None and isinstance(model, Polynomial):
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
        """(plan, rows, samples planned): of the first `rows` samples of every home rank, None for all.

        shared: place and length, int64 [N] each, of what samples see of histories that they may share.

        `rows` is the largest that bisection finds a plan for. With one sample of every rank there always is one.
        """
        balance = self._balance
        method, ranks_per_node = self.method

        def plan(part: np.ndarray | slice) -> Plan:
            some = _part(shared, part)
            if some is not None and method in SHARES:
                groups = sharing_groups(*some, cost[part], self._world_size)
                costs = self._sums(groups, int(groups.max(initial=-1)) + 1, cost[part], some)
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
        row = np.arange(len(home)) - np.searchsorted(home, home)
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
        """A plan of samples that keeps every group on one rank. cost: of each group; tokens, home: of each sample."""
        sums = np.zeros_like(cost)
        np.add.at(sums, groups, tokens)
        cap = self._balance.max_tokens
        if cap is not None and sums.max(initial=0) > cap:
            raise OverCapError(f"a group of {sums.max()} tokens is above max_tokens={cap}")
        found = pack(cost, self._world_size, method="vbs", tokens=sums, max_tokens=cap, speed=speed)
        rank = found.rank[groups]
        return replace(
            found,
            rank=rank,
            counts=np.bincount(rank, minlength=self._world_size),
            moved=int(tokens[rank != home].sum()) / max(1, int(tokens.sum())),
        )

    def _sums(
        self, owner: np.ndarray, owners: int, cost: np.ndarray, shared: tuple[np.ndarray, np.ndarray] | None
    ) -> np.ndarray:
        """int64 [owners]: the cost of all samples of an owner, where events that they share cost `shared` once."""
        found = np.zeros(owners, np.int64)
        np.add.at(found, owner, cost)
        model = self._balance.cost
        if shared is None or not isinstance(model, Polynomial) or not model.shared:
            return found
        return found - model.shared * events_shared(*shared, owner, owners)

    def state_dict(self) -> dict[str, Any] | None:
        """After the last plan, JSON-able: AutoTune's state, and with `auto` the choice; None where there is neither."""
        tuning = None if self._tune is None else self._tune.state_dict()
        if self._choice is None:
            return tuning
        return {"autotune": tuning, "choice": self._choice.state_dict()}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """What the state has no part for begins anew, as does what another number of ranks has measured."""
        tuning, choice = (state["autotune"], state["choice"]) if state and "choice" in state else (state, None)
        if self._tune is not None and tuning is not None:
            self._tune.load_state_dict(tuning)
        if self._choice is not None and choice is not None:
            self._choice.load_state_dict(choice)

    def forget(self) -> None:
        """Be as a new planner: a state of another place in the job is loaded next."""
        together = self._world_size > 1
        self._tune = AutoTune(self._world_size) if self._balance.autotune and together else None
        self._choice = MethodChoice() if self._balance.method == AUTO and together else None

    @property
    def method(self) -> tuple[Method, int | None]:
        """How the next step is planned, and the ranks per node. A job of one rank has no nodes: there all are one."""
        balance = self._balance
        if self._world_size == 1:
            return "vbs", None
        if balance.method != AUTO:
            return balance.method, balance.ranks_per_node
        if self._choice is None or not self._choice.sparing:
            return "fbs+swap", None
        return ("repair", None) if balance.ranks_per_node is None else ("hierarchical", balance.ranks_per_node)


def tokens_of(lengths: Mapping[str, np.ndarray], exploded: str | None, rows: int) -> np.ndarray:
    """int64 [N]: elements of all groups of each row, where all candidates of a row become samples of all of them; 1
    where nothing is jagged."""
    if not lengths:
        return np.ones(rows, np.int64)
    found: np.ndarray = np.sum(list(lengths.values()), axis=0)
    if exploded is not None:
        count = lengths[exploded]
        found = (found - count + 1) * count
    return found


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
