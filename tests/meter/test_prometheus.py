"""`fsmeter.Prometheus`: what a scrape of prometheus_client's own registry and text format shows."""

import sys

import polars as pl
import pytest
from exact import new_run
from exact_configs import CONFIGS
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from worlds import shared_world

from fsdata import FreeScaleDataLoader, ParquetSource, Schema, Sequence
from fsmeter import Prometheus


def scraped(registry):
    """(name, labels but the rank) -> value, of what Prometheus reads; and the ranks."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [sample for family in families for sample in family.samples if not sample.name.endswith("_created")]
    ranks = {sample.labels["rank"] for sample in samples}
    kinds = {(sample.name, sample.labels.get("kind")): sample.value for sample in samples}
    assert len(kinds) == len(samples)
    return kinds, ranks


def test_numbers_of_a_loop_over_a_loader(tmp_path):
    lengths = [row % 7 for row in range(50)]
    pl.DataFrame({"item": [[1] * n for n in lengths]}).write_parquet(tmp_path / "a.parquet")
    registry = CollectorRegistry()
    metrics = Prometheus(registry=registry, rank=3)
    schema = Schema(sequences=(Sequence("uih", ("item",)),))
    source = ParquetSource(tmp_path / "a.parquet")
    with FreeScaleDataLoader(source, schema, batch_size=8, num_threads=1, on_step=metrics.data) as loader:
        for _ in range(2):
            assert len(list(loader)) == 7
        found = loader.stats()
    values, ranks = scraped(registry)
    assert ranks == {"3"}
    assert values["freescale_batches_total", None] == 14
    assert values["freescale_samples_total", None] == 100
    assert values["freescale_tokens_total", None] == 2 * sum(lengths)
    assert values["freescale_read_bytes_total", None] == found["bytes_read"] > 0
    assert 0 < values["freescale_data_wait_seconds_total", None] <= found["seconds"]["wait"] + 1e-5
    assert 0 < values["freescale_decode_seconds_total", None] <= found["seconds"]["decode"] + 1e-5
    assert values["freescale_epoch", None] == 1
    assert values["freescale_prefetched_batches", None] == 0
    assert values["freescale_steps_total", None] == 0


def trained(rank, size):
    registry = CollectorRegistry()
    run = new_run(
        rank, size, CONFIGS["row"].but(steps=5), "fscomm", {"on_step": Prometheus(registry=registry).communication}
    )
    with run.enable() as block:
        for step, batch in enumerate(block.lookahead(run.loader())):
            run.train(step, batch)
    return scraped(registry), block.report()


def test_numbers_of_a_loop_with_fscomm():
    for rank, ((values, ranks), report) in enumerate(shared_world(2).run(trained)):
        total = report.total
        assert ranks == {str(rank)}
        assert values["freescale_steps_total", None] == 5
        # What belongs to no step, such as the wait of the last flush, is in the total only.
        waits = {kind: sum(step.waits.get(kind, 0.0) for step in report.steps) for kind in total.exposed_ms}
        for kind, ms in waits.items():
            assert values.get(("freescale_exposed_seconds_total", kind), 0.0) == pytest.approx(ms / 1e3)
        for kind in ("exclusive rows", "collision gradients"):
            traffic = total.traffic(kind)
            assert values["freescale_sent_bytes_total", kind] == traffic.sent > 0
            assert values["freescale_received_bytes_total", kind] == traffic.received > 0
        assert values["freescale_straggler_wait_seconds_total", None] == pytest.approx(total.straggler_ms / 1e3)
        hidden_ms = sum(sum(step.hidden_ms.values()) for step in report.steps)
        assert values["freescale_overlapped_seconds_total", None] == pytest.approx(hidden_ms / 1e3)
        assert values["freescale_step_seconds_total", None] == pytest.approx(
            sum(step.step_ms or 0.0 for step in report.steps) / 1e3
        )
        last = sum((each.colliding for each in report.steps[-1].collisions.values()), 0)
        of = sum((each.occurrences for each in report.steps[-1].collisions.values()), 0)
        assert values["freescale_collision_ratio", None] == pytest.approx(last / of)


def test_a_registry_has_the_metrics_once():
    registry = CollectorRegistry()
    Prometheus(registry=registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Prometheus(registry=registry)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'freescale\[metrics\]'"):
        Prometheus()
