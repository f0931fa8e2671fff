"""What every way gets and delivers, and the conversion from Arrow that several of them share."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import common.reference as sets
import numpy as np
import pyarrow as pa
import torch
from torchrec import KeyedJaggedTensor

from freescale_tools.write.synth.presets import ReferenceColumns

SET = "FREESCALE_SET"
"""The variable of the environment that says which set is read: modules have its columns as they are imported."""
COLUMNS: ReferenceColumns = sets.COLUMNS[os.environ.get(SET, "reference")]
READ = list(COLUMNS.read)
SCALARS = COLUMNS.context
LISTS = (*COLUMNS.sequence, *COLUMNS.candidates)
KEYS = [*SCALARS, *LISTS]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One epoch over `paths`; `cache` is a folder for what a way prepared beforehand."""

    paths: list[str]
    batch_size: int
    cache: str
    seed: int = 0


class Delivered(NamedTuple):
    """One batch of B samples, as a training step takes it."""

    features: KeyedJaggedTensor  # int64, KEYS; scalars with length 1
    dense: torch.Tensor  # float32 [B, D]
    label: torch.Tensor  # float32 [candidates], or [B] where it is one number
    label_offsets: torch.Tensor  # int64 [B + 1]


def flat_list(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(values, lengths int64 [B]) of a list array without nulls, sliced or not; values are a view. A number is a list
    of one."""
    if not pa.types.is_list(array.type):
        return array.to_numpy(), np.ones(len(array), np.int64)
    return array.flatten().to_numpy(), np.diff(array.offsets.to_numpy()).astype(np.int64)


def from_arrow(columns: Mapping[str, pa.Array]) -> Delivered:
    """Arrow arrays of one batch -> tensors. Every value is copied once, into its place."""
    values, lengths = concatenated(columns, KEYS)
    dense = np.stack([columns[name].to_numpy() for name in COLUMNS.dense], axis=1)
    label, label_lengths = flat_list(columns[COLUMNS.label])
    return delivered(values, lengths, dense, label.copy(), label_lengths)


def concatenated(columns: Mapping[str, pa.Array], keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(values, key after key; lengths int64 [K, B])."""
    values, lengths = zip(*(flat_list(columns[name]) for name in keys), strict=True)
    return np.concatenate(values), np.stack(lengths)


def from_table(table: pa.Table) -> Delivered:
    """The same of a table, whose columns may come in several chunks."""
    columns = {}
    for name in READ:
        column = table.column(name)
        columns[name] = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return from_arrow(columns)


def delivered(
    values: np.ndarray, lengths: np.ndarray, dense: np.ndarray, label: np.ndarray, label_lengths: np.ndarray
) -> Delivered:
    """values int64 [sum of lengths], key after key; lengths int64 [K, B]; dense [B, D]; no copies."""
    rows = lengths.shape[1]
    label_offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(label_lengths, out=label_offsets[1:])
    features = KeyedJaggedTensor(
        keys=KEYS, values=torch.from_numpy(values), lengths=torch.from_numpy(lengths.reshape(-1)), stride=rows
    )
    return Delivered(features, torch.from_numpy(dense), torch.from_numpy(label), torch.from_numpy(label_offsets))
