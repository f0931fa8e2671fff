"""fscomm with tables on CUDA is bitwise the plain loop: two processes on one device, without torchrec and fbgemm."""

import pytest
import torch
from standin_loops import LOOPS, OPTIMIZERS, compare
from worlds import World

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("transport", ["host-staged", "copy-engine"])
def test_bitwise_the_plain_loop(transport: str) -> None:
    """copy-engine may say that it cannot serve ranks that share a device: then that is the finding."""
    with World(2) as world:
        for optimizer in OPTIMIZERS:
            for loop in LOOPS:
                answers = world.run(compare, loop, optimizer, transport, "cuda:0", timeout_s=60)
                if transport == "copy-engine" and not any(served for _, served in answers):
                    pytest.skip("copy-engine serves nothing here: its reason is in the log above")
                for rank, (found, served) in enumerate(answers):
                    assert found == [], f"rank {rank}, {loop}, {optimizer}"
                    assert served > 0.2, f"rank {rank}, {loop}, {optimizer}"
