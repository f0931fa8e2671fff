"""What torch prints because of TorchRec stays off the user's terminal; everything else gets there."""

import subprocess
import sys

import pytest

BATCH = """
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
KeyedJaggedTensor(["a"], torch.tensor([1]), lengths=torch.tensor([1])).split([1])
"""
BEGIN = "is_fx_tracing will return true"


def errors(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize(
    "ours",
    [
        "from fsdata.batch.torchrec_binding import is_keyed_jagged_tensor, keyed_jagged_tensor\n"
        "keyed_jagged_tensor(('a',), torch.tensor([1]), torch.tensor([1]), 1)",
        "import fscomm.tables.torchrec.binding",
    ],
    ids=["fsdata", "fscomm"],
)
def test_nothing_is_printed(ours):
    said = errors(
        f"import logging, torch\n{ours}\n{BATCH}\nlogging.getLogger('torch.fx._symbolic_trace').error('other')"
    )
    assert BEGIN not in said
    assert "other" in said, "the logger is as it was"
