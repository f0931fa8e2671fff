"""pack: the plan of one global batch."""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from fsdata.balance.kernels import packing as kernels
from fsdata.balance.packing.methods import EQUAL_COUNTS, METHODS, NEED_HOME, UNLIMITED, Problem
from fsdata.balance.packing.plan import OverCapError, Plan, lowest_straggler, straggler_share
from fsdata.options import integer

Method = Literal["fbs", "fbs+swap", "vbs", "vbs-contiguous", "repair", "hierarchical"]
_LARGEST_SUM = 2**62


def pack(
    cost: Any,
    num_ranks: int,
    *,
    method: Method = "fbs+swap",
    home: Any = None,
    tokens: Any = None,
    max_tokens: int | None = None,
    min_count: int | None = None,
    max_count: int | None = None,
    ranks_per_node: int | None = None,
    tolerance: float = 1e-3,
    speed: Sequence[float] | np.ndarray | None = None,
) -> Plan:
    """Assign N samples to W = `num_ranks` ranks so that all ranks take equally long.

    A pure function: equal arguments give the same plan on every rank and CPU. Takes O(N) time, `vbs` O(N log W);
    releases the GIL.

    cost: integers [N], not negative, any integer type (numpy array, list, CPU tensor).
    home: integers [N], the rank each sample is on; needed by `repair` and `hierarchical`, else only for `Plan.moved`.
    tokens: integers [N], capped per rank by `max_tokens` and counted by `Plan.moved`.
    min_count, max_count: samples per rank, `vbs` only; by default one or more (where N allows), without an upper limit.
    ranks_per_node: `hierarchical` only, ranks of a node are neighbours; divides W.
    tolerance: the straggler share at which `repair` and `hierarchical` stop moving samples; the others ignore it.
    speed: positive numbers [W], the relative speed of each rank. Rank r should get load in proportion to speed[r].

    Raises TypeError on amounts that are not integers; ValueError on anything out of range or an option that the method
    cannot honour; OverCapError, a ValueError, if no plan within `max_tokens` was found.
    Source: paper section 1 (fbs, vbs-contiguous, speed as AutoTune's shares); the other methods add swaps.
    """
    options = {"max_tokens": max_tokens, "min_count": min_count, "max_count": max_count, "speed": speed}
    _check_method(method, {**options, "ranks_per_node": ranks_per_node}, home, tokens)
    num_ranks = integer("num_ranks", num_ranks, 1)
    if not 0.0 <= tolerance < 1.0:
        raise ValueError(f"tolerance={tolerance!r}: a straggler share from 0 to below 1 is needed, 1e-3 is 0.1 %")
    costs = _amounts("cost", cost, None)
    n = costs.size
    lengths = np.ones(n, np.int64) if tokens is None else _amounts("tokens", tokens, n)
    homes = None if home is None else _homes(home, n, num_ranks)
    speeds = None if speed is None else _speeds(speed, num_ranks)
    low, high = _count_limits(method, n, num_ranks, min_count, max_count)
    problem = Problem(
        cost=costs,
        order=kernels.descending(costs),
        tokens=lengths,
        target=_targets(int(costs.sum()), num_ranks, speeds),
        max_tokens=_token_limit(max_tokens, lengths, num_ranks),
        min_count=low,
        max_count=high,
        home=homes,
        ranks_per_node=_node_size(ranks_per_node, num_ranks),
        tolerance=tolerance,
    )
    rank = METHODS[method][0](problem) if n else np.empty(0, np.int32)
    load = kernels.sums(rank, costs, num_ranks)
    counts = kernels.sums(rank, np.ones(n, np.int64), num_ranks)
    for array in (rank, load, counts):
        array.setflags(write=False)
    return Plan(
        rank=rank,
        counts=counts,
        load=load,
        straggler=straggler_share(load, speeds),
        lower_bound=lowest_straggler(costs, problem.order, num_ranks, low, speeds),
        moved=None if homes is None else _moved(rank, homes, lengths),
    )


def _check_method(method: str, options: dict[str, Any], home: Any, tokens: Any) -> None:
    if method not in METHODS:
        raise ValueError(f"method={method!r}: one of {', '.join(map(repr, get_args(Method)))} is needed")
    takes = METHODS[method][1]
    for name, value in options.items():
        if value is not None and name not in takes:
            able = ", ".join(repr(other) for other, (_, takes) in METHODS.items() if name in takes)
            raise ValueError(f"method={method!r} cannot honour {name}={value!r}: leave it out, or use {able}")
    if method in NEED_HOME and home is None:
        raise ValueError(f"method={method!r} needs home, the rank each sample is on now")
    if method == "hierarchical" and options["ranks_per_node"] is None:
        raise ValueError("method='hierarchical' needs ranks_per_node, the number of neighbouring ranks of one node")
    if options["max_tokens"] is not None and tokens is None:
        raise ValueError(f"max_tokens={options['max_tokens']!r} needs tokens, the length of every sample")


