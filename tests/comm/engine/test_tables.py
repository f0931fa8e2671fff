"""Shadows of fused kernels: updates in pieces, late, from elsewhere, and bitwise those of the kernel itself.

The plain side is the kernel as TorchRec makes it: one forward and one backward over all rows of a step.
"""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor

from fscomm.plan.routes import Apply, Lookup
from fscomm.tables.codec import as_they_are
from fscomm.tables.shadow_kernels import Hyper, Tables, take_hyper

DIM = 8
ROWS = (11, 6)  # of the two tables of a kernel
FEATURES = (0, 0, 1)  # the table of each
OPTIMIZERS = [EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD, EmbOptimType.EXACT_ROWWISE_ADAGRAD]
PRECISIONS = [SparseType.FP32, SparseType.FP16]
Ids = list[Tensor]  # by feature

every_kernel = pytest.mark.parametrize(
    ("optimizer", "precision"),
    [(optimizer, precision) for optimizer in OPTIMIZERS for precision in PRECISIONS],
    ids=lambda value: value.name.lower(),
)


def kernel(optimizer: EmbOptimType = EmbOptimType.EXACT_ADAGRAD, precision: SparseType = SparseType.FP32) -> Any:
    made = SplitTableBatchedEmbeddingBagsCodegen(
        embedding_specs=[(rows, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in ROWS],
        feature_table_map=list(FEATURES),
        pooling_mode=PoolingMode.NONE,
        weights_precision=precision,
        device=torch.device("cpu"),
        optimizer=optimizer,
        learning_rate=0.1,
        eps=1e-3,
    )
    weights = torch.empty(len(made.weights_host)).uniform_(-1, 1, generator=torch.Generator().manual_seed(3))
    made.weights_host.detach().copy_(weights)
    return made


def draw(seed: int, longest: int = 9) -> Ids:
    random = torch.Generator().manual_seed(seed)
    return [torch.randint(ROWS[table], (longest - f,), generator=random) for f, table in enumerate(FEATURES)]


def gradients_of(ids: Ids, seed: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(len(of_feature), DIM, generator=random) for of_feature in ids]


def offsets_of(ids: Ids) -> Tensor:
    return torch.tensor([0, *map(len, ids)]).cumsum(0)


def halves(ids: Ids) -> list[list[Tensor]]:
    """Which occurrences are on even rows, and which on odd ones: no row in both."""
    return [[of_feature % 2 == rest for of_feature in ids] for rest in (0, 1)]


def chosen(parts: list[Tensor], masks: list[Tensor]) -> list[Tensor]:
    return [part[mask] for part, mask in zip(parts, masks, strict=True)]


def plain_update(target: Any, ids: Ids, gradients: list[Tensor]) -> None:
    out = target(torch.cat(ids), offsets_of(ids))
    out.backward(torch.cat(gradients).view_as(out))


def update(tables: Tables, ids: Ids, gradients: list[Tensor], hypers: list[Hyper]) -> None:
    """As the workers do it: gradients come in some order of the wire."""
    came = torch.randperm(sum(map(len, ids)), generator=torch.Generator().manual_seed(9))
    apply = Apply(splits=[], index=torch.argsort(came), ids=torch.cat(ids), offsets=offsets_of(ids))
    received = torch.cat(gradients)[came]
    before = received.clone()
    tables.apply(apply, received, hypers)
    assert torch.equal(received, before)


def tables_of(*kernels: Any, divide_by: Sequence[int] = ()) -> Tables:
    codecs = as_they_are(torch.float32, DIM)
    return Tables(list(kernels), dim=DIM, codecs=codecs, divide_by=divide_by, where=torch.device("cpu"))


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


@every_kernel
@pytest.mark.parametrize("first", [0, 1], ids=["even rows first", "odd rows first"])
def test_updates_on_disjoint_rows_are_the_plain_update(
    optimizer: EmbOptimType, precision: SparseType, first: int
) -> None:
    """By two shadows, as two workers have them, over several steps."""
    plain, served = kernel(optimizer, precision), kernel(optimizer, precision)
    workers = [tables_of(served), tables_of(served)]
    before = state(served)
    for step in range(4):
        ids = draw(step)
        gradients = gradients_of(ids, 100 + step)
        plain_update(plain, ids, gradients)
        hypers = [take_hyper(served)]
        masks = halves(ids)
        for worker in (first, 1 - first):
            update(workers[worker], chosen(ids, masks[worker]), chosen(gradients, masks[worker]), hypers)
    assert_same(plain, served)
    assert not torch.equal(state(served)["weights_host"], before["weights_host"])


@every_kernel
def test_a_late_update_uses_rate_counter_and_arguments_of_its_step(
    optimizer: EmbOptimType, precision: SparseType
) -> None:
    """Odd rows of a step are updated after the next step's forward and optimizer step."""
    plain, served = kernel(optimizer, precision), kernel(optimizer, precision)
    tables = tables_of(served)
    pending: list[Any] = []
    for step, (rate, eps) in enumerate([(0.1, 1e-3), (0.5, 0.2), (0.02, 0.7)]):
        for each in (plain, served):
            each.set_learning_rate(rate)
            each.optimizer_args = each.optimizer_args._replace(eps=eps)
        ids = draw(step)
        gradients = gradients_of(ids, 100 + step)
        plain_update(plain, ids, gradients)
        hypers = [take_hyper(served)]
        even, odd = halves(ids)
        for late in pending:
            update(tables, *late)
        update(tables, chosen(ids, even), chosen(gradients, even), hypers)
        pending = [(chosen(ids, odd), chosen(gradients, odd), hypers)]
    for late in pending:
        update(tables, *late)
    assert_same(plain, served)


@every_kernel
def test_the_kernel_itself_is_left_alone(
    optimizer: EmbOptimType, precision: SparseType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its counter, rate and arguments are the user's; the shadow's are those it was told."""
    served = kernel(optimizer, precision)
    hyper = take_hyper(served)
    tables = tables_of(served)
    for _ in range(3):
        take_hyper(served)
    served.set_learning_rate(7.0)
    before, arguments = state(served), served.optimizer_args
    calls = []
    forward = type(served).forward

    def watched(self: Any, *args: Any, **options: Any) -> Tensor:
        result = forward(self, *args, **options)
        calls.append((self is served, float(self.learning_rate_tensor), int(self.iter_cpu), self.optimizer_args))
        return result

    monkeypatch.setattr(type(served), "forward", watched)
    ids = draw(1)
    update(tables, ids, gradients_of(ids, 2), [hyper])
    counted = optimizer is EmbOptimType.EXACT_ROWWISE_ADAGRAD  # the only one of them that counts
    told = hyper.iteration if counted else hyper.iteration - 1
    assert calls == [(False, pytest.approx(0.1), told, hyper.arguments)]
    after = state(served)
    for name in before.keys() - {"weights_host", "momentum1_host"}:
        assert torch.equal(before[name], after[name]), name
    assert served.optimizer_args is arguments
    assert not torch.equal(before["weights_host"], after["weights_host"])


@every_kernel
def test_taking_the_hyper_state_counts_as_one_forward(optimizer: EmbOptimType, precision: SparseType) -> None:
    plain, served = kernel(optimizer, precision), kernel(optimizer, precision)
    for step in range(3):
        for each in (plain, served):
            each.set_learning_rate(0.5 + step)
        ids = draw(step)
        plain(torch.cat(ids), offsets_of(ids))
        hyper = take_hyper(served)
        assert hyper.iteration == int(plain.iter_cpu)
        assert hyper.learning_rate == 0.5 + step
        assert hyper.arguments == plain.optimizer_args
    assert_same(plain, served)


@every_kernel
def test_rows_are_those_of_the_kernel(optimizer: EmbOptimType, precision: SparseType) -> None:
    served = kernel(optimizer, precision)
    before = state(served)
    ids = [torch.tensor([4, 0]), torch.empty(0, dtype=torch.int64), torch.tensor([5])]
    index = torch.tensor([2, 0, 0, 1])
    rows = tables_of(served).lookup(Lookup(ids=torch.cat(ids), offsets=offsets_of(ids), index=index, splits=[]))
    first, second = served.split_embedding_weights()
    assert torch.equal(rows, torch.stack([second[5], first[4], first[4], first[0]]).float())
    assert not rows.requires_grad
    assert all(torch.equal(before[name], tensor) for name, tensor in state(served).items())


def test_several_kernels_side_by_side() -> None:
    """Features of both in one plan; the second gets nothing in the second step, and so it is not called."""
    kinds = [(EmbOptimType.EXACT_ADAGRAD, SparseType.FP32), (EmbOptimType.EXACT_SGD, SparseType.FP16)]
    plain, served = [kernel(*kind) for kind in kinds], [kernel(*kind) for kind in kinds]
    tables = tables_of(*served)
    for step in range(2):
        for number, target in [*enumerate(plain), *enumerate(served)]:
            target.set_learning_rate(0.1 + step + 0.5 * number)
        both = [draw(step), draw(10 + step) if step == 0 else [torch.empty(0, dtype=torch.int64)] * len(FEATURES)]
        gradients = [gradients_of(ids, 100 + step) for ids in both]
        for target, ids, given in zip(plain, both, gradients, strict=True):
            plain_update(target, ids, given)
        update(tables, both[0] + both[1], gradients[0] + gradients[1], [take_hyper(target) for target in served])
    for a, b in zip(plain, served, strict=True):
        assert_same(a, b)
    ids = [*draw(5), *draw(6)]
    everything = Lookup(
        ids=torch.cat(ids), offsets=offsets_of(ids), index=torch.arange(sum(map(len, ids))).flip(0), splits=[]
    )
    rows = [of(torch.cat(part), offsets_of(part)) for of, part in zip(plain, (ids[:3], ids[3:]), strict=True)]
    assert torch.equal(tables.lookup(everything), torch.cat(rows).flip(0))


@pytest.mark.parametrize("divide_by", [(3, 1), (3, 3)])
def test_gradients_are_divided_by_the_ranks_where_torchrec_does(divide_by: tuple[int, int]) -> None:
    """One after the other: by 3 and 3 gives other bits than by 9."""
    plain, served = kernel(), kernel()
    ids = draw(1)
    gradients = gradients_of(ids, 2)
    plain_update(plain, ids, [gradient / divide_by[0] / divide_by[1] for gradient in gradients])
    update(tables_of(served, divide_by=divide_by), ids, gradients, [take_hyper(served)])
    assert torch.equal(state(plain)["weights_host"], state(served)["weights_host"])


def test_a_replaced_weights_tensor_is_noticed() -> None:
    """By updates and look-ups; what it replaced is not written any more."""
    plain, served = kernel(), kernel()
    tables = tables_of(served)
    ids = draw(1)
    update(tables, ids, gradients_of(ids, 2), [take_hyper(served)])
    plain_update(plain, ids, gradients_of(ids, 2))
    old = served.weights_host
    for each in (plain, served):
        each.weights_host = torch.nn.Parameter(each.weights_host.detach() * 2)
    kept = old.detach().clone()
    everything = Lookup(ids=torch.cat(ids), offsets=offsets_of(ids), index=torch.arange(sum(map(len, ids))), splits=[])
    assert torch.equal(tables.lookup(everything), plain(torch.cat(ids), offsets_of(ids)))
    update(tables, ids, gradients_of(ids, 3), [take_hyper(served)])
    plain_update(plain, ids, gradients_of(ids, 3))
    assert torch.equal(plain.weights_host, served.weights_host)
    assert torch.equal(plain.momentum1_host, served.momentum1_host)
    assert torch.equal(old, kept)


def test_a_replaced_optimizer_state_is_noticed() -> None:
    """What it replaced is not written any more."""
    plain, served = kernel(), kernel()
    tables = tables_of(served)
    ids = draw(1)
    update(tables, ids, gradients_of(ids, 2), [take_hyper(served)])
    plain_update(plain, ids, gradients_of(ids, 2))
    old = served.momentum1_host
    kept = old.detach().clone()
    for each in (plain, served):
        each.momentum1_host = torch.nn.Parameter(each.momentum1_host.detach() * 2 + 1)
    update(tables, ids, gradients_of(ids, 3), [take_hyper(served)])
    plain_update(plain, ids, gradients_of(ids, 3))
    assert_same(plain, served)
    assert torch.equal(old, kept)


def test_without_rows_no_kernel_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    served = kernel()
    tables = tables_of(served)
    hyper = take_hyper(served)
    before = copy.deepcopy(state(served))
    monkeypatch.setattr(type(served), "forward", lambda *_, **__: pytest.fail("called"))
    nothing = [torch.empty(0, dtype=torch.int64)] * len(FEATURES)
    update(tables, nothing, [torch.empty(0, DIM)] * len(FEATURES), [hyper])
    empty = Lookup(
        ids=torch.cat(nothing), offsets=offsets_of(nothing), index=torch.empty(0, dtype=torch.int64), splits=[]
    )
    rows = tables.lookup(empty)
    assert (rows.shape, rows.dtype) == ((0, DIM), torch.float32)
    assert all(torch.equal(before[name], tensor) for name, tensor in state(served).items())
    none = Lookup(ids=empty.ids, offsets=torch.zeros(1, dtype=torch.int64), index=empty.index, splits=[])
    assert tables_of().lookup(none).shape == (0, DIM)
