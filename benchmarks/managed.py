"""Managed collision: what mapping ids one batch ahead costs, and what communication of a step is still exposed.

    python benchmarks/managed.py [--slots 1.2] [--rounds 4] [--steps 5] [--only maps]

1. Maps of one rank: ids remapped by their twin, and published, against TorchRec's own remapping of the same ids.
2. Exposed time on links of 200 Mbit, as `exposed.py` measures it: tables behind MPZCH, of which ids are evicted that
   nobody used since the block before, and then a plain collection with as many collisions as these had collisions and
   evicted rows together.

Needs root for the second part.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from common.ranks import run_ranks
from common.table import emit
from exposed import COLLISION, USUAL, Section, measure
from exposure.figures import Blocks
from exposure.model import CPU, PROBES
from network.namespaces import why_not
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.hash_mc_evictions import HashZchEvictionConfig, HashZchEvictionPolicyName
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import LRU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule

from fscomm.tables.maps import Record
from fscomm.tables.torchrec import cpu_kernels
from fscomm.tables.torchrec.maps import MapsAhead

SLOTS, IDS, KNOWN, INTERVAL, ROUNDS = 300_000, 20_000, 250_000, 5, 25
SLOTS_PER_ID = 1.2


def hashed() -> Any:
    return HashZchManagedCollisionModule(
        SLOTS,
        CPU,
        total_num_buckets=1,
        max_probe=PROBES,
        eviction_policy_name=HashZchEvictionPolicyName.SINGLE_TTL_EVICTION,
        eviction_config=HashZchEvictionConfig(features=["f"], single_ttl=1),
    )


def sorted_ids() -> Any:
    return MCHManagedCollisionModule(
        SLOTS, CPU, LRU_EvictionPolicy(), eviction_interval=INTERVAL, input_hash_size=2**62
    )


def module_of(make: Callable[[], Any]) -> Any:
    """Of one table on one rank."""
    config = EmbeddingConfig(name="t", num_embeddings=SLOTS, embedding_dim=4, feature_names=["f"])
    maps = ManagedCollisionCollection({"t": make()}, [config])
    module = ManagedCollisionEmbeddingCollection(EmbeddingCollection(tables=[config], device=CPU), maps)
    sharder = ManagedCollisionEmbeddingCollectionSharder()
    plan = construct_module_sharding_plan(
        module, {"t": row_wise()}, sharder=sharder, local_size=1, world_size=1, device_type="cpu"
    )
    world = torch.distributed.group.WORLD
    assert world is not None
    model = DistributedModelParallel(
        torch.nn.ModuleDict({"m": module}),
        env=ShardingEnv.from_process_group(world),
        device=CPU,
        plan=ShardingPlan({"m": plan}),
        sharders=[sharder],
    )
    cpu_kernels.install(model)
    return model.module["m"]


def of_maps(rank: int, size: int, make: Callable[[], Any]) -> dict[str, list[float]]:
    """Seconds of each round: TorchRec's own remapping, that of the twin with all it notes, and publishing."""
    ahead, plain = MapsAhead(module_of(make)), module_of(make)._managed_collision_collection
    ahead.renew(ahead.snapshot())

    def by_torchrec(ids: np.ndarray) -> torch.Tensor:
        kjt = KeyedJaggedTensor(["f"], torch.from_numpy(ids), lengths=torch.tensor([IDS]), stride=1)
        with torch.no_grad():
            rows: torch.Tensor = plain.get_lookup_value("t", kjt)["t"].values()
            plain.evict()
        return rows

    random = np.random.default_rng(0)
    known = random.integers(0, 2**62, KNOWN)
    found: dict[str, list[float]] = {"torchrec": [], "twin": [], "publish": []}
    for _ in range(ROUNDS):
        ids, record = known[random.integers(0, KNOWN, IDS)], Record()
        rows = _timed(found["torchrec"], by_torchrec, ids)
        mapped = _timed(found["twin"], ahead.remap, record, 0, ids, np.array([IDS]))
        _timed(found["publish"], ahead.publish, record)
        assert rows.tolist() == mapped.tolist()
    return found


def _timed(into: list[float], work: Callable[..., Any], *given: Any) -> Any:
    start = time.perf_counter()
    found = work(*given)
    into.append(time.perf_counter() - start)
    return found


