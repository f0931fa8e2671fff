"""Costs and tokens of histories with nested ids."""

import data_kit as kit
from histories import ROWS, SCHEMA

from fsdata import (
    Balance,
)


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
    batches, _ = kit.load(history_folder, SCHEMA, batch_size=4, balance=balance)
    for batch in batches:
        items = batch.stats.global_items
        names = ("uih", "recent", "candidates", "categories", "tags", "shops")
        assert sum(items[name] for name in names) <= 45
        assert items["tags"] == batch.nested["uih"]["tags"].values().numel()
    assert sum(map(len, batches)) == ROWS
    assert any(batch.stats.carried for batch in batches)
    assert all(set(lengths) == {"uih", "recent", "candidates"} for lengths in cost.lengths)
