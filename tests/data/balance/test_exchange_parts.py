"""What ranks say to each other: numbers and bytes in one exchange, lengths, status words, and records of samples."""

from unittest import mock

import numpy as np
import pytest
from patience import PATIENCE_S
from samples import SPEC, columns_of, lengths_of
from worlds import shared_world

from fsdata.balance.exchange import RecordSpec
from fsdata.balance.exchange.route import Parcel
from fsdata.balance.exchange.step_exchange import decode_lengths, encode_lengths
from fsdata.balance.exchange.transfer import check_lengths
from fsdata.decode.block import Block, RowRefs
from fsdata.decode.row_layout import layout_of
from fsdata.errors import DataError, MismatchError
from fsdata.nodes.fitted_gather import FittedGather
from fsdata.order.status_word import PROTOCOL, StatusWord, check, decode, encode
from fsdata.schema import Schema, Sequence
from fsranks.control_group import ControlGroup
from fsranks.rank_context import resolve

SIZES = [[0, 0, 0], [5, 0, 9], [9, 64, 1], [65, 64, 0], [128, 3, 128], [0, 0, 0], [3000, 0, 1], *[[0] * 3] * 17]


def gather(rank: int, world_size: int) -> list[int]:
    """The bytes of every exchange. At last rank 1 is in another call: where others have sizes, its number is none."""
    group = ControlGroup(resolve(), timeout_s=PATIENCE_S)
    with mock.patch.object(group, "all_gather", wraps=group.all_gather) as asked:
        fitted = FittedGather(group)
        for number, sizes in enumerate(SIZES):
            words, texts = fitted.gather(np.array([10 * rank, number]), bytes([rank + 1]) * sizes[rank])
            assert words.tolist() == [[10 * other, number] for other in range(3)]
            assert texts == [bytes([other + 1]) * size for other, size in enumerate(sizes)]
    if rank == 1:
        group.all_gather(np.array([-5, 3], np.int64).view(np.uint8))
    else:
        with pytest.raises(MismatchError, match=r"ranks state that they have \[0, -5, 0\] bytes"):
            FittedGather(group).gather(np.array([3]))
    group.close("has ended")
    return [call.args[0].nbytes for call in asked.call_args_list]


def test_what_does_not_fit_takes_a_second_exchange_and_room_is_given_back() -> None:
    """Sizes that cannot be are refused before memory is taken."""
    asked, *others = shared_world(3).run(gather)
    head = 24
    seconds = {1: 9, 3: 65, 6: 3000}  # call -> bytes of the second exchange
    first = [0, 0, 64, 64, 128, 128, 128] + [3008] * 16 + [0]
    wanted = [[head + room, *([seconds[call]] if call in seconds else [])] for call, room in enumerate(first)]
    assert asked == others[0] == others[1] == [size for of_call in wanted for size in of_call]


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


def test_a_sample_takes_no_history_that_is_stored_once_with_it() -> None:
    schema = Schema(
        sequences=(Sequence("uih", fields=("item",), floats=("price",)),),
        candidates=Sequence("candidates", fields=("shown",)),
        context=("user",),
        dense=("age", "hour", "day"),
        labels=("click", "bought"),
    )
    stored = RecordSpec.of_layout(layout_of(schema, frozenset({"click"}), as_of=("uih",)))
    rank = np.array([1])
    short, long = (
        Parcel.of(rank, stored.field_lengths(np.array([[events], [2]])), stored.sent, 2).bytes.tolist()
        for events in (0, 10_000)
    )
    assert short == long


def test_bad_specs_and_tables_are_refused() -> None:
    kind = {"group": np.array([-1, -1]), "width": np.array([1, 1]), "groups": (), "group_field": np.empty(0, np.int64)}
    with pytest.raises(ValueError, match="disagree"):
        RecordSpec(names=("a",), itemsize=np.array([4, 8]), **kind)
    columns = columns_of(0, 0, 4, lengths_of(0, 0, 4))
    assert columns[5].length is not None
    columns[5].length[3] = 7
    with pytest.raises(DataError, match="field 'dense' of row 3 has 7 elements, its group or width asks for 3"):
        check_lengths(RowRefs.of(Block.of(columns, 4)).spans(), SPEC)


def test_status_words_keep_everything() -> None:
    flags = {"ended": True, "left": True, "failed": True}
    times = {"compute_ns": 2**50, "compute_step": 9, "moving_ns": 2**51}
    status = StatusWord(epoch=3, step=2**40, position=5, rows=7, longest=2**33, **flags, **times)
    plain = StatusWord(epoch=3, step=2**40)
    words = np.stack([encode(status, 8, 77), encode(plain, 8, 77)])
    assert decode(words) == (status, plain)
    check(words)
    words[0, 2] = 78  # believed, if it had not left
    check(words)
    words[:, 6] = 0
    with pytest.raises(MismatchError, match="fields of a sample"):
        check(words)
    words[0, 2] = 0  # a rank that has seen no data
    check(words)
    words[0, 0] = PROTOCOL + 1
    with pytest.raises(MismatchError, match="different fsdata versions"):
        check(words)
