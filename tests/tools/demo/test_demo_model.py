"""The demo's model against plain definitions."""

import pytest
import torch
from torchrec import KeyedJaggedTensor

from freescale_tools.demo.model import attention as blocked
from freescale_tools.demo.model.features import TIME_BUCKETS, Feature, ModelSpec
from freescale_tools.demo.model.sequence_model import NEGATIVES, SequenceModel, encode, next_item_loss, rows_of
from fsdata.batch.batch import Batch, StepStats


def offsets_of(*lengths):
    return torch.cumsum(torch.tensor([0, *lengths]), 0)


@pytest.mark.parametrize(
    "lengths", [(7, 8, 9, 16, 17), (0, 1, 0, 33, 0), ()], ids=["edges of blocks", "empty and single", "no sample"]
)
def test_blocked_attention_equals_whole_score_matrices(lengths, monkeypatch):
    monkeypatch.setattr(blocked, "BLOCK", 8)
    torch.manual_seed(0)
    total = sum(lengths)
    q, k, v = (torch.randn(2, total, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    direction = torch.randn(2, total, 4, dtype=torch.float64)
    found, gradients = [], []
    for function in (blocked.attention, blocked.attention_reference):
        out = function(q, k, v, offsets_of(*lengths))
        found.append(out)
        gradients.append(torch.autograd.grad((out * direction).sum(), (q, k, v), allow_unused=True))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)
    for one, other in zip(*gradients, strict=True):
        expected = torch.zeros_like(one) if other is None else other
        torch.testing.assert_close(one, expected, rtol=1e-12, atol=1e-12)


def test_next_item_loss_is_the_mean_over_a_samples_successors():
    torch.manual_seed(0)
    lengths = (3, 1, 0, 5)
    state, items = (torch.randn(sum(lengths), 4, dtype=torch.float64) for _ in range(2))
    negatives = torch.randn(len(lengths) * 2, 4, dtype=torch.float64)
    expected, start = [], 0
    for sample, length in enumerate(lengths):
        terms = []
        for t in range(start, start + length - 1):
            options = torch.stack([items[t + 1], *negatives[2 * sample : 2 * sample + 2]])
            terms.append(-torch.log_softmax(options @ state[t], 0)[0])
        expected.append(torch.stack(terms).mean() if terms else torch.tensor(0.0, dtype=torch.float64))
        start += length
    found = next_item_loss(state, items, negatives, offsets_of(*lengths))
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-12, atol=1e-12)


SPEC = ModelSpec(
    history=(Feature(name="item", kind="item", rows=50), Feature(name="time", kind="time", rows=TIME_BUCKETS)),
    context=(Feature(name="user", kind="id", rows=2_000), Feature(name="place", kind="id", rows=10)),
    dense=1,
    width=8,
    negatives=3,
)


def batch_of(*samples):
    """Batch of (user, items): times 10 s apart, later users later; everybody is at place 4."""
    items = [item for _, events in samples for item in events]
    times = [1_700_000_000 + 1_000 * user + 10 * place for user, events in samples for place in range(len(events))]
    lengths = [len(events) for _, events in samples]
    features = KeyedJaggedTensor(
        keys=["user", "place", "item", "time"],
        values=torch.tensor([*(user for user, _ in samples), *[4] * len(samples), *items, *times], dtype=torch.int64),
        lengths=torch.tensor([1] * 2 * len(samples) + 2 * lengths, dtype=torch.int64),
        stride=len(samples),
    )
    count = len(samples)
    stats = StepStats(epoch=0, step=0, world_size=1, samples=count, global_samples=count)
    dense = torch.tensor([[float(user)] for user, _ in samples]).reshape(count, 1)
    origin = torch.zeros(count, 2, dtype=torch.int64)
    return Batch(features=features, dense=dense, labels={}, jagged={}, origin=origin, stats=stats)


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = SequenceModel(SPEC)
    made.embeddings.to_empty(device="cpu")
    for parameter in made.embeddings.parameters():
        torch.nn.init.normal_(parameter)
    return made


def test_encoding_buckets_times_by_gap_and_keeps_rows_inside_the_tables():
    batch = batch_of((3, [60, -1, 7]), (4, []), (2_005, [2, 2]))
    features, encoded = batch.features, encode(batch, SPEC)
    assert encoded.keys() == ["user", "item", NEGATIVES]
    assert encoded["user"].values().tolist() == [3, 4, 5]
    assert encoded["item"].values().tolist() == [10, 49, 7, 2, 2]
    assert rows_of(features["time"], SPEC.history[1]).tolist() == [0, 3, 3, 0, 3]
    assert encoded[NEGATIVES].lengths().tolist() == [3, 3, 3]
    assert ((encoded[NEGATIVES].values() >= 0) & (encoded[NEGATIVES].values() < 50)).all()


def test_a_samples_loss_does_not_depend_on_the_rest_of_the_batch(model):
    samples = [(1, [5, 6, 7, 8]), (2, []), (3, [9]), (4, list(range(20)))]
    together = model(batch_of(*samples))
    alone = torch.cat([model(batch_of(sample)) for sample in samples])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    assert together[1] == together[2] == 0
    assert (together[[0, 3]] > 0).all()


@pytest.mark.parametrize("samples", [[], [(1, [3]), (2, [])]], ids=["none", "too short"])
def test_batches_without_anything_to_predict_train(model, samples):
    losses = model(batch_of(*samples))
    assert losses.shape == (len(samples),)
    losses.sum().backward()
    assert all(parameter.grad is not None for parameter in model.tower.parameters())
