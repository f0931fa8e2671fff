"""Counting shared rows, and numbering ids (numba, nogil, no Python objects).

The counting of batches keeps one byte per table row: the mark of the last batch that used the row, and whether the
batch before used it too. Each occurrence costs one memory access, and nothing is cleared between batches.

Arguments of all kernels: ids: uint32, of all rows. starts, lengths: int64 [N], where those of a row lie. Of batches:
batch: int64 [G], its rows. limit: events of a row that count, its last ones. state: uint8 [ids], the bytes of the table
rows.
"""

import numpy as np

from fsranks.libraries import kernel

MARKS = 126  # marks are 1 to 126; a mark and one bit fill a byte
NO_NUMBER = np.uint32(2**32 - 1)  # of an id that did not occur yet

_ROWS = "uint32[::1], int64[::1], int64[::1], Array(int64, 1, 'C', readonly=True), int64, int64, uint8[::1]"
_OF_ROWS = "uint32[::1], int64[::1], int64[::1], int64[:], uint32[::1]"


@kernel(f"void({_ROWS})")
def leave_mark(ids, starts, lengths, batch, limit, mark, state):
    """Mark the rows of a batch as `tally` does, without counting, which takes less than half the time."""
    now = np.uint8(2 * mark)
    for row in batch:
        end = starts[row] + lengths[row]
        for place in range(end - min(lengths[row], limit), end):
            state[ids[place]] = now


@kernel(f"void({_ROWS}, int64[::1])")
def tally(ids, starts, lengths, batch, limit, mark, state, counts):
    """Count a global batch against the one with mark `mark` - 1. The marks of one `state` ascend.

    Written: counts int64 [4] = occurrences, those shared with the batch before, distinct ids, those shared.
    """
    before, now = np.uint8(2 * mark - 2), np.uint8(2 * mark)
    occurrences = shared = distinct = shared_distinct = 0
    for row in batch:
        end = starts[row] + lengths[row]
        first = end - min(lengths[row], limit)
        occurrences += end - first
        for place in range(first, end):
            # 0, 1: last seen in the batch before. 2, 3: seen in this batch; 3 is shared. Others are older.
            age = np.uint8(state[ids[place]] - before)
            if age == 3:
                shared += 1
            elif age != 2:
                both = int(age < 2)
                state[ids[place]] = now + np.uint8(both)
                shared += both
                distinct += 1
                shared_distinct += both
    counts[0], counts[1], counts[2], counts[3] = occurrences, shared, distinct, shared_distinct


@kernel(f"void({_ROWS}, uint8[::1], int64[::1])")
def tally_ranks(ids, starts, lengths, batch, limit, per_rank, state, local, counts):
    """Count the distinct ids of each rank's part of a batch, summed over the ranks. `tally` counted the batch before.

    batch: int64 [W * per_rank], rank by rank; local: uint8 [ids], scratch. Written: counts int64 [2] = distinct, those
    shared with the batch before.
    """
    local[:] = 0
    stamp = 0
    distinct = shared = 0
    for place in range(len(batch)):
        if place % per_rank == 0:
            stamp += 1
            if stamp == 256:
                local[:] = 0
                stamp = 1
        row = batch[place]
        end = starts[row] + lengths[row]
        for at in range(end - min(lengths[row], limit), end):
            if local[ids[at]] != stamp:
                local[ids[at]] = stamp
                distinct += 1
                shared += state[ids[at]] & np.uint8(1)
    counts[0], counts[1] = distinct, shared


@kernel(f"int64({_OF_ROWS}, uint32[::1], uint32[::1])")
def number_ids(ids, starts, lengths, rows, numbers, found, counts):
    """Number the distinct ids of some rows by first occurrence, and count them; how many there are.

    rows: int64, those that count, in order. Read and written: numbers uint32 [ids], all `NO_NUMBER` at first; counts
    uint32, occurrences by number, all 0 at first. Written: found uint32, the id of each number.
    """
    total = 0
    for row in rows:
        for place in range(starts[row], starts[row] + lengths[row]):
            one = ids[place]
            if numbers[one] == NO_NUMBER:
                numbers[one] = total
                found[total] = one
                total += 1
            counts[numbers[one]] += 1
    return total


@kernel(f"int64({_OF_ROWS}, int64, int32[::1], uint32[::1])")
def ids_of_hour(ids, starts, lengths, rows, numbers, hour, last, found):
    """The distinct ids of the rows of an hour by first occurrence; how many there are.

    numbers: as `number_ids` wrote them. Read and written: last int32, the hour before in which each number occurred, or
    -1. Written: found uint32, numbers.
    """
    total = 0
    for row in rows:
        for place in range(starts[row], starts[row] + lengths[row]):
            number = numbers[ids[place]]
            if last[number] != hour:
                last[number] = hour
                found[total] = number
                total += 1
    return total