def _amounts(name: str, values: Any, size: int | None) -> np.ndarray:
    """`values` as int64[N]; TypeError unless integers, ValueError unless one-dimensional, not negative, summable."""
    array = np.asarray(values)
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.int64)  # numpy makes float64 of an empty list
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} has dtype {array.dtype}; integers are needed, because every rank plans alone and sums of "
            "floats differ between machines: scale and round them"
        )
    if array.ndim != 1 or (size is not None and array.size != size):
        wanted = "one dimension" if size is None else f"shape ({size},), one value per cost"
        raise ValueError(f"{name} has shape {array.shape}; {wanted} is needed")
    if array.size == 0:
        return array.astype(np.int64)
    smallest, largest = int(array.min()), int(array.max())
    if smallest < 0:
        where = int(array.argmin())
        raise ValueError(f"{name}[{where}] = {smallest}: values must not be negative")
    # The quick bound first; the exact sum is taken in Python integers, as int64 could overflow unnoticed.
    if largest * array.size > _LARGEST_SUM:
        total = sum(array.tolist())
        if total > _LARGEST_SUM:
            raise ValueError(
                f"{name} sums to {total} (largest value {largest}), above 2**62, where 64-bit sums start to overflow: "
                "divide all values by a common factor"
            )
    return np.ascontiguousarray(array, np.int64)


def _homes(home: Any, size: int, num_ranks: int) -> np.ndarray:
    array = _amounts("home", home, size)
    if size and int(array.max()) >= num_ranks:
        where = int(array.argmax())
        raise ValueError(f"home[{where}] = {int(array[where])}: ranks go from 0 to {num_ranks - 1}")
    return array.astype(np.int32)


def _speeds(speed: Any, num_ranks: int) -> np.ndarray:
    array = np.asarray(speed, np.float64)
    if array.shape != (num_ranks,):
        raise ValueError(f"speed has shape {array.shape}; one value per rank, ({num_ranks},), is needed")
    if not (np.isfinite(array).all() and (array > 0).all() and array.max() <= 1e6 * array.min()):
        raise ValueError(f"speed={array.tolist()}: positive finite numbers within a factor of 1e6 are needed")
    return array


def _count_limits(method: str, n: int, num_ranks: int, low: int | None, high: int | None) -> tuple[int, int]:
    """The smallest and largest number of samples of a rank. A largest number of 0 means equal counts."""
    if method in EQUAL_COUNTS:
        return n // num_ranks, 0
    low = min(1, n // num_ranks) if low is None else low
    high = max(n, 1) if high is None else high
    if not 0 <= low <= high:
        raise ValueError(f"min_count={low}, max_count={high}: 0 <= min_count <= max_count is needed")
    if not low * num_ranks <= n <= high * num_ranks:
        raise ValueError(
            f"{n} samples cannot be dealt to {num_ranks} ranks with {low} to {high} each: "
            f"the limits must enclose {n / num_ranks:.2f}"
        )
    return low, high


def _token_limit(max_tokens: int | None, tokens: np.ndarray, num_ranks: int) -> int:
    if max_tokens is None:
        return UNLIMITED
    longest = int(tokens.max(initial=0))
    if max_tokens < longest:
        raise ValueError(
            f"max_tokens={max_tokens} is below the longest sample, {longest} tokens, which must go to some rank: "
            f"raise max_tokens to {longest} or more, or shorten histories (max_length)"
        )
    total = int(tokens.sum())
    if max_tokens * num_ranks < total:
        raise OverCapError(
            f"max_tokens={max_tokens} on {num_ranks} ranks holds {max_tokens * num_ranks} of {total} tokens (longest "
            f"sample {longest}): raise max_tokens above the mean of {-(-total // num_ranks)}, or lower batch_size"
        )
    return int(max_tokens)


def _node_size(ranks_per_node: int | None, num_ranks: int) -> int:
    if ranks_per_node is None:
        return 1
    if ranks_per_node < 1 or num_ranks % ranks_per_node:
        raise ValueError(f"ranks_per_node={ranks_per_node} does not divide num_ranks={num_ranks}")
    return int(ranks_per_node)


def _targets(total: int, num_ranks: int, speed: np.ndarray | None) -> np.ndarray:
    """float64[W], the load of each rank if all took equally long."""
    total = max(total, 1)  # kernels divide by the targets, also where nothing has a cost
    if speed is None:
        return np.full(num_ranks, total / num_ranks)
    return speed * (total / math.fsum(speed))


def _moved(rank: np.ndarray, home: np.ndarray, tokens: np.ndarray) -> float:
    total = int(tokens.sum())
    return int(tokens[rank != home].sum()) / total if total else 0.0
