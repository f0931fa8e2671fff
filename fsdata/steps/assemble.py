"""From references to tensors: one copy of every value to its final place in a `Batch`."""

import numpy as np
import torch

from fsdata.batch.batch import Batch, StepStats
from fsdata.batch.jagged import Jagged
from fsdata.batch.torchrec_binding import keyed_jagged_tensor, register_pipelineable
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.row_layout import Layout
from fsdata.decode.row_table import RowTable
from fsdata.kernels.copy import gather_fields


def assemble(table: RowTable, layout: Layout, *, origin: np.ndarray, stats: StepStats, pool: Pool) -> Batch:
    """Copy the rows of `table` into a Batch in buffers of `pool`; `origin` is int64 [N, 2]."""
    counts = table.length.sum(axis=1)
    num_keys = layout.num_keys
    values = pool.tensor(int(counts[:num_keys].sum()), torch.int64)
    others = zip(counts[num_keys:].tolist(), layout.fields[num_keys:], strict=True)
    rest = [pool.tensor(count, torch.int64 if field.itemsize == 8 else torch.float32) for count, field in others]
    target = np.empty(len(counts), np.int64)
    target[:num_keys] = values.data_ptr() + 8 * (np.cumsum(counts[:num_keys]) - counts[:num_keys])
    target[num_keys:] = [tensor.data_ptr() for tensor in rest]
    gather_fields(table.address, table.length, table.itemsize, target)

    register_pipelineable(Batch)
    lengths = torch.from_numpy(table.length[:num_keys].reshape(-1))
    labels: dict[str, torch.Tensor | Jagged] = {}
    jagged: dict[str, Jagged] = {}
    dense = torch.empty((table.num_rows, 0), dtype=torch.float32)
    for index, field in enumerate(layout.fields[num_keys:]):
        tensor = rest[index]
        if field.kind == "dense":
            dense = tensor.view(table.num_rows, field.width)
        elif field.kind == "label":
            labels[field.name] = tensor
        else:
            rows = Jagged.from_lengths(tensor, torch.from_numpy(table.length[num_keys + index]))
            (jagged if field.kind == "floats" else labels)[field.name] = rows
    return Batch(
        features=keyed_jagged_tensor(layout.keys, values, lengths, table.num_rows),
        dense=dense,
        labels=labels,
        jagged=jagged,
        origin=torch.from_numpy(np.ascontiguousarray(origin)),
        stats=stats,
    )
