"""Embedding-stage balancing: bit for bit what comes out without moving anything, forward and backward."""

import contextlib
import re
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE_S
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from worlds import shared_world

from fsdata import Balance
from fsdata.balance.options import StepPlanner
from fsdata.balance.step_plan import Assignment
from fsdata.embedding.embedding_balance import Dispatcher, EmbeddingBalance, combine, dispatch, dispatch_samples
from fsdata.errors import MismatchError, PeerError

KEYS = ("uih", "candidates")
WIDTH = 4


def shuffled(batch):
    """Any rank for any sample; in every third step all samples on one rank."""
    ranks = int(batch.home.max()) + 1 if len(batch.home) else 1
    random = np.random.default_rng(batch.number)
    if batch.number % 3 == 2:
        return Assignment(rank=np.full(len(batch.home), batch.number % ranks))
    return Assignment(rank=random.integers(0, ranks, len(batch.home)))


def step_of(rank, step, trailing):
    """Lengths, values and per-sample rows; rank 1 has no sample in step 1."""
    random = torch.Generator().manual_seed(100 * step + rank)
    samples = 0 if (rank, step) == (1, 1) else 6 + rank
    lengths = {key: torch.randint(0, 5, (samples,), generator=random) for key in KEYS}
    items = sum(int(given.sum()) for given in lengths.values())
    return lengths, torch.randn(items, *trailing, generator=random), torch.randn(samples, 2, generator=random)


def model(lengths, values, rows):
    """[samples, 2], each sample alone: a product over its items, key by key, times its rows."""
    out = []
    parts = values.split(lengths.flatten().tolist())
    for sample in range(lengths.shape[1]):
        total = rows[sample]
        for key in range(lengths.shape[0]):
            for item in parts[key * lengths.shape[1] + sample]:
                total = total * torch.sin(item.flatten()[:2].float() + key) + 0.1
        out.append(total)
    return torch.stack(out) if out else rows * values.sum()


def same_as_at_home(rank, size, balanced, trailing):
    with Dispatcher(StepPlanner(Balance(), size) if balanced else shuffled, timeout_s=PATIENCE_S) as dispatcher:
        for step in range(4):
            lengths, values, rows = step_of(rank, step, trailing)
            results = []
            for moved in (False, True):
                given = [tensor.clone().requires_grad_() for tensor in (values, rows)]
                if moved:
                    handle = dispatcher.plan(lengths)
                    there = [dispatch(given[0], handle), dispatch_samples(given[1], handle)]
                    out = combine(model(handle.lengths, *there), handle)
                else:
                    out = model(torch.stack(list(lengths.values())), *given)
                weight = torch.arange(out.numel(), dtype=torch.float32).view_as(out) + rank
                (out * weight).sum().backward()
                results.append([out.detach(), *(tensor.grad for tensor in given)])
            for name, plain, other in zip(("outputs", "values", "rows"), *results, strict=True):
                assert torch.equal(plain, other), (step, name)


@pytest.mark.parametrize(
    ("size", "balanced", "trailing"),
    [(1, False, (2,)), (3, False, (2,)), (2, True, (3, 2)), pytest.param(4, False, (3, 2), marks=pytest.mark.long)],
)
def test_moving_changes_no_bit(size, balanced, trailing):
    shared_world(size).run(same_as_at_home, balanced, trailing)


def all_types(rank, size):
    """A handle serves many dispatches; every type comes through, and origin says from where."""
    with Dispatcher(shuffled, timeout_s=PATIENCE_S) as dispatcher:
        lengths, _, rows = step_of(rank, 0, ())
        handle = dispatcher.plan(lengths)
        items = sum(int(given.sum()) for given in lengths.values())
        wanted = None
        for dtype in (torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.int32):
            there = dispatch((torch.arange(items) + 100 * rank).to(dtype), handle)
            wanted = there if wanted is None else wanted  # exact in all these types
            assert (there.dtype, len(there)) == (dtype, int(handle.lengths.sum()))
            assert torch.equal(there.long(), wanted)
        named = torch.stack([torch.full((len(rows),), rank), torch.arange(len(rows))], dim=1)
        assert torch.equal(dispatch_samples(named, handle), handle.origin)
        assert torch.equal(combine(handle.origin, handle), named)
        assert handle.items == handle.lengths.sum(1).tolist()
        return handle.num_samples, handle.moved


