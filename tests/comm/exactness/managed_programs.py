"""Random training programs over tables behind managed collision, and what they may do besides: hours pass, maps change.

Both runs of a program see the same hours at the same operations.
"""

from functools import partial
from typing import Any

import torch
from exact import Loop, Run
from exact_managed import BUCKETS, IDS, MapOf, at_hour, hash_zch, managed, mch
from exact_model import Batch, Config, Table, given_out, ids_of
from hypothesis import strategies as st
from programs import NAMES, VARIANTS, Operation, Player, without_nothing


class ManagedPlayer(Player):
    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.hours = 0

    def hour(self, n: int) -> None:
        """Passes on all ranks; at times on one rank only, or two at once."""
        if n % 4 or n // 4 % self.run.size == self.run.rank:
            self.hours += 1 + (n == VARIANTS - 1)

    def inspect_instead(self, n: int) -> None:
        """The next batch is evaluated, with or without gradients, and not trained on."""
        self.next()
        if self.batch is not None:
            self.inspect(2 * n + 1)

    def change_mode(self, n: int) -> None:
        """Of one map of each module: it only reads for a step, or evicts at other steps from now on."""
        for module in self.run.model.module.modules():
            for each in list(getattr(module, "_managed_collision_modules", {}).values())[:1]:
                each.train(n % 3 != 0)
                if hasattr(each, "_eviction_interval"):
                    each._eviction_interval = 1 + n % 4
        self.train_next(0)
        self.run.model.train()

    def change_maps(self, n: int) -> None:
        """By hand, on all ranks or on one: what was met or counted seems older, or rarer."""
        if n % 2 or n // 2 % self.run.size == self.run.rank:
            for module in self.run.model.module.modules():
                for name in ("_hash_zch_metadata", "_mch_counts", "_mch_last_access_iter"):
                    if isinstance(of_slots := getattr(module, name, None), torch.Tensor):
                        with torch.no_grad():
                            of_slots[::2] -= (of_slots[::2] > 1).to(of_slots.dtype)

    def _values(self, module: str, batch: Batch) -> torch.Tensor:
        net = self.run.model.module
        found = net.embeddings[module](ids_of(batch, module))
        return given_out(found[0] if module in net.managed else found)


def play_managed(operations: list[Operation]) -> Loop:
    def loop(run: Run) -> None:
        player = ManagedPlayer(run)
        with at_hour(lambda: player.hours):
            player.play(operations)

    return loop


MORE = ["hour"] * 8 + ["inspect"] + ["inspect_instead"] * 3 + ["change_maps"] * 2 + ["change_mode"] + ["train_on"] * 60


def managed_programs(length: int) -> st.SearchStrategy[list[Operation]]:
    operations = st.builds(Operation, st.sampled_from([*NAMES, *MORE]), st.integers(0, VARIANTS - 1))
    return st.lists(operations, min_size=length, max_size=length).map(without_nothing)


@st.composite
def managed_configs(draw: st.DrawFn) -> Config:
    """A module behind managed collision, or two, with so few rows that most steps evict; at times a plain one first."""
    maps: dict[str, MapOf] = {}
    modules: dict[str, tuple[Table, ...]] = {}
    plain = draw(st.booleans())
    for module in ("b", "c")[: draw(st.sampled_from([1, 1, 2]))]:
        tables = []
        for number in range(draw(st.integers(1, 2))):
            name = f"{module}{number}"
            features = tuple(f"{name}_{feature}" for feature in range(draw(st.integers(1, 2))))
            rows = BUCKETS * draw(st.sampled_from([1, 2, 4]))
            tables.append(Table(name=name, rows=rows, sharding="row", features=features, ids=IDS))
            maps[name] = draw(_maps())
        modules[module] = tuple(tables)
    if plain:
        modules = {"a": (Table(name="r", rows=40, sharding="row", features=("r0", "r1")),)} | modules
    dedup = draw(st.sampled_from([False, False, True]))
    initial = draw(st.sampled_from([None, None, 0.5]))
    return Config(
        modules=modules,
        optimizer=draw(st.sampled_from(["sgd", "adagrad", "rowwise"])),
        data_parallel=draw(st.sampled_from([True, True, False])),
        static_graph=False,
        dedup=dedup,
        max_batch=draw(st.sampled_from([4, 8, 12])),
        max_length=draw(st.sampled_from([4, 8, 2])),
        spread=draw(st.sampled_from([0.02, 0.05, 0.1])),
        seed=draw(st.integers(1, 10_000)),
        hides=True,
        builder=managed(maps, initial, tells=not dedup and draw(st.sampled_from([True, True, False]))),
    )


def _maps() -> st.SearchStrategy[Any]:
    hashed: dict[str, Any] = {"policy": st.sampled_from(["SINGLE_TTL", "SINGLE_TTL", "PER_FEATURE_TTL", "LRU", None])}
    hashed |= {"hours": st.integers(1, 2), "probes": st.integers(1, 4)}
    counted: dict[str, Any] = {"policy": st.sampled_from(["lfu", "lru", "distance lfu"]), "interval": st.integers(1, 3)}
    of_hash = st.fixed_dictionaries(hashed).map(lambda options: partial(hash_zch, **options))
    of_mch = st.fixed_dictionaries(counted).map(lambda options: partial(mch, **options))
    return st.one_of(of_hash, of_mch)
