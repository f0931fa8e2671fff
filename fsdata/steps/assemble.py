"""From references to tensors: one copy of every value to its final place in a `Batch`."""

from typing import Any

import numpy as np
import torch

from fsdata.batch.batch import Batch, StepStats
from fsdata.batch.jagged import Jagged
from fsdata.batch.shared import Shared
from fsdata.batch.split import SplitSequence
from fsdata.batch.torchrec_binding import keyed_jagged_tensor, register_pipelineable
from fsdata.decode.reused_buffers import Pool
from fsdata.decode.row_layout import Layout
from fsdata.decode.row_table import RowTable
from fsdata.kernels.copy import gather_fields
from fsdata.steps.share import Windows, share

_DTYPES = {8: torch.int64, 4: torch.float32, 1: torch.uint8}


def assemble(table: RowTable, layout: Layout, *, origin: np.ndarray, stats: StepStats, pool: Pool) -> Batch:
    """Copy the rows of `table` into a Batch in buffers of `pool`; `origin` is int64 [N, 2]."""
    table, windows = share(table, layout)
    flat = _gathered(table, layout, pool)
    values = flat[0] if layout.num_keys else torch.empty(0, dtype=torch.int64)
    register_pipelineable(Batch)
    lengths = torch.from_numpy(table.length[: layout.num_keys].reshape(-1))
    labels: dict[str, torch.Tensor | Jagged] = {}
    jagged: dict[str, Jagged] = {}
    passthrough: dict[str, torch.Tensor | list[str]] = {}
    dense = torch.empty((table.num_rows, 0), dtype=torch.float32)
    for row, field in enumerate(layout.fields[layout.num_keys :], layout.num_keys):
        if field.kind in ("counts", "nested_ids", "reference", "mask"):
            continue
        if field.kind == "dense":
            dense = flat[row].view(table.num_rows, field.width)
        elif field.kind == "text":
            passthrough[field.name] = _texts(flat[row], table.length[row])
        elif field.kind == "passthrough":
            passthrough[field.name] = flat[row]
        elif field.kind != "floats" and field.group in (None, layout.exploded):
            labels[field.name] = flat[row]
        else:
            rows = Jagged.from_lengths(flat[row], torch.from_numpy(table.length[row]))
            (jagged if field.kind == "floats" else labels)[field.name] = rows
    return Batch(
        features=keyed_jagged_tensor(layout.keys, values, lengths, table.num_rows),
        dense=dense,
        labels=labels,
        jagged=jagged,
        origin=torch.from_numpy(np.ascontiguousarray(origin)),
        stats=stats,
        nested={name: _nested(layout, flat, *where) for name, where in layout.nested.items()},
        shared={name: _shared(each) for name, each in windows.items()},
        split=_split(table, layout, windows),
        passthrough=passthrough,
        mask={name: flat[row].view(torch.bool) for name, row in layout.masks.items()},
    )


def _texts(flat: torch.Tensor, length: np.ndarray) -> list[str]:
    data = flat.numpy().tobytes()
    stop = np.cumsum(length)
    return [data[first:last].decode() for first, last in zip((stop - length).tolist(), stop.tolist(), strict=True)]


def _split(table: RowTable, layout: Layout, windows: dict[str, Windows]) -> dict[str, SplitSequence]:
    found = {}
    for name, options in layout.split:
        events = windows[name].length if name in windows else table.length[layout.groups[name]].copy()
        found[name] = SplitSequence.of(torch.from_numpy(events), options)
    return found


def _shared(windows: Windows) -> Shared:
    return Shared(
        row=torch.from_numpy(windows.row),
        start=torch.from_numpy(windows.start),
        length=torch.from_numpy(windows.length),
        offset=torch.from_numpy(windows.offset),
        rows=len(windows.first),
        total=int(windows.length.sum()),
        held=int(windows.size.sum()),
    )


def _gathered(table: RowTable, layout: Layout, pool: Pool) -> dict[int, torch.Tensor]:
    """First field of a tensor -> the values of all its fields, field after field."""
    counts = table.length.sum(axis=1)
    together = [slice(0, layout.num_keys), *(each for pair in layout.nested.values() for each in pair)]
    inside = {row for some in together for row in range(some.start, some.stop)}
    together += [slice(row, row + 1) for row in range(len(counts)) if row not in inside]
    flat: dict[int, torch.Tensor] = {}
    target = np.empty(len(counts), np.int64)
    references = list(layout.references.values())
    for some in together:
        if some.start == some.stop or some.start in references:
            continue  # no keys, or only on the way between ranks
        itemsize = layout.fields[some.start].itemsize
        tensor = pool.tensor(int(counts[some].sum()), _DTYPES[itemsize])
        target[some] = tensor.data_ptr() + itemsize * (np.cumsum(counts[some]) - counts[some])
        flat[some.start] = tensor
    if references:
        copied = np.delete(np.arange(len(counts)), references)
        gather_fields(table.address[copied], table.length[copied], table.itemsize[copied], target[copied])
    else:
        gather_fields(table.address, table.length, table.itemsize, target)
    return flat


def _nested(layout: Layout, flat: dict[int, torch.Tensor], counts: slice, ids: slice) -> Any:
    """A KeyedJaggedTensor whose batch are the events."""
    keys = tuple(field.name for field in layout.fields[counts])
    lengths = flat[counts.start]
    return keyed_jagged_tensor(keys, flat[ids.start], lengths, len(lengths) // len(keys))
