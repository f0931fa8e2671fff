"""A batch that is computed in parts: consecutive samples, cut so that all parts look up about as many ids.

Parts refer to the tensors of the batch; only ids of KeyedJaggedTensors, which stand feature by feature, are copied.
Letters: B samples, F keys, k parts.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from fscomm.loop.kjt_paths import DEEPEST, KJT, NOT_ENTERED, Make, is_kjt, walk
from fscomm.loop.lookahead import Listener
from fscomm.loop.tensors import rebuilt, stored

T = TypeVar("T")


class InParts(Generic[T]):
    """What a look-ahead hands out in a block with `parts`: one step, to be computed part by part.

    Attributes:
        batch: all of it, as the loader gave it.
    """

    def __init__(self, batch: T, parts: Sequence[T], turn: Callable[[int | None], None]) -> None:
        """turn: called with the part whose turn it is; None: it is none's any more."""
        self.batch = batch
        self._parts = parts
        self._turn = turn
        self._begun = False

    def parts(self, number: int | None = None) -> Iterator[T]:
        """The parts in order, once; number: how many, if it is to be checked. The forwards of a part, and its backward
        where memory counts, come before the next part is asked for.

        Gradients of DistributedDataParallel are exchanged in the backward of the last part only.

        Raises:
            ValueError: the batch was cut into another number of parts.
            RuntimeError: parts of this step were computed before.
        """
        if number not in (None, len(self._parts)):
            raise ValueError(
                f"parts({number}), but enable(parts=...) has cut this batch into {len(self._parts)}: leave the number "
                "out here"
            )
        if self._begun:
            raise RuntimeError("the parts of a step are computed once: its tables are updated after the last one")
        self._begun = True
        return self._in_turn()

    def _in_turn(self) -> Iterator[T]:
        try:
            for number, part in enumerate(self._parts):
                self._turn(number)
                yield part
        finally:
            self._turn(None)


class InOnePart(Listener):
    """Of a block with parts in which nothing is served."""

    def hold(self, batch: Any) -> Any:
        return InParts(batch, [batch], lambda _: None)


def cut_batch(batch: T, number: int, make: Make, on_host: Any = None) -> list[T]:
    """So many parts of a batch: by its own `parts(number)`; else by samples, of KJTs and of tensors with B rows.

    What has no samples is in every part. make: gives a KJT. on_host: the batch in host memory, where it was moved.

    Raises:
        ValueError: the batch has no KJT that says how many samples there are, or one whose features have different
            numbers; or its own method gives other than `number` parts.
    """
    own = getattr(batch, "parts", None)
    if callable(own):
        parts = list(own(number))
        if len(parts) != number:
            raise ValueError(f"{type(batch).__name__}.parts({number}) gave {len(parts)} parts")
        return parts
    kjts = [kjt for _, kjt in walk(batch if on_host is None else on_host)]
    if not kjts:
        raise ValueError(
            f"a step in {number} parts is cut by the samples of its KeyedJaggedTensors, and this "
            f"{type(batch).__name__} has none: give it a method parts(number) that returns its parts"
        )
    samples = kjts[0].stride()
    for kjt in kjts:
        if len(kjt.lengths()) != len(kjt.keys()) * kjt.stride():
            raise ValueError(f"keys {', '.join(kjt.keys())} have different numbers of samples: they cannot be cut")
    costs = np.ones(samples, np.int64)
    for kjt in kjts:
        if kjt.stride() == samples:
            costs += kjt.lengths().view(len(kjt.keys()), samples).sum(0).numpy()
    ends = cut_points(costs, number)
    return [_Samples(samples, start, end, make).of(batch) for start, end in zip([0, *ends], ends, strict=False)]


def cut_points(costs: np.ndarray, number: int) -> list[int]:
    """[k] where parts of about equal cost end; costs: int64[B] of samples, at least 1."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(costs)])
    wanted = before[-1] * np.arange(1, number + 1) / number
    above = np.searchsorted(before, wanted).clip(0, len(costs))
    below = np.maximum(above - 1, 0)
    nearer = wanted - before[below] < before[above] - wanted
    ends: list[int] = np.where(nearer, below, above).tolist()
    return [*ends[:-1], len(costs)]


@dataclass(frozen=True, slots=True)
class _Samples:
    """Samples `start` to `end` of B. make: gives a KJT."""

    samples: int
    start: int
    end: int
    make: Make

    def of(self, value: Any, depth: int = 0) -> Any:
        """The same `value` where it has no samples, at most as many steps from the batch as `walk` goes."""
        if isinstance(value, Tensor):
            with torch._C.DisableTorchFunctionSubclass():
                has_samples = value.dim() > 0 and value.size(0) == self.samples
            return self._of_tensor(value) if has_samples else value
        if is_kjt(value):
            return self._of_kjt(value) if value.stride() == self.samples else value
        if depth == DEEPEST or isinstance(value, NOT_ENTERED):
            return value
        if isinstance(value, Mapping | list | tuple):
            return rebuilt(value, lambda item: self.of(item, depth + 1))
        made = value
        for name, item in stored(value):
            if (cut := self.of(item, depth + 1)) is not item:
                made = copy.copy(value) if made is value else made
                object.__setattr__(made, name, cut)
        return made

    def _of_tensor(self, tensor: Any) -> Any:
        """Raises ValueError where torch cannot cut this kind of tensor by samples."""
        start, length = self.start, self.end - self.start
        with torch._C.DisableTorchFunctionSubclass():
            layout, nested = tensor.layout, tensor.is_nested
        try:
            if nested:
                lists = list(tensor.unbind()[start : self.end])
                if not lists and layout is torch.jagged:  # which torch does not make of an empty list
                    return torch.nested.nested_tensor_from_jagged(tensor.values()[:0], tensor.offsets()[:1])
                return torch.nested.as_nested_tensor(lists, layout=layout)
            if layout is torch.strided:
                return tensor[start : self.end]
            of_part = torch.narrow_copy(tensor.to_sparse_coo(), 0, start, length)
            return of_part if layout is torch.sparse_coo else of_part.to_sparse(layout=layout)
        except RuntimeError as error:
            raise ValueError(
                f"a tensor of the batch, of layout {layout}, cannot be cut by samples: give the batch a method "
                "parts(number) that returns its parts"
            ) from error

    def _of_kjt(self, kjt: KJT) -> Any:
        keys, weights, start, end = list(kjt.keys()), kjt.weights_or_none(), self.start, self.end
        lengths = kjt.lengths().view(len(keys), self.samples)
        of_keys = lengths.sum(1)
        firsts = of_keys.cumsum(0) - of_keys + lengths[:, :start].sum(1)
        edges = torch.stack([firsts, firsts + lengths[:, start:end].sum(1)], dim=1).tolist()

        def some(values: Tensor) -> Tensor:
            return torch.cat([values[:0], *(values[first:last] for first, last in edges)])

        return self.make(
            keys,
            some(kjt.values()),
            lengths[:, start:end].flatten().contiguous(),  # of one sample it would be every B-th of the batch's
            None if weights is None else some(weights),
            end - start,
        )
