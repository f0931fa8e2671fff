"""Composes what makes steps of the rows that a rank reads: balanced steps, and those of a source that is followed."""

from collections.abc import Callable
from typing import Any, Protocol

from fsdata.kernels.warm import make_ready


class Balancing(Protocol):
    """The part of `fsdata.Balance`, the loader's argument `balance`, that the core uses."""

    @property
    def max_tokens(self) -> int | None: ...

    @property
    def cost(self) -> Callable[..., Any]: ...


def check_balance(balance: object) -> None:
    """Raise TypeError unless it is a `Balance` or None. Compiles the kernels of planning; blocks."""
    if balance is None:
        return
    from fsdata.balance.kernels.called import BALANCING
    from fsdata.balance.options import Balance

    if not isinstance(balance, Balance):
        raise TypeError(f"balance must be a Balance or None, got {balance!r}; write balance=Balance()")
    make_ready(BALANCING)


def balanced_steps(steps: Any, balance: Any, timeout_s: float) -> Any:
    """A `BalancedSteps` node after these `Steps`. Collective."""
    from fsdata.balance.balanced_steps import BalancedSteps

    return BalancedSteps(steps, balance, timeout_s=timeout_s)


def followed_steps(steps: Any, timeout_s: float, alive: Callable[[], bool]) -> Any:
    """A `Followed` node after these steps. Collective."""
    from fsdata.growing.followed import Followed

    return Followed(steps, timeout_s=timeout_s, alive=alive)
