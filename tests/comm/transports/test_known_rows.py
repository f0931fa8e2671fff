"""Rows that all ranks know, brought by a transport that is wrong in one way each."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from transport_jobs import opened
from worlds import shared_world

from fscomm.transports import opening
from fscomm.transports.opening import wrong_rows
from fscomm.transports.transport import Done, Handle

Spoil = Callable[[torch.Tensor, int, int], object]  # what came; the rows of its largest piece: the first, and behind


def tried(rank: int, size: int, spoil: Spoil | None, spoilt: int) -> tuple[str, list[tuple[int, list[int]]]]:
    """The verdict of this rank, and by operation the largest piece as the transport was told, and the pieces that came.

    The last rank finds operation `spoilt` spoiled.
    """
    with opened("gloo") as transport:
        exchange, sizes = transport.all_to_all_v, list[tuple[int, list[int]]]()

        def wrong(out: torch.Tensor, inp: torch.Tensor, received: Any, sent: Any, *, largest_bytes: int) -> Handle:
            exchange(out, inp, received, sent, largest_bytes=largest_bytes).wait()
            if spoil is not None and (rank, len(sizes)) == (size - 1, spoilt):
                first = sum(received[: received.index(max(received))])
                spoil(out, first, first + max(received))
            sizes.append((largest_bytes, [rows * out.shape[1] for rows in received]))
            return Done()

        with mock.patch.object(transport, "all_to_all_v", wrong):
            return wrong_rows(transport, torch.device("cpu")), sizes


@pytest.mark.parametrize("size", [2, 3])
def test_rows_are_uneven_odd_missing_and_larger_than_slots_and_buffers(size: int) -> None:
    said, of_ranks = zip(*shared_world(size).run(tried, None, 0), strict=True)
    assert said == ("",) * size
    sizes = [each for of_rank in of_ranks for _, pieces in of_rank for each in pieces]
    assert max(sizes) > 9 << 20
    assert 0 in sizes
    assert any(each % 2 for each in sizes)
    for of_operation in zip(*of_ranks, strict=True):
        (largest,) = {told for told, _ in of_operation}
        assert largest == max(max(pieces) for _, pieces in of_operation)


def swap_two_rows(out: torch.Tensor, first: int, stop: int) -> None:
    out[[first, first + 1]] = out[[first + 1, first]]


def drop_a_part(out: torch.Tensor, first: int, stop: int) -> None:
    out[first:stop] = 255  # as it was before


def repeat_a_row(out: torch.Tensor, first: int, stop: int) -> None:
    out[first + 1] = out[first]


def take_the_operation_before(out: torch.Tensor, first: int, stop: int) -> None:
    """Rows of another start."""
    out -= 1


def with_small_rows(rank: int, size: int, spoil: Spoil, spoilt: int) -> str:
    with mock.patch.object(opening, "LARGE_BYTES", 2000):
        return tried(rank, size, spoil, spoilt)[0]


@pytest.mark.parametrize("number", [0, 1], ids=["few rows", "many rows"])
@pytest.mark.parametrize("how", [swap_two_rows, drop_a_part, repeat_a_row, take_the_operation_before])
def test_rows_that_did_not_arrive_are_named(how: Spoil, number: int) -> None:
    *others, last = shared_world(3).run(with_small_rows, how, number)
    assert others == ["", ""]
    assert last.startswith("rows from rank")
    assert last.endswith(" are not what was sent")
    largest_from = 1 if number else 2
    assert how is take_the_operation_before or last == f"rows from rank {largest_from} are not what was sent"
