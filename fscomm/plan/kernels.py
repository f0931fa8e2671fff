"""Passes over ids and strips (numba, nogil, no Python objects): one kernel for each question.

N ids, I items, U units, n strips, W peers, T tables, F features of an owner; C classes of strips, most urgent first,
the last of which is exclusive: see `fscomm/plan/peer_ids.py`. A *place* is the position of a strip among all that
travel, class after class. No loop asks for the class in a branch: a processor guesses half of such branches wrong.
"""

import numpy as np

from fsranks.libraries import kernel


@kernel
def count(classes: np.ndarray, by_peer: np.ndarray, counts: np.ndarray) -> None:
    """How many strips of each class each peer has. classes: uint8 [n]; by_peer: int64 [W], sum n. Written: counts int64
    [C, W]."""
    of_peer = np.empty(len(counts), np.int64)
    at = 0
    # Into a short array that stays in registers or L1: `counts` has a stride of W between the classes of a peer.
    for w in range(len(by_peer)):
        of_peer[:] = 0
        for i in range(at, at + by_peer[w]):
            of_peer[classes[i]] += 1
        counts[:, w] = of_peer
        at += by_peer[w]


@kernel
def bucket(classes: np.ndarray, by_peer: np.ndarray, counts: np.ndarray, chunks: int, places: np.ndarray) -> None:
    """Where each strip travels: class after class, inside a class by peer. The last class is cut into chunks, each of
    which has an equal share of every peer's strips: chunk k those from number `count * k // chunks` on.

    classes, by_peer: as `count` takes them; counts: int64 [C, W], as it writes them. Written: places int32 [n].
    """
    world_size, last = len(by_peer), len(counts) - 1
    # Where each bucket begins, a chunk of the last class being a bucket: an exchange sends consecutive places.
    firsts = np.empty((last + chunks, world_size), np.int64)
    total = 0
    for of in range(last):
        for w in range(world_size):
            firsts[of, w] = total
            total += counts[of, w]
    for chunk in range(chunks):
        for w in range(world_size):
            firsts[last + chunk, w] = total
            total += counts[last, w] * (chunk + 1) // chunks - counts[last, w] * chunk // chunks
    next_place = np.empty(last + 1, np.int64)
    at = 0
    for w in range(world_size):
        next_place[:] = firsts[: last + 1, w]
        exclusive = counts[last, w]
        # Strips of a peer are in the order of its units on both sides, so a chunk ends at the same one on both.
        chunk, left = 0, exclusive // chunks
        for i in range(at, at + by_peer[w]):
            while left == 0 and chunk + 1 < chunks:
                chunk += 1
                left = exclusive * (chunk + 1) // chunks - exclusive * chunk // chunks
                next_place[last] = firsts[last + chunk, w]
            of = classes[i]
            places[i] = next_place[of]
            next_place[of] += 1
            left -= int(of == last)  # no branch on the class
        at += by_peer[w]


