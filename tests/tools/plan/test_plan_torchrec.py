"""TorchRec's planner driven by these costs, tables of models, and plans as JSON that train."""

import copy
import dataclasses
import json
import logging

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from plan_examples import IDEAL, columns, row_wise, setting, table, whole
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from worlds import shared_world

from freescale_tools.console.errors import UsageError
from freescale_tools.plan import torchrec as planning
from freescale_tools.plan.costs import SHARDINGS, by_rank, parts
from freescale_tools.plan.tables import OPTIMIZERS
from freescale_tools.plan.torchrec import (
    as_document,
    chosen_plan,
    default_plan,
    load_plan,
    named_model,
    tables_of,
)

CPU = setting(device="cpu", memory_bytes=10**9)
TWO_A_HOST = dataclasses.replace(IDEAL, gpus_per_host=2, gpus_per_nvlink=2)
GPU = setting(memory_bytes=10**9, hardware=TWO_A_HOST)
LATE = dataclasses.replace(IDEAL, exchange_latency=100.0)
MIXED = (
    table("a", rows=5000, dim=64, pooled=True, ids=(4.0,), module="bags"),
    table("b", rows=300, dim=64, pooled=True, ids=(1.0, 7.0), module="bags"),
    table("c", rows=20_000, dim=128, pooled=True, ids=(12.0,), module="bags"),
    table("s", rows=9000, dim=64, ids=(20.0,), module="inner.rows"),
    table("u", rows=40, dim=64, ids=(2.0,), module="inner.rows"),
)


def total(found):
    return found.total


def planned(tables, of, rate):
    return chosen_plan(default_plan(tables, of), of, rate)


@pytest.mark.parametrize("of", [CPU, GPU], ids=["cpu", "cuda"])
@pytest.mark.parametrize("latency", [0.0, 100.0])
def test_the_chosen_plan_holds_every_table_and_is_rated_no_worse_than_torchrecs(of, latency):
    of = dataclasses.replace(of, hardware=dataclasses.replace(of.hardware, exchange_latency=latency))
    usual = default_plan(MIXED, of)
    chosen = chosen_plan(usual, of, total)
    for plan in (chosen, usual):
        assert sorted(one.table.name for one in plan) == ["a", "b", "c", "s", "u"]
        for one in plan:
            assert len({shard.rank for shard in one.shards}) == len(one.shards)
            held = sum(shard.rows * shard.dim for shard in one.shards)
            assert held == one.table.rows * one.table.dim * (4 if one.sharding == "data_parallel" else 1)
    assert parts(chosen, of).total <= parts(usual, of).total
    assert by_rank(chosen, of)["memory_bytes"].min() > 0


def test_a_plan_fits_into_the_memory_as_torchrec_counts_it():
    """All tables together on every rank are the fastest plan where exchanges are all that counts, and the largest."""
    of = setting(device="cpu", hardware=dataclasses.replace(IDEAL, nvlink=1e6, memory=0.001))
    tables = [table(name, rows=10_000, dim=64, ids=(9.0,), pooled=True) for name in "abc"]

    def within(memory_bytes):
        found = planned(tables, dataclasses.replace(of, memory_bytes=memory_bytes), lambda one: one.ids + one.rows)
        return [one.sharding for one in found], by_rank(found, of)["memory_bytes"].max()

    (everything, held), (cut, less) = within(10**9), within(5 * 10**6)
    assert everything == 3 * ["data_parallel"] != cut
    assert less <= 0.85 * 5 * 10**6 < held


@pytest.mark.parametrize(
    ("pooled", "plan"),
    [(False, default_plan), (True, lambda tables, of: planned(tables, of, total))],
    ids=["usual plan of a sequence", "chosen plan of bags"],
)
@pytest.mark.parametrize(
    ("optimizer", "floats"),
    [("sgd", 0), ("adam", 2 * 64), ("row_wise_adagrad", 1), ("exact_adagrad", 64), ("partial_row_wise_adam", 64)],
)
def test_states_of_optimizers_are_held_beside_the_rows(optimizer, floats, pooled, plan):
    one_rank = setting(ranks=1, device="cpu", memory_bytes=10**9)

    def held(**more):
        return by_rank(plan([table(rows=5000, dim=64, pooled=pooled, **more)], one_rank), one_rank)["memory_bytes"]

    assert (held(optimizer=optimizer) - held()).tolist() == [5000 * floats * 4]


def test_rows_that_are_used_alike_are_spread_and_hot_rows_are_not():
    """Sequence rows travel once whatever the sharding, so only balance counts: a table whose first rows take all
    look-ups is as heavy on one rank row-wise as it is table-wise, and lighter in columns."""
    even, hot = table("t", rows=4000, dim=128), table("t", rows=4000, dim=128, uses=torch.eye(1, 40)[0].numpy())
    heavy = setting(hardware=dataclasses.replace(IDEAL, memory=0.01), device="cpu", receivers_wait=False)
    assert planned([even], heavy, total)[0].sharding in ("row_wise", "column_wise", "data_parallel")
    assert planned([hot], heavy, total)[0].sharding != "row_wise"


