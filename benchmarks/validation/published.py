"""Predicts what others have published, from what they say of model, data and machines.

Sources: the reference of MLPerf's DLRMv4 (mlcommons/training#889, its gin file and its multi-node notes), the
end-to-end benchmark of HSTU in NVIDIA/recsys-examples (#340), and Primus-DLRM. What a run does not say is assumed, as
the interval knows. One number is fitted, to one of four runs of DLRMv4: what a step computes, to the run that
communicates least. The other three are predicted with it, and every draw of the interval fits it anew.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from freescale_tools.model.batches import PACKED, UNPACKED, Samples, Setting, simulate_setting
from freescale_tools.model.durations import FLOAT, batch_bytes, step, work
from freescale_tools.model.hardware import Hardware, load_hardware
from freescale_tools.model.simulation import moved, verdict
from freescale_tools.model.step import BALANCED, BY_NAME, PIPELINED, PLAIN_DEDUP
from freescale_tools.model.workload import METHODS, Workload
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import Polynomial
from validation.comparison import fitted_row, row

WITHIN = 0.3
_DRAWS = 200
_ROUNDS = 4
_GIVEN = dict.fromkeys(("dim", "flops", "compute_ms"), "measured: published")
_NODE, _TWO_NODES = 8, 16
_EXCHANGED = 14.5e9
"""Bytes of rows and gradients that a rank of DLRMv4 gives in a step, in fp16. In fp32 the rows alone are as many."""
_RUNS = {"b200-ib": (558.0, 7.0), "mi350x-roce": (652.0, 27.0)}
"""Hardware -> ms of a step of DLRMv4 on 8 GPUs, and how much of it is exposed embedding exchange."""
_PLAIN = "plain"
_STEPS = {
    (PLAIN_DEDUP, _NODE): 805.7,
    (_PLAIN, _NODE): 941.6,
    (_PLAIN, _TWO_NODES): 1108.0,
    (PLAIN_DEDUP, _TWO_NODES): 818.0,
}
"""(way, ranks) -> ms of a step of DLRMv4 on MI350X, exchange in fp16, a loop without pipeline. The first one is fitted:
it communicates least, so that it shows best how long a step computes."""
_CLOSE = 0.1
_SAMPLES_S, _SCALING = 6200.0, 1.28
"""Of an earlier run, exchange in fp32: samples/s of one node, and how many times as many two nodes train."""
_BATCH, _IDS, _FEATURES, _FIELDS, _DIM = 1024, 2.69e6, 3, 6, 512
"""Of DLRMv4: samples of a rank, its ids of each feature with a table, such features, lists of an event, row floats."""
_UNIQUE = (0.024, 0.015, 0.006)
"""Distinct ids of a rank's batch over all of them, by feature: items, albums, artists."""
_PAGEABLE_MS = 88.9
_SHUFFLER = 1.53
_EXPOSED = {"b200-ib": 0.049, "mi350x-roce": 0.087}
"""Hardware -> share of a step in all-to-alls that nothing hides (Primus-DLRM; MI355X, whose links are those of the
MI350X)."""
_WIDTH, _LAYERS, _SAMPLES, _LONGEST, _ZIPF = 1024, 8, 32, 4096, 1.2
_TFLOPS = 104.0
"""What a GPU reached with the shuffler, 1,667 TFLOP/s on 16."""


def published() -> dict[str, Any]:
    """{fits, rows, notes}: a row has `low` and `high` of the interval, too."""
    way, ranks = next(iter(_STEPS))
    compute_ms = _compute(load_hardware("mi350x-roce"), _reference(), way, ranks, _STEPS[way, ranks])
    fit = {"name": "computation of a step of DLRMv4", "value": compute_ms, "unit": "ms", "on": _what(way, ranks)}
    return {"fits": [fit], "rows": list(_rows()), "notes": list(_notes(compute_ms))}


