"""The slots of ids in a table of multi-probe zero collision hashing (MPZCH, arXiv 2602.17050), one id after another.

Every id begins at the slot of its hash in its *bucket* and probes the slots after it, in a circle: it finds itself,
takes the first free slot, or takes an expired one and so evicts its id. An id that finds none of these in `max_probe`
slots *shares* the slot of its hash with others.

These are the rules of fbgemm's kernel on CUDA (`zero_collision_hash`, fbgemm 1.8), which probes for all ids at once:
where two ids of one call want the same slot, that kernel lets chance decide, and this one the order of the ids.

N ids, Z slots.
"""

import numpy as np

from fsranks.libraries import kernel

FREE = -1
"""The identity of a slot that no id has."""
HIT, INSERTED, EVICTED, SHARED = range(4)
"""What came of an id: it had its slot, took a free one, took that of another id, or has none of its own."""


@kernel
def slot_hash(key: int) -> np.uint64:
    """The hash that fbgemm begins to probe with: MurmurHash3 for 128 bits (Appleby, public domain) of a key and 0."""
    low = np.uint64(key) * np.uint64(0x87C37B91114253D5)
    low = (low << np.uint64(31)) | (low >> np.uint64(33))
    low = low * np.uint64(0x4CF5AD432745937F)
    low = (low << np.uint64(27)) | (low >> np.uint64(37))
    low = low * np.uint64(5) + np.uint64(0x52DCE729)
    high = low * np.uint64(5) + np.uint64(0x38495AB5)
    low ^= np.uint64(16)
    high ^= np.uint64(16)
    low += high
    high += low
    low, high = _last_mix(low), _last_mix(high)
    low += high
    return low ^ (high + low)


@kernel
def _last_mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


@kernel
def assign_slots(
    ids: np.ndarray,
    sizes: np.ndarray,
    starts: np.ndarray,
    max_probe: int,
    reserved: int,
    refused: np.ndarray,
    expiries: np.ndarray,
    now: int,
    oldest: bool,
    read_only: bool,
    identities: np.ndarray,
    expires: np.ndarray,
    slots: np.ndarray,
    outcomes: np.ndarray,
) -> None:
    """Give every id its slot, in order.

    ids: int64 [N]. sizes, starts: int64 [N], slots of the bucket of each id, and where the bucket begins.
    reserved: the last slots of every bucket, for ids without one of their own; 0: these share the slot of their hash.
    refused: bool [N], new ids that get a reserved slot; or empty. expiries: int32 [N], the hour at which each id
    expires. now: the hour. oldest: a full chain evicts the id that expired first (LRU), and not the first expired one
    that is met (TTL). read_only: nothing is inserted or evicted.
    Read and written: identities int64 [Z], and expires int32 [Z], hours; empty if nothing ever expires.
    Written: slots int64 [N]; outcomes uint8 [N].
    """
    evicts = len(expires) > 0 and not read_only
    for i in range(len(ids)):
        identity, start, own = ids[i], starts[i], sizes[i] - reserved
        hashed = slot_hash(identity)
        at = np.int64(hashed % np.uint64(own))
        found, victim, outcome = start + at, np.int64(-1), SHARED
        for _ in range(max_probe):
            slot = start + at
            if identities[slot] == identity:
                found, outcome = slot, HIT
                break
            if identities[slot] == FREE and not read_only:
                if oldest or victim < 0:
                    found, outcome = slot, INSERTED
                break
            expired = evicts and expires[slot] < now and expires[slot] < expiries[i]
            if expired and (victim < 0 or (oldest and expires[slot] < expires[victim])):
                victim = slot
            at = at + np.int64(1) if at + 1 < own else np.int64(0)
        if outcome == SHARED and victim >= 0:
            found, outcome = victim, EVICTED
        turned_away = len(refused) > 0 and refused[i] and outcome != HIT
        if turned_away:
            outcome = SHARED
        if outcome == SHARED and reserved > 0:
            found = start + own + np.int64(hashed % np.uint64(reserved))
        if outcome != SHARED:
            identities[found] = identity
        if evicts and (outcome != SHARED or turned_away):
            expires[found] = max(expires[found], expiries[i])
        slots[i], outcomes[i] = found, outcome
