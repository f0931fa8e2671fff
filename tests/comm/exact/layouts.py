"""In which ways a batch may hold the ids of a KeyedJaggedTensor as plain tensors, and how a model makes it of them.

`LAYOUTS[name].take(kjt)` gives tensors that are no KJT, and `build(keys, tensors)` the KJT of these.
Letters: B samples, F keys, N values, L places of a padded list.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

Tensors = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """one_each: every list is of one id. no_zero: no id is 0."""

    take: Callable[[KeyedJaggedTensor], Tensors]
    build: Callable[[list[str], Tensors], KeyedJaggedTensor]
    one_each: bool = False
    no_zero: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainIds:
    """What a batch holds in the place of a KJT of these keys."""

    layout: str
    keys: list[str]
    tensors: Tensors

    def build(self) -> KeyedJaggedTensor:
        return LAYOUTS[self.layout].build(self.keys, self.tensors)


def as_plain_ids(kjt: KeyedJaggedTensor, name: str) -> PlainIds:
    """Of the ids of `kjt`, or as many of them as the layout can hold."""
    layout, lists = LAYOUTS[name], lists_of(kjt)
    if layout.one_each:
        ones = torch.ones(kjt.stride(), dtype=torch.int64)
        lists = [(_first_of_each(values, lengths), ones) for values, lengths in lists]
    if layout.no_zero:
        lists = [(values.clamp(min=1), lengths) for values, lengths in lists]
    return PlainIds(layout=name, keys=kjt.keys(), tensors=layout.take(of_lists(kjt.keys(), lists)))


def _first_of_each(values: Tensor, lengths: Tensor) -> Tensor:
    """[B] 0 where a list is empty."""
    starts = (lengths.cumsum(0) - lengths)[lengths > 0]
    found = values.new_zeros(len(lengths))
    found[lengths > 0] = values[starts]
    return found


def lists_of(kjt: KeyedJaggedTensor) -> list[tuple[Tensor, Tensor]]:
    """[F] values [N] and lengths [B]."""
    lengths = kjt.lengths().view(len(kjt.keys()), -1)
    values = kjt.values().split(lengths.sum(1).tolist())
    return list(zip(values, lengths, strict=True))


def of_lists(keys: list[str], lists: list[tuple[Tensor, Tensor]]) -> KeyedJaggedTensor:
    values, lengths = zip(*lists, strict=True)
    return KeyedJaggedTensor(keys, torch.cat(values), lengths=torch.cat(lengths), stride=len(lengths[0]))


def without_ids(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """Of as many samples."""
    return of_lists(kjt.keys(), [(values[:0], torch.zeros_like(lengths)) for values, lengths in lists_of(kjt)])


def padded(values: Tensor, lengths: Tensor, *, left: bool, pad: int, extra: int = 1) -> tuple[Tensor, Tensor]:
    """[B, L] the lists and a mask of what is no padding."""
    longest = (int(lengths.max()) if len(lengths) else 0) + extra
    places = torch.arange(longest)
    mask = places >= longest - lengths[:, None] if left else places < lengths[:, None]
    rows = torch.full(mask.shape, pad, dtype=values.dtype)
    rows[mask] = values
    return rows, mask


def _each(take: Callable[[Tensor, Tensor], Any]) -> Callable[[KeyedJaggedTensor], Tensors]:
    return lambda kjt: {key: take(*of_key) for key, of_key in zip(kjt.keys(), lists_of(kjt), strict=True)}


def _of_each(build: Callable[[Any], tuple[Tensor, Tensor]]) -> Callable[[list[str], Tensors], KeyedJaggedTensor]:
    return lambda keys, tensors: of_lists(keys, [build(tensors[key]) for key in keys])


def _offsets(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def _columns(values: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(each, torch.ones(len(each), dtype=torch.int64)) for each in values]


def _jagged(values: Tensor, lengths: Tensor) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(values, offsets=_offsets(lengths))


def _masked(*, left: bool = False, pad: int = 0, inverted: bool = False, as_integers: bool = False) -> Layout:
    def take(values: Tensor, lengths: Tensor) -> Tensors:
        rows, mask = padded(values, lengths, left=left, pad=pad)
        mask = ~mask if inverted else mask
        return {"ids": rows, "mask": mask.int() if as_integers else mask}

    def build(of_key: Tensors) -> tuple[Tensor, Tensor]:
        mask = of_key["mask"] == 0 if inverted else of_key["mask"] != 0
        return of_key["ids"][mask], mask.sum(1)

    return Layout(take=_each(take), build=_of_each(build))


def _padded(*, left: bool) -> Layout:
    def take(values: Tensor, lengths: Tensor) -> Tensors:
        return {"ids": padded(values, lengths, left=left, pad=7)[0], "lengths": lengths}

    def build(of_key: Tensors) -> tuple[Tensor, Tensor]:
        rows, lengths = of_key["ids"], of_key["lengths"]
        found = [row[len(row) - n :] if left else row[:n] for row, n in zip(rows, lengths.tolist(), strict=True)]
        return torch.cat([rows[:0].flatten(), *found]), lengths

    return Layout(take=_each(take), build=_of_each(build))


def _but(pad: int) -> Layout:
    def build(rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows[rows != pad], (rows != pad).sum(1)

    return Layout(
        take=_each(lambda values, lengths: padded(values, lengths, left=False, pad=pad)[0]),
        build=_of_each(build),
        no_zero=pad == 0,
    )


def _three_dims(kjt: KeyedJaggedTensor) -> Tensors:
    """[B, F, L] and [B, F]."""
    longest = int(kjt.lengths().max()) if len(kjt.lengths()) else 0
    rows = [
        padded(values, of, left=False, pad=3, extra=longest - (int(of.max()) if len(of) else 0))[0]
        for values, of in lists_of(kjt)
    ]
    return {"ids": torch.stack(rows, 1), "lengths": kjt.lengths().view(len(kjt.keys()), -1).t().contiguous()}


def _of_three_dims(keys: list[str], tensors: Tensors) -> KeyedJaggedTensor:
    mask = torch.arange(tensors["ids"].shape[2]) < tensors["lengths"][..., None]
    return of_lists(keys, [(tensors["ids"][:, f][mask[:, f]], tensors["lengths"][:, f]) for f in range(len(keys))])


def _in_groups(kjt: KeyedJaggedTensor) -> Tensors:
    """Some [B, f]: the first key, and all others."""
    values = [values for values, _ in lists_of(kjt)]
    return {"first": torch.stack(values[:1], 1), "rest": torch.stack(values[1:], 1) if values[1:] else None}


LAYOUTS: dict[str, Layout] = {
    "values and lengths": Layout(
        take=lambda kjt: {"values": kjt.values(), "lengths": kjt.lengths()},
        build=lambda keys, of: KeyedJaggedTensor(keys, of["values"], lengths=of["lengths"]),
    ),
    "values and lengths by key": Layout(
        take=lambda kjt: {"values": kjt.values(), "lengths": kjt.lengths().view(len(kjt.keys()), -1)},
        build=lambda keys, of: KeyedJaggedTensor(keys, of["values"], lengths=of["lengths"].flatten()),
    ),
    "values and offsets": Layout(
        take=lambda kjt: {"values": kjt.values(), "offsets": _offsets(kjt.lengths())},
        build=lambda keys, of: KeyedJaggedTensor(keys, of["values"], offsets=of["offsets"]),
    ),
    "values and lengths of each key": Layout(
        take=_each(lambda values, lengths: {"values": values, "lengths": lengths}),
        build=_of_each(lambda of: (of["values"], of["lengths"])),
    ),
    "values of each key, starts": Layout(
        take=lambda kjt: {
            "values": [values for values, _ in lists_of(kjt)],
            "starts": torch.stack([_offsets(lengths)[:-1] for _, lengths in lists_of(kjt)]),
        },
        build=lambda keys, of: of_lists(
            keys,
            [
                (values, torch.cat([starts, starts.new_tensor([len(values)])]).diff())
                for values, starts in zip(of["values"], of["starts"], strict=True)
            ],
        ),
    ),
    "jagged": Layout(take=_each(_jagged), build=_of_each(lambda nested: (nested.values(), nested.offsets().diff()))),
    "a column for each key": Layout(
        take=lambda kjt: {"ids": torch.stack([values for values, _ in lists_of(kjt)], 1)},
        build=lambda keys, of: of_lists(keys, _columns(list(of["ids"].unbind(1)))),
        one_each=True,
    ),
    "a row for each key": Layout(
        take=lambda kjt: {"ids": torch.stack([values for values, _ in lists_of(kjt)])},
        build=lambda keys, of: of_lists(keys, _columns(list(of["ids"]))),
        one_each=True,
    ),
    "columns of several": Layout(
        take=_in_groups,
        build=lambda keys, of: of_lists(
            keys, _columns([*of["first"].unbind(1), *(() if of["rest"] is None else of["rest"].unbind(1))])
        ),
        one_each=True,
    ),
    "padded on the right": _padded(left=False),
    "padded on the left": _padded(left=True),
    "with a mask": _masked(),
    "with a mask of integers, on the left": _masked(left=True, as_integers=True, pad=-100),
    "with a mask of the padding": _masked(inverted=True),
    "padded, of all keys": Layout(take=_three_dims, build=_of_three_dims),
    "padded by 0": _but(0),
    "padded by -1": _but(-1),
}
