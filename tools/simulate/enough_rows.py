"""Tells how many ranks a number of rows is enough for. Batches of more ranks would repeat rows."""

from collections.abc import Sequence

BATCHES = 5  # number of different global batches that the rows should make
WELL = 20  # number of them from which a verdict does not hang on a few


def enough_for(rows: int, ranks: int, batch_size: int, *, batches: int = BATCHES) -> bool:
    """Whether `rows` make `batches` different global batches of `ranks` times `batch_size` samples."""
    return ranks * batch_size * batches <= rows


def most_ranks(rows: int, ranks: Sequence[int], batch_size: int, *, batches: int = BATCHES) -> int | None:
    """The largest of `ranks` that the rows are enough for; None if they are too few for all."""
    return max((one for one in ranks if enough_for(rows, one, batch_size, batches=batches)), default=None)


def fitting(rows: int, ranks: int, batch_size: int) -> tuple[int, int]:
    """(ranks, batch size), halved until the rows are enough; ranks are halved first."""
    while ranks > 1 and not enough_for(rows, ranks, batch_size):
        ranks = (ranks + 1) // 2
    while batch_size > 1 and not enough_for(rows, ranks, batch_size):
        batch_size //= 2
    return ranks, batch_size
