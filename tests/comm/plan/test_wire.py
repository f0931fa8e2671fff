"""Small parts of a plan: how large chunks and masks are, and who passes a row on.

That all plans of a step fit, and bring every row and gradient where it belongs, is in
`tests/comm/exchange/test_id_exchange.py`.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fscomm.plan import wire_kernels
from fscomm.plan.group_plan import mask_sizes
from fscomm.plan.sharding_group import GroupLayout

LAYOUT = GroupLayout(
    module="m", sharding="table_wise", rank=0, world_size=2, dim=3, dtype=torch.float32, runs=((1, 1), (1,)),
    rows=(10, 4),
)  # fmt: skip


def test_layout_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="m: 1 owners with 2 tables here for world size 2"):
        replace(LAYOUT, runs=((1, 1),))


def test_a_chunk_is_what_a_rank_sends_to_all_others_and_has_a_row_at_least() -> None:
    sixty = replace(LAYOUT, chunk_bytes=60 * 12, world_size=5, runs=(*LAYOUT.runs, (), (), ()))
    assert sixty.chunk_rows == 60
    assert replace(LAYOUT, chunk_bytes=11).chunk_rows == 1


@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 9), (8, 9), (9, 10)])
def test_a_row_takes_one_bit(rows: int, size: int) -> None:
    assert mask_sizes(1, [np.array([rows])], 1).tolist() == [size]


def test_the_ranks_of_a_host_share_the_work_of_passing_rows_on() -> None:
    found = np.empty(8000, np.int32)
    wire_kernels.carriers(np.ones((8000, 8), np.bool_), np.arange(8000), found)
    assert np.bincount(found).tolist() == [1000] * 8