def _rows() -> Iterator[dict[str, Any]]:
    for name, (step_ms, exposed_ms) in _RUNS.items():
        hardware, load = load_hardware(name), _dlrm(step_ms - exposed_ms)
        yield _row(
            f"embedding exchange exposed in one node, DLRMv4 on 8 {_title(name)}", "share", exposed_ms / step_ms,
            _exposed_share, hardware, load, _NODE,
        )  # fmt: skip
    hardware, load = load_hardware("mi350x-roce"), _reference()
    for number, ((way, ranks), step_ms) in enumerate(_STEPS.items()):
        what = f"a step of DLRMv4, {_what(way, ranks)}"
        if number == 0:
            yield fitted_row(what, "ms", step_ms, step_ms)
        else:
            yield _row(what, "ms", step_ms, functools.partial(_step_ms, way=way), hardware, load, ranks, within=_CLOSE)
    what = "two nodes over one, DLRMv4 on MI350X, exchange in fp32, without index dedup"
    single = _reference(value_bytes=FLOAT)
    yield _row(what, "times", _SCALING, _scaling, hardware, single, _TWO_NODES)
    what = "copies of the input from memory that is not pinned, DLRMv4 on MI350X"
    yield _row(what, "ms", _PAGEABLE_MS, _pageable_ms, hardware, load, _NODE)
    yield _row(
        "batch shuffler, HSTU on 16 H100", "times", _SHUFFLER, _balancing, load_hardware("h100-ib"), hstu(), _TWO_NODES
    )
    shares = [_exposed_share(load_hardware(name), _dlrm(500.0), _NODE) for name in ("mi350x-roce", "b200-ib")]
    measured = _EXPOSED["mi350x-roce"] / _EXPOSED["b200-ib"]
    what = "exposed share on MI355X over that on B200, Primus-DLRM"
    yield row(what, "times", measured, shares[0] / shares[1], within=WITHIN)


def _row(
    what: str, unit: str, measured: float, predict: Callable[[Hardware, Workload, int], float], hardware: Hardware,
    load: Workload, ranks: int, *, within: float = WITHIN,
) -> dict[str, Any]:  # fmt: skip
    found = row(what, unit, measured, predict(hardware, load, ranks), within=within)
    generator = np.random.default_rng(0)
    drawn = [predict(*moved(hardware, load, generator, ranks=ranks)[:2], ranks) for _ in range(_DRAWS)]
    low, high = np.percentile(drawn, (5, 95)).tolist()
    return {**found, "low": low, "high": high}


def _notes(compute_ms: float) -> Iterator[str]:
    for name, (step_ms, exposed_ms) in _RUNS.items():
        found = verdict(load_hardware(name), _dlrm(step_ms - exposed_ms), ranks=_NODE, collisions=False)
        (said,) = (one for one in found["why"] if "communication" in one)
        yield f"The adviser on DLRMv4 with 8 {_title(name)}, fscomm: {found['pays']['communication']}. {said}"
    hardware, load = load_hardware("mi350x-roce"), dataclasses.replace(_reference(), compute_ms=compute_ms)
    found = verdict(hardware, load, ranks=_TWO_NODES, collisions=False, uncounted="")
    said = [
        f"{title} {found['pays'][name]}, {gain['value']:+.0%} ({gain['low']:+.0%} to {gain['high']:+.0%})"
        for name, title in (("dedup", "index dedup"), ("communication_dedup", "fscomm after it"))
        for gain in [found["gains"][name]]
    ]
    yield f"The adviser on DLRMv4 with two nodes of MI350X, over TorchRec's pipeline: {', '.join(said)}."
    plain, dedup = (work(hardware, load, BY_NAME[way], ranks=_NODE) for way in (_PLAIN, PLAIN_DEDUP))
    metadata_ms = plain.id_metadata - dedup.id_metadata
    saved_ms = step(hardware, load, _PLAIN, ranks=_NODE)["step_ms"] - next(iter(_STEPS.values()))
    yield (
        "Not predicted: host-side work of a step. Copies of input that is not pinned are within the computation of the "
        f"runs. Of the {saved_ms:.0f} ms that index dedup is predicted to save on one node, {metadata_ms:.0f} are "
        "sizes, permutes and synchronisation of the id exchange, which the paper measured with 0.6 M ids: taken as "
        "proportional to the ids. Rows are taken as spread evenly over their owners."
    )


