"""Batches with and without TorchRec."""

import sys

import pytest
import torch
from data_kit import load
from rank_loaders import torchrec_is

from fsdata import Schema, Sequence
from fsdata.batch.torchrec_binding import keyed_jagged_tensor


def test_jagged_tensors_of_one_sequence_go_together(history_folder) -> None:
    """Torch adds such tensors up only if they have the same offsets, not equal ones."""
    schema = Schema(context=("row",), sequences=[Sequence("uih", ("item", "next_item"))])
    with torchrec_is(None):
        batches = load(history_folder, schema, batch_size=9)[0]
    for batch in batches:
        for features in (batch.features, batch.to("cpu").features):
            both = features["item"] + features["next_item"]
            assert torch.equal(both.values(), features["item"].values() + features["next_item"].values())


def test_torchrec_that_is_broken(tmp_path, monkeypatch) -> None:
    (tmp_path / "torchrec.py").write_text("import a_library_that_is_not_there")
    broken = r"the installed torchrec cannot be imported .No module named 'a_library"
    with torchrec_is(None):
        monkeypatch.delitem(sys.modules, "torchrec")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ImportError, match=broken):
            keyed_jagged_tensor(("a",), torch.arange(1), torch.ones(1, dtype=torch.int64), 1)
        monkeypatch.undo()
