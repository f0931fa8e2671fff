"""Exactness of what extensions serve: pooled vectors, quantised communication, rows in two levels, other transports."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from exact import Run, check_equal, compare, new_run
from exact_configs import CONFIGS, configs
from exact_loops import LOOPS
from exact_model import Config, Table, ids_of
from hypothesis import given
from hypothesis import strategies as st
from test_exact import check, check_model
from test_gradients import check_graphs
from torchrec import KeyedJaggedTensor
from usual_programs import USUAL
from worlds import World, shared_world

from fscomm.exchange.executor import Threads
from fscomm.exchange.operations import Class, Due, Kind, Operation
from fscomm.report.report import WARM_UP

TRANSPORTS = ("gloo", "copy-engine", "host-staged")
MODELS = [  # each transport, and chunks
    ("several", 2, "copy-engine", None),
    ("one KJT", 2, "host-staged", 3),
    ("pooled mixed", 2, "host-staged", None),
    ("pooled hosts", 2, "gloo", 2),
    ("pooled weighted", 3, "gloo", None),  # sums of three depend on their order
    ("pooled called twice", 2, "copy-engine", None),
    ("quantised", 2, "gloo", None),
    ("quantised sums", 2, "gloo", None),
    ("quantised in groups", 2, "gloo", None),
]


@pytest.mark.parametrize(("name", "size", "transport", "chunk_rows"), MODELS)
def test_models(name: str, size: int, transport: str, chunk_rows: int | None) -> None:
    check_model(name, size, chunk_rows, transport)


@pytest.mark.parametrize(
    ("name", "transport", "chunk_rows"),
    [("several", "copy-engine", None), ("one KJT", "host-staged", 3), ("pooled mixed", "gloo", None)],
)
def test_models_on_a_device(name: str, transport: str, chunk_rows: int | None) -> None:
    for said in check(shared_world(2), CONFIGS[name], "base", chunk_rows, transport=transport, ahead=True):
        assert said["fallbacks"] == {}


def unordered(rank: int, size: int) -> tuple[int, list[int]]:
    """How many updates of exclusive rows there were, and the steps in which one does not wait for that of the collision
    rows: gradients of bags that hold both travel with those."""
    submit, updates, exclusive, early = Threads.submit, dict[int, Any](), 0, list[int]()

    def submitted(
        self: Threads, operations: Sequence[Operation], due: Due = Due.BACKGROUND, **options: Any
    ) -> list[Any]:
        nonlocal exclusive
        done = submit(self, operations, due, **options)
        for operation, pending in zip(operations, done, strict=True):
            if operation.kind is Kind.UPDATE and operation.of_class is Class.COLLISION:
                updates[id(operation.gradients)] = pending
            elif operation.kind is Kind.UPDATE and operation.gradients is not None:
                exclusive += 1
                early.extend([operation.gradients.number] * (updates[id(operation.gradients)] not in operation.after))
        return done

    mixed = CONFIGS["pooled mixed"]
    run = new_run(rank, size, mixed.but(modules={"a": mixed.modules["a"]}), "fscomm")
    with mock.patch.object(Threads, "submit", submitted):
        LOOPS["base"](run)
    return exclusive, early


def test_exclusive_rows_of_bags_wait_for_gradients_of_the_collision_class() -> None:
    for updates, early in shared_world(2).run(unordered):
        assert updates > 4
        assert early == []


@pytest.mark.parametrize(("dedup", "transport"), [(False, "gloo"), (True, "copy-engine")])
def test_groups_that_run_plainly_inside_a_served_forward(dedup: bool, transport: str) -> None:
    """Of a module that has tables which cannot be served the others are: nine tenths of the ids of this model."""
    plainly = {"embeddings.a (table_wise)": "fills its cache ahead", "embeddings.b (data_parallel)": "data_parallel"}
    served = {"embeddings.a (row_wise)", "embeddings.a (column_wise)"}
    served |= {"embeddings.b (row_wise)", "embeddings.b (table_wise)"}
    config = CONFIGS["planned"].but(dedup=dedup)
    for said in check(shared_world(2), config, "base", transport=transport):
        assert said["fallbacks"].keys() == plainly.keys()
        forwards = said["report"]["forwards"]
        assert forwards.keys() == plainly.keys() | served
        for name, each in forwards.items():
            assert each["ids"] + each["plain_ids"] > 0
            assert each["served"] == (0 if name in plainly else config.steps - 1)
            assert all(plainly.get(name, WARM_UP) in why for why in each["plain"])
        ids = sum(each["ids"] for each in forwards.values())
        assert ids >= 0.9 * (ids + sum(forwards[name]["plain_ids"] for name in plainly))


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("loop", [*LOOPS, *USUAL])
def test_loops_beside_groups_that_run_plainly(loop: str, size: int) -> None:
    planned = CONFIGS["planned"]
    check(shared_world(size), planned.but(modules={"a": planned.modules["a"]}), loop)


@pytest.mark.long
@pytest.mark.timeout(7200)
@given(
    size=st.integers(1, 4),
    config=configs(),
    loop=st.sampled_from(sorted([*LOOPS, *USUAL])),
    transport=st.sampled_from(TRANSPORTS),
    per_host=st.sampled_from([1, 2]),
    chunk_rows=st.sampled_from([None, None, 2, 3]),
)
def test_many_random_models_and_loops(
    size: int, config: Config, loop: str, transport: str, per_host: int, chunk_rows: int | None
) -> None:
    per_host = per_host if size % 2 == 0 else 1
    check(shared_world(size), config, loop, chunk_rows, transport=transport, ranks_per_host=per_host)


PASSED_ON = {"exclusive rows, in host", "collision rows, in host"}


@pytest.mark.long
def test_hosts_of_three_ranks() -> None:
    """A division by three and three is not one by nine. Rows come to a host once, and are passed on there."""
    with World(9) as world:
        check(world, CONFIGS["pooled hosts"].but(host=3, max_batch=16), "base")
        for said in check(world, CONFIGS["several"], "base", ranks_per_host=3):
            moved = [by_kind for step in said["report"]["steps"] for by_kind in step["bytes"].values()]
            assert {kind for of_step in moved for kind in PASSED_ON if of_step[kind]["sent"]} == PASSED_ON


@pytest.mark.parametrize(
    ("name", "penalty"),
    [
        *(("pooled called twice", False), ("quantised", False)),
        *(("pooled mixed", True), ("quantised sums", True)),  # TorchRec's own reduce-scatter makes no such graph
    ],
)
def test_backward_that_makes_a_graph(name: str, penalty: bool) -> None:
    check_graphs(name, 2, penalty=penalty)


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
    for said in check_equal(shared_world(size), compare, config, weights_that_require_a_gradient):
        assert said["fallbacks"] == {}
