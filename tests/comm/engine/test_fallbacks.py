"""What cannot be served exactly runs plainly beside what can: same bits, and the reason stands in the report.

TorchRec on CPU cannot make the SSD kernels (they ask for a CUDA device), or train tables by other optimizers than the
served ones: operators are missing. Its UVM kernels are lookups in host memory there.
"""

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import exact_kinds
import pytest
import torch
from device_thread import compare_in_one_thread
from exact import Run, compare, lookups
from exact_configs import CONFIGS, OPTIONS
from exact_kinds import BESIDE, SERVED, TWO, varying
from exact_loops import LOOPS
from exact_managed import IDS, MapOf, hash_zch, managed, mch, subclassed
from exact_model import Batch, Config, Table, build
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    CounterBasedRegularizationDefinition,
    GlobalWeightDecayDefinition,
    WeightDecayMode,
)
from patience import PATIENCE_S
from torchrec.modules.mc_modules import probabilistic_threshold_filter
from worlds import shared_world

import fscomm
from fscomm import comm
from fscomm.engine import agreement
from fscomm.errors import NotServedError
from fscomm.tables.torchrec import requirements, sharded
from fscomm.tables.torchrec.binding import unquantised

CONFIG = Config(modules=TWO, static_graph=False, even=True, steps=5)

TRAINED: list[tuple[str, dict[str, str]]] = [
    ("checkpointed", {"embeddings.b": "checkpointing"}),
    ("used_twice", {"embeddings.b": "more often for one batch"}),
    ("ids_made", {"embeddings.b": "not found in the batch (Batch)"}),
    ("converted", {}),
    ("tracked_on_rank_1", {"embeddings.b": "on rank 1 a tracker follows"}),
    ("pooled", {"bag": "it got other features than the batch holds"}),
    ("hooked", {}),
    ("without_gradients", {}),
]
IN_ONE_THREAD = pytest.param(compare_in_one_thread, marks=pytest.mark.long)


@pytest.mark.parametrize("comparing", [compare, IN_ONE_THREAD])
@pytest.mark.parametrize(("kind", "reasons"), TRAINED, ids=[kind for kind, _ in TRAINED])
def test_plain_beside_served(kind: str, reasons: dict[str, str], comparing: Callable[..., Any]) -> None:
    config = CONFIG.but(builder=getattr(exact_kinds, kind))
    if kind == "pooled":
        config = config.but(modules={"a": (SERVED,)})
    for found, said in shared_world(2).run(comparing, config, with_calls):
        assert found == []
        assert said["fallbacks"].keys() == reasons.keys()
        for module, reason in reasons.items():
            assert reason in said["fallbacks"][module]
    if kind == "ids_made":
        assert "features={'embeddings.b': lambda batch: ...}" in said["fallbacks"]["embeddings.b"]
    if kind == "used_twice":  # the line is of the user's code, not of torch or TorchRec
        file, line = re.findall(r"called at (\w+\.py):(\d+)", said["fallbacks"]["embeddings.b"])[0]
        assert file == "exact_kinds.py"
        source = Path(exact_kinds.__file__).read_text().splitlines()
        assert "module(other)" in source[int(line) - 1]


def with_calls(run: Run) -> None:
    """Also records how often the hooks of the user were called, where a model has them."""
    LOOPS["base"](run)
    for name, module in run.model.module.embeddings.items():
        if hasattr(module, "calls"):
            assert module.calls
            run.record(f"calls of hooks {name}", module.calls)


def varies(run: Run, where: str) -> None:
    """At two steps module b gets features whose batch sizes vary (VBE), on all ranks or on one."""
    batches = run.loader()
    for step in (2, 3):
        if where == "everywhere" or run.rank == 1:
            batches[step].ids["b"] = varying(batches[step].ids["b"])
    train_all(run, batches)


def train_all(run: Run, batches: list[Batch]) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(batches)):
            run.train(step, batch)


@pytest.mark.parametrize("where", ["everywhere", "on rank 1"])
def test_batch_sizes_that_vary_by_feature(where: str) -> None:
    loop = partial(varies, where=where)
    for rank, (found, said) in enumerate(shared_world(2).run(compare, CONFIG.but(even=False), loop)):
        assert found == []
        assert said["fallbacks"].keys() == {"embeddings.b"}
        why = "another rank" if rank == 0 and where != "everywhere" else "(VBE)"
        assert why in said["fallbacks"]["embeddings.b"]


def strays(run: Run) -> None:
    """At one step rank 1 gives module b an id that its table does not have. TorchRec's kernel reads row 0 for it."""
    batches = run.loader()
    if run.rank == 1:
        ids = batches[2].ids["b"].values()
        assert len(ids)
        ids[0] = BESIDE.rows + 7
    train_all(run, batches)


