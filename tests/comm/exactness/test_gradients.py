"""Gradients that are differentiated once more, and weights that require one: as in plain TorchRec, to the bit."""

import pytest
from exact import Run, compare
from exact_configs import CONFIGS
from exact_model import Config, Table, ids_of
from exact_parts import loss_of, own_dense_gradients, steps
from test_programs import check_program
from torchrec import KeyedJaggedTensor
from worlds import shared_world

STEPS = 6
CASES = [
    *(("several", 1, False), ("called twice", 2, False), ("pooled called twice", 2, False), ("quantised", 2, False)),
    # TorchRec's own reduce-scatter of row-wise bags makes no such graph
    *(("odd tables", 2, True), ("pooled mixed", 2, True), ("quantised sums", 2, True)),
]


@pytest.mark.parametrize(("name", "size", "penalty"), CASES)
def test_backward_that_makes_a_graph(name: str, size: int, penalty: bool) -> None:
    """And with `penalty` the loss is differentiated through it."""
    config = CONFIGS[name].but(data_parallel=False)  # DDP does not exchange gradients that have a graph
    step = f"rate:{{}} next_forward backward_with_graph:{0 if penalty else 1} optimizer_step zero_grad"
    for counts, _ in check_program(size, config, " ".join(step.format(number) for number in range(STEPS))):
        assert min(counts.served.values()) >= STEPS


def with_graph_in_parts(run: Run) -> None:
    with run.enable() as comm:
        for step, parts in steps(run, comm, 3):
            with parts as of_step, own_dense_gradients(run):
                for i, part in enumerate(of_step):
                    loss_of(run, f"{step}.{i}", part).backward(create_graph=True)
            run.optimizer.step()


def test_backward_that_makes_a_graph_in_parts() -> None:
    config = CONFIGS["small"].but(data_parallel=False)
    for found, said in shared_world(2).run(compare, config, with_graph_in_parts, "fscomm", {"parts": 3}):
        assert found == []
        assert said["fallbacks"] == {}


def weights_that_require_a_gradient(run: Run) -> None:
    """Leaves, and what a layer computed; TorchRec's input dist gives neither a gradient."""
    batches = run.loader()
    for step, batch in enumerate(batches):
        for name, kjt in batch.ids.items():
            weights = kjt.weights().clone().requires_grad_()
            weights = weights * 2 if step % 3 == 2 else weights
            batch.ids[name] = KeyedJaggedTensor(
                kjt.keys(), kjt.values(), weights=weights, lengths=kjt.lengths(), stride=kjt.stride()
            )
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(batches)):
            run.train(step, batch)
            weights = ids_of(batch, "a").weights()
            run.record(f"gradient {step}", weights.grad if weights.is_leaf else None)
            run.record(f"requires it {step}", weights.requires_grad)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("sharding", ["table", "row", "column", "host"])
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.long), 2])
def test_weights_of_ids_that_require_a_gradient(pooling: str, sharding: str, size: int) -> None:
    features = ("x0", "x1")
    table = Table(name="x", rows=41, sharding=sharding, features=features, pooling=pooling, columns=16)
    config = Config(modules={"a": (table,)}, weighted=True, steps=6, host=1, even=True)
    for found, said in shared_world(size).run(compare, config, weights_that_require_a_gradient):
        assert found == []
        assert said["fallbacks"] == {}
