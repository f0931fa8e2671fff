"""The numbers of `on_step`, of a loader and of fscomm, as metrics of Prometheus.

Counters end in `_total` and only grow: Prometheus makes rates of them, as in `rate(freescale_samples_total[1m])`. Units
are seconds, bytes and ratios. Every metric has the label `rank`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fsranks.rank_context import resolve

_PREFIX = "freescale_"
_MS = 1e-3
# The name of a number in `on_step`, the metric, what to multiply by, and the help text.
_DATA_COUNTERS = (
    ("samples", "samples", 1, "Samples of the batches that the loop got."),
    ("tokens", "tokens", 1, "Events, candidates and ids of nested fields in these batches."),
    ("wait_s", "data_wait_seconds", 1, "Time that the training loop waited for batches."),
    ("decode_s", "decode_seconds", 1, "Time of decoding, the sum over all decoding threads."),
    ("bytes_read", "read_bytes", 1, "Bytes of the column chunks that were decoded."),
)
_DATA_GAUGES = (
    ("epoch", "epoch", "Epoch of the newest batch."),
    ("waiting", "prefetched_batches", "Batches that were ready when the loop got the newest one."),
    ("straggler_share", "straggler_ratio", "Planned share of waiting in the newest step: 1 - mean / max of the costs."),
)
_STEP_COUNTERS = (
    ("step_ms", "step_seconds", _MS, "Time of the steps, from one batch to the next."),
    ("hidden_ms", "overlapped_seconds", _MS, "Time of communication beside compute, the sum over all threads."),
    ("straggler_ms", "straggler_wait_seconds", _MS, "Time of waiting for ranks that began a forward later."),
)
_BY_KIND = (
    ("exposed_ms", "exposed_seconds", _MS, "Time that the training thread waited for communication."),
    ("sent_bytes", "sent_bytes", 1, "Bytes of embeddings, gradients and ids that were sent to other ranks."),
    ("received_bytes", "received_bytes", 1, "Bytes of embeddings, gradients and ids received from other ranks."),
)
_STEP_GAUGES = (("collision_rate", "collision_ratio", "Share of the ids of the newest step whose row collides."),)


class Prometheus:
    """Metrics of one rank. `data` is for the `on_step` of a `FreeScaleDataLoader`, `communication` for that of
    `fscomm.enable`; either may be left out.

    The names are in the page on metrics. To serve them, call `prometheus_client.start_http_server(port)` once per
    process, or push the registry to a gateway.

    Args:
        registry: a `prometheus_client.CollectorRegistry`; None: the one that `prometheus_client` serves by default. A
            registry takes the metrics of one rank once.
        rank: the label; None: the rank in torch.distributed, else in torchrun's environment, else 0.

    Raises:
        ModuleNotFoundError: `prometheus_client` is not installed: it is the extra `freescale[metrics]`.
        ValueError: the registry has these metrics already.
    """

    def __init__(self, *, registry: Any = None, rank: int | None = None) -> None:
        try:
            import prometheus_client as client
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "fsmeter.Prometheus needs prometheus_client: pip install 'freescale[metrics]'"
            ) from error
        registry = client.REGISTRY if registry is None else registry
        own = {"rank": str(resolve().rank if rank is None else rank)}

        def counter(name: str, text: str) -> Any:
            return client.Counter(_PREFIX + name, text, ["rank"], registry=registry).labels(**own)

        def gauges(of: tuple[tuple[str, str, str], ...]) -> dict[str, Callable[[float], None]]:
            made = {
                name: client.Gauge(_PREFIX + metric, text, ["rank"], registry=registry) for name, metric, text in of
            }
            return {name: gauge.labels(**own).set for name, gauge in made.items()}

        self._batches = counter("batches", "Batches that the loop got.")
        self._data = [(name, scale, counter(metric, text)) for name, metric, scale, text in _DATA_COUNTERS]
        self._data_gauges = gauges(_DATA_GAUGES)
        self._steps = counter("steps", "Steps that fscomm reported.")
        self._of_steps = [(name, scale, counter(metric, text)) for name, metric, scale, text in _STEP_COUNTERS]
        self._step_gauges = gauges(_STEP_GAUGES)
        self._by_kind = {
            name: (scale, client.Counter(_PREFIX + metric, text, ["rank", "kind"], registry=registry))
            for name, metric, scale, text in _BY_KIND
        }
        self._rank = own["rank"]
        self._kinds: dict[str, tuple[float, Any]] = {}  # a number with "/": its scale, and its counter

    def data(self, numbers: Mapping[str, float]) -> None:
        """Add the numbers of a batch. Never blocks."""
        self._batches.inc()
        _add(self._data, numbers)
        _set(self._data_gauges, numbers)

    def communication(self, numbers: Mapping[str, float]) -> None:
        """Add the numbers of a step. Never blocks."""
        self._steps.inc()
        _add(self._of_steps, numbers)
        _set(self._step_gauges, numbers)
        for name, value in numbers.items():
            if "/" in name:
                scale, counter = self._kinds.get(name) or self._counter_of(name)
                counter.inc(scale * value)

    def _counter_of(self, name: str) -> tuple[float, Any]:
        """That of one kind: there are some ten, and the first step that has a kind adds it."""
        what, _, kind = name.partition("/")
        scale, counter = self._by_kind[what]
        self._kinds[name] = found = scale, counter.labels(rank=self._rank, kind=kind)
        return found


def _add(counters: Sequence[tuple[str, float, Any]], numbers: Mapping[str, float]) -> None:
    for name, scale, counter in counters:
        if name in numbers:
            counter.inc(scale * numbers[name])


def _set(gauges: Mapping[str, Callable[[float], None]], numbers: Mapping[str, float]) -> None:
    for name, change in gauges.items():
        if name in numbers:
            change(numbers[name])