def maps() -> None:
    rows = []
    for name, make in (("MPZCH", hashed), ("MCH", sorted_ids)):
        (found,) = run_ranks(1, of_maps, make)
        evicting = [name == "MCH" and number % INTERVAL == INTERVAL - 1 for number in range(ROUNDS)]
        for evicts in sorted(set(evicting)):
            times = [
                1e6 * statistics.median(t for t, e in zip(found[what], evicting, strict=True) if e == evicts) / IDS
                for what in ("torchrec", "twin", "publish")
            ]
            what = (
                f"{name}, steps that evict" if evicts else f"{name}, steps without eviction" if name == "MCH" else name
            )
            rows.append([what, *times, times[1] / times[0], times[2] * IDS / 1e3])
    columns = ["maps", "TorchRec us/id", "twin us/id", "publish us/id", "twin / TorchRec", f"publish {IDS:,} ids, ms"]
    notes = [f"{SLOTS:,} slots, {KNOWN:,} ids in all; medians of {ROUNDS} rounds of {IDS:,} ids."]
    emit("managed_maps", "Mapping the ids of a batch", columns, rows, notes, data="random ids, made as it runs")


def counts(blocks: Blocks) -> dict[str, float]:
    """Shares of the occurrences that the ranks own, over all measured steps."""
    steps = [step for ranks in blocks.answers["fscomm"].values() for rank in ranks for step in rank["said"]]
    collisions = [each for step in steps for each in step["collisions"].values()]
    maps = [each for step in steps for each in step["managed"].values()]
    ids = sum(each["ids"] for each in maps)
    found = {name: sum(each[name] for each in maps) / ids for name in ("hits", "own", "late")}
    return found | {"colliding": sum(c["colliding"] for c in collisions) / sum(c["occurrences"] for c in collisions)}


def exposed(slots: float, rounds: int, steps: int) -> None:
    usual = Section(name="", rounds=rounds, steps=steps, modes=("compute", "plain", "fscomm"), collision=COLLISION)
    shape = replace(USUAL, slots=int(slots * USUAL.rows) // 12 * 12)
    rows, notes = [], []

    def add(section: Section) -> Blocks:
        (blocks,), different = measure([section])
        own = {mode: statistics.median(blocks.exposed_ms(mode)) for mode in ("plain", "fscomm")}
        quartiles = " ".join(f"{each:.1f}" for each in sorted(blocks.exposed_ms("fscomm")))
        rows.append([section.name, *own.values(), quartiles, statistics.median(blocks.blocked_ms("fscomm"))])
        notes.append(f"{section.name}: tables {'DIFFER' if different.get('fscomm') else 'are the plain loop`s'}.")
        return blocks

    print("behind MPZCH", file=sys.stderr)
    share = counts(add(replace(usual, name="behind MPZCH", shape=shape)))
    collision = share["colliding"] + share["late"]
    add(replace(usual, name=f"plain collection, {100 * collision:.1f} % collide", collision=collision))
    hits, own, colliding, late = (f"{100 * share[what]:.1f} %" for what in ("hits", "own", "colliding", "late"))
    notes.append(
        f"Behind MPZCH: {slots:g} slots for each id; {hits} of the ids hit, {own} have a row of their own, {colliding} "
        f"collide, {late} have a row that the step evicted."
    )
    notes.append(f"Exposed behind MPZCH / plain collection: {rows[0][2] / rows[1][2]:.2f}, at most 1.3.")
    columns = ["tables", "plain loop ms", "fscomm ms", "rounds", "blocked ms"]
    emit("managed", "Exposed time, 4 ranks, 200 Mbit, 400 ms", columns, rows, notes, data="random ids, made as it runs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=float, default=SLOTS_PER_ID, help="for each id (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="measured steps of a block")
    parser.add_argument("--only", choices=("maps", "exposed"))
    arguments = parser.parse_args()
    if arguments.only != "exposed":
        maps()
    if arguments.only != "maps":
        if reason := why_not():
            print(f"skipped: {reason}")
            return
        exposed(arguments.slots, arguments.rounds, arguments.steps)


if __name__ == "__main__":
    main()
