"""Where things stand on the wire (numba, nogil): one pass over ids, rows or bags for each question.

N ids, U distinct rows or bags of a pair of ranks (units), W peers, T tables, F features of an owner. A class is urgent
(what two steps share) or deferred (all else). A *place* is where something stands among all that travels, the urgent
class before the deferred one. No loop asks for the class in a branch: half of such guesses of a processor are wrong.
"""

import numpy as np

from fsranks.libraries import kernel


@kernel
def count(flags: np.ndarray, slots: np.ndarray, lengths: np.ndarray, counts: np.ndarray) -> None:
    """How many of each peer are flagged. flags: bool [U]; entry i is flagged by flags[slots[i]], or by flags[i] if
    `slots`, int32 [n], is empty; lengths: int64 [W], sum n. Written: counts int64 [W]."""
    at = 0
    for w in range(len(lengths)):
        number = 0
        if len(slots):
            for i in range(at, at + lengths[w]):
                number += flags[slots[i]]
        else:
            for i in range(at, at + lengths[w]):
                number += flags[i]
        counts[w] = number
        at += lengths[w]


@kernel
def take(values: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
    """out[i] = values[index[i]]; numpy takes three times as long where the index has 32 bits."""
    for i in range(len(index)):
        out[i] = values[index[i]]


@kernel
def cut(
    urgent: np.ndarray,
    slots: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray,
    splits: np.ndarray,
    places: np.ndarray,
) -> None:
    """Cut the deferred class into parts, each peer's share as evenly as can be; leave the urgent class in one piece.

    urgent, slots, lengths, counts: as `count` takes and writes them.
    Written: splits int64 [parts, W], deferred ones of each part; places int32 [n].
    """
    parts, world_size = splits.shape
    firsts = np.empty((parts, world_size), np.int64)
    total = counts.sum()
    for part in range(parts):
        for w in range(world_size):
            deferred = lengths[w] - counts[w]
            firsts[part, w] = total
            splits[part, w] = (part + 1) * deferred // parts - part * deferred // parts
            total += splits[part, w]
    at = now = 0
    for w in range(world_size):
        part, left, later = 0, splits[0, w], firsts[0, w]
        for i in range(at, at + lengths[w]):
            while left == 0 and part + 1 < parts:
                part += 1
                left, later = splits[part, w], firsts[part, w]
            flag = int(urgent[slots[i] if len(slots) else i])
            places[i] = flag * now + (1 - flag) * later
            now += flag
            later += 1 - flag
            left -= 1 - flag
        at += lengths[w]


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
    total: int,
    counts: np.ndarray,
    index: np.ndarray,
    ids: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Owner: which gradient updates which row, by feature, then requester, then sample, as TorchRec adds them up.

    asked: int64 [N], places: int32 [N] by occurrence; total: urgent ones; counts: int64 [W, F].
    Written, first of the urgent class, then of the deferred one: index int64 [N] places in the class; ids int64 [N];
    ends int64 [2, F] of each feature in the class.
    """
    world_size, features = counts.shape
    urgent = np.zeros(features, np.int64)
    at = 0
    for w in range(world_size):
        for f in range(features):
            for i in range(at, at + counts[w, f]):
                urgent[f] += places[i] < total
            at += counts[w, f]
    next_urgent, next_deferred = np.empty(features, np.int64), np.empty(features, np.int64)
    now = 0
    later = total
    for f in range(features):
        next_urgent[f], next_deferred[f] = now, later
        now += urgent[f]
        later += counts[:, f].sum() - urgent[f]
        ends[0, f], ends[1, f] = now, later - total
    at = 0
    for w in range(world_size):  # what is read lies in order; what is written, in two runs for each feature
        for f in range(features):
            now, later = next_urgent[f], next_deferred[f]
            for i in range(at, at + counts[w, f]):
                place = int(places[i])
                flag = int(place < total)
                to = flag * now + (1 - flag) * later
                index[to] = place - (1 - flag) * total
                ids[to] = asked[i]
                now += flag
                later += 1 - flag
            next_urgent[f], next_deferred[f] = now, later
            at += counts[w, f]


@kernel
def rows_to_read(
    rows: np.ndarray,
    places: np.ndarray,
    asked: np.ndarray,
    urgent: np.ndarray,
    ends: np.ndarray,
    total: int,
    read: np.ndarray,
    ids: np.ndarray,
    index: np.ndarray,
    ends_read: np.ndarray,
) -> None:
    """Owner: which rows are read, each once, and which of them travels in each place.

    rows: int32 [U] the number of each unit's row; places: int32 [U]. asked: int64 [R], urgent: bool [R] by number;
    ends: int64 [T]; total: urgent rows. read: int32 [R] to work in.
    Written, first of the urgent class, then of the deferred one: ids int64 [R]; index int64 [U], which of the ids of
    the class; ends_read int64 [2, T] of each table in the class.
    """
    now = start = 0
    later = total
    for t in range(len(ends)):
        for r in range(start, ends[t]):
            flag = int(urgent[r])
            at = flag * now + (1 - flag) * later
            ids[at] = asked[r]
            read[r] = at - (1 - flag) * total
            now += flag
            later += 1 - flag
        ends_read[0, t] = now
        ends_read[1, t] = later - total
        start = ends[t]
    for i in range(len(rows)):
        index[places[i]] = read[rows[i]]


@kernel
def merged(places: np.ndarray, total: int, slots: np.ndarray, order: np.ndarray, index: np.ndarray) -> None:
    """Requester: where each local output finds its row in a buffer that has the deferred rows before the urgent ones.

    places: int32 [U], `total` of them urgent; slots: int32 [N] the unit of each occurrence; order: as in
    `indices_to_send`. Written: index int64 [N].
    """
    deferred = len(places) - total
    for i in range(len(index)):
        place = int(places[slots[order[i] if len(order) else i]])
        index[i] = place + deferred if place < total else place - total


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
