"""Predicts what others have published, from what they say of model, data and machines. Nothing is fitted to outcomes.

Sources: the reference of MLPerf's DLRMv4 (mlcommons/training#889 and its multi-node notes), the end-to-end benchmark of
HSTU in NVIDIA/recsys-examples (#340), and Primus-DLRM. What a run does not say is assumed, as the interval knows.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from freescale_tools.model.batches import PACKED, UNPACKED, Samples, Setting, simulate_setting
from freescale_tools.model.durations import FLOAT, step
from freescale_tools.model.hardware import Hardware, load_hardware
from freescale_tools.model.simulation import moved, verdict
from freescale_tools.model.step import BALANCED, PIPELINED
from freescale_tools.model.workload import METHODS, Workload
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import Polynomial
from validation.comparison import row

WITHIN = 0.3
_DRAWS = 200
_GIVEN = dict.fromkeys(("dim", "flops", "compute_ms"), "measured: published")
_NODE, _TWO_NODES = 8, 16
_EXCHANGED = 14.5e9
"""Bytes of rows and gradients that a rank of DLRMv4 gives in a step."""
_RUNS = {"b200-ib": (558.0, 7.0), "mi350x-roce": (652.0, 27.0)}
"""Hardware -> ms of a step of DLRMv4 on 8 GPUs, and how much of it is exposed embedding exchange."""
_SCALING = 1.28
_SHUFFLER = 1.53
_EXPOSED = {"b200-ib": 0.049, "mi350x-roce": 0.087}
"""Hardware -> share of a step in all-to-alls that nothing hides (Primus-DLRM; MI355X, whose links are those of the
MI350X)."""
_WIDTH, _LAYERS, _SAMPLES, _LONGEST, _ZIPF = 1024, 8, 32, 4096, 1.2
_TFLOPS = 104.0
"""What a GPU reached with the shuffler, 1,667 TFLOP/s on 16."""


def published() -> dict[str, Any]:
    """{fits, rows, notes}: a row has `low` and `high` of the interval, too."""
    return {"fits": [], "rows": list(_rows()), "notes": list(_notes())}


def _rows() -> Iterator[dict[str, Any]]:
    for name, (step_ms, exposed_ms) in _RUNS.items():
        hardware, load = load_hardware(name), _dlrm(step_ms - exposed_ms)
        yield _row(
            f"embedding exchange exposed in one node, DLRMv4 on 8 {_title(name)}", "share", exposed_ms / step_ms,
            _exposed_share, hardware, load, _NODE,
        )  # fmt: skip
    hardware, load = load_hardware("mi350x-roce"), _dlrm(_RUNS["mi350x-roce"][0] - _RUNS["mi350x-roce"][1])
    yield _row("two nodes over one, DLRMv4 on MI350X", "times", _SCALING, _scaling, hardware, load, _TWO_NODES)
    yield _row(
        "batch shuffler, HSTU on 16 H100", "times", _SHUFFLER, _balancing, load_hardware("h100-ib"), hstu(), _TWO_NODES
    )
    shares = [_exposed_share(load_hardware(name), _dlrm(500.0), _NODE) for name in ("mi350x-roce", "b200-ib")]
    measured = _EXPOSED["mi350x-roce"] / _EXPOSED["b200-ib"]
    what = "exposed share on MI355X over that on B200, Primus-DLRM"
    yield row(what, "times", measured, shares[0] / shares[1], within=WITHIN)


def _row(
    what: str, unit: str, measured: float, predict: Callable[[Hardware, Workload, int], float], hardware: Hardware,
    load: Workload, ranks: int,
) -> dict[str, Any]:  # fmt: skip
    found = row(what, unit, measured, predict(hardware, load, ranks), within=WITHIN)
    generator = np.random.default_rng(0)
    drawn = [predict(*moved(hardware, load, generator, ranks=ranks)[:2], ranks) for _ in range(_DRAWS)]
    low, high = np.percentile(drawn, (5, 95)).tolist()
    return {**found, "low": low, "high": high}


def _notes() -> Iterator[str]:
    for name, (step_ms, exposed_ms) in _RUNS.items():
        found = verdict(load_hardware(name), _dlrm(step_ms - exposed_ms), ranks=_NODE, collisions=False)
        (said,) = (one for one in found["why"] if "communication" in one)
        yield f"The adviser on DLRMv4 with 8 {_title(name)}, fscomm: {found['pays']['communication']}. {said}"
    yield (
        "Not predicted: host-side work of a step, and input that is not pinned (88.9 ms of the 652 on MI350X, within "
        "the computation here)."
    )


def _exposed_share(hardware: Hardware, load: Workload, ranks: int) -> float:
    found = step(hardware, load, PIPELINED, ranks=ranks)
    return float(found["bubbles"]["exposed_ms"] / found["step_ms"])


def _scaling(hardware: Hardware, load: Workload, ranks: int) -> float:
    one, two = (step(hardware, load, PIPELINED, ranks=count)["step_ms"] for count in (_NODE, ranks))
    return float(ranks / _NODE * one / two)


def _balancing(hardware: Hardware, load: Workload, ranks: int) -> float:
    before, after = (step(hardware, load, name, ranks=ranks)["step_ms"] for name in (PIPELINED, BALANCED))
    return float(before / after)


def _dlrm(compute_ms: float) -> Workload:
    """DLRMv4: what is exchanged, and how long a step computes."""
    events = 1e6
    return Workload(
        batch_size=1, events=events, flops=1.0, dim=_EXCHANGED / 2 / FLOAT / events, dense_parameters=0,
        compute_ms=compute_ms, collisions={1: 0.12}, sources=_GIVEN,
        time_lost={(ranks, method): 0.0 for ranks in (_NODE, _TWO_NODES) for method in METHODS},
    )  # fmt: skip


def hstu() -> Workload:
    """HSTU with lengths by Zipf's law, cut at 4,096: an event is two tokens; items have rows of 128 floats."""
    lengths = np.arange(1, _LONGEST + 1)
    share = lengths**-_ZIPF / np.sum(np.arange(1, 1 << 24) ** -_ZIPF)
    share[-1] += 1 - share.sum()  # as numpy's Zipf, cut at the maximum
    counts = np.rint(1e9 * share).astype(np.int64)
    kept = counts > 0
    tokens = LengthHistogram(lengths=2 * lengths[kept], counts=counts[kept])
    # A token takes 5 products with [1024, 1024] a layer; a causal pair, two dot products of 1024, half of the square.
    cost = Polynomial(linear=5 * _WIDTH, quadratic=1)
    setting = Setting(max_length=2 * _LONGEST, ranks=_TWO_NODES, batch_size=_SAMPLES, cost=cost)
    point = simulate_setting(Samples(histogram=tokens), setting, methods=("fbs+swap",))
    packed = {UNPACKED: UNPACKED, PACKED: "fbs+swap"}
    mean_cost = float(cost({"sequence": tokens.lengths}).astype(np.float64) @ tokens.counts) / tokens.rows
    flops = 3 * 2 * _WIDTH * _LAYERS * _SAMPLES * mean_cost
    return Workload(
        batch_size=_SAMPLES, events=_SAMPLES * tokens.mean / 2, flops=flops, dim=128,
        dense_parameters=5 * _WIDTH**2 * _LAYERS, compute_ms=1e3 * flops / (_TFLOPS * 1e12), collisions={1: 0.12},
        sources=_GIVEN, time_lost={(_TWO_NODES, name): point["time_lost"][method] for name, method in packed.items()},
        skews={(_TWO_NODES, name): point["skew"][method] for name, method in packed.items()},
    )  # fmt: skip


def _title(name: str) -> str:
    return name.partition("-")[0].upper()
