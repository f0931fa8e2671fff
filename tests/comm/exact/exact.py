"""Run a training loop with and without fscomm and say by name which tensors differ. Nothing here is approximate.

`compare(rank, size, config, loop)` is a case for `shared_world(n).run`: it trains the same model twice on every rank
and returns the names of everything that is not bitwise equal (`torch.equal`): outputs of every step, whatever the loop
recorded, tables, optimizer state and counters in the lookups' own memory, dense weights and their optimizer state.
"""

import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from exact_model import DEVICE, ON_CPU, RATE, Batch, Config, batches, build
from patience import PATIENCE_S
from torch.distributed.distributed_c10d import _world
from torch.distributed.tensor import DTensor
from torchrec.distributed.shards_wrapper import LocalShardsWrapper

import fscomm

Mode = Literal["plain", "fscomm"]


class PlainComm:
    """What a loop gets where fscomm is off."""

    unconsumed = None

    def lookahead(self, loader: Iterable[Batch], device: torch.device | None = None, **options: Any) -> Iterator[Batch]:
        return iter(loader) if device is None else (batch.to(device) for batch in loader)

    def flush(self) -> None:
        pass


@dataclass(slots=True)
class Run:
    """One training run: the loops use it as a user would use model, optimizer and loader."""

    config: Config
    rank: int
    size: int
    mode: Mode
    model: Any
    optimizer: Any
    log: dict[str, Any] = field(default_factory=dict)
    reports: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def enable(self, *, clean: bool = True) -> Iterator[Any]:
        """clean: at the end the model is as it was; else what others left at it stays."""
        if self.mode == "plain":
            yield PlainComm()
            return
        before = attachments(self.model, self.optimizer)
        options = {"calls": self.config.calls, "timeout_s": PATIENCE_S, **self.options}
        with fscomm.enable(self.model, **options) as comm:
            try:
                yield comm
            finally:
                self.reports.append(comm)
        after = attachments(self.model, self.optimizer) if clean else before
        left = [
            f"{name}: {before.get(name)} -> {after.get(name)}"
            for name in before | after
            if before.get(name) != after.get(name)
        ]
        assert not left, f"left behind by the block: {left}"

    @property
    def ddp(self) -> Any:
        """The wrapper that averages dense gradients."""
        return self.model._dmp_wrapped_module

    def tables(self) -> dict[str, torch.Tensor]:
        """The parameters of the sharded modules that this rank has a part of."""
        if self.config.cached:
            self.model.state_dict()  # TorchRec writes caches back before it
        found = self.model.named_parameters()
        return {name: each for name, each in found if name.startswith("embeddings.") and each.numel()}

    @property
    def steps(self) -> int:
        return self.config.steps

    def loader(self, start: int = 0, stop: int | None = None) -> list[Batch]:
        return batches(self.config, self.rank, self.size, start, self.config.steps if stop is None else stop)

    def batch(self, step: int) -> Batch:
        """One of the loader's, where the model is."""
        (batch,) = self.loader(step, step + 1)
        return batch if ON_CPU else batch.to(DEVICE)

    def train(self, step: int, batch: Batch) -> None:
        self.set_rate(step)
        self.optimizer.zero_grad()
        self.loss(step, batch).backward()
        self.optimizer.step()

    def train_all(self, batches: list[Batch] | None = None) -> None:
        """In one block, on these or on the loader's."""
        with self.enable() as comm:
            for step, batch in enumerate(comm.lookahead(self.loader() if batches is None else batches)):
                self.train(step, batch)

    def set_rate(self, step: int) -> None:
        """Another learning rate at every step, through the optimizer, as a scheduler does."""
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * group.setdefault("scale", group["lr"] / RATE) * (1 + (step * 7 % 5) / 4)

    def loss(self, step: int | str, batch: Batch) -> torch.Tensor:
        output = self.model(batch)
        self.record(f"output {step}", output)
        return ((output - batch.target) ** 2 * batch.weight).mean()

    def record(self, name: str, value: Any) -> None:
        assert name not in self.log, name
        self.log[name] = flat(value)

    def record_raw(self, name: str) -> None:
        self.record(name, raw_state(self.model, self.optimizer))


