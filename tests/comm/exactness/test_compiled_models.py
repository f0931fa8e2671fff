"""Models that `torch.compile` compiles are served, and what they give is to the bit what the plain loop gives.

Backends `eager` and `aot_eager` run a graph by the operators of the model itself, in their order. So a compiled loop is
compared with the plain one that compiles nothing: dynamo takes half a minute for TorchRec's own forward, and fails in
it where ranks have batches of different sizes. Where both are compiled, the test is a long one.
"""

import gc
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
import tqdm
from exact import Loop, Run, check_equal, compare, plain
from exact_model import Batch, Config, Table
from layouts import without_ids
from patience import PATIENCE_S
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo import compiled_autograd
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters
from worlds import shared_world

import fscomm
from fscomm.tables.torchrec.binding import TorchRecBinding

OURS = str(Path(fscomm.__file__).parent)
CONFIG = Config(
    modules={
        "a": (Table(name="r", rows=40, sharding="row", features=("r0", "r1")),),
        "b": (Table(name="s", rows=33, sharding="table", features=("s0",), home=1),),
    },
    static_graph=False,
    even=True,
    steps=5,
)


def compiled(rank: int, size: int, config: Config, loop: Loop, *, both: bool = False) -> tuple[list[str], Any]:
    """What differs, and the report. both: the plain loop compiles, too."""
    torch._dynamo.reset()
    counters.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tqdm.tqdm, "monitor_interval", 0)  # torch counts by it: no thread shall be left
        if both:
            plain(rank, size, config, loop)
            torch._dynamo.reset()
        found, said = compare(rank, size, config, loop)
    found += [f"fscomm's {name} was compiled" for name in compiled_of_ours()]
    torch._dynamo.reset()
    return found, said["report"]["forwards"]


def compiled_of_ours() -> list[str]:
    """Functions of fscomm that dynamo has compiled, but for hooks that only call what it has not."""
    gc.unfreeze()
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    ours = {each.__code__: each for each in functions if each.__code__.co_filename.startswith(OURS)}
    return [
        each.__qualname__
        for code, each in ours.items()
        if code.co_name != "<lambda>" and _debug_get_cache_entry_list(code)
    ]


def check(size: int, loop: Loop, config: Config = CONFIG, *, unserved: int = 1, both: bool = False) -> None:
    """unserved: forwards of each module that nothing is fetched ahead for."""
    for forwards in check_equal(shared_world(size), partial(compiled, both=both), config, loop):
        assert list(forwards) == [f"embeddings.{name}" for name in config.modules]
        assert {forward["served"] for forward in forwards.values()} == {config.steps - unserved}


def train(run: Run, step: Callable[[int, Batch], None], *, clean: bool = True) -> None:
    with run.enable(clean=clean) as comm:
        for number, batch in enumerate(comm.lookahead(run.loader())):
            step(number, batch)


def look_up(run: Run, batch: Batch) -> torch.Tensor:
    """A small parent of the sharded modules: something is computed before, between and after look-ups."""
    total = batch.dense.mean()
    for name, module in run.model.module.embeddings.items():
        for jagged in module(batch.ids[name]).values():
            total = total + torch.tanh(jagged.values()).sum()
    return total * 0.5


def small_parent(run: Run) -> None:
    """Compiled before two blocks, for both of them."""
    function = partial(look_up, run)
    if run.mode == "fscomm":
        function = torch.compile(function, backend="eager", dynamic=True)
    seen = []
    for block in range(2):
        with run.enable() as comm:
            for number, batch in enumerate(comm.lookahead(run.loader())):
                found = function(batch)
                run.record(f"{block} {number}", found)
                found.backward()
        seen.append((counters["stats"]["unique_graphs"], counters["frames"]["total"]))
    assert seen[0] == seen[1]
    assert (seen[0][0] > 2) == (run.mode == "fscomm")


def test_a_parent_of_served_modules() -> None:
    check(2, small_parent)


def model(run: Run, backend: str) -> None:
    """All of it, in the place of the model from then on; compiled before the block."""
    if run.mode == "fscomm":
        run.model = torch.compile(run.model, backend=backend, dynamic=True)
    train(run, run.train)
    if run.mode == "fscomm":
        assert counters["stats"]["unique_graphs"] > 2
        run.model = run.model._orig_mod


def in_the_block(run: Run, backend: str) -> None:
    """Compiled in the block, in place."""

    def step(number: int, batch: Batch) -> None:
        if run.mode == "fscomm" and number == 1:
            run.model.module.compile(backend=backend, dynamic=True)
        run.train(number, batch)

    train(run, step, clean=False)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("loop", [model, in_the_block])
