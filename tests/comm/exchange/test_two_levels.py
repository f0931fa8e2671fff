"""The exchange of ids where rows come to a host once, and one of its ranks passes them on."""

from dataclasses import replace

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from simulated import Shape, shapes
from test_id_exchange import check_plans

from fscomm.two_levels.kernels import carriers

HOSTS = [(2, 2), (4, 2), (6, 2), (6, 3), (4, 4)]
TWO_HOSTS = Shape(
    world_size=4, runs=((2, 1), (1,), (), (1,)), rows=((4, 2), (9,), (), (5,)), longest=8, silent=2, seed=7,
    ranks_per_host=2,
)  # fmt: skip


@given(shape=shapes(HOSTS), modules=st.sampled_from([[0, 0], [0, 1]]))
@example(shape=TWO_HOSTS, modules=[0, 1])
@example(shape=replace(TWO_HOSTS, chunk_rows=1), modules=[0, 0])
def test_plans_of_all_ranks_fit(shape: Shape, modules: list[int]) -> None:
    check_plans(shape, modules)


def test_the_ranks_of_a_host_share_the_work_of_passing_rows_on() -> None:
    found = np.empty(8000, np.int32)
    carriers(np.ones((8000, 8), np.bool_), np.arange(8000), found)
    assert np.bincount(found).tolist() == [1000] * 8
