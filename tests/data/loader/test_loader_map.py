"""Loaders of sources with `map` give, bit for bit, what files with the mapped values give."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from patience import PATIENCE_S
from rank_loaders import COST
from sets import SCHEMA, same, two_sources
from worlds import shared_world

from fsdata import Balance, FreeScaleDataLoader, MismatchError, ParquetSource, PeerError, StateError


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The files of `sets`, and the same with doubled ids."""
    plain, doubled = (tmp_path_factory.mktemp(name) for name in ("plain", "doubled"))
    two_sources(plain)
    two_sources(doubled)
    for path in sorted(doubled.glob("*/*.parquet")):
        table, group = pq.read_table(path), pq.ParquetFile(path).metadata.row_group(0).num_rows
        items = "items" if "items" in table.schema.names else "item"
        lists = pa.array([[2 * item for item in items] for items in table[items].to_pylist()], table[items].type)
        table = table.set_column(table.schema.get_field_index(items), items, lists)
        pq.write_table(table, path, row_group_size=group)
    return plain, doubled


def twice(batch):
    lists = batch["item"]
    made = pa.array([[2 * item for item in items] for items in lists.to_pylist()], lists.type)
    return batch.set_column(batch.schema.get_field_index("item"), "item", made)


def other(batch):
    return twice(batch)


def loader_on(folder, function=None, **options):
    sources = [
        ParquetSource(str(folder / "own"), map=function),
        ParquetSource(str(folder / "partner"), columns={"item": "items"}, defaults={"country": 77}, map=function),
    ]
    return FreeScaleDataLoader(sources, SCHEMA, **{"batch_size": 4, "timeout_s": PATIENCE_S, **options})


def both_alike(rank, world_size, folders, options):
    plain, doubled = folders
    with loader_on(plain, twice, **options) as one, loader_on(doubled, **options) as two:
        pairs = list(zip(one, two, strict=True))
        assert all(same(mapped, written) for mapped, written in pairs)
        one.load_state_dict(one.state_dict())
        return len(pairs)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True, "mix": "weighted"},
        {"mix": "time", "num_threads": 3},
        {"balance": Balance(cost=COST, timeout_s=PATIENCE_S), "shuffle": True},
        {"balance": Balance(cost=COST, timeout_s=PATIENCE_S, max_tokens=19)},
    ],
    ids=["plain", "shuffled", "time", "balanced", "carried"],
)
def test_ids_that_are_doubled_here_or_in_the_files(folders, world_size, options):
    assert min(shared_world(world_size).run(both_alike, folders, options)) > 5


def ranks_with_others(rank, world_size, folders):
    with pytest.raises(MismatchError, match="source 0 arguments"):
        loader_on(folders[0], twice if rank == 0 else other)


def test_ranks_with_other_functions_are_told(folders):
    shared_world(2).run(ranks_with_others, folders)


def test_states_of_other_functions_are_refused(folders):
    with loader_on(folders[0], twice) as one, loader_on(folders[0], other) as two, loader_on(folders[0]) as none:
        for loader in (two, none):
            with pytest.raises(StateError, match="source 0 arguments"):
                loader.load_state_dict(one.state_dict())


def fails(batch):
    if pc.max(batch["row"]).as_py() >= 30:
        raise KeyError("lost")
    return batch


def fail_on_one(rank, world_size, folders):
    balance = Balance(cost=COST, timeout_s=PATIENCE_S)
    with loader_on(folders[0], fails, balance=balance) as loader, pytest.raises((KeyError, PeerError)) as caught:
        list(loader)
    return type(caught.value).__name__, str(caught.value), getattr(caught.value, "__notes__", [])


def test_an_error_reaches_all_ranks(folders):
    answers = shared_world(2).run(fail_on_one, folders)
    assert "KeyError" in {kind for kind, _, _ in answers}
    for kind, text, notes in answers:
        if kind == "KeyError":
            assert any(note.startswith("map=... failed with row") for note in notes)
        else:
            assert "KeyError" in text