def test_whole_models(loop: Callable[..., None], backend: str) -> None:
    check(2, partial(loop, backend=backend))


def in_blocks_and_outside(run: Run) -> None:
    """Compiled once, before all."""
    run.model.module.compile(backend="eager")
    count = 0
    for _ in range(2):
        for batch in run.loader(20, 22):
            run.train(count, batch)
            count += 1
        with run.enable() as comm:
            for batch in comm.lookahead(run.loader()):
                run.train(count, batch)
                count += 1
        run.record_raw(f"after {count}")
    for batch in run.loader(20, 22):
        run.train(count, batch)
        count += 1


def whole_steps(run: Run) -> None:
    """Forward and backward in one function."""

    def step(number: int, batch: Batch) -> None:
        run.loss(number, batch).backward()

    train(run, torch.compile(step, backend="eager"))


def whole_loop(run: Run) -> None:
    def loop(batches: Any) -> None:
        for number, batch in enumerate(batches):
            run.loss(number, batch).backward()

    with run.enable() as comm:
        torch.compile(loop, backend="eager")(comm.lookahead(run.loader()))


def backward_compiled(run: Run) -> None:
    """Compiled autograd, which torch does not have together with DDP's own reducer."""
    with compiled_autograd._enable(torch.compile(backend="eager")):
        train(run, run.train)


@pytest.mark.long
@pytest.mark.parametrize("loop", [in_blocks_and_outside, whole_steps, whole_loop, backward_compiled])
def test_both_compiled(loop: Loop) -> None:
    check(1, loop, CONFIG.but(data_parallel=loop is not backward_compiled), both=True)


def tables_in_compiled_functions(run: Run, backend: str) -> None:
    """Their average over time, and weights clipped after every other step. Compiled before the block, used after it."""
    wrap = partial(torch.compile, backend=backend) if run.mode == "fscomm" else lambda function: function
    tables = [*run.tables().values()]
    averages = [table.detach().clone() for table in tables]

    @wrap
    def average() -> None:
        with torch.no_grad():
            for table, mean in zip(tables, averages, strict=True):
                mean.lerp_(table, 0.25)

    @wrap
    def clip() -> None:
        with torch.no_grad():
            for table in tables:
                table.clamp_(-0.2, 0.2)

    def step(number: int, batch: Batch) -> None:
        run.train(number, batch)
        average()
        run.record(f"averages {number}", averages)
        if number % 2:
            clip()

    average()
    train(run, step)
    clip()
    average()
    run.record("averages", averages)


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.long)])
def test_compiled_functions_look_at_tables(backend: str) -> None:
    check(2, partial(tables_in_compiled_functions, backend=backend))


def in_one_graph(run: Run) -> None:
    """Torch refuses; the loop goes on without."""
    with run.enable() as comm:
        for number, batch in enumerate(comm.lookahead(run.loader())):
            if run.mode == "fscomm" and number == 2:
                whole = torch.compile(run.model.module, backend="eager", fullgraph=True)
                with pytest.raises(Unsupported, match=r"fscomm serves it, .* Compile without fullgraph=True"):
                    whole(batch)
            run.train(number, batch)


def test_one_graph_cannot_hold_a_served_module() -> None:
    check(2, in_one_graph)


def compiled_while_ids_are_prepared(run: Run) -> None:
    """The ids of a batch that has none are sent while the training thread compiles."""
    begun, prepared = threading.Event(), threading.Event()
    prepare = TorchRecBinding.prepare

    def prepare_then(self: Any, features: Any, on_host: Any) -> Any:
        if features.values().numel():
            return prepare(self, features, on_host)
        begun.wait(PATIENCE_S)
        try:
            return prepare(self, features, on_host)
        finally:
            prepared.set()

    def slow(graph: torch.fx.GraphModule, _: Any) -> Any:
        begun.set()
        prepared.wait(PATIENCE_S)
        return graph.forward

    batches = run.loader()
    batches[3].ids = {name: without_ids(kjt) for name, kjt in batches[3].ids.items()}
    with pytest.MonkeyPatch.context() as patch, run.enable() as comm:
        patch.setattr(TorchRecBinding, "prepare", prepare_then)
        for number, batch in enumerate(comm.lookahead(batches)):
            if run.mode == "fscomm" and number == 2:
                torch.compile(lambda x: x + 1, backend=slow)(torch.ones(2))
                assert prepared.is_set()
            run.train(number, batch)


def test_ids_are_prepared_while_the_training_thread_compiles() -> None:
    config = CONFIG.but(one_kjt=True, modules={"a": CONFIG.modules["a"]})
    check(2, compiled_while_ids_are_prepared, config, unserved=2)
