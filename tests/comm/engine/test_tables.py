"""Shadows of fused kernels: updates in pieces, late, from elsewhere, and bitwise those of the kernel itself.

The plain side is the kernel as TorchRec makes it: one forward and one backward over all rows of a step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor

from fscomm.plan.group_plan import Apply
from fscomm.plan.kernel_calls import KernelBags, KernelCall, equal_bags
from fscomm.plan.sharding_group import GroupLayout
from fscomm.tables.group_tables import GroupTables, as_they_are
from fscomm.tables.shadow_kernels import Hyper, take_hyper

DIM = 8
ROWS = (11, 6)  # of the two tables of a kernel
FEATURES = (0, 0, 1)  # the table of each
OPTIMIZERS = [EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD, EmbOptimType.EXACT_ROWWISE_ADAGRAD]
Ids = list[Tensor]  # by feature


def kernel(
    optimizer: EmbOptimType = EmbOptimType.EXACT_ADAGRAD,
    precision: SparseType = SparseType.FP32,
    pooling: PoolingMode = PoolingMode.NONE,
) -> Any:
    made = SplitTableBatchedEmbeddingBagsCodegen(
        embedding_specs=[(rows, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in ROWS],
        feature_table_map=list(FEATURES),
        pooling_mode=pooling,
        weights_precision=precision,
        device=torch.device("cpu"),
        optimizer=optimizer,
        learning_rate=0.1,
        eps=1e-3,
    )
    random = torch.Generator().manual_seed(3)
    for table in made.split_embedding_weights():
        table.copy_(torch.empty(table.shape).uniform_(-1, 1, generator=random))
    return made


def draw(seed: int, longest: int = 199) -> Ids:
    random = torch.Generator().manual_seed(seed)
    return [torch.randint(ROWS[table], (longest - f,), generator=random) for f, table in enumerate(FEATURES)]


def gradients_of(ids: Ids, seed: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(len(of_feature), DIM, generator=random) for of_feature in ids]


def offsets_of(ids: Ids) -> Tensor:
    return torch.tensor([0, *map(len, ids)]).cumsum(0)


def bags_of(ids: Ids) -> list[KernelBags]:
    runs = tuple(map(FEATURES.count, sorted(set(FEATURES))))
    layout = GroupLayout(
        module="",
        sharding="table_wise",
        rank=0,
        world_size=1,
        dim=DIM,
        dtype=torch.float32,
        runs=(runs,),
        rows=ROWS,
        kernels=(len(runs),),
    )
    ends = offsets_of(ids).numpy()
    return equal_bags(layout, ends[np.cumsum([0, *runs])])


def halves(ids: Ids) -> list[list[Tensor]]:
    """Which occurrences are on even rows, and which on odd ones: no row in both."""
    return [[of_feature % 2 == rest for of_feature in ids] for rest in (0, 1)]


def chosen(parts: list[Tensor], masks: list[Tensor]) -> list[Tensor]:
    return [part[mask] for part, mask in zip(parts, masks, strict=True)]


def plain_update(target: Any, ids: Ids, gradients: list[Tensor]) -> None:
    out = target(torch.cat(ids), offsets_of(ids))
    out.backward(torch.cat(gradients).view_as(out))


def update(tables: GroupTables, ids: Ids, gradients: list[Tensor], hypers: list[Hyper]) -> None:
    """As the workers do it: gradients come in some order of the wire."""
    came = torch.randperm(sum(map(len, ids)), generator=torch.Generator().manual_seed(9))
    apply = Apply(call=KernelCall(ids=torch.cat(ids), bags=bags_of(ids)), index=torch.argsort(came))
    received = torch.cat(gradients)[came]
    before = received.clone()
    tables.apply(apply, received, hypers)
    assert torch.equal(received, before)


def looked_up(tables: GroupTables, ids: Ids) -> Tensor:
    """All rows, the last one first."""
    index = torch.arange(sum(map(len, ids))).flip(0)
    return tables.lookup(KernelCall(ids=torch.cat(ids), bags=bags_of(ids)), index)


def tables_of(*kernels: Any, divide_by: Sequence[int] = (), kind: Callable[..., Any] = GroupTables) -> Any:
    codecs = as_they_are(torch.float32, DIM)
    return kind(list(kernels), dim=DIM, codecs=codecs, divide_by=divide_by, where=torch.device("cpu"))


def state(target: Any) -> dict[str, Tensor]:
    """Tables, optimizer state and counters."""
    found = {**dict(target.named_parameters()), **dict(target.named_buffers())}
    found |= {"learning rate": target.learning_rate_tensor, "iterations": target.iter_cpu}
    return {name: tensor.detach().clone() for name, tensor in found.items() if tensor.numel()}


def assert_same(a: Any, b: Any) -> None:
    one, other = state(a), state(b)
    assert one.keys() == other.keys()
    assert {"weights_host", "learning rate", "iterations"} <= one.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("precision", [SparseType.FP32, SparseType.FP16], ids=lambda value: value.name)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda value: value.name)
def test_a_late_update_uses_rate_counter_and_arguments_of_its_step(
    optimizer: EmbOptimType, precision: SparseType
) -> None:
    """By two shadows, as two workers have them: odd rows of a step after the next step's forward and optimizer step."""
    plain, served = kernel(optimizer, precision), kernel(optimizer, precision)
    at_once, late = tables_of(served), tables_of(served)
    before = state(served)
    pending: list[Any] = []
    for step, (rate, eps) in enumerate([(0.1, 1e-3), (0.5, 0.2), (0.02, 0.7)]):
        for each in (plain, served):
            each.set_learning_rate(rate)
            each.optimizer_args = each.optimizer_args._replace(eps=eps)
        arguments = served.optimizer_args
        ids = draw(step)
        gradients = gradients_of(ids, 100 + step)
        plain_update(plain, ids, gradients)
        hypers = [take_hyper(served)]
        even, odd = halves(ids)
        for each in pending:
            update(late, *each)
        update(at_once, chosen(ids, even), chosen(gradients, even), hypers)
        pending = [(chosen(ids, odd), chosen(gradients, odd), hypers)]
        assert served.optimizer_args is arguments, "those of the kernel are the user's"
    for each in pending:
        update(late, *each)
    assert_same(plain, served)
    assert not torch.equal(state(served)["weights_host"], before["weights_host"])


