"""Several ids per event in a batch: a KeyedJaggedTensor of the events, for modules of TorchRec."""

import histories
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from histories import ROWS, UIH, loader_on, samples_of
from sets import same
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

from fscomm.loop.kjt_paths import find, walk
from fsdata import Balance, Schema, SchemaError, Sequence, StateError


def test_pooled_ids_align_with_the_events(history_folder):
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=97, embedding_dim=8, feature_names=[name]) for name in UIH.nested
    ]
    pooling = EmbeddingBagCollection(tables=tables)
    with loader_on(history_folder) as loader:
        for batch in loader:
            nested = batch.nested["uih"]
            events = len(batch.features["item"].values())
            assert nested.lengths().shape == (2 * events,)
            assert nested.values().dtype == nested.lengths().dtype == torch.int64
            ids = nested.values() % 97
            pooled = pooling(type(nested)(nested.keys(), ids, lengths=nested.lengths(), stride=nested.stride()))
            assert pooled.values().shape == (events, 16)
            samples = samples_of(batch)
            for name in UIH.nested:
                weight = pooling.embedding_bags[name].weight
                wanted = [weight[[one % 97 for one in ids]].sum(0) for sample in samples for ids in sample[name]]
                wanted = torch.stack(wanted) if wanted else torch.empty(0, 8)
                torch.testing.assert_close(pooled[name], wanted)


def test_a_batch_without_events(tmp_path):
    pq.write_table(histories.table_of(range(0, 8, 4)), tmp_path / "a.parquet")
    with loader_on(tmp_path) as loader:
        (batch,) = loader
    assert batch.nested["uih"].stride() == 0
    assert batch.nested["uih"].keys() == ["categories", "tags"]
    assert [sample["categories"] for sample in samples_of(batch)] == [[], []]


class Seen:
    """A cost model that notes what it is given."""

    def __init__(self):
        self.lengths = []

    def __call__(self, lengths):
        self.lengths.append(lengths)
        return lengths["uih"]

    def __repr__(self):
        return "Seen()"


def test_ids_are_tokens_and_cost_models_see_events_alone(history_folder):
    cost = Seen()
    balance = Balance("vbs", cost=cost, max_tokens=45)  # the events alone would fit
    with loader_on(history_folder, balance=balance) as loader:
        steps = []
        for batch in loader:
            items = batch.stats.global_items
            names = ("uih", "recent", "candidates", "categories", "tags", "shops")
            assert sum(items[name] for name in names) <= 45
            assert items["tags"] == batch.nested["uih"]["tags"].values().numel()
            steps.append((batch.stats.carried, len(batch)))
    assert sum(rows for _, rows in steps) == ROWS
    assert any(carried for carried, _ in steps)
    assert all(set(lengths) == {"uih", "recent", "candidates"} for lengths in cost.lengths)


def test_a_batch_moves_as_a_whole(history_folder):
    with loader_on(history_folder) as loader:
        batch = next(iter(loader))
    assert same(batch.to("cpu"), batch)
    moved = batch.to("meta")
    assert {moved.nested[name].values().device.type for name in ("uih", "recent")} == {"meta"}


def test_a_lookahead_finds_them(history_folder):
    with loader_on(history_folder) as loader:
        batch = next(iter(loader))
    assert {str(path) for path, _ in walk(batch)} == {"batch.features", "batch.nested['uih']", "batch.nested['recent']"}
    assert str(find(batch, batch.nested["recent"])) == "batch.nested['recent']"


def test_states_of_other_nested_fields_are_refused(history_folder):
    plain = Schema(sequences=(Sequence("uih", ("item",)),))
    nested = Schema(sequences=(Sequence("uih", ("item",), nested=("tags",)),))
    with loader_on(history_folder, plain) as one, loader_on(history_folder, nested) as two:
        with pytest.raises(StateError, match=r"nested=\('tags',\)"):
            two.load_state_dict(one.state_dict())
        two.load_state_dict(two.state_dict())


def test_names():
    with pytest.raises(SchemaError, match="a nested field and a sequence are both called tags"):
        Schema(sequences=(Sequence("uih", ("item",), nested=("tags",)), Sequence("tags", ("tag",))))
    with pytest.raises(SchemaError, match="a nested field and a sequence are both called candidates"):
        Schema(sequences=(Sequence("uih", ("item",), nested=("candidates",)),))
    with pytest.raises(SchemaError, match="used twice: tags"):
        Schema(sequences=(Sequence("uih", ("item", "tags"), nested=("tags",)),))
    with pytest.raises(SchemaError, match="'uih' has no fields"):
        Sequence("uih", nested=("tags",))


def test_schema_files(tmp_path):
    (tmp_path / "job.toml").write_text(
        """
        [schema]
        [[schema.sequences]]
        name = "uih"
        fields = ["item"]
        nested = ["categories"]
        [schema.candidates]
        fields = ["candidate"]
        nested = ["shops"]
        """
    )
    schema = Schema.from_toml(tmp_path / "job.toml")
    assert schema.sequences == (Sequence("uih", ("item",), nested=("categories",)),)
    assert schema.candidates == Sequence("candidates", ("candidate",), nested=("shops",))


def test_nested_ids_of_candidates(tmp_path):
    made = {"candidate": [[1, 2], [], [3]], "shops": [[[5, 6], []], [], [[7]]]}
    pq.write_table(pa.table(made), tmp_path / "a.parquet")
    schema = Schema(candidates=Sequence("candidates", ("candidate",), nested=("shops",)))
    with loader_on(tmp_path, schema) as loader:
        (batch,) = loader
    assert batch.nested["candidates"].values().tolist() == [5, 6, 7]
    assert batch.nested["candidates"].lengths().tolist() == [2, 0, 1]
    assert batch.features.lengths().tolist() == [2, 0, 1]
