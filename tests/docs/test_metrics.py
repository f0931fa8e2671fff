"""The recipes of docs/metrics.md. wandb and tensorboard are not installed: stand-ins record what the recipes call."""

import ast
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
from pages import ROOT, python
from prometheus_client import CollectorRegistry

sys.path.append(str(ROOT / "benchmarks"))
from figures import example_data

PAGE = "docs/metrics.md"
STEPS = 10  # 300 rows, 32 a batch
CALL = "train(on_batch=print, on_step=print)"


@pytest.fixture
def loop(tmp_path, monkeypatch):
    """What the recipes take for granted, and the function `train` of the first example."""
    monkeypatch.chdir(tmp_path)
    example_data.impressions()
    first, *_ = python(PAGE)
    assert CALL in first
    with example_data.training() as names:
        exec(first.replace(CALL, ""), names)
        yield {**names, "rank": 0}


def test_the_first_example_prints_all_numbers_of_the_tables(loop, capsys):
    first, *_ = python(PAGE)
    exec(first, loop)
    said = [ast.literal_eval(line) for line in capsys.readouterr().out.splitlines()]
    of_data = [numbers for numbers in said if "batches" in numbers]
    of_steps = [numbers for numbers in said if "exposed_ms" in numbers]
    assert len(of_data) == len(of_steps) == STEPS == len(said) / 2
    page = (ROOT / PAGE).read_text()
    names = {name.partition("/")[0] for numbers in said for name in numbers}
    assert {name for name in names if f"`{name}`" not in page} == set()
    assert {"samples_per_s", "wait_s", "collision_rate", "step_ms"} <= names


def test_prometheus(loop, monkeypatch):
    _, recipe, *_ = python("docs/metrics.md")
    registry, ports = CollectorRegistry(), []
    monkeypatch.setattr("prometheus_client.REGISTRY", registry)
    monkeypatch.setattr("prometheus_client.start_http_server", ports.append)
    exec(recipe, {**loop, "port": 9400})
    assert ports == [9400]
    assert registry.get_sample_value("freescale_samples_total", {"rank": "0"}) == 300
    assert registry.get_sample_value("freescale_steps_total", {"rank": "0"}) == STEPS
    page = (ROOT / "docs/metrics.md").read_text()
    families = {f"{each.name}_total" if each.type == "counter" else each.name for each in registry.collect()}
    assert set(re.findall(r"`(freescale_\w+)`", page)) == families


def test_wandb_by_a_stand_in(loop, monkeypatch):
    logged, axes, made = [], {}, {}
    run = SimpleNamespace(log=logged.append, define_metric=lambda name, step_metric: axes.update({name: step_metric}))
    wandb = ModuleType("wandb")
    wandb.init = lambda **options: made.update(options) or run
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    *_, recipe, _ = python("docs/metrics.md")
    exec(recipe, loop)
    assert made == {"project": "recommender", "group": "job 1", "name": "rank 0"}
    assert axes == {"data/*": "data/batches", "fscomm/*": "fscomm/step"}
    of_data = [each for each in logged if "data/batches" in each]
    of_steps = [each for each in logged if "fscomm/step" in each]
    assert len(of_data) + len(of_steps) == len(logged) == 2 * STEPS
    assert sum(each["data/samples"] for each in of_data) == 300
    assert [each["fscomm/step"] for each in of_steps] == list(range(STEPS))


def test_tensorboard_by_a_stand_in(loop, monkeypatch):
    scalars, closed = [], []

    class SummaryWriter:
        def __init__(self, folder):
            self.folder = folder

        def add_scalar(self, name, value, step):
            scalars.append((name, float(value), int(step)))

        def close(self):
            closed.append(self.folder)

    tensorboard = ModuleType("torch.utils.tensorboard")
    tensorboard.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    *_, recipe = python("docs/metrics.md")
    exec(recipe, loop)
    assert closed == ["runs/job-1/rank-0"]
    samples = [(value, step) for name, value, step in scalars if name == "data/samples"]
    assert samples == [(32.0, step) for step in range(1, STEPS)] + [(12.0, STEPS)]
    assert [step for name, _, step in scalars if name == "fscomm/exposed_ms"] == list(range(STEPS))
