"""Nodes that balance, and nodes of folders that grow."""

from dataclasses import dataclass, replace
from typing import ClassVar

import polars as pl
import pytest
import torch
import torchdata.nodes as td
from data_kit import assert_same, loader_on, rows_of, same
from patience import PATIENCE_S
from sets import SCHEMA, two_sources, write
from test_nodes import graph
from worlds import shared_world

from fsdata import Balance, Follow, ParquetSource, PeerError, StateError, rebalance
from fsdata.nodes import BalancedSteps, BalancedTensors, Batches, Followed, LocalSteps, Rows, Steps, Units


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return two_sources(tmp_path_factory.mktemp("sets"))


def dealt_by_nodes(rank, world_size, folder):
    sources = [ParquetSource(folder / "own")]
    batches = graph(sources, lambda steps: BalancedSteps(steps, Balance(), timeout_s=PATIENCE_S), shuffle=True)
    made = list(batches)
    with loader_on(sources, SCHEMA, batch_size=4, shuffle=True, balance=Balance()) as loader:
        assert_same(made, loader)
    state = batches.state_dict()
    rows = batches.source.source.source
    rows.reset()
    next(rows)
    with pytest.raises(RuntimeError, match="does not know how many rows the others have passed"):
        rows.state_dict()
    batches.close()
    return len(made), state["positions"]


def test_dealt_over_ranks(tmp_path):
    two_sources(tmp_path)
    answers = shared_world(2).run(dealt_by_nodes, tmp_path)
    assert answers[0] == answers[1]
    assert answers[0][0] == 5


def begun_anew(rank, world_size, folder, alone):
    """Both ranks begin anew after one batch, and rank 1, if it is `alone`, also after the next one."""
    sources = [ParquetSource(folder / "own")]
    batches = graph(sources, lambda steps: BalancedSteps(steps, Balance(), timeout_s=PATIENCE_S), shuffle=True)
    start = batches.state_dict()
    first = next(batches)
    batches.reset(start)
    assert same(next(batches), first)
    if alone and rank == 1:
        batches.reset(start)
        batches.close()
        return ""
    if not alone:
        rest = list(batches)
        batches.close()
        return str(len(rest))
    with pytest.raises(PeerError) as caught:
        next(batches)
    batches.close()
    return str(caught.value)


def test_ranks_that_begin_anew_in_the_middle(tmp_path):
    two_sources(tmp_path)
    assert shared_world(2).run(begun_anew, tmp_path, False) == ["4", "4"]
    heard, _ = shared_world(2).run(begun_anew, tmp_path, True)
    assert "rank 1" in heard
    assert "began another loop over its loader" in heard


