"""What cannot be served exactly runs plainly beside what can: same bits, and the reason stands in the report.

TorchRec on CPU cannot make the SSD kernels (they ask for a CUDA device), train with hash tables of managed collision or
with their evictions, or train tables by other optimizers than the served ones: operators are missing. Its UVM kernels
are lookups in host memory there.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import exact_kinds
import pytest
import torch
from device_thread import compare_in_one_thread
from exact import Run, compare
from exact_configs import CONFIGS
from exact_kinds import BESIDE, SERVED, TWO, varying
from exact_loops import LOOPS
from exact_model import Config, build
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    CounterBasedRegularizationDefinition,
    GlobalWeightDecayDefinition,
    WeightDecayMode,
)
from worlds import shared_world

import fscomm
from fscomm.errors import NotServedError
from fscomm.tables.torchrec import servable

CONFIG = Config(modules=TWO, static_graph=False, even=True, steps=5)

TRAINED: list[tuple[str, dict[str, str]]] = [
    ("checkpointed", {"embeddings.b": "checkpointing"}),
    ("used_twice", {"embeddings.b": "more often for one batch"}),
    ("ids_made", {"embeddings.b": "not found in the batch"}),
    ("converted", {}),
    ("uvm", {"embeddings.b": "kernel fused_uvm_caching"}),
    ("managed", {"embeddings.b": "ShardedManagedCollisionEmbeddingCollection"}),
    ("tracked", {"embeddings.b": "tracker"}),
    ("tracked_on_rank_1", {"embeddings.b": "on rank 1 a tracker follows"}),
    ("pooled", {"bag": "it got other features than the batch holds"}),
    ("hooked", {}),
    ("without_gradients", {}),
]


REASON_IS_KNOWN_AT_ONCE = ("uvm", "managed", "tracked")  # `test_the_reason_is_reported` asks for it
OF_BAD_USE = ("ids_made",)  # `test_features_that_are_nowhere`
PARAMS = [
    pytest.param(*each, id=each[0], marks=[pytest.mark.long] * (each[0] in REASON_IS_KNOWN_AT_ONCE + OF_BAD_USE))
    for each in TRAINED
]


@pytest.mark.parametrize(("kind", "reasons"), PARAMS)
def test_plain_beside_served(kind: str, reasons: dict[str, str]) -> None:
    check_plain_beside_served(compare, kind, reasons)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "reasons"), TRAINED, ids=[kind for kind, _ in TRAINED])
def test_plain_beside_served_with_one_thread_of_the_device(kind: str, reasons: dict[str, str]) -> None:
    check_plain_beside_served(compare_in_one_thread, kind, reasons)


def check_plain_beside_served(comparing: Callable[..., Any], kind: str, reasons: dict[str, str]) -> None:
    config = CONFIG.but(builder=getattr(exact_kinds, kind))
    if kind == "pooled":
        config = config.but(modules={"a": (SERVED,)})
    for found, said in shared_world(2).run(comparing, config, with_calls):
        assert found == []
        assert said["fallbacks"].keys() == reasons.keys()
        for module, reason in reasons.items():
            assert reason in said["fallbacks"][module]


def with_calls(run: Run) -> None:
    """Also records how often the hooks of the user were called, where a model has them."""
    LOOPS["base"](run)
    for name, module in run.model.module.embeddings.items():
        if hasattr(module, "calls"):
            assert module.calls
            run.record(f"calls of hooks {name}", module.calls)


def vary(run: Run, chosen: Callable[[int], bool]) -> None:
    """At the chosen steps module b gets features whose batch sizes vary (VBE)."""
    batches = run.loader()
    for step, batch in enumerate(batches):
        if chosen(step):
            batch.ids["b"] = varying(batch.ids["b"])
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(batches)):
            run.train(step, batch)


def always_vary(run: Run) -> None:
    vary(run, lambda _: True)


def sometimes_vary(run: Run) -> None:
    vary(run, lambda step: step in (2, 3))


def vary_first(run: Run) -> None:
    vary(run, lambda step: step == 0)


def vary_on_one_rank(run: Run) -> None:
    vary(run, lambda step: step in (2, 3) and run.rank == 1)


OTHER_STEPS = [pytest.param(loop, marks=pytest.mark.long) for loop in (always_vary, vary_first)]


@pytest.mark.parametrize("loop", [sometimes_vary, vary_on_one_rank, *OTHER_STEPS])
def test_batch_sizes_that_vary_by_feature(loop: Callable[[Run], None]) -> None:
    for rank, (found, said) in enumerate(shared_world(2).run(compare, CONFIG.but(even=False), loop)):
        assert found == []
        elsewhere = rank == 0 and loop is vary_on_one_rank
        assert said["fallbacks"].keys() == {"embeddings.b"}
        assert ("another rank" if elsewhere else "(VBE)") in said["fallbacks"]["embeddings.b"]


def test_a_reason_names_the_line_that_called_the_module() -> None:
    """Of the user's code, not of torch or TorchRec."""
    config = CONFIG.but(builder=exact_kinds.used_twice)
    source = Path(exact_kinds.__file__).read_text().splitlines()
    for _, said in shared_world(2).run(compare, config, LOOPS["base"]):
        file, line = re.findall(r"called at (\w+\.py):(\d+)", said["fallbacks"]["embeddings.b"])[0]
        assert file == "exact_kinds.py"
        assert 'self.embeddings["b"](other)' in source[int(line) - 1]


