"""Gradients that are differentiated once more: as in plain TorchRec, to the bit."""

import pytest
from exact_configs import CONFIGS
from test_programs import check_program

STEPS = 6


def check_graphs(name: str, size: int, *, penalty: bool) -> None:
    """Of every backward pass; with `penalty` the loss is differentiated through it."""
    config = CONFIGS[name].but(data_parallel=False)  # DDP does not exchange gradients that have a graph
    step = f"rate:{{}} next_forward backward_with_graph:{0 if penalty else 1} optimizer_step zero_grad"
    for counts, _ in check_program(size, config, " ".join(step.format(number) for number in range(STEPS))):
        assert min(counts.served.values()) >= STEPS


@pytest.mark.parametrize(
    ("name", "size", "penalty"), [("several", 1, False), ("called twice", 2, False), ("odd tables", 2, True)]
)
def test_backward_that_makes_a_graph(name: str, size: int, penalty: bool) -> None:
    check_graphs(name, size, penalty=penalty)
