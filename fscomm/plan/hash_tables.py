"""Hash tables over int64 keys (numba, nogil, no Python objects): open addressing with linear probing. A checksum.

W peers, T tables of an owner.
"""

import numpy as np

from fsranks.libraries import kernel


@kernel
def _mix(key: int) -> np.uint64:
    """Spread a key over all 64 bits (finalizer of SplitMix64, Steele et al. 2014): strided ids must not cluster."""
    x = np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def places_for(number: int) -> int:
    """Places of a table of so many keys: a power of two, at most half of them in use."""
    places = 2
    while places < 2 * number:
        places *= 2
    return places


@kernel
def first_occurrences(
    keys: np.ndarray,
    lengths: np.ndarray,
    table: np.ndarray,
    positions: np.ndarray,
    slots: np.ndarray,
    counts: np.ndarray,
) -> int:
    """Distinct keys of every segment in order of first occurrence; how many there are in total.

    keys: int64 [N]; lengths: int64 [S], sum N; table: int64 [M, 2], slots all -1, M `places_for` the longest segment.
    Written: positions int32 [N], its first U entries; slots int32 [N]; counts int64 [S].

    The table holds (key, slot). A place is empty if its slot is below the first one of the segment: so the table serves
    one segment after another without being cleared, each with as many places as it needs.
    """
    at = 0
    total = 0
    for s in range(len(lengths)):
        floor = total
        mask = np.uint64(places_for(lengths[s]) - 1)
        for i in range(at, at + lengths[s]):
            key = keys[i]
            place = _mix(key) & mask
            # Half of the places are empty, so a probe ends after about two of them, whatever the keys are.
            while table[place, 1] >= floor and table[place, 0] != key:
                place = (place + np.uint64(1)) & mask
            if table[place, 1] < floor:
                table[place, 0] = key
                table[place, 1] = total
                positions[total] = i
                total += 1
            slots[i] = table[place, 1]
        counts[s] = total - floor
        at += lengths[s]
    return total


@kernel
def _find(heads: np.ndarray, first: int, places: int, limit: int, ids: np.ndarray, row: int) -> np.int64:
    """Index of the head of `row`, or of the empty one where it belongs, in a table that begins at `first`. Where there
    are as many places as rows, every row has its own."""
    if places == limit:
        return np.int64(first + row)
    mask = np.uint64(places - 1)
    place = _mix(row) & mask
    while heads[first + np.int64(place)] >= 0 and ids[heads[first + np.int64(place)]] != row:
        place = (place + np.uint64(1)) & mask
    return first + np.int64(place)


@kernel
def number_rows(
    asked: np.ndarray,
    lengths: np.ndarray,
    limits: np.ndarray,
    regions: np.ndarray,
    heads: np.ndarray,
    numbers: np.ndarray,
    ids: np.ndarray,
    ends: np.ndarray,
) -> bool:
    """Number the rows that peers ask of an owner, table after table; whether an id lies outside its table.

    asked: int64 [N] ids, by peer, then by table; lengths: int64 [W, T]; limits: int64 [T] rows of each table. An id
    outside counts as row 0, which is what the fused kernel makes of it.
    regions: int64 [T + 1], which of the `heads` each table has: its rows, or `places_for` its ids.
    Written: heads int32 [M], the number of the row in each place or -1; numbers int32 [N]; ids int64 [N], the row of
    each number; ends int64 [T], how many rows there are up to each table.

    Tables one after another: what is looked up again and again then stays in the processor's cache.
    """
    world_size, tables = lengths.shape
    starts = np.zeros((world_size, tables), np.int64)
    at = 0
    for w in range(world_size):
        for t in range(tables):
            starts[w, t] = at
            at += lengths[w, t]
    total = 0
    outside = False
    for t in range(tables):
        first, places, limit = regions[t], regions[t + 1] - regions[t], limits[t]
        heads[first : regions[t + 1]] = -1
        for w in range(world_size):
            for i in range(starts[w, t], starts[w, t] + lengths[w, t]):
                row = asked[i]
                if row < 0 or row >= limit:  # memory beyond the table must not be touched, in whatever thread
                    outside = True
                    row = 0
                head = _find(heads, first, places, limit, ids, row)
                if heads[head] < 0:
                    heads[head] = total
                    ids[total] = row
                    total += 1
                numbers[i] = heads[head]
        ends[t] = total
    return outside


@kernel
def mark_common(
    ids: np.ndarray,
    ends: np.ndarray,
    limits: np.ndarray,
    other_ids: np.ndarray,
    other_heads: np.ndarray,
    other_regions: np.ndarray,
    later: np.ndarray,
    classes: np.ndarray,
    other_classes: np.ndarray,
) -> None:
    """Give rows of one step that are of the other step, too, their class: 0 in `classes` uint8 [R]; in `other_classes`
    uint8 [R'] what `later` uint8 [R] says, or what it is if that is less.

    ids, ends, limits: as `number_rows` wrote and read them; so `other_ids` and `other_heads` in `other_regions`.
    """
    start = 0
    for t in range(len(ends)):
        first, places = other_regions[t], other_regions[t + 1] - other_regions[t]
        for r in range(start, ends[t]):
            other = other_heads[_find(other_heads, first, places, limits[t], other_ids, ids[r])]
            if other >= 0:
                classes[r] = 0
                other_classes[other] = min(other_classes[other], later[r])
        start = ends[t]


@kernel
def checksum(words: np.ndarray) -> np.uint64:
    """Of uint64 [N]: another one, as good as surely, if a word changes or words change places. 8 bytes in 2 cycles."""
    factor = np.uint64(0xBF58476D1CE4E5B9)
    a, b, c, d = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(len(words))
    whole = len(words) // 4 * 4
    for i in range(0, whole, 4):  # four at a time do not wait for each other
        a, b = (a ^ words[i]) * factor, (b ^ words[i + 1]) * factor
        c, d = (c ^ words[i + 2]) * factor, (d ^ words[i + 3]) * factor
        a, b, c, d = (
            a ^ (a >> np.uint64(29)),
            b ^ (b >> np.uint64(29)),
            c ^ (c >> np.uint64(29)),
            d ^ (d >> np.uint64(29)),
        )
    for i in range(whole, len(words)):
        a = (a ^ words[i]) * factor
        a ^= a >> np.uint64(29)
    return _mix(a) ^ _mix(b + factor) ^ _mix(c + factor + factor) ^ _mix(d - factor)