def test_the_rate_decides_what_is_planned():
    """A rate that counts nothing but all-reduces takes no data-parallel table."""
    found = planned(MIXED, setting(hardware=LATE), lambda one: one.all_reduce)
    assert "data_parallel" not in {one.sharding for one in found}
    found = planned(MIXED, setting(hardware=LATE), lambda one: one.ids + one.rows)
    assert {one.sharding for one in found} == {"data_parallel"}


def test_differences_within_the_error_of_the_model_keep_torchrecs_plan():
    of = setting(hardware=LATE, device="cpu")
    before = logging.root.manager.disable, copy.deepcopy([one.ids_per_sample for one in MIXED])
    usual = default_plan(MIXED, of)
    assert chosen_plan(usual, of, lambda one: 100 + min(one.total, 1.0)) == usual
    assert (logging.root.manager.disable, [one.ids_per_sample for one in MIXED]) == before, "planning changes nothing"
    with pytest.raises(UsageError, match=r"TorchRec's planner finds no plan: .*storage.*--ranks or --memory"):
        default_plan([table(rows=10**9, dim=64)], CPU)


def plain(plan):
    """A plan of TorchRec as tuples; its own objects compare by identity."""
    return {
        name: (
            one.sharding_type, one.compute_kernel, one.ranks,
            [(s.shard_offsets, s.shard_sizes, str(s.placement)) for s in getattr(one.sharding_spec, "shards", ())],
        )
        for tables in plan.plan.values()
        for name, one in tables.items()
    }  # fmt: skip


@pytest.mark.parametrize("of", [CPU, GPU], ids=["cpu", "cuda"])
@pytest.mark.parametrize("way", SHARDINGS)
def test_what_is_written_is_the_planners_own_plan(tmp_path, monkeypatch, of, way):
    """TorchRec replicates no rows, and cuts no bags by rows, on CPUs."""
    theirs, plan = [], EmbeddingShardingPlanner.plan
    monkeypatch.setattr(EmbeddingShardingPlanner, "plan", lambda *given: theirs.append(plan(*given)))
    monkeypatch.setattr(planning, "SHARDINGS", (way,))
    tables = [one for one in MIXED if of is GPU or one.pooled == (way == "data_parallel")]
    found = default_plan(tables, of)
    assert {one.sharding for one in found} == {way}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(as_document(found, of)))
    assert plain(load_plan(path)) == plain(theirs[0])
    assert {*load_plan(path).plan} == {one.module for one in tables}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "profile"}, "is no sharding plan: write one with `freescale plan"),
        ({"version": 2}, "has version 2, this program reads 1"),
        ({"ranks": 2}, "table c of module 'bags': rank 3 holds a part, but the plan is for ranks 0 to 1"),
        ("{", "is no JSON document"),
        ('{"version": 1, "kind": "sharding-plan", "ranks": 2}', "it lacks device, modules, ranks_per_host: write one"),
        (None, r"no sharding plan .*plan.json"),
    ],
)
def test_files_that_are_no_plan_of_this_program_are_refused(tmp_path, change, message):
    if change is not None:
        made = change if isinstance(change, str) else json.dumps(as_document([whole(MIXED[2], 3)], CPU) | change)
        (tmp_path / "plan.json").write_text(made)
    with pytest.raises(UsageError, match=message):
        load_plan(tmp_path / "plan.json")


def test_tables_of_a_model_are_those_that_it_was_made_of():
    model = Net()
    wanted = [dataclasses.replace(one, ids_per_sample=None) for one in MIXED]
    assert list(map(repr, tables_of(model, name="model"))) == list(map(repr, wanted))
    assert [one.module for one in tables_of(model.bags, name="model")] == ["", "", ""]


def test_optimizers_of_a_model_are_those_that_are_fused_with_its_tables():
    model = Net()
    apply_optimizer_in_backward(RowWiseAdagrad, model.bags.embedding_bags["a"].parameters(), {"lr": 1.0})
    apply_optimizer_in_backward(torch.optim.Adam, model.inner.parameters(), {"lr": 1.0})
    found = {one.name: one.optimizer for one in tables_of(model, name="model")}
    assert found == {"a": "exact_row_wise_adagrad", "b": "exact_sgd", "c": "exact_sgd", "s": "adam", "u": "adam"}
    apply_optimizer_in_backward(torch.optim.Rprop, model.bags.embedding_bags["c"].parameters(), {"lr": 1.0})
    with pytest.raises(UsageError, match="m: table c has the optimizer Rprop, which TorchRec cannot fuse: give one of"):
        tables_of(model, name="m")


