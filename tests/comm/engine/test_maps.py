"""Maps of managed collision one batch ahead: the rows that TorchRec's own maps give, and their state once published."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from exact import differences, flat, maps_of
from exact_kinds import SERVED
from exact_managed import BUCKETS, IDS, at_hour, hash_zch, managed, mch, needs_mpzch
from exact_model import Config, Table, build
from torchrec import KeyedJaggedTensor
from worlds import shared_world

from fscomm.managed.maps import MapsAhead, Record
from fscomm.managed.zero_collision import FREE
from fscomm.tables.torchrec.module_view import ModuleView

pytestmark = needs_mpzch
TABLES = (
    Table(name="h", rows=24, sharding="row", features=("h0", "h1"), ids=IDS),
    Table(name="m", rows=24, sharding="row", features=("m0",), ids=IDS),
)
KINDS: dict[str, tuple[Any, Any]] = {
    "ttl": (hash_zch, mch),
    "at once": (partial(hash_zch, hours=0, probes=2), partial(mch, interval=1)),
    "lru": (partial(hash_zch, policy="LRU", probes=3), partial(mch, policy="lru", interval=1)),
    "per feature": (partial(hash_zch, policy="PER_FEATURE_TTL"), partial(mch, policy="distance lfu", interval=3)),
    "forever": (partial(hash_zch, policy=None), partial(mch, interval=1000)),
    "reserved": (partial(hash_zch, opt_in_prob=100, percent_reserved_slots=50), mch),
}


def remapped(rank: int, size: int, kind: str) -> tuple[int, int]:
    """Rows that got another id, and those that were free and got one."""
    maps = dict(zip("hm", KINDS[kind], strict=True))
    config = Config(modules={"a": (SERVED,), "b": TABLES}, static_graph=False, builder=managed(maps))
    module = build(config, size)[0].module.embeddings["b"]
    collection, ahead = module._managed_collision_collection, MapsAhead(module)
    plain = ahead.snapshot()
    ahead.renew(ahead.snapshot())
    random = np.random.default_rng(rank)
    waiting: list[tuple[Record, Any]] = []
    evicted = inserted = 0
    free = free_rows(plain)
    for step in range(40):
        with at_hour(step // 2):
            counts = random.integers(0, 9, 3)
            most = 8 if kind == "at once" else IDS // BUCKETS  # so few that one may lose its row and find another one
            ids = random.integers(0, most, counts.sum()) * BUCKETS + rank * BUCKETS // size  # of this owner
            record = Record()
            rows = ahead.remap(record, 0, ids, counts)
            expected, evictions = by_torchrec(collection, plain, ids, counts)
        assert rows.tolist() == expected
        assert record.evictions.keys() == evictions.keys()
        for table, of_table in evictions.items():
            found = record.evictions[table]
            assert (found is None) == (of_table is None)
            assert found is None or torch.equal(found, of_table)
        before, free = free, free_rows(plain)
        assert {table: before[table] - free[table] for table in free} == {
            table: count.inserted for table, count in record.counts.items()
        }
        waiting.append((record, flat(maps_of(plain))))
        if step == 0 or len(waiting) == 2:  # one behind
            published, then = waiting.pop(0)
            ahead.publish(published)
            assert differences(then, flat(maps_of(collection._managed_collision_modules))) == []
        evicted += sum(count.evicted for count in record.counts.values())
        inserted += sum(count.inserted for count in record.counts.values())
    return evicted, inserted


def free_rows(maps: Any) -> dict[str, int]:
    hashed, by_count = (maps[table] for table in "hm")
    return {"h": int((hashed._hash_zch_identities == FREE).sum()), "m": int(by_count.open_slots())}


def by_torchrec(collection: Any, maps: Any, ids: np.ndarray, counts: np.ndarray) -> tuple[list[int], dict[str, Any]]:
    kjt = KeyedJaggedTensor(
        keys=["h0", "h1", "m0"], values=torch.from_numpy(ids), lengths=torch.from_numpy(counts).int(), stride=1
    )
    rows: list[int] = []
    changed = ModuleView(collection, _managed_collision_modules=maps)
    for table, part in zip("hm", kjt.split([2, 1]), strict=True):
        rows += type(collection).get_lookup_value(changed, table, part)[table].values().tolist()
    return rows, type(collection).evict(changed)


@pytest.mark.parametrize(("size", "kind"), [(1, "ttl"), (1, "at once"), *((2, kind) for kind in KINDS)])
def test_rows_and_state_are_those_of_the_maps_themselves(size: int, kind: str) -> None:
    counts = shared_world(size).run(remapped, kind)
    assert all(inserted > 0 for _, inserted in counts)
    assert sum(evicted for evicted, _ in counts) > 0 or kind == "forever"