def _exposed_share(hardware: Hardware, load: Workload, ranks: int) -> float:
    found = step(hardware, load, PIPELINED, ranks=ranks)
    return float(found["bubbles"]["exposed_ms"] / found["step_ms"])


def _scaling(hardware: Hardware, load: Workload, ranks: int) -> float:
    """Two nodes over one of so many samples/s, whose computation follows from them."""
    one = 1e3 * _NODE * _BATCH / _SAMPLES_S
    fitted = dataclasses.replace(load, compute_ms=_compute(hardware, load, _PLAIN, _NODE, one))
    return float(ranks / _NODE * one / step(hardware, fitted, _PLAIN, ranks=ranks)["step_ms"])


def _compute(hardware: Hardware, load: Workload, way: str, ranks: int, step_ms: float) -> float:
    """Computation (ms) with which a step takes `step_ms`."""
    compute_ms = step_ms
    for _ in range(_ROUNDS):  # what a step takes beside its computation hardly depends on it
        found = step(hardware, dataclasses.replace(load, compute_ms=compute_ms), way, ranks=ranks)["step_ms"]
        compute_ms += step_ms - found
    return compute_ms


def _step_ms(hardware: Hardware, load: Workload, ranks: int, *, way: str) -> float:
    """Of a way, with the computation that `hardware` leaves of the fitted step."""
    (fitted_way, fitted_ranks), step_ms = next(iter(_STEPS.items()))
    compute_ms = _compute(hardware, load, fitted_way, fitted_ranks, step_ms)
    return float(step(hardware, dataclasses.replace(load, compute_ms=compute_ms), way, ranks=ranks)["step_ms"])


def _pageable_ms(hardware: Hardware, load: Workload, ranks: int) -> float:
    return batch_bytes(load) / (hardware.pageable * 1e6)


def _what(way: str, ranks: int) -> str:
    """A run of `_STEPS`."""
    nodes = "one node" if ranks == _NODE else "two nodes"
    return f"{nodes} of MI350X, {'with' if way == PLAIN_DEDUP else 'without'} index dedup"


def _balancing(hardware: Hardware, load: Workload, ranks: int) -> float:
    before, after = (step(hardware, load, name, ranks=ranks)["step_ms"] for name in (PIPELINED, BALANCED))
    return float(before / after)


def _dlrm(compute_ms: float) -> Workload:
    """DLRMv4 of the traces: what is exchanged, and how long a step computes."""
    events = 1e6
    return Workload(
        batch_size=1, events=events, flops=1.0, dim=_EXCHANGED / 2 / FLOAT / events, dense_parameters=0,
        compute_ms=compute_ms, collisions={1: 0.12}, sources=_GIVEN,
        time_lost={(ranks, method): 0.0 for ranks in (_NODE, _TWO_NODES) for method in METHODS},
    )  # fmt: skip


def _reference(*, value_bytes: float = FLOAT / 2) -> Workload:
    """DLRMv4 as merged, without what a step computes. Contexts and candidates are one id of a thousand."""
    return Workload(
        batch_size=_BATCH, events=_IDS, ids=_FEATURES, fields=_FIELDS, dim=_FEATURES * _DIM, value_bytes=value_bytes,
        flops=1.0, distinct=float(np.mean(_UNIQUE)), dense_parameters=0, compute_ms=0.0, collisions={1: 0.12},
        sources=_GIVEN,
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