Loop = Callable[[Run], None]


def raw_state(model: Any, optimizer: Any) -> dict[str, Any]:
    """The lookups' own memory, read without asking any state_dict; dense weights and their optimizer's state."""
    state: dict[str, Any] = {}
    for path, lookup, tbe in lookups(model):
        name = f"{path}[{lookup}]"
        tbe.flush()  # what it holds in a cache
        state[f"{name} weights"] = list(tbe.split_embedding_weights())
        state[f"{name} optimizer"] = [list(part) for part in tbe.split_optimizer_states()]
        state[f"{name} iter"] = [int(getattr(tbe, key)) for key in ("iter", "iter_cpu") if hasattr(tbe, key)]
        state[f"{name} rate"] = float(tbe.get_learning_rate())
    for path, module in model.module.named_modules():
        if hasattr(module, "_managed_collision_modules"):
            state[f"{path} maps"] = maps_of(module._managed_collision_modules)
        for number, kjt in enumerate(getattr(module, "remapped", ())):
            state[f"{path} remapped {number}"] = None if kjt is None else [kjt.keys(), kjt.values(), kjt.lengths()]
    for name, parameter in model.module.named_parameters():
        if not name.startswith("embeddings."):
            state[f"dense {name}"] = parameter.detach()
    for name, keyed in optimizer.optimizers:
        if name == "dense":
            state["dense optimizer"] = {key: dict(value) for key, value in keyed.state_dict()["state"].items()}
    return state


def maps_of(maps: Any) -> dict[str, Any]:
    """All that training changes in maps by table."""
    found: dict[str, Any] = {}
    for table, each in maps.items():
        found |= {f"{table}.{name}": tensor.clone() for name, tensor in each.named_buffers() if "history" not in name}
        if hasattr(each, "_current_history_buffer_offset"):
            found[f"{table} numbers"] = [each._current_iter, each._last_eviction_iter, each._input_history_buffer_size]
            end = each._current_history_buffer_offset
            if each._input_history_buffer_size != -1:
                history = [each._history_accumulator, *each._history_metadata.values()]
                found |= {f"{table} history {i}": part[:end].clone() for i, part in enumerate(history)}
    return found


def parts_of(optimizer: Any) -> list[Any]:
    """The optimizers that others are combined of."""
    combined = getattr(optimizer, "optimizers", None)
    return [optimizer] if combined is None else [each for _, part in combined for each in parts_of(part)]


def lookups(model: Any) -> Iterator[tuple[str, str, Any]]:
    """Every table-batched lookup of the model: path of its module, place in it, the operator itself."""
    for path, module in model.module.named_modules():
        for number, lookup in enumerate(getattr(module, "_lookups", ())):
            for place, kernel in enumerate(getattr(lookup, "_emb_modules", ())):
                if hasattr(kernel, "_emb_module"):
                    yield path, f"{number}.{place}", kernel._emb_module


