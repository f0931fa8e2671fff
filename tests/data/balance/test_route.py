"""Routes and records by themselves: what one rank sends is what the other expects, byte for byte."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import SPEC, lengths_of, table_of

from fsdata.balance.exchange import RecordSpec, StatusWord
from fsdata.balance.exchange.status_word import PROTOCOL, check, decode, encode
from fsdata.balance.exchange.transfer import check_lengths, route
from fsdata.decode.row_layout import layout_of
from fsdata.errors import DataError, MismatchError
from fsdata.schema import Schema, Sequence


@st.composite
def moves(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts [W], record bytes [N] and new ranks [N]."""
    counts = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    total = sum(counts)
    record_bytes = draw(st.lists(st.integers(0, 9), min_size=total, max_size=total))
    rank = draw(st.lists(st.integers(0, len(counts) - 1), min_size=total, max_size=total))
    return np.array(counts), 8 * np.array(record_bytes, np.int64), np.array(rank, np.int64)


@given(moves())
def test_what_is_sent_is_what_is_received(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    counts, record_bytes, rank = case
    routes = [route(rank, counts, record_bytes, me) for me in range(len(counts))]
    first = np.cumsum(counts) - counts
    # Every rank's send buffer as (offset, bytes, sample), cut by destination: the plain definition of the exchange.
    wires: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for me, way in enumerate(routes):
        at = 0
        for row, offset in zip(way.order, way.offset, strict=True):
            sample = int(first[me] + row)
            assert offset == at
            at += int(record_bytes[sample])
            wires.setdefault((me, int(rank[sample])), []).append((sample, int(record_bytes[sample])))
        assert way.sent.sum() == at
    for me, way in enumerate(routes):
        for other in range(len(counts)):
            assert way.received[other] == routes[other].sent[me] == sum(size for _, size in wires.get((other, me), []))
        arrived = [entry for other in range(len(counts)) for entry in wires.get((other, me), []) if other != me]
        at, expected = 0, {}
        for sample, size in arrived:
            expected[sample] = at
            at += size
        assert way.sample.tolist() == np.flatnonzero(rank == me).tolist()
        for sample, record, (home, row) in zip(way.sample, way.record, way.origin, strict=True):
            assert first[home] + row == sample
            assert record == (-1 if home == me else expected[sample])


def test_a_layout_becomes_a_record() -> None:
    schema = Schema(
        sequences=(Sequence("uih", fields=("item",), floats=("price",)),),
        candidates=Sequence("candidates", fields=("shown",)),
        context=("user",),
        dense=("age", "hour", "day"),
        labels=("click", "bought"),
    )
    spec = RecordSpec.of_layout(layout_of(schema, frozenset({"click"})))
    assert spec.groups == ("uih", "candidates")
    lengths = np.array([[0, 3], [0, 2]])
    by_name = dict(zip(spec.names, spec.field_lengths(lengths).tolist(), strict=True))
    assert by_name == {
        "user": [1, 1],
        "item": [0, 3],
        "shown": [0, 2],
        "price": [0, 3],
        "dense": [3, 3],
        "click": [0, 2],
        "bought": [1, 1],
    }
    assert spec.record_bytes(lengths).tolist() == [8 + 12 + 4, 8 + 24 + 16 + 12 + 12 + 8 + 4 + 4]
    assert np.array_equal(spec.group_lengths(spec.field_lengths(lengths)), lengths)


def test_records_do_not_overlap_and_every_field_is_aligned() -> None:
    lengths = lengths_of(3, 0, 40)
    size = spec_bytes = SPEC.record_bytes(lengths)
    record = np.cumsum(size) - size
    field = SPEC.field_lengths(lengths)
    address = SPEC.addresses(field, record)
    assert (address % SPEC.itemsize[:, None] == 0).all()
    ends = address + field * SPEC.itemsize[:, None]
    assert (ends[:-1] == address[1:]).all()
    assert (ends[-1] <= record + spec_bytes).all()
    assert (record % 8 == 0).all()


def test_bad_specs_and_tables_are_refused() -> None:
    kind = {"group": np.array([-1, -1]), "width": np.array([1, 1]), "groups": (), "group_field": np.empty(0, np.int64)}
    with pytest.raises(ValueError, match="falling alignment"):
        RecordSpec(names=("a", "b"), itemsize=np.array([4, 8]), **kind)
    with pytest.raises(ValueError, match="disagree"):
        RecordSpec(names=("a",), itemsize=np.array([4, 8]), **kind)
    table = table_of(0, 0, 4, lengths_of(0, 0, 4))
    table.length[5, 3] = 7
    with pytest.raises(DataError, match="field 'dense' of row 3 has 7 elements, its group or width asks for 3"):
        check_lengths(table, SPEC)


def test_status_words_keep_everything() -> None:
    status = StatusWord(
        epoch=3,
        step=2**40,
        position=5,
        ended=True,
        rows=7,
        longest=2**33,
        left=True,
        failed=True,
        compute_ns=2**50,
        compute_step=9,
    )
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
