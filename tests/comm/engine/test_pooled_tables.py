"""Shadows of fused kernels that give a vector for every bag; see `test_tables.py`."""

from functools import partial

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from test_tables import DIM, FEATURES, ROWS, assert_same, kernel, tables_of

from fscomm.bags.pooled_tables import PooledTables
from fscomm.plan.group_plan import Apply
from fscomm.plan.kernel_calls import KernelBags, KernelCall
from fscomm.tables.shadow_kernels import take_hyper


def test_means_are_scaled_by_bag_as_kernels_for_cuda_do() -> None:
    """The CPU's kernels, which scale by id, give the same bits where 1 / the length is exact: of 1, 2 or 4 ids."""
    plain, served = (kernel(pooling=PoolingMode.MEAN) for _ in range(2))
    random = torch.Generator().manual_seed(5)
    lengths = torch.tensor([4, 0, 2, 1, 1, 0, 4, 2, 0, 4, 2, 2])
    counts = lengths.view(len(FEATURES), -1).sum(1).tolist()
    ids = torch.cat([torch.randint(ROWS[t], (n,), generator=random) for t, n in zip(FEATURES, counts, strict=True)])
    gradient = torch.randn(4, len(FEATURES) * DIM, generator=random)
    plain(ids, torch.tensor([0, *lengths]).cumsum(0)).backward(gradient)
    tables = tables_of(served, kind=partial(PooledTables, scales_bags=True))
    hypers, bag = [take_hyper(served)], torch.arange(len(lengths)).repeat_interleave(lengths)
    for rest in (0, 1):
        which = ids % 2 == rest
        of_bags = torch.bincount(bag[which], minlength=len(lengths))
        offsets = torch.tensor([0, *of_bags]).cumsum(0)
        bags = [KernelBags(first=0, last=int(which.sum()), offsets=offsets)]
        apply = Apply(
            call=KernelCall(ids=ids[which], bags=bags),
            index=torch.arange(gradient.numel() // DIM),
            shares=(1 / lengths[bag[which]].float()),
        )
        (update,) = tables.updates(apply, gradient.view(-1, DIM))
        assert update.weights is None
        tables.apply(apply, gradient.view(-1, DIM), hypers)
    assert_same(plain, served)
