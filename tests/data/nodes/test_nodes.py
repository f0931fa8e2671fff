"""The nodes of the loader in graphs of torchdata: its batches, one state, nothing left open."""

import polars as pl
import pytest
import torchdata.nodes as td
from data_kit import assert_same, loader_on, rows_of, same
from sets import SCHEMA, two_sources

from fsdata import ParquetSource, SchemaError, StateError
from fsdata.nodes import Batches, LocalSteps, Rows, Steps, Units


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return two_sources(tmp_path_factory.mktemp("sets"))


def graph(sources, dealt=LocalSteps, batch_size=4, **options):
    units = Units(sources, SCHEMA, num_threads=2, **options)
    return Batches(dealt(Steps(Rows(units, num_threads=2), batch_size)))


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 3}, {"mix": "time"}], ids=str)
def test_a_graph_of_nodes_gives_the_batches_of_the_loader(sources, options):
    batches = graph(sources, **options)
    loader = td.Loader(td.Prefetcher(batches, prefetch_factor=2, snapshot_frequency=1))
    with loader_on(sources, SCHEMA, batch_size=4, **options) as whole:
        for _ in range(2):
            epoch = list(whole)
            assert len(epoch) > 10
            assert_same(loader, epoch)
        begun = iter(loader)
        seen = [next(begun) for _ in range(5)]
        state = loader.state_dict()
        left = list(begun)
        assert_same([*seen, *left], whole)
    loader.load_state_dict(state)
    assert_same(loader, left)
    batches.close()


@pytest.mark.parametrize("place", ["rows", "steps", "kept", "batches"])
def test_every_node_goes_on_from_the_state_of_any(sources, place):
    batches = graph(sources, batch_size=1 if place == "rows" else 5)
    kept = batches.source
    steps = kept.source
    nodes = {"rows": steps.source, "steps": steps, "kept": kept, "batches": batches}
    whole = list(batches)
    batches.reset()
    given = [next(nodes[place]) for _ in range(2)]
    taken = sum(window.rows.num_rows for window in given) if place == "rows" else 2  # batches
    state = nodes[place].state_dict()
    steps = taken if place != "rows" else 0  # which know of no steps
    batches.reset({**state, "epoch": 0})
    left = list(batches)
    assert [batch.stats.step for batch in left] == list(range(steps, steps + len(whole) - taken))
    assert all(same(one, other) for one, other in zip(left, whole[taken:], strict=True) if place != "rows")
    assert [rows_of(batch) for batch in left] == [rows_of(batch) for batch in whole[taken:]]
    with pytest.raises(StateError, match="not a loader state"):
        batches.reset({"rows": 3})
    batches.close()


def test_nodes_end_their_threads(sources, begun):
    batches = graph(sources, shuffle=True)
    next(batches)
    batches.close()
    batches.close()
    assert begun("fsdata") == []


def test_what_cannot_be_read_is_refused_by_the_first_node(tmp_path):
    pl.DataFrame({"row": [1]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(TypeError, match="write ParquetSource"):
        Units([str(tmp_path)], SCHEMA)
    with pytest.raises(ValueError, match="mix must be one of 'sequential'"):
        Units(ParquetSource(tmp_path), SCHEMA, mix="random")
    with pytest.raises(SchemaError, match="column 'item' is missing"):
        Units(ParquetSource(tmp_path), SCHEMA)
