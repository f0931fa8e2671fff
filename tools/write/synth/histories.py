"""Draws the columns of a row group: histories of events, and candidates with their labels."""

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from freescale_tools.write.synth.lengths import Draws, Lengths

ITEMS = 300_007  # prime, so that a multiplication maps popularity ranks to distinct ids
_SCATTER = 104_729
_FIRST_REQUEST = 1_750_000_000  # epoch seconds
_MEAN_GAP_S = 3_600.0
# Five actions, the view first. One random byte picks an entry.
_ACTIONS = np.repeat(np.array([1, 2, 3, 4, 5]), [160, 52, 26, 13, 5])

_LENGTHS = Lengths()

Columns = dict[str, pa.Array]


@dataclass(frozen=True, kw_only=True, slots=True)
class Histories:
    """One row group of aligned histories. offsets int32 [rows + 1]; the others int64 [events]."""

    offsets: np.ndarray
    items: np.ndarray
    actions: np.ndarray
    times: np.ndarray
    request: np.ndarray  # int64 [rows], later than every event of its row


def histories(rng: np.random.Generator, first: int, rows: int, step_s: int, drawn: Draws = _LENGTHS) -> Histories:
    """Of `rows` rows, with one request in every `step_s` seconds. `first`: the number of the first row."""
    lengths = drawn.draw(rng, rows)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    events = int(offsets[-1])
    request = _FIRST_REQUEST + step_s * np.arange(first, first + rows) + rng.integers(0, step_s, rows)
    gaps = 1 + (rng.standard_exponential(events, dtype=np.float32) * np.float32(_MEAN_GAP_S)).astype(np.int64)
    since_start = np.cumsum(gaps)
    # The last event of a row is before its request, and times rise strictly.
    until = np.concatenate([[0], since_start])[offsets[1:]]
    times = np.repeat(request - until - 1, lengths) + since_start
    return Histories(
        offsets=offsets.astype(np.int32),
        items=_items(rng, events),
        actions=_ACTIONS[rng.integers(0, len(_ACTIONS), events, dtype=np.uint8)],
        times=times,
        request=request,
    )


def _items(rng: np.random.Generator, count: int) -> np.ndarray:
    """Item ids in 1..ITEMS-1. Popularity is about 1/rank (Zipf); popular ids lie anywhere in the range."""
    rank = np.exp(rng.random(count, dtype=np.float32) * np.float32(math.log(ITEMS))).astype(np.int64)
    return np.minimum(rank, ITEMS - 1) * _SCATTER % ITEMS


def list_array(offsets: np.ndarray, values: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def past_lists(past: Histories) -> Columns:
    """`item_ids`, `actions` and `timestamps`."""
    columns = {"item_ids": past.items, "actions": past.actions, "timestamps": past.times}
    return {name: list_array(past.offsets, values) for name, values in columns.items()}


def candidate_ends(rng: np.random.Generator, rows: int) -> np.ndarray:
    """int32 [rows + 1]: where the 1 to 50 candidates of every row begin."""
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(rng.integers(1, 51, rows), out=ends[1:])
    return ends


def candidates(rng: np.random.Generator, ends: np.ndarray) -> Columns:
    """`candidate_ids` with their `candidate_labels`, a tenth of which are 1."""
    count = int(ends[-1])
    return {
        "candidate_ids": list_array(ends, _items(rng, count)),
        "candidate_labels": list_array(ends, (rng.random(count) < 0.1).astype(np.float32)),
    }