def test_names_of_optimizers_are_those_of_fbgemm():
    assert set(OPTIMIZERS) <= {str(each) for each in EmbOptimType}


def test_models_and_tables_that_cannot_be_planned_are_refused():
    with pytest.raises(UsageError, match="m has no EmbeddingCollection and no EmbeddingBagCollection"):
        tables_of(nn.Linear(1, 1), name="m")
    config = EmbeddingConfig(name="t", num_embeddings=4, embedding_dim=4, feature_names=["f"], data_type=DataType.BF16)
    with pytest.raises(UsageError, match=r"table t is .*fp32 or fp16"):
        tables_of(EmbeddingCollection([config], device=torch.device("meta")), name="m")
    with pytest.raises(UsageError, match=r"no such table into module 'embeddings': .*items"):
        default_plan([table("items")], CPU)


def test_models_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan_models.py").write_text(
        "from torch import nn\nready = nn.Identity()\nmake = nn.Identity\nwrong = int\n"
        "def broken():\n    raise RuntimeError('no data')\n"
    )
    assert isinstance(named_model("plan_models:ready"), nn.Identity)
    assert isinstance(named_model("plan_models:make"), nn.Identity)
    for spec, message in (
        ("plan_models:wrong", "is int: a torch.nn.Module"),
        ("plan_models:broken", "RuntimeError: no data"),
        ("plan_models:nothing", "AttributeError"),
        ("no_such_package:model", "ModuleNotFoundError"),
    ):
        with pytest.raises(UsageError, match=message):
            named_model(spec)


def tenth(weight):
    """TorchRec gives sharded bags new weights on CPUs, so these are alike; rows keep theirs."""
    return nn.init.constant_(weight, 0.1)


class Net(nn.Module):
    """Bags and rows, at the paths of MIXED."""

    def __init__(self):
        super().__init__()
        configs = [
            (EmbeddingBagConfig if one.pooled else EmbeddingConfig)(
                name=one.name, num_embeddings=one.rows, embedding_dim=one.dim, feature_names=list(one.features),
                init_fn=tenth if one.pooled else None,
            )
            for one in MIXED
        ]  # fmt: skip
        torch.manual_seed(0)
        self.bags = EmbeddingBagCollection([one for one in configs if isinstance(one, EmbeddingBagConfig)])
        self.inner = nn.Module()
        self.inner.rows = EmbeddingCollection([one for one in configs if isinstance(one, EmbeddingConfig)])
        self.last = nn.Linear(64, 1)

    def forward(self, features):
        bags, rows = self.bags(features).values(), self.inner.rows(features)
        parts = [bags.reshape(-1, 64), *(one.values() for one in rows.values())]
        return self.last(torch.cat(parts)).square().mean()


def one_batch(rank):
    generator = torch.Generator().manual_seed(rank)
    names = [feature for one in MIXED for feature in one.features]
    lengths = torch.randint(0, 4, (len(names) * 3,), generator=generator)
    values = torch.randint(0, 40, (int(lengths.sum()),), generator=generator)
    return KeyedJaggedTensor(keys=names, values=values, lengths=lengths, stride=3)


def train(rank, size, path):
    """(loss before a step and after, how tables are sharded) of a model that is sharded as the file says."""
    net = Net()
    apply_optimizer_in_backward(torch.optim.SGD, [*net.bags.parameters(), *net.inner.parameters()], {"lr": 1.0})
    model = DistributedModelParallel(
        net, env=ShardingEnv.from_process_group(dist.group.WORLD), device=torch.device("cpu"), plan=load_plan(path)
    )
    losses = []
    for _ in range(2):
        loss = model(one_batch(rank))
        loss.backward()
        losses.append(loss.item())
    shardings = {
        name: one.sharding_type
        for module in (model.module.bags, model.module.inner.rows)
        for name, one in module.module_sharding_plan.items()
    }
    return losses, shardings


def alone(rank):
    """The loss of the same model and batch without sharding."""
    return Net()(one_batch(rank)).item()


def test_plans_that_are_written_train_on_two_ranks(tmp_path):
    of = setting(ranks=2, device="cpu")
    a, b, c, s, u = MIXED
    given = [row_wise(a, 2), whole(b, 1), columns(c, 1, 0), row_wise(s, 2), columns(u, 0, 1)]
    for plan in (planned(MIXED, of, total), given):
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(as_document(plan, of)))
        for rank, (losses, shardings) in enumerate(shared_world(2).run(train, path)):
            assert losses[0] == pytest.approx(alone(rank), rel=1e-5)
            assert losses[1] < losses[0]
            assert shardings == {one.table.name: one.sharding for one in plan}
