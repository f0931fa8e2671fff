"""Rows that all ranks know, brought by transports that are wrong in one way each; the ranks are threads."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from patience import PATIENCE_S

from fscomm.transports import opening
from fscomm.transports.opening import wrong_rows
from fscomm.transports.transport import Done, Handle

CPU = torch.device("cpu")
Spoil = Callable[[torch.Tensor, list[int], torch.Tensor], object]


class InMemory:
    """A transport that spoils the rows of one operation on one rank."""

    name = "in memory"

    def __init__(self, size: int) -> None:
        self.world_size = size
        self._barrier = threading.Barrier(size)
        self._sent: list[Any] = [None] * size

    def of(self, rank: int, spoil: Spoil | None, number: int) -> "OfRank":
        return OfRank(self, rank, spoil, number)

    def exchange(self, rank: int, mine: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self._sent[rank] = mine
        self._barrier.wait(PATIENCE_S)
        found = [of_rank[rank] for of_rank in self._sent]
        self._barrier.wait(PATIENCE_S)
        return found


class OfRank:
    def __init__(self, board: InMemory, rank: int, spoil: Spoil | None, number: int) -> None:
        self.rank, self.world_size = rank, board.world_size
        self._board, self._spoil, self._number = board, spoil, number
        self.sizes: list[tuple[int, list[int]]] = []

    def all_to_all_v(
        self, out: torch.Tensor, inp: torch.Tensor, out_splits: Any, in_splits: Any, *, largest_bytes: int
    ) -> Handle:
        before = out.clone()
        out.copy_(torch.cat(self._board.exchange(self.rank, inp.split(list(in_splits)))))
        if self._spoil is not None and self._number == len(self.sizes):
            self._spoil(out, list(out_splits), before)
        self.sizes.append((largest_bytes, [n * out.shape[1] for n in out_splits]))
        return Done()


def verdicts(size: int, spoil: Spoil | None = None, number: int = 0) -> tuple[list[str], list[OfRank]]:
    """Of all ranks; the last one's rows are spoiled."""
    board = InMemory(size)
    transports = [board.of(rank, spoil if rank == size - 1 else None, number) for rank in range(size)]
    said = [""] * size

    def run(rank: int) -> None:
        said[rank] = wrong_rows(transports[rank], CPU)  # type: ignore[arg-type]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said, transports


@pytest.mark.parametrize("size", [2, 3])
def test_rows_are_uneven_odd_missing_and_larger_than_slots_and_buffers(size: int) -> None:
    said, transports = verdicts(size)
    assert said == [""] * size
    sizes = [each for of_rank in transports for _, splits in of_rank.sizes for each in splits]
    assert max(sizes) > 9 << 20
    assert 0 in sizes
    assert any(each % 2 for each in sizes)
    for number in range(2):
        (largest,) = {of_rank.sizes[number][0] for of_rank in transports}
        assert largest == max(max(of_rank.sizes[number][1]) for of_rank in transports)


def swap_two_rows(out: torch.Tensor, splits: list[int], before: torch.Tensor) -> None:
    """Of the largest piece."""
    first = sum(splits[: splits.index(max(splits))])
    out[[first, first + 1]] = out[[first + 1, first]]


def drop_a_part(out: torch.Tensor, splits: list[int], before: torch.Tensor) -> None:
    first = sum(splits[: splits.index(max(splits))])
    out[first : first + max(splits)] = before[first : first + max(splits)]


def repeat_a_row(out: torch.Tensor, splits: list[int], before: torch.Tensor) -> None:
    first = sum(splits[: splits.index(max(splits))])
    out[first + 1] = out[first]


def take_the_operation_before(out: torch.Tensor, splits: list[int], before: torch.Tensor) -> None:
    """Rows of another start."""
    out -= 1


@pytest.mark.parametrize("number", [0, 1], ids=["few rows", "many rows"])
@pytest.mark.parametrize("how", [swap_two_rows, drop_a_part, repeat_a_row, take_the_operation_before])
def test_rows_that_did_not_arrive_are_named(how: Spoil, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "LARGE_BYTES", 2000)
    *others, last = verdicts(3, how, number)[0]
    assert others == ["", ""]
    assert last.startswith("rows from rank")
    assert last.endswith(" are not what was sent")
    largest_from = 1 if number else 2
    assert how is take_the_operation_before or last == f"rows from rank {largest_from} are not what was sent"
