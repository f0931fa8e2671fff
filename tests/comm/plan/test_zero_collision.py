"""Slots of multi-probe zero collision hashing: those of the rules, written down once more and slowly; read-only, those
of fbgemm."""

from dataclasses import dataclass, field

import fbgemm_gpu  # noqa: F401  its operators
import numpy as np
import pytest
import torch

from fscomm.managed.zero_collision import EVICTED, FREE, HIT, INSERTED, SHARED, assign_slots, slot_hash

NONE = np.empty(0, np.int32)


@dataclass
class Table:
    """Buckets of equal size. expires: empty if nothing does."""

    size: int
    buckets: int
    probes: int
    reserved: int = 0
    oldest: bool = False
    identities: np.ndarray = field(default_factory=lambda: NONE)
    expires: np.ndarray = field(default_factory=lambda: NONE)

    def assign(
        self, ids: np.ndarray, now: int, expiries: np.ndarray, refused: np.ndarray, *, read_only: bool = False
    ) -> tuple[list[int], list[int]]:
        sizes, starts = self.places(ids)
        slots, outcomes = np.empty(len(ids), np.int64), np.empty(len(ids), np.uint8)
        rules = self.probes, self.reserved, refused, expiries, now, self.oldest, read_only
        assign_slots(ids, sizes, starts, *rules, self.identities, self.expires, slots, outcomes)
        return slots.tolist(), outcomes.tolist()

    def places(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(ids), self.size), ids % self.buckets * self.size


def slowly(
    table: Table, ids: list[int], now: int, expiries: list[int], refused: list[bool], *, read_only: bool
) -> tuple[list[int], list[int]]:
    """The same. Looks for the id first, then for a place, as fbgemm does for a policy of one TTL."""
    identities, expires, found = table.identities, table.expires, []
    may_evict = len(expires) > 0 and not read_only
    for i, identity in enumerate(ids):
        own, start = table.size - table.reserved, identity % table.buckets * table.size
        hashed = int(slot_hash(identity))
        chain = [start + (hashed + step) % own for step in range(table.probes)]
        reserve = start + own + hashed % table.reserved if table.reserved else start + hashed % own
        owned = [slot for slot in chain if identities[slot] == identity]
        free = [slot for slot in chain if identities[slot] == FREE and not read_only]
        stale = [slot for slot in chain if may_evict and expires[slot] < min(now, expiries[i])]
        if free:
            stale = [] if table.oldest else [slot for slot in stale if chain.index(slot) < chain.index(free[0])]
        if owned:
            slot, outcome = owned[0], HIT
        elif refused[i]:
            slot, outcome = reserve, SHARED
        elif stale:
            slot, outcome = min(stale, key=lambda slot: expires[slot]) if table.oldest else stale[0], EVICTED
        elif free:
            slot, outcome = free[0], INSERTED
        else:
            slot, outcome = reserve, SHARED
        if outcome in (INSERTED, EVICTED):
            identities[slot] = identity
        if may_evict and (outcome != SHARED or refused[i]):
            expires[slot] = max(expires[slot], expiries[i])
        found.append((slot, outcome))
    return [slot for slot, _ in found], [outcome for _, outcome in found]


@pytest.mark.parametrize("oldest", [False, True], ids=["ttl", "lru"])
@pytest.mark.parametrize("expiring", [False, True], ids=["forever", "expiring"])
@pytest.mark.parametrize("reserved", [0, 2])
@pytest.mark.parametrize("seed", range(8))
def test_slots_are_those_of_the_rules(seed: int, reserved: int, expiring: bool, oldest: bool) -> None:
    random = np.random.default_rng(seed)
    buckets, size = int(random.integers(1, 4)), int(random.integers(5, 12))

    def empty() -> Table:
        slots = buckets * size
        expires = np.full(slots, -1, np.int32) if expiring else NONE
        probes = 1 + seed % (size - reserved)
        return Table(size, buckets, probes, reserved, oldest, np.full(slots, FREE), expires)

    fast, slow = empty(), empty()
    seen: set[int] = set()
    for hour in range(30):
        ids = random.integers(-20, 3 * buckets * size, 12)
        ids[ids == FREE] = 0
        expiries = (random.integers(0, 6, 12) + hour).astype(np.int32)
        refused = random.random(12) < 0.3 if reserved else np.zeros(12, bool)
        read_only = hour % 7 == 6
        got = fast.assign(ids, hour, expiries if expiring else NONE, refused, read_only=read_only)
        assert got == slowly(slow, ids.tolist(), hour, expiries.tolist(), refused.tolist(), read_only=read_only)
        assert fast.identities.tolist() == slow.identities.tolist()
        assert fast.expires.tolist() == slow.expires.tolist()
        seen |= set(got[1])
    assert seen >= {HIT, INSERTED, EVICTED} if expiring else seen == {HIT, INSERTED, SHARED}


@pytest.mark.parametrize("reserved", [0, 7])
@pytest.mark.parametrize("buckets", [1, 4])
def test_fbgemm_finds_ids_where_they_were_put(buckets: int, reserved: int) -> None:
    random = np.random.default_rng(0)
    ids = random.integers(-(2**63), 2**63 - 1, 500)
    table = Table(600 // buckets, buckets, 8, reserved, identities=np.full(600, FREE))
    nobody = np.zeros(len(ids), bool)
    assert SHARED in table.assign(ids, 0, NONE, nobody)[1]
    asked = np.concatenate([ids, random.integers(0, 1000, 100)])
    sizes, starts = table.places(asked)
    slots, _ = torch.ops.fbgemm.zero_collision_hash(
        input=torch.from_numpy(asked),
        identities=torch.from_numpy(table.identities)[:, None],
        max_probe=8,
        circular_probe=True,
        exp_hours=-1,
        readonly=True,
        local_sizes=torch.from_numpy(sizes),
        offsets=torch.from_numpy(starts),
        opt_in_prob=100 if reserved else -1,
        num_reserved_slots=reserved or -1,
    )
    found = table.assign(asked, 0, NONE, np.zeros(len(asked), bool), read_only=True)
    assert found[0] == slots.tolist()