def flat(value: Any) -> Any:
    """A copy of `value` with sharded tensors taken apart into what this rank holds."""
    if isinstance(value, DTensor):
        return flat(value.to_local())
    if isinstance(value, LocalShardsWrapper):
        return [flat(shard) for shard in value.local_shards()]
    if hasattr(value, "local_shards"):
        return [[flat(shard.tensor), str(shard.metadata)] for shard in value.local_shards()]
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {str(key): flat(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [flat(item) for item in value]
    return value


def differences(plain: Any, other: Any, name: str = "") -> list[str]:
    """Names of the leaves that are not the same to the bit."""
    if isinstance(plain, dict) and isinstance(other, dict):
        only = [f"{name}/{key}: on one side only" for key in plain.keys() ^ other.keys()]
        return only + [
            line for key in plain if key in other for line in differences(plain[key], other[key], f"{name}/{key}")
        ]
    if isinstance(plain, list) and isinstance(other, list) and len(plain) == len(other):
        return [
            line
            for key, pair in enumerate(zip(plain, other, strict=True))
            for line in differences(*pair, f"{name}/{key}")
        ]
    if isinstance(plain, torch.Tensor) and isinstance(other, torch.Tensor):
        if plain.shape == other.shape and plain.dtype == other.dtype and torch.equal(plain, other):
            return []
        if plain.shape != other.shape or plain.dtype != other.dtype:
            return [f"{name}: {plain.dtype} {tuple(plain.shape)} against {other.dtype} {tuple(other.shape)}"]
        wrong = plain != other
        return [
            f"{name}: {int(wrong.sum())} of {wrong.numel()} differ, by up to {float((plain - other).abs().max()):.3g}"
        ]
    return [] if type(plain) is type(other) and plain == other else [f"{name}: {plain} against {other}"]


def train(rank: int, size: int, config: Config, loop: Loop, mode: Mode, options: dict[str, Any] | None = None) -> Run:
    """One whole run; `log` of the result holds everything there is to compare."""
    run = new_run(rank, size, config, mode, options)
    threads, groups = set(threading.enumerate()), set(_world.pg_map)
    loop(run)
    run.record_raw("end")
    run.record("model.state_dict", run.model.state_dict())
    run.record("optimizer.state_dict", run.optimizer.state_dict())
    left = [thread.name for thread in set(threading.enumerate()) - threads]
    assert not left, f"threads left: {left}"
    assert set(_world.pg_map) == groups, "process groups left"
    return run


def new_run(rank: int, size: int, config: Config, mode: Mode, options: dict[str, Any] | None = None) -> Run:
    """A new model and all that a loop needs to train it."""
    model, optimizer = build(config, size)
    return Run(config=config, rank=rank, size=size, mode=mode, model=model, optimizer=optimizer, options=options or {})


@functools.lru_cache(maxsize=64)
def _plain(rank: int, size: int, key: str, loop: Loop) -> dict[str, Any]:
    return train(rank, size, _configs[key], loop, "plain").log


_configs: dict[str, Config] = {}


def plain(rank: int, size: int, config: Config, loop: Loop) -> dict[str, Any]:
    """The log of the plain run; a rank keeps it."""
    _configs[repr(config)] = config
    return _plain(rank, size, repr(config), loop)


def compare(
    rank: int, size: int, config: Config, loop: Loop, mode: Mode = "fscomm", options: dict[str, Any] | None = None
) -> tuple[list[str], dict[str, Any]]:
    """What differs on this rank between the plain run and the run in `mode`, and what fscomm said of itself."""
    expected = plain(rank, size, config, loop)
    run = train(rank, size, config, loop, mode, options)
    said: dict[str, Any] = {}
    if run.reports:
        report = run.reports[-1].report()
        said = {"fallbacks": dict(report.fallbacks), "report": report.to_dict()}
    found = differences(expected, run.log)
    del run
    gc.collect()
    gc.freeze()  # what stays is not walked over again: imported modules first of all, half the time of a short run
    dist.barrier()
    return found, said


def check_equal(world: Any, case: Callable[..., Any], *args: Any) -> list[Any]:
    """Nothing differs where a `World` runs `case`: `compare`, or what gives the same. What fscomm said of itself, by
    rank."""
    answers = world.run(case, *args)
    for rank, (found, _) in enumerate(answers):
        assert found == [], f"rank {rank} of {world.size}, {args}"
    return [said for _, said in answers]


def attachments(model: Any, optimizer: Any) -> dict[str, Any]:
    """Hooks and callables on instances of the model and its optimizers: what a block has to put back."""
    found: dict[str, Any] = {}
    owners = [(f"model.{name}", module) for name, module in model.named_modules()]
    owners += [("optimizer", optimizer), *((f"optimizer.{name}", part) for name, part in optimizer.optimizers)]
    owners += [(f"fused.{name}", part) for name, part in model.fused_optimizer.optimizers]
    for name, owner in owners:
        for key, value in vars(owner).items():
            if callable(value) and not isinstance(value, torch.nn.Module):
                found[f"{name}.{key}"] = id(getattr(value, "__func__", value))
            elif key.endswith("hooks") and isinstance(value, dict):
                found[f"{name}.{key}"] = [id(hook) for hook in value.values()]
    return found
