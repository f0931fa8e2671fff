"""The maps of a module behind managed collision: which row of its tables each id has, one batch ahead of the module.

TorchRec remaps ids in the forward, and so knows of a batch only then where its rows are. Here a *twin* of each map (the
`ManagedCollisionModule` of a table on this rank) remaps the next batch as soon as its ids are there, by TorchRec's own
code, in the order of the batches. What that changed is kept in a *record*, and *published* into the module's own map at
the forward. So a program that reads the module finds what the plain loop would have left there.

N ids, F features of a sharding group.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torchrec.modules.mc_modules import MCHManagedCollisionModule
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.report.report import Managed
from fscomm.tables.torchrec.module_view import ModuleView

try:
    from torchrec.modules import hash_mc_evictions
    from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
except ImportError:  # a torchrec without MPZCH
    hash_mc_evictions = HashZchManagedCollisionModule = None


UNKNOWN = -1
_NUMBERS = ("_current_iter", "_last_eviction_iter", "_current_history_buffer_offset")  # of MCH, beside its buffers
_SETTINGS = (*_NUMBERS, "_eviction_interval", "_eviction_policy_name")
_NO_ROWS = np.empty(0, np.int64)


@dataclass(slots=True, kw_only=True)
class Record:
    """Of the maps of one module on this rank. N ids and F features of a sharding group.

    Attributes:
        hour: in which the batch was mapped, as policies of eviction read it; `UNKNOWN` if it ended meanwhile.
        hour_before: in which the twins mapped the batch before; None: there is none.
        asked: by sharding group, what they were given: ids int64[N] by feature, and inside a feature by rank; int64[F].
        evictions: by table, int64 rows of this rank whose id is another one now; None: the map evicted nothing.
        changes: by table, what `MapsAhead.publish` needs. counts: by table.
    """

    hour: int = UNKNOWN
    hour_before: int | None = None
    asked: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    evictions: dict[str, torch.Tensor | None] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Managed] = field(default_factory=dict)


def own_maps(module: Any) -> Mapping[str, Any]:
    """Of the tables of this rank behind managed collision."""
    found: Mapping[str, Any] = module._managed_collision_collection._managed_collision_modules
    return found


class MapsAhead:
    """Of a ShardedManagedCollisionEmbeddingCollection. `renew` to `first_rows` are for the ids worker, all else for the
    training thread."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._collection = module._managed_collision_collection
        self._own = own_maps(module)
        self._twins: dict[str, _Map] = {}

    @property
    def writes(self) -> bool:
        """Whether a forward changes the maps now: whether the module is in training mode."""
        return any(each.training for each in self._own.values())

    def hour(self) -> int:
        """As policies of eviction read it; 0 if they read none."""
        timed = any(getattr(each, "_eviction_policy_name", None) is not None for each in self._own.values())
        return int(hash_mc_evictions.time.time() / 3600) if timed else 0

    def versions(self) -> list[object]:
        """What changes when the program writes to the module's maps in place, or sets one of them otherwise."""
        # A comparison of the values themselves would read all ids of all tables in each step. The numbers of MCH are
        # attributes, which have no version.
        found: list[object] = []
        for own in self._own.values():
            found += [each._version for each in (*own.parameters(), *own.buffers())]
            found += [own.training, *(getattr(own, name, None) for name in _SETTINGS)]
        return found

    def snapshot(self) -> dict[str, Any]:
        """Copies of the module's maps as they are now."""
        return {table: copy.deepcopy(own) for table, own in self._own.items()}

    def renew(self, maps: Mapping[str, Any]) -> None:
        """These are the twins from now on."""
        self._twins = {table: _map(twin) for table, twin in maps.items()}

    def remap(self, record: Record, group: int, ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """int64[N] the row of this rank that each id has from now on; fills `record`. As in `Record.asked`."""
        hour = self.hour()
        record.hour = hour if record.hour == hour or not record.asked else UNKNOWN
        record.asked[group] = ids, counts
        tables = self._collection._sharding_tables[group]
        of_tables = self._collection._sharding_per_table_feature_splits[group]
        names, lengths = iter(self._collection._sharding_features[group]), iter(counts.tolist())
        rows, start = np.empty_like(ids), 0
        for table, features in zip(tables, of_tables, strict=True):
            given = {next(names): next(lengths) for _ in range(features)}
            end = start + sum(given.values())
            rows[start:end] = self._remap(record, table, given, torch.from_numpy(ids[start:end])).cpu().numpy()
            start = end
        if self.hour() != hour:  # some tables of this batch may have been mapped in the next hour
            record.hour = UNKNOWN
        return rows

    def remap_again(self, record: Record) -> Record:
        """The twins map the batch of `record` once more."""
        again = Record()
        for group, asked in record.asked.items():
            self.remap(again, group, *asked)
        return again

    def _remap(self, record: Record, table: str, given: Mapping[str, int], ids: torch.Tensor) -> torch.Tensor:
        twin, first_row = self._twins[table], self._collection._table_to_offset[table]
        where = twin.module.device
        lengths = torch.tensor(list(given.values()), dtype=torch.int32, device=where)
        ids = ids.to(where)
        kjt = KeyedJaggedTensor(keys=list(given), values=ids, lengths=lengths, stride=1)
        with torch.no_grad():
            slots_before, before = twin.slots(ids), twin.before()
            # TorchRec's own methods, with the twin in the place of the module's map: they also update the hours and
            # counts by which ids are evicted, in the order of the batches.
            remapping = ModuleView(self._collection, _managed_collision_modules={table: twin.module})
            rows: torch.Tensor = type(self._collection).get_lookup_value(remapping, table, kjt)[table].values()
            of_all_ranks = twin.module.evict()  # to be called once a batch: it forgets what it returns
            slots = twin.slots(ids)
            evicted = None if of_all_ranks is None else of_all_ranks - first_row
            record.evictions[table] = evicted
            record.changes[table] = twin.change(before, rows, ids, evicted=evicted is not None)
            moved = ids[(slots >= 0) & (slots != slots_before)]
            inserted, replaced = twin.filled(before, moved, 0 if evicted is None else len(evicted))
            record.counts[table] = Managed(
                ids=len(ids),
                hits=int((slots_before >= 0).sum()),
                own=int((slots >= 0).sum()),
                late=0 if evicted is None else int(torch.isin(rows, evicted).sum()),
                inserted=inserted,
                evicted=replaced,
            )
        return rows

    def evicted(self, record: Record, group: int) -> list[np.ndarray]:
        """[T] the rows that were evicted."""
        rows = [record.evictions[table] for table in self._collection._sharding_tables[group]]
        return [_NO_ROWS if of_table is None else of_table.cpu().numpy() for of_table in rows]

    def first_rows(self, group: int) -> np.ndarray:
        """int64[T] the first row of each table that this rank owns."""
        offsets = self._collection._table_to_offset
        return np.array([offsets[table] for table in self._collection._sharding_tables[group]], np.int64)

    def evict(self, record: Record) -> None:
        """Rows with another id become new, as in the module's own forward: weights, and what is reset of optimizers.
        Draws random numbers. Through `.data`: updates of other rows, by other threads, need not notice."""
        in_place = self._module._allow_in_place_embed_weight_update
        self._module._allow_in_place_embed_weight_update = True
        try:
            self._module._evict(record.evictions)
        finally:
            self._module._allow_in_place_embed_weight_update = in_place

    def publish(self, record: Record) -> None:
        """The module's maps become what they are after its forward of this batch."""
        with torch.no_grad():
            for table, change in record.changes.items():
                _map(self._own[table]).publish(change)


class _Map(ABC):
    """One map: a twin, or the module's own."""

    def __init__(self, module: Any) -> None:
        self.module = module

    @abstractmethod
    def slots(self, ids: torch.Tensor) -> torch.Tensor:
        """int64[N] a number of the row that each id has for its own; -1: it has none."""

    def before(self) -> Any:
        """What `change` and `filled` have to know of the map before a batch."""
        return None

    @abstractmethod
    def change(self, before: Any, rows: torch.Tensor, ids: torch.Tensor, *, evicted: bool) -> Any:
        """What a batch changed, as far as there was a change; rows: int64[N] local ones."""

    @abstractmethod
    def filled(self, before: Any, moved: torch.Tensor, evictions: int) -> tuple[int, int]:
        """How many rows got an id that were free, and how many that had another one. moved: ids that got a row."""

    @abstractmethod
    def publish(self, change: Any) -> None:
        """Do to this map what `change` says of its twin."""


class _Hashed(_Map):
    """Of MPZCH. A batch changes the identity and the hour of the slots of its ids."""

    @property
    def _identities(self) -> torch.Tensor:
        identities: torch.Tensor = self.module._hash_zch_identities.detach()[:, 0]
        return identities

    def slots(self, ids: torch.Tensor) -> torch.Tensor:
        module = self.module
        values, sizes, offsets = module.input_mapper(values=ids, output_offset=module._output_global_offset_tensor)
        slots, _ = torch.ops.fbgemm.zero_collision_hash(
            input=values,
            identities=module._hash_zch_identities.detach(),
            max_probe=module._max_probe,
            circular_probe=True,
            exp_hours=-1,
            readonly=True,
            local_sizes=sizes,
            offsets=offsets,
            opt_in_prob=module._opt_in_prob,
            num_reserved_slots=module.get_reserved_slots_per_bucket(),
        )
        return torch.where(self._identities[slots] == values, slots, -1)

    def change(self, before: None, rows: torch.Tensor, ids: torch.Tensor, *, evicted: bool) -> Any:
        names = ("_hash_zch_identities", "_hash_zch_metadata", "_hash_zch_runtime_meta")
        written = [name for name in names if getattr(self.module, name, None) is not None]
        return rows, {name: getattr(self.module, name).detach()[rows] for name in written}

    def filled(self, before: None, moved: torch.Tensor, evictions: int) -> tuple[int, int]:
        return moved.unique().numel() - evictions, evictions

    def publish(self, change: Any) -> None:
        rows, values = change
        for name, of_rows in values.items():
            getattr(self.module, name).data[rows] = of_rows  # equal values where a row stands there twice


class _Sorted(_Map):
    """Of MCH. A batch is noted in a history, from which all buffers are made anew every few steps."""

    def _history(self) -> list[torch.Tensor]:
        return [self.module._history_accumulator, *self.module._history_metadata.values()]

    def _buffers(self) -> dict[str, torch.Tensor]:
        module = self.module
        return {
            name: each for name, each in module.named_buffers() if name.startswith("_mch_") and name != "_mch_slots"
        }

    def slots(self, ids: torch.Tensor) -> torch.Tensor:
        known: torch.Tensor = self.module._match_indices(self.module._mch_sorted_raw_ids, ids)[0]
        return known.long() - 1

    def before(self) -> tuple[bool, int, int]:
        """Whether there is no history yet; where the batch begins in it; free rows."""
        module = self.module
        return module._input_history_buffer_size == -1, module._current_history_buffer_offset, int(module.open_slots())

    def change(self, before: tuple[bool, int, int], rows: torch.Tensor, ids: torch.Tensor, *, evicted: bool) -> Any:
        first, start, _ = before
        module = self.module
        # An eviction consumes the history: it changes the buffers, and the next batch is noted from the start again.
        piece = slice(start, start if evicted else module._current_history_buffer_offset)
        return SimpleNamespace(
            first=len(ids) if first else None,
            numbers={name: getattr(module, name) for name in _NUMBERS},
            iteration=module._current_iter_tensor.item(),  # another number than `_current_iter` after a load_state_dict
            piece=piece,
            history=[each[piece].clone() for each in self._history()],
            buffers={name: each.clone() for name, each in self._buffers().items()} if evicted else {},
        )

    def filled(self, before: tuple[bool, int, int], moved: torch.Tensor, evictions: int) -> tuple[int, int]:
        free = before[2] - int(self.module.open_slots())
        return free, evictions - free

    def publish(self, change: Any) -> None:
        module = self.module
        if change.first is not None:
            some = torch.empty(change.first, device="meta")  # of the first batch it reads the number of ids only
            module._init_history_buffers({"": SimpleNamespace(values=lambda: some)})
        for name, number in change.numbers.items():
            setattr(module, name, number)
        module._current_iter_tensor.data.fill_(change.iteration)
        for each, values in zip(self._history(), change.history, strict=True):
            each[change.piece] = values
        for name, values in change.buffers.items():
            getattr(module, name).data.copy_(values)


def _map(module: Any) -> _Map:
    return _Sorted(module) if isinstance(module, MCHManagedCollisionModule) else _Hashed(module)


KINDS: Sequence[type] = [
    kind for kind in (MCHManagedCollisionModule, HashZchManagedCollisionModule) if kind is not None
]
"""Of maps that can be remapped ahead."""
