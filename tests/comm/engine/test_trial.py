"""What fscomm relies on in TorchRec and fbgemm is looked up and tried before anything is served."""

import contextlib
import functools
import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torchrec
from exact import compare, new_run
from exact_configs import CONFIGS
from exact_loops import LOOPS
from exact_managed import hash_zch, managed, mch
from exact_model import Config, build, ids_of
from patience import PATIENCE_S
from test_maps import TABLES
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from worlds import shared_world

import fscomm
from fscomm.errors import MismatchError
from fscomm.managed.maps import MapsAhead
from fscomm.tables.shadow_kernels import Shadow
from fscomm.tables.torchrec import binding, module_view, requirements, sharded
from fscomm.tables.torchrec.binding import TorchRecBinding
from fscomm.tables.torchrec.requirements import Requirement
from fscomm.verify import passed_trials, trial
from fscomm.verify.trial_modules import trial_of

ROWS, BAGS = "ShardedEmbeddingCollection", "ShardedEmbeddingBagCollection"
CONFIG = CONFIGS["pooled mixed"].but(steps=3)  # a: bags, b: rows
BOTH = {"embeddings.a": BAGS, "embeddings.b": ROWS}


@contextlib.contextmanager
def no_trial_yet() -> Iterator[None]:
    """As in a new process, on a machine that has not seen these versions."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "_results", {})
        patch.setattr(passed_trials, "_path", lambda: Path(folder) / passed_trials.FILE)
        yield


def with_another_library(
    rank: int, size: int, change: str, on_ranks: tuple[int, ...], config: Config = CONFIG
) -> tuple[list[str], Any]:
    """What differs from the plain run, and why modules run plainly, if the library had another `change`."""
    with no_trial_yet(), pytest.MonkeyPatch.context() as patch:
        if rank in on_ranks:
            owner, name, changed, _ = (CHANGES | CHANGES_OF_MAPS)[change]
            patch.setattr(owner, name, changed(getattr(owner, name)))
        found, said = compare(rank, size, config, LOOPS["base"])
        return found, said["fallbacks"]


def twice(update: Any) -> Any:
    def updated(self: Shadow, hyper: Any, *rest: Any, **options: Any) -> None:
        update(self, replace(hyper, learning_rate=2 * hyper.learning_rate), *rest, **options)

    return updated


def raising(_: Any) -> Any:
    return mock.Mock(side_effect=TypeError("compute_and_output_dist() got an unexpected argument"))


def more(name: str) -> Callable[[Any], Any]:
    return lambda required: (*required, Requirement(name))


OF_TORCHREC = f"{{kind}} of torchrec {torchrec.__version__}"
CHANGES: dict[str, tuple[Any, str, Callable[[Any], Any], str]] = {  # what becomes another one, and what is said of it
    "more is given": (
        module_view,
        "_give",
        lambda give: lambda rows, features: give(rows, features) + rows.detach() * 2e-7,
        "in a trial of {kind} it gave other embeddings than without fscomm",
    ),
    "more is learned": (
        Shadow,
        "update",
        twice,
        "in a trial of {kind} its tables were updated otherwise than without fscomm",
    ),
    "it raises": (
        binding,
        "output",
        raising,
        "a trial of {kind} failed: TypeError: compute_and_output_dist() got an unexpected argument",
    ),
    "kernels have less": (requirements, "KERNEL", more("momentum_of_old"), "has no momentum_of_old"),
    "modules have less": (requirements, "MODULE", more("_of_old"), f"{OF_TORCHREC} has no _of_old"),
    "methods take more": (
        requirements,
        "ARGUMENTS",
        lambda known: {**known, "input_dist": 1},
        f"input_dist of {OF_TORCHREC} takes ",
    ),
    "features go elsewhere": (sharded, "runs", lambda _: lambda sharding: ((1,),), "sends ["),
}
IN_A_TRIAL = "in a trial of {kind} it"
CHANGES_OF_MAPS = {
    "rows are not evicted": (MapsAhead, "evict", lambda _: lambda self, record: None, IN_A_TRIAL),
    "maps remap otherwise": (MapsAhead, "_remap", lambda remap: lambda *args: remap(*args) // 2, IN_A_TRIAL),
    "more is given": CHANGES["more is given"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_library_that_works_otherwise_is_not_served(change: str) -> None:
    """The training is that without fscomm all the same."""
    for found, fallbacks in shared_world(2).run(with_another_library, change, (0, 1)):
        assert found == []
        assert fallbacks.keys() == BOTH.keys()
        for name, kind in BOTH.items():
            assert CHANGES[change][-1].format(kind=kind) in fallbacks[name]


MANAGED = Config(modules={"b": TABLES}, static_graph=False, steps=4, builder=managed({"h": hash_zch, "m": mch}))
KIND = "managed collision by HashZchManagedCollisionModule and MCHManagedCollisionModule"


@pytest.mark.parametrize("change", CHANGES_OF_MAPS)
def test_maps_that_work_otherwise_are_not_served(change: str) -> None:
    for found, fallbacks in shared_world(2).run(with_another_library, change, (0, 1), MANAGED):
        assert found == []
        assert CHANGES_OF_MAPS[change][-1].format(kind=KIND) in fallbacks["embeddings.b"]


def without_a_module(rank: int, size: int, on_ranks: tuple[int, ...]) -> tuple[list[str], Any]:
    """As `with_another_library`, if torchrec had not a module that fscomm imports."""
    config = CONFIG.but(steps=2)
    run = {"features": {"embeddings.a": lambda batch: batch.ids["a"]}}
    with pytest.MonkeyPatch.context() as patch:
        if rank in on_ranks:
            for name in [name for name in sys.modules if name.startswith(("fscomm.tables.torchrec", "fscomm.verify"))]:
                patch.delitem(sys.modules, name)
            patch.delattr(fscomm.tables, "torchrec")
            patch.setitem(sys.modules, "torchrec.distributed.comm_ops", None)
        found, said = compare(rank, size, config, LOOPS["base"], options=run)
        return found, said["fallbacks"]


LACKS = f"torchrec {torchrec.__version__} has not what this fscomm needs: "


def test_a_library_that_lacks_a_module() -> None:
    for found, fallbacks in shared_world(2).run(without_a_module, (0, 1)):
        assert found == []
        assert fallbacks.keys() == BOTH.keys()
        for why in fallbacks.values():
            assert LACKS in why
            assert "comm_ops" in why


def refused_without_a_module(rank: int, size: int) -> str:
    with pytest.raises(MismatchError) as refused:
        without_a_module(rank, size, (1,))
    return str(refused.value)


def test_one_rank_alone_has_a_library_that_lacks_a_module() -> None:
    for said in shared_world(2).run(refused_without_a_module):
        assert "torchrec" in said
        assert LACKS in said


def test_one_rank_alone_fails_in_its_trial() -> None:
    """The other one does not wait for it, and ranks that take no part are told."""
    for found, fallbacks in shared_world(3).run(with_another_library, "it raises", (1,)):
        assert found == []
        assert fallbacks.keys() == BOTH.keys()
        assert "a trial of" in fallbacks["embeddings.a"]


def trials(rank: int, size: int, config: Config) -> tuple[list[str], list[str]]:
    """The kinds that were tried in a first block, and those in a second one."""
    made: list[str] = []
    problem = trial._problem
    with no_trial_yet(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "_problem", lambda *args: made.append(args[0].kind) or problem(*args))
        model, _ = build(config, size)
        random = torch.random.get_rng_state()
        for _ in range(2):
            before = list(made)
            with torch.inference_mode(), torch.autocast("cpu"), fscomm.enable(model, strict=True, timeout_s=PATIENCE_S):
                pass
        assert torch.equal(torch.random.get_rng_state(), random)
    return before, made[len(before) :]


def test_there_is_one_trial_of_a_kind_in_a_process() -> None:
    """It draws no random numbers of the program."""
    for config, kinds in ((CONFIG, [BAGS, ROWS]), (MANAGED, [KIND])):
        ((first, second),) = shared_world(1).run(trials, config)
        assert (sorted(first), second) == (kinds, [])


def tried_after_a_lost_rank(rank: int, size: int) -> list[str]:
    """The kinds that were tried again."""
    made: list[str] = []
    problem = trial._problem
    with no_trial_yet(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "_results", {ROWS: f"{trial._LOST}: connection closed", BAGS: None})
        patch.setattr(trial, "_problem", lambda *args: made.append(args[0].kind) or problem(*args))
        model, _ = build(CONFIG, size)
        with fscomm.enable(model, strict=True, timeout_s=PATIENCE_S):
            return made


def test_a_trial_that_lost_a_rank_is_made_again() -> None:
    assert shared_world(2).run(tried_after_a_lost_rank) == [[ROWS]] * 2


def kinds_tried(model: Any, *, patches: Sequence[tuple[Any, str, Any]] = ()) -> list[str]:
    """In a block of a new process on the same machine."""
    made: list[str] = []
    problem = trial._problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "_results", {})
        patch.setattr(trial, "_problem", lambda *args: made.append(args[0].kind) or problem(*args))
        for owner, name, value in patches:
            patch.setattr(owner, name, value)
        with fscomm.enable(model, timeout_s=PATIENCE_S):
            return sorted(made)


def replaced_method() -> Any:
    """As by a library that logs calls; by all that it says of itself, it is the one that it replaces."""
    own = ShardedEmbeddingCollection.input_dist
    return functools.wraps(own)(lambda self, *args: own(self, *args))


def in_new_processes(rank: int, size: int) -> list[list[str]]:
    """The kinds that are tried in one process after another."""
    model, _ = build(CONFIG, size)
    with no_trial_yet():
        path = passed_trials._path()
        found = [kinds_tried(model), kinds_tried(model)]
        found.append(kinds_tried(model, patches=[(torchrec, "__version__", "7.0")]))
        found.append(kinds_tried(model))  # the file has the results of that version now
        found.append(kinds_tried(model, patches=[(ShardedEmbeddingCollection, "input_dist", replaced_method())]))
        for damaged in (
            "",
            "[]",
            "{",
            '{"versions": 1}',
            json.dumps({"versions": passed_trials.versions(), "passed": 3}),
        ):
            path.write_text(damaged)
            found.append(kinds_tried(model))
        path.unlink()
        path.mkdir()  # it cannot be read, nor written
        return [*found, kinds_tried(model)]


def test_a_trial_that_passed_is_not_repeated_in_a_later_process_with_the_same_versions() -> None:
    for found in shared_world(2).run(in_new_processes):
        assert found == [[BAGS, ROWS], [], *[[BAGS, ROWS]] * 9]


def only_on_one_rank(rank: int, size: int) -> list[str]:
    with no_trial_yet():
        model, _ = build(CONFIG, size)
        if rank == 1:
            bags = next(each for each in model.modules() if isinstance(each, ShardedEmbeddingBagCollection))
            passed_trials.add([trial_of(bags)], {"ranks": 2, "cuda": torch.cuda.is_available()})
        return kinds_tried(model)


def test_a_trial_that_passed_on_some_hosts_is_repeated_on_all() -> None:
    assert shared_world(2).run(only_on_one_rank) == [[BAGS, ROWS]] * 2


def failed_and_again(rank: int, size: int) -> list[list[str]]:
    with no_trial_yet():
        model, _ = build(CONFIG, size)
        failing = kinds_tried(model, patches=[(binding, "output", raising(None))])
        return [failing, kinds_tried(model)]


def test_a_trial_that_failed_is_repeated_in_a_later_process() -> None:
    assert shared_world(2).run(failed_and_again) == [[[BAGS, ROWS]] * 2] * 2


def made_before_they_are_prepared(rank: int, size: int) -> list[bool]:
    """Whether TorchRec had made the input dists when the ids worker prepared a batch, of which no forward knew yet."""
    made: list[bool] = []
    prepare = TorchRecBinding.prepare

    def noted(self: TorchRecBinding, *features: Any) -> Any:
        made.append(not self.module._has_uninitialized_input_dist)
        return prepare(self, *features)

    run = new_run(rank, size, CONFIG, "fscomm")
    features = {f"embeddings.{name}": partial(ids_of, module=name) for name in CONFIG.modules}
    run.options = {"features": features}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchRecBinding, "prepare", noted)
        LOOPS["base"](run)
    return made


def test_input_dists_are_made_by_the_training_thread() -> None:
    """The worker would make them beside a forward, and there would be two of each."""
    for made in shared_world(2).run(made_before_they_are_prepared):
        assert len(made) >= CONFIG.steps
        assert all(made)


def collected_in_forks(rank: int, size: int) -> list[int]:
    """How processes end that are forked in a block and after it, and collect what is garbage there."""
    with no_trial_yet():
        gc.disable()
        try:
            model, _ = build(CONFIG, size)
            with fscomm.enable(model, strict=True, timeout_s=PATIENCE_S):
                inside = forked()
            return [inside, forked()]
        finally:
            gc.enable()


def forked() -> int:
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def test_nothing_is_left_that_ends_a_forked_process() -> None:
    """As a worker of torch's DataLoader is one."""
    assert shared_world(2).run(collected_in_forks) == [[0, 0]] * 2


def other_version(rank: int, size: int) -> str:
    model, _ = build(CONFIG, size)
    with mock.patch.object(torchrec, "__version__", f"7.{rank}"), pytest.raises(MismatchError) as refused:
        fscomm.enable(model, timeout_s=PATIENCE_S).__enter__()
    return str(refused.value)


def test_ranks_with_other_versions() -> None:
    for said in shared_world(2).run(other_version):
        assert "torchrec" in said
        assert "7.0" in said
        assert "7.1" in said
