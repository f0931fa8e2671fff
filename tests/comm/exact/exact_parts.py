"""Loops in parts, and their reference: plain TorchRec, one call of every embedding module for the whole batch.

The reference detaches what that call gives, computes every part from its samples of it, and goes back through the call
once, with the gradients of all parts.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import exact_model
import torch
from exact import Run
from exact_model import Batch, ids_of
from torchrec import JaggedTensor, KeyedJaggedTensor, KeyedTensor

Numbers = int | tuple[int, ...]
"""Of parts: of every step, or of steps one after the other, over and over."""


def at(numbers: Numbers, step: int) -> int:
    return numbers if isinstance(numbers, int) else numbers[step % len(numbers)]


class Cut(Batch):
    """A batch that says itself where its parts end."""

    __slots__ = ()

    def parts(self, number: int) -> list[Batch]:
        return cut(self, ends_of(self, number))


def ends_of(batch: Batch, number: int) -> list[int]:
    """Some ends, the same at every call; parts may be empty."""
    samples = len(batch.dense)
    draw = torch.Generator().manual_seed(int(batch.target.abs().sum() * 1e4) % 2**31)
    inner = torch.randint(0, samples + 1, (number - 1,), generator=draw).sort().values.tolist()
    return [*inner, samples]


def cut(batch: Batch, ends: Sequence[int]) -> list[Batch]:
    made = []
    for start, end in zip([0, *ends], ends, strict=False):
        ids = {name: some(kjt, start, end) for name, kjt in batch.ids.items()}
        dense, target, weight = (each[start:end] for each in (batch.dense, batch.target, batch.weight))
        made.append(Batch(ids=ids, dense=dense, target=target, weight=weight, extra=batch.extra))
    return made


def some(kjt: KeyedJaggedTensor, start: int, end: int) -> KeyedJaggedTensor:
    values, lengths, weights = [kjt.values()[:0]], [], []
    for jagged in kjt.to_dict().values():
        offsets = jagged.offsets().tolist()
        lengths.append(jagged.lengths()[start:end])
        values.append(jagged.values()[offsets[start] : offsets[end]])
        if kjt.weights_or_none() is not None:
            weights.append(jagged.weights()[offsets[start] : offsets[end]])
    return KeyedJaggedTensor(
        keys=kjt.keys(), values=torch.cat(values), lengths=torch.cat(lengths),
        weights=torch.cat(weights) if weights else None, stride=end - start,
    )  # fmt: skip


class Whole:
    """In the place of the forward of a sharded module, for one step."""

    def __init__(self, module: Any, features: KeyedJaggedTensor) -> None:
        self._given = type(module).forward(module, features).wait()
        jagged = [self._given] if isinstance(self._given, KeyedTensor) else list(self._given.values())
        self._tensors = [each.values() for each in jagged]
        self._leaves = [tensor.detach().requires_grad_() for tensor in self._tensors]
        self.samples = slice(0, 0)

    def __call__(self, features: KeyedJaggedTensor) -> Any:
        start, end = self.samples.start, self.samples.stop
        if isinstance(self._given, KeyedTensor):
            return KeyedTensor(self._given.keys(), self._given.length_per_key(), self._leaves[0][start:end])
        found = {}
        for (key, jagged), leaf in zip(self._given.items(), self._leaves, strict=True):
            offsets = jagged.offsets().tolist()
            found[key] = JaggedTensor(leaf[offsets[start] : offsets[end]], lengths=jagged.lengths()[start:end])
        return found

    def go_back(self) -> None:
        pairs = [(tensor, leaf.grad) for tensor, leaf in zip(self._tensors, self._leaves, strict=True)]
        pairs = [(tensor, gradient) for tensor, gradient in pairs if gradient is not None]
        if pairs:
            torch.autograd.backward(*map(list, zip(*pairs, strict=True)))


@contextlib.contextmanager
def step_in_parts(run: Run, given: Any, number: int) -> Iterator[Iterator[Batch]]:
    """The parts of a step; with fscomm those that it gives."""
    if run.mode == "fscomm":
        yield given.parts(number)
        return
    ends = ends_of(given, number)
    modules = {name: run.model.module.embeddings[name] for name in run.config.modules}
    wholes = {name: Whole(module, ids_of(given, name)) for name, module in modules.items()}
    for name, module in modules.items():
        module.forward = wholes[name]

    def parts() -> Iterator[Batch]:
        for i, part in enumerate(cut(given, ends)):
            for whole in wholes.values():
                whole.samples = slice(ends[i - 1] if i else 0, ends[i])
            with contextlib.nullcontext() if i == number - 1 else own_dense_gradients(run):
                yield part

    try:
        yield parts()
    finally:  # an error that leaves the last part after its backward pass leaves a step that is complete
        for module in modules.values():
            del module.forward
        for whole in wholes.values():
            whole.go_back()


def steps(run: Run, comm: Any, numbers: Numbers, start: int = 0) -> Iterator[tuple[int, Any]]:
    """(number, step) of the loader, ready to be computed."""
    names = Batch.__dataclass_fields__
    loader = [Cut(**{name: getattr(batch, name) for name in names}) for batch in run.loader(start)]
    for step, given in enumerate(comm.lookahead(loader)):
        run.set_rate(step)
        run.optimizer.zero_grad()
        yield step, step_in_parts(run, given, at(numbers, step))


def loss_of(run: Run, name: str, part: Batch) -> torch.Tensor:
    output = run.model(part)
    run.record(f"output {name}", output)
    return ((output - part.target) ** 2 * part.weight).sum()


def train(run: Run, step: int, parts: Any) -> None:
    with parts as of_step:
        for i, part in enumerate(of_step):
            loss_of(run, f"{step}.{i}", part).backward()
    run.optimizer.step()


def base(numbers: Numbers, run: Run) -> None:
    with run.enable() as comm:
        for step, parts in steps(run, comm, numbers):
            train(run, step, parts)


def forwards_first(numbers: Numbers, run: Run) -> None:
    """Backward by part, from the last one on, or of the sum of all losses."""
    with run.enable() as comm:
        for step, parts in steps(run, comm, numbers):
            with parts as of_step, own_dense_gradients(run):
                losses = [loss_of(run, f"{step}.{i}", part) for i, part in enumerate(of_step)]
                if step % 2:
                    torch.stack(losses).sum().backward()
                else:
                    for loss in reversed(losses):
                        loss.backward()
            run.optimizer.step()


def some_backwards(numbers: Numbers, run: Run) -> None:
    """A part, the last one, all but one, or all go without a backward pass, or without a forward."""
    with run.enable() as comm:
        for step, parts in steps(run, comm, numbers):
            with parts as of_step, own_dense_gradients(run):
                for i, part in enumerate(of_step):
                    if step % 6 == 5 and i == 1:
                        break
                    loss = loss_of(run, f"{step}.{i}", part)
                    number = at(numbers, step)
                    left_out = {0: [], 1: [0], 2: [number - 1], 3: range(number), 4: range(1, number), 5: []}[step % 6]
                    if i not in left_out:
                        loss.backward()
            run.optimizer.step()


def looked_at(numbers: Numbers, run: Run) -> None:
    """Between parts tables are what they were before the step; what is written then, later parts do not see. Other
    batches are evaluated there."""
    with run.enable() as comm:
        for step, parts in steps(run, comm, numbers):
            with parts as of_step:
                for i, part in enumerate(of_step):
                    loss_of(run, f"{step}.{i}", part).backward()
                    if i + 1 < at(numbers, step):
                        if step % 2:
                            run.record(f"state {step}.{i}", run.model.state_dict())
                        if step % 3 == 1:
                            comm.flush()
                            for table in run.tables().values():
                                table.data.mul_(0.75)
                        with torch.no_grad():
                            run.record(f"other {step}.{i}", given_out(run, step))
            run.optimizer.step()
            run.record(f"tables {step}", run.tables())


def evaluated(numbers: Numbers, run: Run) -> None:
    """Inside the loop over training batches another one over batches to evaluate, whole."""
    with run.enable() as comm:
        for step, parts in steps(run, comm, numbers):
            train(run, step, parts)
            if step % 3 == 2:
                with torch.no_grad():
                    for other, given in enumerate(comm.lookahead(run.loader(step, step + 2))):
                        whole = given if run.mode == "plain" else given.batch
                        run.record(f"evaluated {step}.{other}", run.model(whole))


def several_blocks(numbers: Numbers, run: Run) -> None:
    """Of which the first ones are left in the middle of a step, or by an error in it."""
    for block in range(3):
        try:
            with run.enable() as comm:
                for step, parts in steps(run, comm, numbers, block):
                    with parts as of_step, own_dense_gradients(run):
                        for i, part in enumerate(of_step):
                            loss_of(run, f"{block}.{step}.{i}", part).backward()
                            if step == 3 and i == 0 and block == 1:
                                break
                            if step == 3 and i == at(numbers, step) - 1 and block == 0:
                                raise KeyError("the user's own")
                    run.optimizer.step()
                    if step == 3 and block == 1:
                        break
        except KeyError:
            pass
        run.record_raw(f"after block {block}")


def given_out(run: Run, step: int) -> torch.Tensor:
    module = run.model.module
    batch = run.loader(step, step + 1)[0]
    found = []
    for name in run.config.modules:
        own = module.embeddings[name]
        answer = type(own).forward(own, ids_of(batch, name)) if run.mode == "plain" else own(ids_of(batch, name))
        found.append(exact_model.given_out(answer))
    return torch.cat(found)


def own_dense_gradients(run: Run) -> AbstractContextManager[None]:
    """Dense gradients stay those of each rank: backward passes are other ones than DDP expects."""
    return run.ddp.no_sync() if run.config.data_parallel else contextlib.nullcontext()


LOOPS = {each.__name__: each for each in (base, forwards_first, some_backwards, looked_at, evaluated, several_blocks)}


@functools.cache
def in_parts(loop: str, numbers: Numbers) -> Any:
    """The same function for the same loop: plain runs are kept."""
    return functools.partial(LOOPS[loop], numbers)
