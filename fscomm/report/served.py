"""Which part of a program's look-ups was served: forwards, ids and embedding bytes, by module, and why not the rest."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

WARM_UP = "warm-up: nothing was fetched ahead for it yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwards:
    """Of one module: its forwards in training.

    Attributes:
        served, ids, nbytes: forwards that were served, their ids, and the bytes of the rows or bags they gave.
        plain: forwards that ran plainly, by reason.
        plain_ids, plain_bytes: of those.
    """

    served: int = 0
    ids: int = 0
    nbytes: int = 0
    plain: Mapping[str, int] = field(default_factory=dict)
    plain_ids: int = 0
    plain_bytes: int = 0

    @property
    def ids_share(self) -> float:
        """Share of the ids that were served; 0 without any."""
        return _share(self.ids, self.plain_ids)

    @property
    def bytes_share(self) -> float:
        return _share(self.nbytes, self.plain_bytes)

    def and_one(self, ids: int, nbytes: int, why: str | None) -> "Forwards":
        """With one more forward: served, or run plainly because of `why`."""
        if why is None:
            return Forwards(
                served=self.served + 1,
                ids=self.ids + ids,
                nbytes=self.nbytes + nbytes,
                plain=self.plain,
                plain_ids=self.plain_ids,
                plain_bytes=self.plain_bytes,
            )
        return Forwards(
            served=self.served,
            ids=self.ids,
            nbytes=self.nbytes,
            plain={**self.plain, why: self.plain.get(why, 0) + 1},
            plain_ids=self.plain_ids + ids,
            plain_bytes=self.plain_bytes + nbytes,
        )


def together(forwards: Iterable[Forwards]) -> Forwards:
    """The sum over modules, without the reasons."""
    each = list(forwards)
    return Forwards(
        served=sum(one.served for one in each),
        ids=sum(one.ids for one in each),
        nbytes=sum(one.nbytes for one in each),
        plain_ids=sum(one.plain_ids for one in each),
        plain_bytes=sum(one.plain_bytes for one in each),
    )


def lines(forwards: Mapping[str, Forwards]) -> list[str]:
    """What was served, in words: all, then by module, and what keeps most ids from being served."""
    if not forwards:
        return ["no forward in training yet"]
    whole = together(forwards.values())
    told = [f"served in training: {whole.ids_share:.1%} of the ids, {whole.bytes_share:.1%} of the embedding bytes"]
    for name, one in sorted(forwards.items()):
        ran = one.served + sum(one.plain.values())
        told.append(f"  {name or 'the model'}: {one.served} of {ran} forwards, {one.ids_share:.1%} of the ids")
        told += [
            f"    plainly {count} times: {why}" for why, count in sorted(one.plain.items(), key=lambda item: -item[1])
        ]
    return told


def _share(part: int, rest: int) -> float:
    return part / (part + rest) if part + rest else 0.0
