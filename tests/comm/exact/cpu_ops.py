"""Operators of fbgemm that exist for CUDA only, for the CPU, so that the plain loop of TorchRec runs in tests."""

import torch
from torch import library as operators


def jagged_unique_indices(
    hash_size_cumsum: torch.Tensor, hash_size_offset: torch.Tensor, offsets: torch.Tensor, indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each table's ids once: lengths [F * B], offsets [F * B + 1], unique ids, and which of them each id is.

    hash_size_cumsum: [F + 1] where a feature's ids begin, counted over all tables; features of one table share that.
    hash_size_offset: [F + 1] how many features there are up to a table's first one. offsets: [F * B + 1]. As fbgemm's
    CUDA kernel does, unique ids of a table are sorted, and spread over its features' samples as evenly as they go.
    """
    features = len(hash_size_offset) - 1
    samples = (len(offsets) - 1) // features
    of_feature = torch.repeat_interleave(torch.arange(features), offsets[::samples].diff())
    table_start = hash_size_cumsum[:-1]
    unique, reverse = torch.unique(indices + table_start[of_feature], sorted=True, return_inverse=True)
    lengths = torch.zeros(features * samples, dtype=torch.int64)
    values = unique.clone()
    first = 0
    while first < features:
        last = first + 1
        while last < features and hash_size_offset[last + 1] == hash_size_offset[last]:
            last += 1
        low, high = int(hash_size_cumsum[first]), int(hash_size_cumsum[last])
        inside = (unique >= low) & (unique < high)
        values[inside] -= low
        places = (last - first) * samples
        each, rest = divmod(int(inside.sum()), places)
        lengths[first * samples : last * samples] = each
        lengths[first * samples : first * samples + rest] += 1
        first = last
    return lengths, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), values, reverse


operators.impl("fbgemm::jagged_unique_indices", "CPU", jagged_unique_indices)
