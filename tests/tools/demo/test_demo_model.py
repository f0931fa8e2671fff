"""The demo's model against plain definitions."""

import pytest
import torch
import torch.nn.functional as F
from torchrec import KeyedJaggedTensor

from freescale_tools.demo.data import DemoData, Feature
from freescale_tools.demo.model import GROUPS, SequenceModel, encode, next_item_loss
from fsdata.batch.batch import Batch, StepStats

DATA = DemoData(
    name="made up",
    picture="none",
    sources=(),
    history=(Feature(name="item", rows=50), Feature(name="time", rows=168, divide=3_600)),
    context=(Feature(name="user", rows=2_000), Feature(name="place", rows=10)),
    dense=("age",),
    max_length=100,
    rows=0,
    batch_size=1,
)


def batch_of(*samples):
    """Encoded batch of (user, items): times an hour apart; everybody is at place 4."""
    items = [item for _, events in samples for item in events]
    times = [3_600 * (1_000 * user + place) for user, events in samples for place in range(len(events))]
    lengths, count = [len(events) for _, events in samples], len(samples)
    features = KeyedJaggedTensor(
        keys=["user", "place", "item", "time"],
        values=torch.tensor([*(user for user, _ in samples), *[4] * count, *items, *times], dtype=torch.int64),
        lengths=torch.tensor([1] * 2 * count + 2 * lengths, dtype=torch.int32),
        stride=count,
    )
    stats = StepStats(epoch=0, step=0, world_size=1, samples=count, global_samples=count)
    dense = torch.tensor([[float(user)] for user, _ in samples]).reshape(count, 1)
    origin = torch.zeros(count, 2, dtype=torch.int64)
    return encode(Batch(features=features, dense=dense, labels={}, jagged={}, origin=origin, stats=stats), DATA)


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = SequenceModel(DATA)
    made.embeddings.to_empty(device="cpu")
    for parameter in made.embeddings.parameters():
        torch.nn.init.normal_(parameter)
    return made


def test_ids_become_rows_of_their_tables():
    features = batch_of((3, [60, -1, 7]), (4, []), (2_005, [2, 2])).features
    assert features.keys() == ["user", "place", "item", "time"]
    assert features["user"].values().tolist() == [3, 4, 5]
    assert features["item"].values().tolist() == [10, 49, 7, 2, 2]
    hours = [3_000, 3_001, 3_002, 2_005_000, 2_005_001]
    assert features["time"].values().tolist() == [hour % 168 for hour in hours]


def test_next_item_loss_is_the_mean_over_a_samples_successors():
    torch.manual_seed(0)
    lengths = (3, 1, 0, 5)
    scores = torch.randn(sum(lengths), GROUPS)
    groups = torch.randint(0, GROUPS, (sum(lengths),))
    samples = zip(scores.split(lengths), groups.split(lengths), strict=True)
    expected = [F.cross_entropy(of[:-1], ids[1:]) if len(ids) > 1 else torch.tensor(0.0) for of, ids in samples]
    torch.testing.assert_close(next_item_loss(scores, groups, torch.tensor(lengths)), torch.stack(expected))


def test_the_loss_of_a_sample_does_not_depend_on_the_others_nor_an_event_on_later_ones(model):
    samples = [(1, [5, 6, 7]), (2, [8]), (3, []), (4, list(range(20)))]
    together = model(batch_of(*samples))
    alone = torch.cat([model(batch_of(sample)) for sample in samples])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    assert together[1] == together[2] == 0
    assert (together[[0, 3]] > 0).all()
    x = torch.randn(9, 64)
    (block, *_), lengths = model.transformer.blocks, torch.tensor([4, 5])
    changed = x.index_fill(0, torch.tensor([6, 7, 8]), 3.0)
    torch.testing.assert_close(block(x, lengths)[:6], block(changed, lengths)[:6])


@pytest.mark.parametrize("samples", [[], [(1, [3]), (2, [])]], ids=["none", "too short"])
def test_batches_without_anything_to_predict_train(model, samples):
    losses = model(batch_of(*samples))
    assert losses.shape == (len(samples),)
    losses.sum().backward()
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "table" not in name)