@kernel
def take(values: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
    """out[i] = values[index[i]]; numpy takes three times as long where the index has 32 bits."""
    for i in range(len(index)):
        out[i] = values[index[i]]


@kernel
def put(places: np.ndarray, values: np.ndarray, out: np.ndarray) -> None:
    """out[places[i]] = values[i]; numpy takes twice as long."""
    for i in range(len(places)):
        out[places[i]] = values[i]


@kernel
def first_parts(slots: np.ndarray, parts: np.ndarray, out: np.ndarray) -> None:
    """out[u] = the least of the `parts`, uint8 [I], of the items of unit u; slots: int32 [I]. `out` starts as what is
    higher than all parts."""
    for i in range(len(slots)):
        out[slots[i]] = min(out[slots[i]], parts[i])


@kernel
def updates(
    asked: np.ndarray,
    places: np.ndarray,
    classes: np.ndarray,
    counts: np.ndarray,
    index: np.ndarray,
    ids: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Owner: which gradient updates which row, by feature, then requester, then sample, as TorchRec adds them up.

    asked: int64 [I], places: int32 [I], classes: uint8 [I] of the item's unit; counts: int64 [W, F].
    Written, class after class: index int64 [I] places; ids int64 [I]; ends int64 [C, F + 1] of each feature in the
    class, behind a zero.
    """
    world_size, features = counts.shape
    firsts = np.zeros((len(ends), features), np.int64)
    at = 0
    for w in range(world_size):
        for f in range(features):
            for i in range(at, at + counts[w, f]):
                firsts[classes[i], f] += 1
            at += counts[w, f]
    total = 0
    for of in range(len(ends)):
        start = total
        for f in range(features):
            number = firsts[of, f]
            firsts[of, f] = total
            total += number
            ends[of, f + 1] = total - start
    at = 0
    for w in range(world_size):  # reads are sequential; writes go to one run for each class and feature
        for f in range(features):
            for i in range(at, at + counts[w, f]):
                of = classes[i]
                to = firsts[of, f]
                index[to] = places[i]
                ids[to] = asked[i]
                firsts[of, f] += 1
            at += counts[w, f]


@kernel
def rows_to_read(
    rows: np.ndarray,
    starts: np.ndarray,
    asked: np.ndarray,
    ends: np.ndarray,
    read: np.ndarray,
    ids: np.ndarray,
    index: np.ndarray,
    ends_read: np.ndarray,
) -> None:
    """Owner: which rows are read for each class, each once, and which of them travels in each place.

    rows: int32 [n] the number of the row in each place; starts: int64 [C + 1] of classes among places. asked: int64 [R]
    by number; ends: int64 [T]. read: int32 [R] of zeros to work in.
    Written, class after class: ids int64 [n + 1], as many as there are; index int64 [n], which of the ids of the class;
    ends_read int64 [C, T + 1] of each table in the class, behind a zero.
    """
    total = 0
    # Rows of a class are marked, then walked in the order of their numbers: a fused kernel wants ids by table, and rows
    # have numbers table after table. `read` need not be cleared between classes: only marks are below zero.
    for of in range(len(starts) - 1):
        for i in range(starts[of], starts[of + 1]):
            read[rows[i]] = -1
        first = total
        start = 0
        for t in range(len(ends)):
            for r in range(start, ends[t]):
                ids[total] = asked[r]  # in any case, and overwritten by the next one if it is not wanted
                wanted = int(read[r] < 0)
                read[r] = (total - first) * wanted
                total += wanted
            ends_read[of, t + 1] = total - first
            start = ends[t]
        for i in range(starts[of], starts[of + 1]):
            index[i] = read[rows[i]]


@kernel
def equal_bags(ends: np.ndarray, runs: np.ndarray, ids_per_bag: int, fewest_ids_per_bag: int) -> np.ndarray:
    """Offsets, int64 [F * B + 1], of equally many bags for every feature: `runs` int64 [T] of each table. ends: int64
    [T + 1] of the ids of each table.

    A bag of the longest table has about `ids_per_bag`. But few long tables among many short ones must not make too many
    empty bags: on average a bag has at least `fewest_ids_per_bag`, if there are so many.
    """
    features = 0
    longest = 0
    for t in range(len(runs)):
        features += runs[t]
        longest = max(longest, -(-(ends[t + 1] - ends[t]) // runs[t]))
    mean = -(-(ends[-1] - ends[0]) // features)
    each = max(min(-(-longest // ids_per_bag), -(-mean // fewest_ids_per_bag)), 1)
    offsets = np.empty(features * each + 1, np.int64)
    at = 0
    for t in range(len(runs)):
        bags = runs[t] * each
        length = ends[t + 1] - ends[t]
        for bag in range(bags):
            offsets[at] = ends[t] - ends[0] + length * bag // bags
            at += 1
    offsets[at] = ends[-1] - ends[0]
    return offsets


@kernel
def gather_segments(source: np.ndarray, starts: np.ndarray, lengths: np.ndarray, out: np.ndarray) -> None:
    """Write segments of `source` behind one another. starts, lengths: int64 [S]; written: out, of their sum."""
    at = 0
    for s in range(len(starts)):
        for i in range(lengths[s]):
            out[at + i] = source[starts[s] + i]
        at += lengths[s]


@kernel
def pack_bits(bits: np.ndarray, lengths: np.ndarray, starts: np.ndarray, message: np.ndarray) -> None:
    """bits: bool [n], `lengths` int64 [W] for each peer. Written: message uint8, from starts[w], 8 bits in a byte."""
    at = 0
    for w in range(len(lengths)):
        for byte in range(-(-lengths[w] // 8)):
            value = np.uint8(0)
            for bit in range(8 * byte, min(8 * byte + 8, lengths[w])):
                value |= np.uint8(bits[at + bit]) << np.uint8(bit % 8)
            message[starts[w] + byte] = value
        at += lengths[w]


@kernel
def unpack_bits(message: np.ndarray, lengths: np.ndarray, starts: np.ndarray, bits: np.ndarray) -> None:
    """The inverse of `pack_bits`."""
    at = 0
    for w in range(len(lengths)):
        for bit in range(lengths[w]):
            bits[at + bit] = message[starts[w] + bit // 8] >> np.uint8(bit % 8) & np.uint8(1)
        at += lengths[w]
