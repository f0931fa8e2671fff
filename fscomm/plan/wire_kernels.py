"""Where things stand on the wire (numba, nogil): one pass over ids, rows or bags for each question.

N ids, U distinct rows or bags of a pair of ranks (units), W peers, T tables, F features of an owner. P pieces, most
urgent first, and a last one, which is exclusive; see `fscomm/plan/ways.py`. A *place* is where something stands among
all that travels, piece after piece. No loop asks for the piece in a branch: half of such guesses of a processor are
wrong.
"""

import numpy as np

from fsranks.libraries import kernel


@kernel
def count(pieces: np.ndarray, lengths: np.ndarray, counts: np.ndarray) -> None:
    """How many of each peer are in each piece. pieces: uint8 [n]; lengths: int64 [W], sum n. Written: counts int64
    [P, W], without what is exclusive."""
    of_peer = np.empty(len(counts) + 1, np.int64)
    at = 0
    for w in range(len(lengths)):
        of_peer[:] = 0
        for i in range(at, at + lengths[w]):
            of_peer[pieces[i]] += 1
        for piece in range(len(counts)):
            counts[piece, w] = of_peer[piece]
        at += lengths[w]


@kernel
def take(values: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
    """out[i] = values[index[i]]; numpy takes three times as long where the index has 32 bits."""
    for i in range(len(index)):
        out[i] = values[index[i]]


@kernel
def put(places: np.ndarray, values: np.ndarray, out: np.ndarray) -> None:
    """out[places[i]] = values[i]."""
    for i in range(len(places)):
        out[places[i]] = values[i]


@kernel
def cut(pieces: np.ndarray, lengths: np.ndarray, counts: np.ndarray, splits: np.ndarray, places: np.ndarray) -> None:
    """Cut what is exclusive into chunks, each peer's share as evenly as can be; leave other pieces whole.

    pieces, lengths, counts: as `count` takes and writes them.
    Written: splits int64 [chunks, W], exclusive ones of each chunk; places int32 [n].
    """
    chunks, world_size = splits.shape
    last = len(counts)
    firsts = np.empty((last + chunks, world_size), np.int64)
    total = 0
    for piece in range(last):
        for w in range(world_size):
            firsts[piece, w] = total
            total += counts[piece, w]
    for chunk in range(chunks):
        for w in range(world_size):
            exclusive = lengths[w] - counts[:, w].sum()
            firsts[last + chunk, w] = total
            splits[chunk, w] = (chunk + 1) * exclusive // chunks - chunk * exclusive // chunks
            total += splits[chunk, w]
    next_place = np.empty(last + 1, np.int64)
    at = 0
    for w in range(world_size):
        next_place[:] = firsts[: last + 1, w]
        chunk, left = 0, splits[0, w]
        for i in range(at, at + lengths[w]):
            while left == 0 and chunk + 1 < chunks:
                chunk += 1
                left, next_place[last] = splits[chunk, w], firsts[last + chunk, w]
            piece = pieces[i]
            places[i] = next_place[piece]
            next_place[piece] += 1
            left -= int(piece == last)
        at += lengths[w]


@kernel
def first_parts(slots: np.ndarray, parts: np.ndarray, out: np.ndarray) -> None:
    """out[u] = the least of the `parts`, uint8 [N], of the occurrences of unit u; slots: int32 [N]. `out` starts as
    what is higher than all parts."""
    for i in range(len(slots)):
        out[slots[i]] = min(out[slots[i]], parts[i])


@kernel
def indices_to_send(places: np.ndarray, order: np.ndarray, index: np.ndarray) -> None:
    """Requester: which local gradient travels in each place.

    places: int32 [N] by occurrence. order: int64 [N], local output i is occurrence order[i]; empty: i.
    Written: index int64 [N].
    """
    if len(order):
        for i in range(len(places)):
            index[places[order[i]]] = i
    else:
        for i in range(len(places)):
            index[places[i]] = i


@kernel
def updates(
    asked: np.ndarray,
    places: np.ndarray,
    soon: int,
    later: int,
    counts: np.ndarray,
    index: np.ndarray,
    ids: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Owner: which gradient updates which row, by feature, then requester, then sample, as TorchRec adds them up.

    asked: int64 [N], places: int32 [N] by occurrence; soon, later: the places where classes 0 and 1 end; counts:
    int64 [W, F].
    Written, class after class: index int64 [N] places; ids int64 [N]; ends int64 [C + 1, F + 1] of each feature in the
    class, behind a zero.
    """
    world_size, features = counts.shape
    classes = len(ends)
    firsts = np.zeros((classes, features), np.int64)
    at = 0
    for w in range(world_size):
        for f in range(features):
            for i in range(at, at + counts[w, f]):
                firsts[int(places[i] >= soon) + int(places[i] >= later), f] += 1
            at += counts[w, f]
    total = 0
    for of in range(classes):
        start = total
        for f in range(features):
            number = firsts[of, f]
            firsts[of, f] = total
            total += number
            ends[of, f + 1] = total - start
    at = 0
    for w in range(world_size):  # what is read lies in order; what is written, in a run for each class and feature
        for f in range(features):
            for i in range(at, at + counts[w, f]):
                place = places[i]
                of = int(place >= soon) + int(place >= later)
                to = firsts[of, f]
                index[to] = place
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
    """Owner: which rows are read for each piece, each once, and which of them travels in each place.

    rows: int32 [U] the number of the row in each place; starts: int64 [P + 2] of pieces among places. asked: int64 [R]
    by number; ends: int64 [T]. read: int32 [R] of zeros to work in.
    Written, piece after piece: ids int64 [U + 1], as many as there are; index int64 [U], which of the ids of the piece;
    ends_read int64 [P + 1, T + 1] of each table in the piece, behind a zero.
    """
    total = 0
    for piece in range(len(starts) - 1):
        for i in range(starts[piece], starts[piece + 1]):
            read[rows[i]] = -1
        first = total
        start = 0
        for t in range(len(ends)):
            for r in range(start, ends[t]):
                ids[total] = asked[r]
                wanted = int(read[r] < 0)
                read[r] = (total - first) * wanted
                total += wanted
            ends_read[piece, t + 1] = total - first
            start = ends[t]
        for i in range(starts[piece], starts[piece + 1]):
            index[i] = read[rows[i]]


@kernel
def merged(places: np.ndarray, slots: np.ndarray, order: np.ndarray, index: np.ndarray) -> None:
    """Requester: where each local output finds its row among all that are received.

    places: int32 [U]; slots: int32 [N] the unit of each occurrence; order: as in `indices_to_send`. Written: index
    int64 [N].
    """
    if len(order):
        for i in range(len(index)):
            index[i] = places[slots[order[i]]]
    else:
        for i in range(len(index)):
            index[i] = places[slots[i]]


@kernel
def asking(numbers: np.ndarray, lengths: np.ndarray, seen: np.ndarray, out: np.ndarray) -> None:
    """Owner: which ranks of the requester's host ask for the row of each unit.

    numbers: int32 [U] of rows, `lengths` int64 [W] for each requester; seen: uint64 [R] of zeros to work in.
    Written: out bool [U, ranks per host].
    """
    per_host, start = out.shape[1], 0
    for first in range(0, len(lengths), per_host):
        end = start
        for place in range(per_host):
            for i in range(end, end + lengths[first + place]):
                seen[numbers[i]] |= np.uint64(1) << np.uint64(place)
            end += lengths[first + place]
        for i in range(start, end):
            for place in range(per_host):
                out[i, place] = seen[numbers[i]] >> np.uint64(place) & np.uint64(1)
        for i in range(start, end):
            seen[numbers[i]] = np.uint64(0)
        start = end


@kernel
def carriers(asking: np.ndarray, ids: np.ndarray, out: np.ndarray) -> None:
    """Which rank of a host passes a row on: the first that asks for it, counted from a place that depends on the id.

    asking: bool [U, ranks per host]; ids: int64 [U]. Written: out int32 [U] places inside the host.
    """
    per_host = asking.shape[1]
    for i in range(len(ids)):
        place = ids[i] % per_host
        for _ in range(per_host):
            if asking[i, place]:
                break
            place = place + 1 if place + 1 < per_host else 0
        out[i] = place


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


@kernel
def find_bags(
    lengths: np.ndarray, features: np.ndarray, samples: np.ndarray, widths: np.ndarray, ids: np.ndarray, alone: bool,
    unique: int, starts: np.ndarray, of_feature: np.ndarray, of_sample: np.ndarray, of_width: np.ndarray,
    keys: np.ndarray, bags: np.ndarray,
) -> int:  # fmt: skip
    """The bags that are not empty; how many.

    lengths: int32, by peer, then feature, then sample; features, samples: int64 [W]; widths: int64 by peer and feature.
    alone: bags of one id have it as their key; other keys count up from `unique`.
    Written: starts int64 [n + 1], of_feature, of_sample, of_width, keys int64 [n]; bags int64 by peer and feature.
    """
    at = number = given = column = 0
    for w in range(len(features)):
        for f in range(features[w]):
            before = number
            for b in range(samples[w]):
                length = lengths[given]
                given += 1
                if length == 0:
                    continue
                starts[number] = at
                of_feature[number] = f
                of_sample[number] = b
                of_width[number] = widths[column]
                keys[number] = ids[at] if alone and length == 1 else unique + number
                at += length
                number += 1
            bags[column] = number - before
            column += 1
    starts[number] = at
    return number


@kernel
def by_bucket(buckets: np.ndarray, number: int, order: np.ndarray) -> None:
    """Sort by counting, keeping the order inside a bucket. buckets: int64 [n] below `number`; written: order int64."""
    ends = np.zeros(number + 1, np.int64)
    for bucket in buckets:
        ends[bucket + 1] += 1
    for bucket in range(number):
        ends[bucket + 1] += ends[bucket]
    for i in range(len(buckets)):
        order[ends[buckets[i]]] = i
        ends[buckets[i]] += 1
