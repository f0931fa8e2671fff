"""Numbers and bytes of every rank in one exchange: what fits, what does not, and how often it is asked."""

from collections import deque

import numpy as np
import pytest
from patience import PATIENCE_S
from samples import SPEC, lengths_of, table_of
from worlds import shared_world

from fsdata.balance.exchange import Assignment, StatusWord, StepExchange
from fsdata.balance.exchange.fitted_gather import FittedGather, room
from fsdata.balance.exchange.step_exchange import decode_lengths, encode_lengths
from fsdata.errors import MismatchError, PeerError
from fsranks.control_group import ControlGroup
from fsranks.rank_context import resolve


def test_there_is_room_for_the_most_of_the_last_calls() -> None:
    assert room(deque()) == 0
    assert room(deque([0])) == 0
    assert room(deque([1])) == 64
    assert room(deque([64, 65, 3])) == 128
    assert room(deque([640, 10])) == 640


def lengths_in_room(rank: int, world_size: int) -> list[tuple[int, list[int]]]:
    """(exchanges, bytes of the texts) of each call; what comes is compared with what every rank gave."""
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    gather, asked = group.all_gather, []

    def all_gather(mine: np.ndarray) -> np.ndarray:
        asked.append(len(mine))
        return gather(mine)

    group.all_gather = all_gather  # type: ignore[method-assign]
    fitted = FittedGather(group)
    out = []
    for sizes in (
        [0, 0, 0],
        [5, 0, 9],
        [9, 64, 1],
        [65, 64, 0],
        [128, 3, 128],
        [0, 0, 0],
        [3000, 0, 1],
        *[[0] * 3] * 17,
    ):
        before = len(asked)
        numbers = np.array([10 * rank, len(out)])
        words, texts = fitted.gather(numbers, bytes([rank + 1]) * sizes[rank])
        assert words.tolist() == [[10 * other, len(out)] for other in range(world_size)]
        assert texts == [bytes([other + 1]) * size for other, size in enumerate(sizes)]
        out.append((len(asked) - before, asked[before:]))
    group.close("done")
    return out


def test_what_does_not_fit_takes_a_second_exchange_and_room_is_given_back() -> None:
    answers = shared_world(3).run(lengths_in_room)
    assert all(answer == answers[0] for answer in answers)
    exchanges = [number for number, _ in answers[0]]
    assert exchanges == [1, 2, 1, 2, 1, 1, 2] + [1] * 17
    first = [sizes[0] - 24 for _, sizes in answers[0]]
    assert first == [0, 0, 64, 64, 128, 128, 128] + [3008] * 16 + [0]


def impossible(rank: int, world_size: int) -> str:
    """Rank 1 is in another call: the number where others have their size is none."""
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    if rank == 1:
        group.all_gather(np.array([-5, 3], np.int64).view(np.uint8))
        text = ""
    else:
        with pytest.raises(MismatchError) as caught:
            FittedGather(group).gather(np.array([3]))
        text = str(caught.value)
    group.close("done")
    return text


def test_sizes_that_cannot_be_are_refused_before_memory_is_taken() -> None:
    first, _, third = shared_world(3).run(impossible)
    assert "ranks say that they have [0, -5, 0] bytes" in first
    assert third == first


def count_exchanges(rank: int, world_size: int) -> list[int]:
    """Gathers of each step, an error of the planner of rank 1 among them."""
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    group = exchange._group
    gather, asked, out = group.all_gather, [], []

    def all_gather(mine: np.ndarray) -> np.ndarray:
        asked.append(len(mine))
        return gather(mine)

    def planner(batch: object) -> Assignment:
        if rank == 1 and len(out) == 4:
            raise RuntimeError("no plan today")
        return Assignment(rank=np.roll(np.repeat(np.arange(world_size), 40), 1))

    group.all_gather = all_gather  # type: ignore[method-assign]
    for number in range(7):
        before = len(asked)
        table = table_of(number, rank, 40, lengths_of(number, rank, 40))
        status = StatusWord(epoch=0, step=number)
        if number == 4:
            with pytest.raises(RuntimeError if rank == 1 else PeerError, match="no plan today"):
                exchange.step(table, SPEC, planner, status)
        else:
            exchange.step(table, SPEC, planner, status)
        out.append(len(asked) - before)
    exchange.close()
    return out


def test_a_step_takes_two_gathers_once_its_size_is_known() -> None:
    assert shared_world(3).run(count_exchanges) == [[3, 2, 2, 2, 3, 2, 2]] * 3


def other_lengths(rank: int, world_size: int) -> str:
    """Rank 0 agrees, as if its loader did not balance; the others cannot read lengths from it."""
    exchange = StepExchange(resolve(), timeout_s=PATIENCE_S)
    status = StatusWord(epoch=0, step=0, rows=3)
    text = ""
    if rank == 0:
        exchange.agree(status)
    else:
        with pytest.raises(MismatchError) as caught:
            exchange.step(table_of(0, rank, 3, lengths_of(0, rank, 3)), SPEC, lambda b: Assignment(rank=b.home), status)
        text = str(caught.value)
    exchange.close()
    return text


def test_lengths_that_do_not_fit_the_samples_are_refused() -> None:
    first, *others = shared_world(3).run(other_lengths)
    assert first == ""
    assert others == ["rank 0 says that it has 3 samples, and sent 0 bytes for their lengths"] * 2


@pytest.mark.parametrize("longest", [9, 300, 70_000, 2**33])
def test_lengths_of_any_size_arrive(longest: int) -> None:
    lengths = [np.array([[0, longest], [3, longest // 2]]), np.zeros((2, 0), np.int64), np.array([[1], [2]])]
    longests = [int(each.max(initial=0)) for each in lengths]
    statuses = tuple(
        StatusWord(epoch=0, step=0, rows=each.shape[1], longest=most)
        for each, most in zip(lengths, longests, strict=True)
    )
    texts = [encode_lengths(each, most) for each, most in zip(lengths, longests, strict=True)]
    found = decode_lengths(statuses, texts, 2)
    assert found.dtype == np.int64
    assert np.array_equal(found, np.concatenate(lengths, axis=1))