def test_one_handle_many_dispatches():
    found = shared_world(3).run(all_types)
    assert sum(samples for samples, _ in found) == 6 + 7 + 8
    assert len({moved for _, moved in found}) == 1
    assert 0 < found[0][1] < 1


class Launches(TorchDispatchMode):
    """Lists what is launched for tensors on "meta", as for those on a GPU. To read a number of theirs is an error."""

    def __init__(self, host):
        """host: what a copy to the host gives."""
        super().__init__()
        self.host, self.names = host, []

    def __torch_dispatch__(self, function, types, args=(), options=None):
        name, options = function._schema.name.removeprefix("aten::"), options or {}
        if name == "_to_copy" and options.get("device") == torch.device("cpu"):
            self.names.append("copy to host")
            return self.host
        found = function(*args, **options)
        made = any(getattr(each, "is_meta", False) for each in tree_leaves(found))
        if made and not function.is_view and name != "empty":
            self.names.append(name)
        return found

    def since(self):
        """The names since the last call."""
        names, self.names = self.names, []
        return names


@contextlib.contextmanager
def launches_on_a_gpu(host=None):
    pytest.importorskip("triton", reason="needs triton")
    from fsdata.kernels import ranges_triton

    launches = Launches(host)
    doubles = {name: mock.MagicMock() for name in ("_by_rank", "_copy")}
    for name, kernel in doubles.items():
        kernel.__getitem__.return_value = lambda *args, name=name, **options: launches.names.append(name)
    with (
        mock.patch.multiple(ranges_triton, **doubles),
        mock.patch.object(torch.cuda, "device_of", contextlib.nullcontext),
        launches,
    ):
        yield launches


def launched_by_a_step(rank, size):
    lengths, values, rows = step_of(0, 0, (WIDTH,))
    with (
        launches_on_a_gpu(torch.stack(list(lengths.values()))) as launches,
        Dispatcher(shuffled, timeout_s=PATIENCE_S) as dispatcher,
    ):
        there = [each.to("meta") for each in (*lengths.values(), values, rows)]
        launches.since()
        handle = dispatcher.plan(dict(zip(KEYS, there, strict=False)))
        planned = launches.since()
        moved = dispatch(there[-2].requires_grad_(), handle)
        dispatched = launches.since()
        torch.autograd.grad(moved, there[-2], moved.detach())
        back = launches.since()
        combine(there[-1], handle)
        return planned, dispatched, back, launches.since()


def test_a_step_on_a_gpu_copies_once_to_the_host_and_once_back():
    """And takes a launch for each plan and each copy. With one rank a copy takes the place of the exchange."""
    [(planned, dispatched, back, combined)] = shared_world(1).run(launched_by_a_step)
    assert planned == ["stack", "copy to host", "_to_copy", *4 * ["_by_rank"]]
    assert dispatched == back == combined == ["_copy", "copy_", "_copy"]


def other_call(rank, size, what):
    """Rank 1 does something else than rank 0."""

    def planner(batch):
        return Assignment(rank=(batch.home + (rank if what == "plan" else 0)) % size)

    lengths, values, rows = step_of(0, 0, (2,))
    if what == "keys" and rank == 1:
        lengths = {"other": lengths["uih"], "candidates": lengths["candidates"]}
    try:
        with Dispatcher(planner, timeout_s=PATIENCE_S) as dispatcher:
            handle = dispatcher.plan(lengths)
            if what == "call" and rank == 1:
                dispatch_samples(rows, handle)
            dispatch(values.double() if what == "type" and rank == 1 else values, handle)
    except MismatchError as error:
        return str(error)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("keys", "do not plan the same step"),
        ("call", r"dispatch of step 0 .*; dispatch_samples of step 0"),
        ("type", r"8 bytes an item\); dispatch of step 0 .* 16 bytes"),
        ("plan", r"different exchanges: dispatch of step 0 \(plan .*\(plan "),
    ],
)
def test_ranks_that_differ_are_told_apart(what, message):
    for text in shared_world(2).run(other_call, what):
        assert re.search(message, text), text


def one_backward_only(rank, size):
    """Rank 1 leaves before its backward; rank 0 must not wait for ever."""
    lengths, values, _ = step_of(0, 0, (2,))
    values.requires_grad_()
    with Dispatcher(shuffled, timeout_s=PATIENCE_S) as dispatcher:
        there = dispatch(values, dispatcher.plan(lengths))
        if rank == 0:
            with pytest.raises(PeerError, match="rank 1 closed its Dispatcher"):
                there.sum().backward()