def test_a_module_that_gets_an_id_outside_its_table_runs_plainly_on_all_ranks() -> None:
    for found, said in shared_world(2).run(compare, CONFIG, strays):
        assert found == []
        assert said["fallbacks"].keys() == {"embeddings.b"}
        assert "step 2: an id lies outside its table" in said["fallbacks"]["embeddings.b"]
        forwards = said["report"]["forwards"]
        assert forwards["embeddings.a"]["served"] == forwards["embeddings.b"]["served"] + 1


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
ASKED: list[tuple[str, Config, str]] = [
    ("uvm", CONFIG, "fills its cache ahead"),
    ("tracked", CONFIG, "tracker"),
    ("dense_kernel", CONFIG, "kernel dense"),
    ("data_parallel", CONFIG.but(modules={"a": (SERVED,), "b": (replace(ONE, sharding="data"),)}), "data_parallel"),
    ("compiled", CONFIG, "compiled"),
    ("two_dimensional", CONFIG, "2D"),
    ("in_groups", CONFIG.but(quantised=("int8", "fp32")), "groups of 32 numbers, which do not cut 8 columns"),
    ("in_four_bits", CONFIG.but(quantised=("mx4", "fp32")), "never measured here (MX4)"),
    ("in_parts", CONFIG.but(modules=PARTS, quantised=("int8", "int8")), "added up as INT8"),
    ("on_hosts", CONFIG.but(modules=ON_HOSTS, quantised=("fp16", "fp16")), "quantised twice"),
    ("half_given", CONFIG.but(quantised=("fp16", "fp16"), half_output=True), "communication of torch.float16 rows"),
    ("ensemble", CONFIG, "ENSEMBLE_ROWWISE_ADAGRAD"),
    ("half_state", CONFIG, "rounded at random"),
    ("counters", CONFIG.but(fused=LARGEST_COUNTER), "compared with the largest one"),
    ("global_decay", CONFIG.but(fused=GLOBAL_DECAY), "global weight decay"),
]


def ask(rank: int, size: int, config: Config) -> dict[str, str]:
    model, _ = build(config, size)
    with pytest.raises(NotServedError, match=r"embeddings\.b"), fscomm.enable(model, strict=True):
        pass
    with fscomm.enable(model) as comm:
        pass
    return dict(comm.report().fallbacks)


def behind_maps(maps: MapOf, *, pooling: str = "", dedup: bool = False, **options: bool) -> Config:
    table = Table(name="m", rows=24, sharding="row", features=("m0",), ids=IDS, pooling=pooling)
    builder = managed({"m": maps}, **options)
    return CONFIG.but(modules={"a": (SERVED,), "b": (table,)}, builder=builder, dedup=dedup)


MANAGED = [
    ("admitted", behind_maps(partial(hash_zch, opt_in_prob=50, percent_reserved_slots=50)), "admitted at random"),
    (
        "never admitted",
        behind_maps(partial(hash_zch, opt_in_prob=0, percent_reserved_slots=50)),
        "or never (opt_in_prob)",
    ),
    ("own policy", behind_maps(partial(mch, policy="own")), "OwnPolicy is not one of TorchRec's"),
    ("written", behind_maps(partial(hash_zch, write_runtime_meta_dim=2)), "write_runtime_meta_dim"),
    ("fails", behind_maps(partial(hash_zch, disable_fallback=True), kernels=False), "disable_fallback"),
    ("counts", behind_maps(partial(hash_zch, track_id_freq=True), kernels=False), "track_id_freq"),
    ("cannot", behind_maps(hash_zch, kernels=False), "cpu_kernels=True"),
    ("draws", behind_maps(partial(mch, filtering=probabilistic_threshold_filter)), "threshold_filtering_func"),
    ("dedups", behind_maps(mch, dedup=True), "with index dedup"),
    ("pools", behind_maps(mch, pooling="sum"), "ShardedManagedCollisionEmbeddingBagCollection"),
    ("subclass", behind_maps(subclassed), "of the kind Subclassed"),
]
ASKED += [(kind, config, reason) for kind, config, reason in MANAGED]


@pytest.mark.parametrize(("kind", "config", "reason"), ASKED, ids=[each[0] for each in ASKED])
def test_the_reason_is_reported(kind: str, config: Config, reason: str) -> None:
    builder = config.builder or getattr(exact_kinds, kind, None)
    for fallbacks in shared_world(2 if config.quantised else 1).run(ask, config.but(builder=builder)):
        assert reason in fallbacks["embeddings.b"]


def ask_twice(rank: int, size: int) -> str:
    """Calls in a step, and a tracker."""
    model, _ = build(behind_maps(mch), size)
    with fscomm.enable(model, calls=2) as comm:
        pass
    model.module.embeddings["b"]._managed_collision_collection.post_lookup_tracker_fn = print
    with fscomm.enable(model) as also:
        pass
    return f"{comm.report().fallbacks} {also.report().fallbacks}"


def test_maps_that_are_asked_twice_or_followed_are_not_served() -> None:
    (found,) = shared_world(1).run(ask_twice)
    assert "calls=2" in found
    assert "a tracker follows" in found


