"""Who passes a row on. That every row arrives is in `tests/comm/exchange/test_id_exchange.py`."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fscomm.plan import wire_kernels


def carriers(asking: np.ndarray, ids: np.ndarray) -> np.ndarray:
    out = np.empty(len(ids), np.int32)
    wire_kernels.carriers(asking, ids, out)
    return out


def test_the_ranks_of_a_host_share_the_work() -> None:
    found = carriers(np.ones((8000, 8), np.bool_), np.arange(8000))
    assert np.bincount(found).tolist() == [1000] * 8


@given(per_host=st.integers(2, 9), seed=st.integers(0, 2**32))
def test_who_passes_a_row_on_asks_for_it_itself(per_host: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    asking = random.random((50, per_host)) < 0.3
    asking[np.arange(50), random.integers(0, per_host, 50)] = True  # nobody is told of rows that nobody asks for
    found = carriers(asking, random.integers(-3, 1 << 50, 50))
    assert asking[np.arange(50), found].all()


@given(hosts=st.integers(1, 4), per_host=st.integers(1, 5), rows=st.integers(1, 9), seed=st.integers(0, 2**32))
def test_owners_know_which_ranks_of_a_host_ask_for_a_row(hosts: int, per_host: int, rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    asked = random.random((hosts, per_host, rows)) < 0.5
    numbers = [np.flatnonzero(of_rank) for of_host in asked for of_rank in of_host]
    out = np.empty((sum(map(len, numbers)), per_host), np.bool_)
    wire_kernels.asking(
        np.concatenate(numbers).astype(np.int32), np.array(list(map(len, numbers))), np.zeros(rows, np.uint64), out
    )
    expected = [asked[rank // per_host, :, row] for rank, of_rank in enumerate(numbers) for row in of_rank]
    assert out.tolist() == [each.tolist() for each in expected]
