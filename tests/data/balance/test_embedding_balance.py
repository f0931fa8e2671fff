"""The hooks around a model: the same bits at home, better balanced, and nothing left behind."""

import pytest
import torch
from patience import PATIENCE_S
from torch import nn
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from worlds import shared_world

from fsdata import Balance
from fsdata.embedding_balance.hooks import EmbeddingBalance

WIDTH = 4


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


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(3)
        tables = [EmbeddingConfig(name=n, num_embeddings=30, embedding_dim=WIDTH, feature_names=[n]) for n in "ab"]
        self.embeddings = EmbeddingCollection(tables=tables)
        self.dense = Dense(kind)


def batch(rank):
    random = torch.Generator().manual_seed(rank)
    lengths = torch.randint(0, 2 + 6 * rank, (10,), generator=random)  # two keys, five samples
    values = torch.randint(0, 30, (int(lengths.sum()),), generator=random)
    return KeyedJaggedTensor(keys=["a", "b"], values=values, lengths=lengths), torch.randn(5, 2, generator=random)


def first(output):
    return output[0] if isinstance(output, tuple) else output["logits"] if isinstance(output, dict) else output


def compared(rank, size, kind):
    features, dense = batch(rank)
    results = []
    for balanced in (False, True):
        model = Model(kind)
        if balanced:
            with EmbeddingBalance(model.embeddings, model.dense, balance=Balance(timeout_s=PATIENCE_S)) as balance:
                with pytest.raises(RuntimeError, match="comes first"):
                    balance.move(dense)
                out = first(model.dense(model.embeddings(features), balance.move(dense)))
                (out * torch.arange(1.0, 6.0)).sum().backward()
            assert balance.handle is not None
            assert balance.handle.straggler_after <= balance.handle.straggler_before
            assert not any(module._forward_hooks for module in model.modules())
        else:
            out = first(model.dense(model.embeddings(features), dense))
            (out * torch.arange(1.0, 6.0)).sum().backward()
        results.append([out.detach(), *(table.weight.grad for table in model.embeddings.embeddings.values())])
    assert all(map(torch.equal, *results))
    return True


@pytest.mark.parametrize("kind", ["tensor", "tuple", "dict"])
def test_outputs_and_gradients_at_home_are_those_of_the_plain_model(kind):
    assert shared_world(2).run(compared, kind) == [True, True]


def refused(rank, size):
    model = Model("tensor")
    with pytest.raises(ValueError, match="autotune"):
        EmbeddingBalance(model.embeddings, model.dense, balance=Balance(autotune=True))
    with EmbeddingBalance(nn.Linear(2, 2), model.dense, balance=Balance(timeout_s=PATIENCE_S)) as balance:
        linear = balance._modules[0]
        with pytest.raises(TypeError, match="Linear gave a Tensor"):
            linear(torch.ones(1, 2))
    return True


def test_other_modules_are_refused():
    assert shared_world(1).run(refused) == [True]
