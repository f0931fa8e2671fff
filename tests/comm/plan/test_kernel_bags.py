"""In which bags fused kernels get the ids of tables that give every id its row."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fscomm.plan.kernel_calls import FEWEST_IDS_PER_BAG, IDS_PER_BAG, KernelBags, equal_bags
from fscomm.plan.sharding_group import GroupLayout

Table = tuple[int, int]  # features, ids


def bags_of(kernels: Sequence[Sequence[Table]]) -> list[KernelBags]:
    tables = [table for kernel in kernels for table in kernel]
    layout = GroupLayout(
        module="m",
        sharding="table_wise",
        rank=0,
        world_size=1,
        dim=1,
        dtype=torch.float32,
        runs=(tuple(features for features, _ in tables),),
        rows=(1,) * len(tables),
        kernels=tuple(map(len, kernels)),
    )
    return equal_bags(layout, np.cumsum([0, *(ids for _, ids in tables)]))


TABLES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5000)), min_size=1, max_size=5)


@given(st.lists(TABLES, max_size=3))
def test_every_table_is_cut_into_equal_bags_of_about_one_size(kernels: list[list[Table]]) -> None:
    begin = 0
    for kernel, bags in zip(kernels, bags_of(kernels), strict=True):
        features, ids = map(sum, zip(*kernel, strict=True))
        assert (bags.first, bags.last) == (begin, begin + ids)
        begin += ids
        lengths = bags.offsets.diff().numpy()
        samples = len(lengths) // features
        assert len(lengths) == samples * features
        assert ids / (2 * IDS_PER_BAG) <= len(lengths) <= ids / FEWEST_IDS_PER_BAG + 2 * features
        for number, (of_table, given_ids) in enumerate(kernel):
            first = sum(each for each, _ in kernel[:number]) * samples
            of_bags = lengths[first : first + of_table * samples]
            assert of_bags.sum() == given_ids
            assert np.ptp(of_bags) <= 1


def test_one_long_table_is_cut_as_if_it_were_alone_but_for_many_empty_bags() -> None:
    (bags,) = bags_of([[(1, 64_000)]])
    assert len(bags.offsets) - 1 == 64_000 / IDS_PER_BAG
    (bags,) = bags_of([[(1, 64_000), *[(1, 0)] * 99]])
    assert len(bags.offsets) - 1 == 64_000 / FEWEST_IDS_PER_BAG