def test_rebalance_and_nodes_take_what_has_changed(tmp_path):
    first, second = two_sources(tmp_path)
    later = [first, replace(second, weight=5.0)]
    options = {"mix": "weighted", "batch_size": 6}
    with loader_on([first, second], SCHEMA, **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with loader_on(later, SCHEMA, **options) as loader:
        loader.load_state_dict(state, changed="weights")
        rest = [rows_of(batch) for batch in loader]
    lengths = {"lengths": lambda batch: torch.ones_like(batch["row"])}
    dicts = {"adapt": lambda batch: {"row": batch.features["row"].values()}, **options}
    with loader_on(later, SCHEMA, **dicts) as loader, rebalance(loader, **lengths) as balanced:
        with pytest.raises(StateError, match="changed='weights'"):
            balanced.load_state_dict(state)
        balanced.load_state_dict(state, changed="weights")
        assert [batch["row"].tolist() for batch in balanced] == rest
    with loader_on(later, SCHEMA, **dicts) as loader:
        node = BalancedTensors(loader, **lengths)
        node.reset({"epoch": 0, "step": 1, "source": state}, changed=("weights", "batch_size"))
        assert [batch["row"].tolist() for batch in node] == rest
        node.close()
    batches = graph(later, mix="weighted", batch_size=6)
    with pytest.raises(StateError, match="changed='weights'"):
        batches.reset(state)
    batches.reset(state, changed="weights")
    assert [rows_of(batch) for batch in batches] == rest
    batches.close()


def rows_of_rank(rank):
    draw = torch.Generator().manual_seed(rank)
    lengths = torch.randint(1, 50, (6, 4), generator=draw)
    return [{"length": each, "mark": 1000 * rank + 10 * n + torch.arange(4)} for n, each in enumerate(lengths)]


def dealt_behind_a_node(rank, world_size):
    given = rows_of_rank(rank)
    node = BalancedTensors(
        td.IterableWrapper(given), Balance(), lengths=lambda batch: batch["length"], timeout_s=PATIENCE_S
    )
    made = list(node)
    state = node.state_dict()
    with rebalance(given, lengths=lambda batch: batch["length"], timeout_s=PATIENCE_S) as other:
        for one, two in zip(made, other, strict=True):
            assert one.keys() == two.keys()
            assert all(torch.equal(one[name], two[name]) for name in one)
    node.reset()
    assert len(list(node)) == len(made)
    node.close()
    return torch.cat([batch["mark"] for batch in made]).tolist(), state["epoch"]


def test_dealt_behind_a_node_of_ones_own():
    (first, epoch), (second, _) = shared_world(2).run(dealt_behind_a_node)
    marks = [int(mark) for rank in (0, 1) for batch in rows_of_rank(rank) for mark in batch["mark"]]
    assert sorted(first + second) == sorted(marks)
    assert first != [int(mark) for batch in rows_of_rank(0) for mark in batch["mark"]]
    assert epoch == 0


def test_dealt_alone_gives_the_batches_of_its_source_and_their_place():
    node = BalancedTensors(td.IterableWrapper(rows_of_rank(0)), lengths=lambda batch: batch["length"])
    first = [next(node)["mark"].tolist() for _ in range(2)]
    state = node.state_dict()
    whole = [*first, *(batch["mark"].tolist() for batch in node)]
    assert whole == [batch["mark"].tolist() for batch in rows_of_rank(0)]
    node.reset(state)
    assert node.state_dict() == state
    assert [batch["mark"].tolist() for batch in node] == whole[2:]
    with pytest.raises(StateError, match="not a state of batches"):
        node.reset({"epoch": 0})
    node.close()


def test_a_folder_that_grows_needs_its_node(tmp_path):
    write(tmp_path / "own", 21, files=1)
    source = ParquetSource(tmp_path / "own", follow=Follow(every="10ms", lag="0s", idle="50ms"))
    steps = Steps(Rows(Units(source, SCHEMA)), 5)
    with pytest.raises(ValueError, match="needs a Followed node"):
        next(LocalSteps(steps))
    batches = Batches(Followed(LocalSteps(steps)))
    assert rows_of(batches) == list(range(21))
    batches.close()


@dataclass
class Fragile:
    length: torch.Tensor
    mark: torch.Tensor
    broken: ClassVar[bool] = False

    def __post_init__(self):
        if Fragile.broken:
            raise ValueError("it fell apart")


def built_badly(rank, world_size):
    given = [Fragile(**batch) for batch in rows_of_rank(rank)]
    node = BalancedTensors(td.IterableWrapper(given), lengths=lambda batch: batch.length, timeout_s=PATIENCE_S)
    Fragile.broken = rank == 1
    error = ValueError if rank == 1 else PeerError
    with pytest.raises(error, match="it fell apart"):
        list(node)
    Fragile.broken = False
    node.close()


def test_other_ranks_hear_that_a_batch_cannot_be_built():
    shared_world(2).run(built_badly)


def test_what_is_for_another_node_is_refused(sources):
    steps = Steps(Rows(Units(sources, SCHEMA)), 4, max_tokens=9)
    with pytest.raises(ValueError, match=r"Steps\(max_tokens=...\) is for LocalSteps"):
        BalancedSteps(steps)


def met_otherwise(rank, world_size, folder):
    steps = Steps(Rows(Units(ParquetSource(folder / "own", filter=pl.col("row") >= 0), SCHEMA)), 4)
    local = LocalSteps(steps, timeout_s=PATIENCE_S)
    with pytest.raises(ValueError, match=r"balance needs a StepExchange.*has made a StatusExchange: build a new graph"):
        BalancedSteps(steps, timeout_s=PATIENCE_S)
    local.close()


def test_steps_that_are_local_are_not_balanced_as_well(tmp_path):
    two_sources(tmp_path)
    shared_world(2).run(met_otherwise, tmp_path)