def test_a_rank_that_leaves_is_named():
    shared_world(2).run(one_backward_only)


def nonsense(rank, size):
    two, three = torch.ones(2).long(), torch.ones(3).long()
    with Dispatcher(shuffled, timeout_s=PATIENCE_S) as dispatcher:
        for lengths, error, message in (
            ({}, ValueError, "empty"),
            ({"a": two, "b": three}, ValueError, "same n"),
            ({"a": two.float()}, TypeError, "integers"),
            ({"a": two}, ValueError, "must be 2"),
        ):
            with pytest.raises(error, match=message):
                dispatch(torch.ones(3), dispatcher.plan(lengths))
    embeddings, message = nn.Linear(2, 2), "Linear returned a Tensor"
    with EmbeddingBalance(embeddings, nn.Identity()), pytest.raises(TypeError, match=message):
        embeddings(torch.ones(1, 2))
    for balance in (Balance(autotune=True), Balance("auto")):
        with pytest.raises(ValueError, match=r"autotune|need the compute times that a loader measures"):
            EmbeddingBalance(nn.Identity(), nn.Identity(), balance=balance)


def test_nonsense_is_refused():
    shared_world(1).run(nonsense)


class Dense(nn.Module):
    """Each sample alone, item by item, so that no kernel sees how many others there are."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, rows, dense):
        parts = [jagged.values().split(jagged.lengths().tolist()) for jagged in rows.values()]
        out = []
        for sample in range(len(dense)):
            total = dense[sample].sum()
            for part in parts:
                for item in part[sample]:
                    total = torch.tanh(total + (item * self.weight).sum())
            out.append(total)
        found = torch.stack(out) if out else dense.sum(1)
        return {"tensor": found, "tuple": (found, 2 * found), "dict": {"logits": found}}[self.kind]


def first(output):
    return output[0] if isinstance(output, tuple) else output["logits"] if isinstance(output, dict) else output


def hooked(rank, size, kind, process_group=None):
    """A model without and with `EmbeddingBalance` has the same outputs and gradients, and keeps no hook."""
    random = torch.Generator().manual_seed(rank)
    lengths = torch.randint(0, 2 + 6 * rank, (10,), generator=random)  # two keys, five samples
    values = torch.randint(0, 30, (int(lengths.sum()),), generator=random)
    features = KeyedJaggedTensor(keys=["a", "b"], values=values, lengths=lengths)
    dense = torch.randn(5, 2, generator=random)
    results = []
    for balanced in (False, True):
        torch.manual_seed(3)
        tables = [EmbeddingConfig(name=n, num_embeddings=30, embedding_dim=WIDTH, feature_names=[n]) for n in "ab"]
        embeddings, top = EmbeddingCollection(tables=tables), Dense(kind)
        if balanced:
            with EmbeddingBalance(embeddings, top, process_group=process_group, timeout_s=PATIENCE_S) as balance:
                with pytest.raises(RuntimeError, match="run the forward of the embedding module first"):
                    balance.move(dense)
                out = first(top(embeddings(features), balance.move(dense)))
                (out * torch.arange(1.0, 6.0)).sum().backward()
            if dist.get_world_size(process_group) > 1:
                assert balance.handle.straggler_after < balance.handle.straggler_before
            moved = set(balance.handle.origin[:, 0].tolist())
            assert not any(module._forward_hooks for module in (embeddings, top))
        else:
            out = first(top(embeddings(features), dense))
            (out * torch.arange(1.0, 6.0)).sum().backward()
        results.append([out.detach(), *(table.weight.grad for table in embeddings.embeddings.values())])
    assert all(map(torch.equal, *results))
    return moved


@pytest.mark.parametrize("kind", ["tensor", "tuple", "dict"])
def test_outputs_and_gradients_at_home_are_those_of_the_plain_model(kind):
    shared_world(2).run(hooked, kind)


def hooked_apart(rank, size):
    """Ranks 0 and 2 share a global batch; rank 1 has its own. The ranks that samples come from."""
    groups = [dist.new_group(members) for members in ([0, 2], [1])]
    moved = hooked(rank, size, "tensor", groups[rank % 2])
    dist.destroy_process_group(groups[rank % 2])
    return moved


def test_a_group_of_the_ranks_that_share_a_global_batch():
    zero, one, two = shared_world(3).run(hooked_apart)
    assert zero | two == {0, 1}  # as the group counts them
    assert one == {0}