@pytest.mark.parametrize("divide_by", [(3, 1), (3, 3)])
def test_gradients_are_divided_by_the_ranks_where_torchrec_does(divide_by: tuple[int, int]) -> None:
    """One after the other: by 3 and 3 gives other bits than by 9."""
    plain, served = kernel(), kernel()
    ids = draw(1)
    gradients = gradients_of(ids, 2)
    plain_update(plain, ids, [gradient / divide_by[0] / divide_by[1] for gradient in gradients])
    update(tables_of(served, divide_by=divide_by), ids, gradients, [take_hyper(served)])
    assert torch.equal(state(plain)["weights_host"], state(served)["weights_host"])


@pytest.mark.parametrize("name", ["weights_host", "momentum1_host"])
def test_replaced_memory_is_noticed(name: str) -> None:
    """By updates and look-ups; what it replaced is not written any more."""
    plain, served = kernel(), kernel()
    tables = tables_of(served)
    ids = draw(1)
    update(tables, ids, gradients_of(ids, 2), [take_hyper(served)])
    plain_update(plain, ids, gradients_of(ids, 2))
    old = getattr(served, name)
    kept = old.detach().clone()
    for each in (plain, served):
        setattr(each, name, torch.nn.Parameter(getattr(each, name).detach() * 2 + 1))
    assert torch.equal(looked_up(tables, ids), plain(torch.cat(ids), offsets_of(ids)).flip(0))
    take_hyper(served)
    update(tables, ids, gradients_of(ids, 3), [take_hyper(served)])
    plain_update(plain, ids, gradients_of(ids, 3))
    assert_same(plain, served)
    assert torch.equal(old, kept)


def test_without_rows_no_kernel_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    served = kernel()
    tables = tables_of(served)
    hyper = take_hyper(served)
    monkeypatch.setattr(type(served), "forward", lambda *_, **__: pytest.fail("called"))
    nothing = [torch.empty(0, dtype=torch.int64)] * len(FEATURES)
    update(tables, nothing, [torch.empty(0, DIM)] * len(FEATURES), [hyper])
    rows = looked_up(tables, nothing)
    assert (rows.shape, rows.dtype) == ((0, DIM), torch.float32)
    assert tables_of().lookup(KernelCall(ids=nothing[0], bags=[]), nothing[0]).shape == (0, DIM)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda value: value.name)
def test_a_forward_is_counted_without_one(optimizer: EmbOptimType, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second one on; but for one that takes over what was loaded from a checkpoint."""
    plain, served = kernel(optimizer), kernel(optimizer)
    forward, called = type(served).forward, []

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        called.append(self)
        return forward(self, *args, **options)

    monkeypatch.setattr(type(served), "forward", counted)
    for step in range(8):
        if step == 5:
            for each in (plain, served):
                each.iter.fill_(40)
                each.iter_cpu.fill_(0)
        nothing = [torch.empty(0, dtype=torch.int64)] * len(FEATURES)
        plain(torch.cat(nothing), offsets_of(nothing))
        hyper = take_hyper(served)
        assert_same(plain, served)
        assert (plain.step, plain.timestep) == (served.step, served.timestep) == (step + 1, step + 2)
        assert hyper.iteration == int(plain.iter_cpu)
    counts = optimizer is EmbOptimType.EXACT_ROWWISE_ADAGRAD
    assert [each is served for each in called].count(True) == 1 + counts
