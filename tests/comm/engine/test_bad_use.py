"""Bad use: a clear error, or the plain path with its reason in the report; never other results."""

import importlib
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from exact import Run, compare, differences, flat, new_run, plain, raw_state, train
from exact_kinds import TWO, ids_made
from exact_loops import LOOPS, base
from exact_model import Batch, Config, build
from patience import PATIENCE_S
from torch import nn
from torch.distributed.distributed_c10d import _world
from worlds import World, shared_world

import fscomm
from fscomm.errors import AnnouncementError, NotServedError

CONFIG = Config(modules=TWO, static_graph=False, steps=6)


def test_no_process_group() -> None:
    with pytest.raises(ValueError, match="init_process_group"), fscomm.enable(nn.Linear(2, 2)):
        pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transport": "carrier-pigeon"}, "transport must be one of auto, gloo, nccl"),
        ({"transport": "host-staged:mpi"}, "must be one of gloo, shared-memory, got 'mpi'"),
        ({"transport": "gloo:shared-memory"}, "transport must be one of auto, gloo, nccl"),
        ({"timeout_s": 0}, "timeout_s must be positive"),
    ],
)
def test_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fscomm.enable(nn.Linear(2, 2), **options)


def on_two(case: Callable[..., Any], *args: Any) -> list[Any]:
    return shared_world(2).run(in_a_clean_rank, case, *args)


def in_a_clean_rank(rank: int, size: int, case: Callable[..., Any], *args: Any) -> Any:
    """Run `case`; whatever it raised inside, nothing of fscomm is left after it."""
    threads, groups = set(threading.enumerate()), set(_world.pg_map)
    result = case(rank, size, *args)
    left = [thread.name for thread in set(threading.enumerate()) - threads]
    assert not left, f"threads left: {left}"
    assert set(_world.pg_map) == groups, "process groups left"
    return result


def no_sharded_module(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="Linear holds no sharded TorchRec module: shard it first"):
        fscomm.enable(nn.Linear(2, 2)).__enter__()


def unknown_feature_names(rank: int, size: int) -> None:
    model, _ = build(CONFIG, size)
    with pytest.raises(ValueError, match=r"features= names towel.*embeddings\.a, embeddings\.b"):
        fscomm.enable(model, features={"towel": lambda batch: batch}).__enter__()


def entered_twice(rank: int, size: int) -> None:
    model, _ = build(CONFIG, size)
    block = fscomm.enable(model, timeout_s=PATIENCE_S)
    with block:
        pass
    with pytest.raises(ValueError, match="make a new one"), block:
        pass


def nested(rank: int, size: int) -> list[str]:
    """The second block is refused; the first one goes on as if nothing had been."""

    def loop(run: Run) -> None:
        with run.enable() as comm:
            for step, batch in enumerate(comm.lookahead(run.loader())):
                run.train(step, batch)
                if step == 3 and run.mode == "fscomm":
                    with pytest.raises(ValueError, match=r"embeddings\.a is already served"):
                        fscomm.enable(run.model, timeout_s=PATIENCE_S).__enter__()

    expected = plain(rank, size, CONFIG, base)
    return differences(expected, train(rank, size, CONFIG, loop, "fscomm").log)


def same_batch_object(rank: int, size: int) -> None:
    """A loader that fills one batch again and again."""
    run = new_run(rank, size, CONFIG, "fscomm")
    batch = run.loader(0, 1)[0]

    def loop() -> None:
        with run.enable() as comm:
            for step, again in enumerate(comm.lookahead([batch] * 4)):
                run.train(step, again)

    with pytest.raises(ValueError, match="same"):
        loop()


def announced_wrongly(rank: int, size: int) -> list[str]:
    """features= gives other ids than the module gets: an error on all ranks, before any table is touched."""
    run = new_run(rank, size, CONFIG, "fscomm")
    run.options["features"] = {"embeddings.b": wrong_on_rank_1 if rank == 1 else right}
    before = flat(raw_state(run.model, run.optimizer))

    def loop() -> None:
        with run.enable() as comm:
            for step, batch in enumerate(comm.lookahead(run.loader())):
                run.train(step, batch)

    with pytest.raises(AnnouncementError, match=r"embeddings\.b: on rank 1 features= gave other ids"):
        loop()
    return [line for line in differences(before, flat(raw_state(run.model, run.optimizer))) if "weights" in line]


def right(batch: Batch) -> Any:
    return batch.ids["b"]


def wrong_on_rank_1(batch: Batch) -> Any:
    kjt = batch.ids["b"]
    return type(kjt)(keys=kjt.keys(), values=(kjt.values() + 1) % 33, lengths=kjt.lengths(), stride=kjt.stride())