def of_tables_on(device: str, module: Any) -> str | None:
    """What would be said of the module if its tables were on that device."""
    with mock.patch.object(sharded, "where", return_value=torch.device(device)):
        return next(iter(requirements.group_problems("it", module, unquantised).values()), None)


def on_cuda(rank: int, size: int) -> None:
    mean = CONFIGS["pooled table mean"]
    for config, why in (
        (mean, None),
        (mean.but(weighted=True), "how kernels on CUDA round a weighted mean"),
        (mean.but(half_output=True), "how kernels on CUDA round a mean that is given out as fp16"),
        (mean.but(optimizer="rowwise", fused=OPTIONS["clipped gradients"]), "clip the gradients of a mean before"),
    ):
        module = build(config, size)[0].module.embeddings["a"]
        assert of_tables_on("cpu", module) is None
        said = of_tables_on("cuda", module)
        assert said is None if why is None else why in (said or "")
    model, _ = build(CONFIG, size)
    module = model.module.embeddings["b"]
    assert of_tables_on("cuda", module) is None
    for experimental in (True, False):
        for _, _, kernel in lookups(model):
            kernel.is_experimental = experimental
        assert of_tables_on("cpu", module) is None
        assert ("experimental" in (of_tables_on("cuda", module) or "")) == experimental
    for precision in (SparseType.FP16, SparseType.BF16):
        for _, _, kernel in lookups(model):
            kernel.weights_precision = precision
        assert of_tables_on("cpu", module) is None
        assert "stochastically" in (of_tables_on("cuda", module) or "")


def test_rounding_by_chance_odd_means_and_experimental_kernels_are_not_served_on_cuda() -> None:
    shared_world(1).run(on_cuda)


def in_parts_on_cuda(rank: int, size: int) -> tuple[str | None, list[str]]:
    """What is said of row-wise bags; and of which of them gloo would have to add up the parts."""
    model, _ = build(CONFIGS["pooled weighted"], size)
    module = model.module.embeddings["a"]
    assert list(sharded.gloo_groups("it", module, ())) != []
    with mock.patch.object(sharded, "where", return_value=torch.device("cuda")):
        return of_tables_on("cuda", module), list(sharded.gloo_groups("it", module, ()))


@pytest.mark.parametrize(("ranks", "served"), [(2, True), (3, False)])
def test_bags_in_parts_are_served_on_cuda_where_two_ranks_have_them(ranks: int, served: bool) -> None:
    """A sum of two parts has one value, and more have one for each order. NCCL's group has no gloo."""
    for why, over_gloo in shared_world(ranks).run(in_parts_on_cuda):
        assert why is None if served else "from more than 2 ranks" in (why or "")
        assert over_gloo == []


def deleted(extension: str, user: Any = agreement) -> Any:
    """user: the module that asks whether it is there."""
    is_installed = user.is_installed
    return mock.patch.object(user, "is_installed", lambda name: name != extension and is_installed(name))


def without(rank: int, size: int, extension: str, on_ranks: tuple[int, ...], config: Config) -> tuple[list[str], Any]:
    """What differs from the plain run, and the fallbacks, where a folder of fscomm is deleted on some ranks."""
    with contextlib.ExitStack() as patched:
        if rank in on_ranks:
            patched.enter_context(deleted(extension))
        found, said = compare(rank, size, config, LOOPS["base"])
    return found, said["fallbacks"]


@pytest.mark.parametrize("on_ranks", [(0, 1), (1,)])
@pytest.mark.parametrize(
    ("extension", "config", "modules"),
    [
        ("bags", CONFIGS["pooled mixed"], ["embeddings.a"]),
        ("codecs", CONFIGS["quantised"], ["embeddings.a"]),
        ("managed", behind_maps(mch), ["embeddings.b"]),
    ],
)
def test_a_module_runs_plainly_without_the_extension_that_it_takes(
    extension: str, config: Config, modules: list[str], on_ranks: tuple[int, ...]
) -> None:
    """The folder may be deleted on one host only."""
    for found, fallbacks in shared_world(2).run(without, extension, on_ranks, config):
        assert found == []
        where = "" if on_ranks == (0, 1) else "on rank 1 "
        assert {name: fallbacks.get(name) for name in modules} == dict.fromkeys(
            modules, f"{where}it takes fscomm.{extension}, which is not installed"
        )


def refused(rank: int, size: int) -> str:
    model, _ = build(CONFIG, size)
    with deleted("two_levels"), pytest.raises(ValueError, match="two_levels") as error:
        fscomm.enable(model, ranks_per_host=2, timeout_s=PATIENCE_S).__enter__()
    return str(error.value)


def test_parts_without_their_extension() -> None:
    with deleted("parts", comm), pytest.raises(ValueError, match="parts='auto' takes fscomm\\.parts, which is not"):
        fscomm.enable(torch.nn.Linear(2, 2), parts="auto")


def test_rows_in_two_levels_without_their_extension() -> None:
    assert shared_world(2).run(refused) == ["ranks_per_host=2 takes fscomm.two_levels, which is not installed"] * 2
