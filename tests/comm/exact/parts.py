"""Loops in parts, and their reference: plain TorchRec, one call of every embedding module for the whole batch.

The reference detaches what that call gives, computes every part from its samples of it, and goes back through the call
once, with the gradients of all parts.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from exact import Run
from exact_model import Batch, ids_of
from torchrec import JaggedTensor, KeyedJaggedTensor, KeyedTensor


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
    for key, jagged in kjt.to_dict().items():
        del key
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
        for part, (start, end) in zip(cut(given, ends), zip([0, *ends], ends, strict=False), strict=True):
            for whole in wholes.values():
                whole.samples = slice(start, end)
            last = part_number[0] == number - 1
            with contextlib.nullcontext() if last or not run.config.data_parallel else run.ddp.no_sync():
                yield part
            part_number[0] += 1

    part_number = [0]
    yield parts()
    for module in modules.values():
        del module.forward
    for whole in wholes.values():
        whole.go_back()


def in_parts(number: int) -> Any:
    """The usual loop."""

    def loop(run: Run) -> None:
        with run.enable() as comm:
            loader = [
                Cut(**{name: getattr(batch, name) for name in Batch.__dataclass_fields__}) for batch in run.loader()
            ]
            for step, given in enumerate(comm.lookahead(loader)):
                run.set_rate(step)
                run.optimizer.zero_grad()
                with step_in_parts(run, given, number) as parts:
                    for part_number, part in enumerate(parts):
                        output = run.model(part)
                        run.record(f"output {step}.{part_number}", output)
                        ((output - part.target) ** 2 * part.weight).sum().backward()
                run.optimizer.step()

    return loop


PARTS = {number: in_parts(number) for number in (1, 2, 3, 4)}