def made(batch: Batch) -> Any:
    kjt = batch.ids["b"]
    return type(kjt)(keys=kjt.keys(), values=(kjt.values() * 7 + 1) % 33, lengths=kjt.lengths(), stride=kjt.stride())


def told_where(rank: int, size: int) -> tuple[list[str], dict[str, str]]:
    """Ids that the model makes itself are served once features= says how."""
    config = CONFIG.but(builder=ids_made)
    found, said = compare(rank, size, config, LOOPS["base"], "fscomm", {"features": {"embeddings.b": made}})
    return found, said["fallbacks"]


def not_found(rank: int, size: int) -> tuple[list[str], str]:
    found, said = compare(rank, size, CONFIG.but(builder=ids_made), LOOPS["base"])
    return found, said["fallbacks"]["embeddings.b"]


def untested_version(rank: int, size: int, package: str) -> tuple[list[str], dict[str, str]]:
    with mock.patch.object(importlib.import_module(package), "__version__", "7.0"):
        model, _ = build(CONFIG, size)
        with pytest.raises(NotServedError, match=rf"{package} 7\.0 was not tested"):
            fscomm.enable(model, strict=True).__enter__()
        found, said = compare(rank, size, CONFIG, LOOPS["base"])
    return found, said["fallbacks"]


def strict_without_lookahead(rank: int, size: int) -> None:
    run = new_run(rank, size, CONFIG, "fscomm", {"strict": True})

    def loop() -> None:
        with run.enable():
            run.train(0, run.loader(0, 1)[0])

    with pytest.raises(NotServedError, match="lookahead"):
        loop()


def changed_model(rank: int, size: int) -> list[str]:
    """A sharded module is replaced inside the block: the new one is not served and runs by itself."""

    def loop(run: Run) -> None:
        block = fscomm.enable(run.model, timeout_s=PATIENCE_S) if run.mode == "fscomm" else run.enable()
        with block as comm:
            for step, batch in enumerate(comm.lookahead(run.loader())):
                if step == 4:
                    other, _ = build(CONFIG.but(seed=5), size)
                    run.model.module.embeddings["b"] = other.module.embeddings["b"]
                run.train(step, batch)

    expected = train(rank, size, CONFIG, loop, "plain").log
    return differences(expected, train(rank, size, CONFIG, loop, "fscomm").log)


def backward_after_an_error(rank: int, size: int) -> None:
    """The other ranks may have lost workers, or gone elsewhere: no one knows whether they come to this backward."""
    run = new_run(rank, size, CONFIG, "fscomm")
    losses = []

    def broken() -> None:
        with run.enable() as comm:
            for step, batch in enumerate(comm.lookahead(run.loader())):
                losses.append(run.loss(step, batch))
                if step == 4:
                    raise KeyError("the user's own")
                losses[-1].backward()

    with pytest.raises(KeyError, match="the user's own"):
        broken()
    with pytest.raises(RuntimeError, match=r"block that ended with an error .*the user's own.*run the forward again"):
        losses[-1].backward()


@pytest.mark.parametrize(
    "case",
    [
        backward_after_an_error,
        no_sharded_module,
        unknown_feature_names,
        entered_twice,
        same_batch_object,
        strict_without_lookahead,
    ],
)
def test_an_error_on_every_rank(case: Callable[..., Any]) -> None:
    on_two(case)


def test_nested_blocks() -> None:
    assert on_two(nested) == [[], []]


def test_wrong_features_touch_no_table() -> None:
    assert on_two(announced_wrongly) == [[], []]


def test_features_by_function() -> None:
    assert on_two(told_where) == [([], {}), ([], {})]


def test_features_that_are_nowhere() -> None:
    for found, reason in on_two(not_found):
        assert found == []
        assert "not found in the batch (Batch)" in reason
        assert "features={'embeddings.b': lambda batch: ...}" in reason


@pytest.mark.parametrize("package", ["torchrec", pytest.param("fbgemm_gpu", marks=pytest.mark.long)])
def test_an_untested_version(package: str) -> None:
    for found, fallbacks in on_two(untested_version, package):
        assert found == []
        assert fallbacks.keys() == {"embeddings.a", "embeddings.b"}
        assert all(f"{package} 7.0 was not tested" in reason for reason in fallbacks.values())


def test_a_module_replaced_inside_the_block() -> None:
    assert on_two(changed_model) == [[], []]


def group_gone(rank: int, size: int) -> str:
    model, _ = build(CONFIG, size)
    torch.distributed.destroy_process_group()
    with pytest.raises(ValueError, match="init_process_group") as caught:
        fscomm.enable(model).__enter__()
    return str(caught.value)


@pytest.mark.long
def test_process_group_destroyed() -> None:
    world = World(1)
    try:
        assert "torch.distributed" in world.run(group_gone)[0]
    finally:
        world.kill()