ONE = replace(BESIDE, features=("s0",))
LARGEST_COUNTER = {
    "weight_decay_mode": WeightDecayMode.COUNTER,
    "counter_based_regularization": CounterBasedRegularizationDefinition(max_counter_update_freq=3),
}
GLOBAL_DECAY = {
    "weight_decay_mode": WeightDecayMode.DECOUPLE_GLOBAL,
    "global_weight_decay": GlobalWeightDecayDefinition(start_iter=0, lower_bound=0.1),
}
PARTS = {"a": (SERVED,), "b": (replace(BESIDE, pooling="sum"),)}
ON_HOSTS = {"a": (SERVED,), "b": (replace(BESIDE, pooling="sum", sharding="host"),)}
ASKED: list[tuple[str, int, Config, str]] = [
    ("uvm", 2, CONFIG, "kernel fused_uvm_caching"),
    ("managed", 2, CONFIG, "ShardedManagedCollisionEmbeddingCollection"),
    ("tracked", 2, CONFIG, "tracker"),
    ("dense_kernel", 2, CONFIG, "kernel dense"),
    ("data_parallel", 2, CONFIG.but(modules={"a": (SERVED,), "b": (replace(ONE, sharding="data"),)}), "data_parallel"),
    ("compiled", 2, CONFIG, "compiled"),
    ("two_dimensional", 2, CONFIG, "2D"),
    ("in_groups", 2, CONFIG.but(quantised=("int8", "fp32")), "groups of 32 numbers, which do not cut 8 columns"),
    ("in_four_bits", 2, CONFIG.but(quantised=("mx4", "fp32")), "never measured here (MX4)"),
    ("in_parts", 2, CONFIG.but(modules=PARTS, quantised=("int8", "int8")), "added up as INT8"),
    ("on_hosts", 2, CONFIG.but(modules=ON_HOSTS, quantised=("fp16", "fp16")), "quantised twice"),
    ("half_given", 2, CONFIG.but(quantised=("fp16", "fp16"), half_output=True), "communication of torch.float16 rows"),
    ("ensemble", 2, CONFIG, "ENSEMBLE_ROWWISE_ADAGRAD"),
    ("half_state", 2, CONFIG, "rounded at random"),
    ("counters", 2, CONFIG.but(fused=LARGEST_COUNTER), "compared with the largest one"),
    ("global_decay", 2, CONFIG.but(fused=GLOBAL_DECAY), "global weight decay"),
]


def ask(rank: int, size: int, config: Config) -> dict[str, str]:
    model, _ = build(config, size)
    with pytest.raises(NotServedError, match=r"embeddings\.b"), fscomm.enable(model, strict=True):
        pass
    with fscomm.enable(model) as comm:
        pass
    return dict(comm.report().fallbacks)


@pytest.mark.parametrize(("kind", "size", "config", "reason"), ASKED, ids=[each[0] for each in ASKED])
def test_the_reason_is_reported(kind: str, size: int, config: Config, reason: str) -> None:
    config = config.but(builder=getattr(exact_kinds, kind, None))
    for fallbacks in shared_world(size).run(ask, config):
        assert reason in fallbacks["embeddings.b"]


def served_alone(rank: int, size: int) -> Any:
    model, _ = build(CONFIG, size)
    with fscomm.enable(model, strict=True) as comm:
        pass
    return dict(comm.report().fallbacks)


def test_nothing_to_report() -> None:
    assert shared_world(2).run(served_alone) == [{}, {}]


def rounded(rank: int, size: int) -> list[str | None]:
    """What is said of module b on CPU and, if its tables were there, on CUDA, by the precision of its rows."""
    model, _ = build(CONFIG, size)
    module = model.module.embeddings["b"]
    said = []
    for device in ("cpu", "cuda"):
        for precision in (SparseType.FP32, SparseType.FP16, SparseType.BF16):
            for lookup in module._lookups:
                for kernel in lookup._emb_modules:
                    kernel.emb_module.weights_precision = precision
            with mock.patch.object(servable, "where", return_value=torch.device(device)):
                said.append(servable.problem_here(module))
    return said


def on_cuda(rank: int, size: int) -> str | None:
    """What would be said of a mean of table-wise bags if its tables were on CUDA."""
    model, _ = build(CONFIGS["pooled table mean"], size)
    module = model.module.embeddings["a"]
    assert servable.problem_here(module) is None
    with mock.patch.object(servable, "where", return_value=torch.device("cuda")):
        return servable.problem_here(module)


def test_means_on_cuda_wait_for_a_measurement() -> None:
    why = shared_world(1).run(on_cuda)[0]
    assert why is not None
    assert "never measured" in why


def test_rounding_by_chance_does_not_repeat() -> None:
    *on_cpu, fp32, fp16, bf16 = shared_world(1).run(rounded)[0]
    assert on_cpu == [None] * 3
    assert fp32 is None
    assert fp16 is not None
    assert "stochastically" in fp16
    assert bf16 == fp16
