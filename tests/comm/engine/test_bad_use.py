"""Bad use: a clear error, or the plain path with its reason in the report; never other results."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from exact import Run, compare, differences, flat, new_run, raw_state
from exact_kinds import TWO, ids_made
from exact_loops import LOOPS
from exact_model import Batch, Config, build
from patience import PATIENCE_S
from torch import nn
from torch.distributed.distributed_c10d import _world
from worlds import shared_world

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
        ({"calls": 0}, "calls must be a number from 1 to 62, got 0"),
        ({"calls": 63}, "calls must be a number from 1 to 62, got 63"),
        ({"calls": "2"}, "calls must be a number from 1 to 62, got '2'"),
        ({"ranks_per_host": 65}, "ranks_per_host must be a number from 1 to 64, got 65"),
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


@contextlib.contextmanager
def refused(kind: type[Exception], words: str) -> Iterator[None]:
    with pytest.raises(kind, match=words):
        yield


def not_entered(rank: int, size: int) -> None:
    with refused(ValueError, "Linear holds no sharded TorchRec module: shard it first"):
        fscomm.enable(nn.Linear(2, 2)).__enter__()
    model, _ = build(CONFIG, size)
    with refused(ValueError, r"features= names towel.*embeddings\.a, embeddings\.b"):
        fscomm.enable(model, features={"towel": lambda batch: batch}).__enter__()
    block = fscomm.enable(model, timeout_s=PATIENCE_S)
    with block:
        pass
    with refused(ValueError, "make a new one"), block:
        pass


def train_all(run: Run, batches: list[Batch] | None = None) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader() if batches is None else batches)):
            run.train(step, batch)


def one_batch_refilled(rank: int, size: int) -> None:
    run = new_run(rank, size, CONFIG, "fscomm")

    def loader() -> Iterator[Batch]:
        (batch,) = run.loader(0, 1)
        for step in range(4):
            batch.weight.numpy().fill(step)
            yield batch

    with refused(ValueError, "wrote into the Batch that it gave before"):
        train_all(run, loader())


def strict_without_lookahead(rank: int, size: int) -> None:
    run = new_run(rank, size, CONFIG, "fscomm", {"strict": True})
    with refused(NotServedError, "lookahead"), run.enable():
        run.train(0, run.loader(0, 1)[0])


def backward_after_an_error(rank: int, size: int) -> None:
    """The other ranks may have lost workers, or gone elsewhere: no one knows whether they come to this backward."""
    run = new_run(rank, size, CONFIG, "fscomm")
    losses = []
    with refused(KeyError, "the user's own"), run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            losses.append(run.loss(step, batch))
            if step == 4:
                raise KeyError("the user's own")
            losses[-1].backward()
    with refused(RuntimeError, r"block that ended with an error .*the user's own.*run the forward again"):
        losses[-1].backward()


def backward_after_the_block(rank: int, size: int) -> None:
    """Through a forward that was served, and through one that ran plainly: no table changes."""
    run = new_run(rank, size, CONFIG.but(data_parallel=False), "fscomm")
    with run.enable() as comm:
        losses = [run.loss(step, batch) for step, batch in enumerate(comm.lookahead(run.loader()))]
        losses.append(run.loss(len(losses), run.loader(0, 1)[0]))
    before = flat(raw_state(run.model, run.optimizer))
    for loss in losses[-2:]:
        with refused(RuntimeError, "block that has ended: .* Call backward inside the block, or run the forward again"):
            loss.backward()
    assert differences(before, flat(raw_state(run.model, run.optimizer))) == []


def announced_wrongly(rank: int, size: int) -> None:
    """features= gives other ids than the module gets: an error on all ranks, before any table is touched."""
    run = new_run(rank, size, CONFIG, "fscomm")
    run.options["features"] = {"embeddings.b": lambda batch: other_ids(batch, 1, rank)}
    before = flat(raw_state(run.model, run.optimizer))
    with refused(AnnouncementError, r"embeddings\.b: on rank 1 features= gave other ids"):
        train_all(run)
    found = differences(before, flat(raw_state(run.model, run.optimizer)))
    assert not [line for line in found if "weights" in line]


def other_ids(batch: Batch, factor: int, more: int) -> Any:
    kjt = batch.ids["b"]
    values = (kjt.values() * factor + more) % 33
    return type(kjt)(keys=kjt.keys(), values=values, lengths=kjt.lengths(), stride=kjt.stride())


@pytest.mark.parametrize(
    "case",
    [
        not_entered,
        one_batch_refilled,
        strict_without_lookahead,
        backward_after_an_error,
        backward_after_the_block,
        announced_wrongly,
    ],
)
def test_an_error_on_every_rank(case: Callable[..., Any]) -> None:
    on_two(case)


def told_where(rank: int, size: int) -> tuple[list[str], dict[str, str]]:
    options = {"features": {"embeddings.b": lambda batch: other_ids(batch, 7, 1)}}
    found, said = compare(rank, size, CONFIG.but(builder=ids_made), LOOPS["base"], "fscomm", options)
    return found, said["fallbacks"]


def test_ids_that_the_model_makes_itself_are_served_once_features_says_how() -> None:
    assert on_two(told_where) == [([], {}), ([], {})]


def changed_model(run: Run) -> None:
    """A sharded module is replaced inside the block: the new one is not served and runs by itself.

    A second block is refused before that, and the first one goes on as if nothing had been.
    """
    with run.enable(clean=False) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step == 3 and run.mode == "fscomm":
                with refused(ValueError, r"embeddings\.a is already served"):
                    fscomm.enable(run.model, timeout_s=PATIENCE_S).__enter__()
            if step == 4:
                other, _ = build(CONFIG.but(seed=5), run.size)
                run.model.module.embeddings["b"] = other.module.embeddings["b"]
            run.train(step, batch)


def test_a_second_block_and_a_module_replaced_inside_the_block() -> None:
    for found, said in on_two(compare, CONFIG, changed_model):
        assert found == []
        assert "embeddings.a" not in said["fallbacks"]
