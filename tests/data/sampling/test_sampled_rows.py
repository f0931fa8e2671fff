"""Sampled histories in the batches of a loader: the events of plain Python, whatever reads, orders or deals rows."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.fs as pafs
import pytest
import torch
from data_kit import DECODERS, as_python, load, loader_on, read, same, write
from fsspec.implementations.local import LocalFileSystem
from rank_loaders import read_and_go_on
from sampling_reference import FIELDS, MAX_LENGTH, Rows, by_row, digest_of, sampled, schema, uih
from worlds import shared_world

from fsdata import Balance, Follow, ParquetSource, Schema, Sequence, Split, StochasticLength

UNIFORM = StochasticLength(alpha=1.5)
NEWEST = StochasticLength(alpha=1.5, select="newest")
SAMPLES = pytest.mark.parametrize("sample", [UNIFORM, NEWEST], ids=["uniform", "newest"])


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return Rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of the files of `rows`, which is a function of its arguments."""
    folder = tmp_path_factory.mktemp("files")
    Rows(folder)
    return folder


@SAMPLES
@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_every_field_keeps_the_events_of_plain_python(rows, folder, sample, keep, decoder, shuffle):
    source, sequence = ParquetSource(folder, decoder=decoder), uih(keep=keep, sample=sample)
    found = read(source, schema(keep=keep, sample=sample), shuffle=shuffle, seed=3, num_threads=2)
    expected = rows.expected(sequence, seed=3)
    assert by_row(found) == expected
    lengths = {len(lists["item"]) for lists in expected.values()}
    assert {15, MAX_LENGTH} <= lengths  # floor(40^0.75); some long ones stay whole
    whole = rows.expected(uih(keep=keep, sample=StochasticLength(alpha=2)), seed=3)
    assert sum(expected[row] != whole[row] for row in whole) > len(whole) // 4


def test_an_epoch_draws_anew_and_again_the_same(rows, folder):
    with loader_on(folder, schema(sample=UNIFORM), shuffle=True) as loader:
        epochs = [by_row([sample for batch in loader for sample in as_python(batch)]) for _ in range(2)]
        loader.set_epoch(0)
        again = by_row([sample for batch in loader for sample in as_python(batch)])
    assert epochs == [rows.expected(uih(sample=UNIFORM), epoch=epoch) for epoch in range(2)]
    assert epochs[0] != epochs[1]
    assert again == epochs[0]


@pytest.mark.parametrize(
    ("options", "of_source"),
    [
        ({"batch_size": 3}, {}),
        ({"shuffle": True, "shuffle_window": 1}, {}),
        ({"shuffle": True, "shuffle_window": 1.0, "memory": "1MB"}, {}),
        ({"max_tokens": 90}, {}),
        ({}, {"filter": pl.col("row") % 3 != 1}),
        ({}, {"skip": 5, "limit": 50}),
        ({}, {"nulls": {"row": "drop"}}),
        ({}, {"map": lambda batch: batch.slice(0)}),
    ],
    ids=["batch", "window", "epoch", "tokens", "filter", "skip", "drop", "map"],
)
def test_other_rows_and_other_orders_change_no_sample(rows, folder, options, of_source):
    found = by_row(read(ParquetSource(folder, **of_source), schema(sample=UNIFORM), **options))
    expected = rows.expected(uih(sample=UNIFORM))
    assert found == {row: expected[row] for row in found}
    assert len(found) >= 50


def read_epoch(sources: Any, schema: Schema, epoch: int = 1, **options: Any) -> list[dict[str, Any]]:
    """The samples of a later epoch: every way to read a row has to know its number."""
    with loader_on(sources, schema, **options) as loader:
        loader.set_epoch(epoch)
        return [sample for batch in loader for sample in as_python(batch)]


def test_merged_sources_draw_like_each_of_them(tmp_path):
    """Also where files of two sources have the same name, and row groups are decoded in parts."""
    of = [Rows(tmp_path / name, rows=count, group=group) for name, count, group in (("a", 30, 4), ("b", 33, 50))]
    expected = [each.expected(uih(sample=UNIFORM), epoch=1) for each in of]
    sources = [
        ParquetSource(tmp_path / name, columns={"row": pl.col("row") + offset})
        for name, offset in (("a", 0), ("b", 1000))
    ]
    wanted = expected[0] | {row + 1000: lists for row, lists in expected[1].items()}
    for mix in ("sequential", "time", "weighted"):
        assert by_row(read_epoch(sources, schema(sample=UNIFORM), mix=mix)) == wanted, mix
    alone = by_row(read_epoch(sources[1:], schema(sample=UNIFORM)))
    assert alone == {row: wanted[row] for row in alone}


@pytest.mark.parametrize("read_ahead", ["1MB", 0])
def test_files_that_are_not_local(rows, folder, read_ahead):
    """Another listing of the same files, which are the same rows."""
    remote = pafs.PyFileSystem(pafs.FSSpecHandler(LocalFileSystem()))
    source = ParquetSource(f"{folder}/part-*.parquet", filesystem=remote)
    found = read_epoch(source, schema(sample=UNIFORM), shuffle=True, read_ahead=read_ahead)
    assert by_row(found) == rows.expected(uih(sample=UNIFORM), epoch=1)


def test_a_folder_that_is_followed(rows, folder, tmp_path):
    """Rows are those of their file, whenever it comes and whatever number it has after a resume."""
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(folder / "part-0.parquet", data)
    source = ParquetSource(data, follow=Follow(by="path", every="10ms", idle="80ms"))
    options: dict[str, Any] = {"shuffle": True, "batch_size": 4}
    with loader_on(source, schema(sample=UNIFORM), **options) as loader:
        batches = iter(loader)
        found = [sample for _, batch in zip(range(4), batches, strict=False) for sample in as_python(batch)]
        state = loader.state_dict()
    shutil.copy(folder / "part-1.parquet", data)
    with loader_on(source, schema(sample=UNIFORM), **options) as loader:
        loader.load_state_dict(state)
        found += [sample for batch in loader for sample in as_python(batch)]
    assert by_row(found) == rows.expected(uih(sample=UNIFORM))


def test_all_candidates_of_a_row_have_its_events(tmp_path):
    lists = [list(range(row * 100, row * 100 + 90)) for row in range(12)]
    write(tmp_path / "a.parquet", {"item": lists, "candidate": [[1, 2, 3]] * 12, "row": range(12)}, group=5)
    sequence = Sequence("uih", ("item",), max_length=80, sample=UNIFORM)
    candidates = Sequence("candidates", ("candidate",))
    options: Any = {"sequences": (sequence,), "candidates": candidates, "context": ("row",), "explode": "candidates"}
    found = read(tmp_path, Schema(**options))
    digest = digest_of(tmp_path / "a.parquet")
    wanted = [sampled({"item": lists[row]}, (digest, *divmod(row, 5)), sequence)["item"] for row in range(12)]
    assert [sample["item"] for sample in found] == [wanted[row] for row in range(12) for _ in range(3)]
    assert 26 in map(len, wanted)


def test_small_row_groups_that_are_decoded_together(tmp_path):
    """Without lists of lists, row groups of few rows are one record batch."""
    rows = Rows(tmp_path, files=1, rows=200, group=9)
    sequence = Sequence("uih", ("item",), max_length=MAX_LENGTH, sample=UNIFORM)
    short = Schema(sequences=(sequence,), context=("row",))
    item = {sample["row"]: sample["item"] for sample in read_epoch(tmp_path, short)}
    wanted = {
        row: sampled({"item": lists["item"]}, rows.places[row], sequence, epoch=1)["item"]
        for row, lists in rows.lists.items()
    }
    assert item == wanted
    assert "small row groups" in str(load(tmp_path, short)[1].describe())


def test_two_sequences_draw_independently(tmp_path):
    rows = Rows(tmp_path, files=1)
    groups = [
        Sequence(name, (field,), floats=floats, max_length=MAX_LENGTH, sample=UNIFORM)
        for name, field, floats in (("uih", "item", ()), ("other", "next", ("price",)))
    ]
    found = read(ParquetSource(tmp_path), Schema(sequences=tuple(groups), context=("row",)))
    for sample in found:
        lists, place = rows.lists[sample["row"]], rows.places[sample["row"]]
        for group in groups:
            names = group.all_fields
            wanted = sampled({name: lists[name] for name in names}, place, group)
            assert {name: sample[name] for name in names} == wanted
    assert any([int(price) for price in row["price"]] != [item % 1000 for item in row["item"]] for row in found)


def test_nulls_become_defaults_before_events_are_chosen(tmp_path):
    columns = {
        "item": [None, list(range(30)), None],
        "price": [[float(event) for event in range(30)], None, None],
        "row": [0, 1, 2],
    }
    write(tmp_path / "a.parquet", columns)
    sequence = Sequence("uih", ("item",), floats=("price",), max_length=20, sample=StochasticLength(alpha=1.0001))
    source = ParquetSource(tmp_path, nulls={"item": "default", "price": "default"}, defaults={"item": 7, "price": 0.5})
    found = {of["row"]: of for of in read(source, Schema(sequences=(sequence,), context=("row",)))}
    assert [len(found[row]["item"]) for row in range(3)] == [4, 4, 0]
    assert found[0]["item"] == [7] * 4
    assert found[1]["price"] == [0.5] * 4
    assert all(event in range(10, 30) for event in found[1]["item"])
    assert found[0]["price"] == sorted(set(found[0]["price"]) & set(map(float, range(10, 30))))


def test_a_split_divides_the_sampled_list(folder):
    split = Split(recent=3, segment=4, tokens=2)
    options: dict[str, Any] = {"batch_size": 80}
    (plain,), _ = load(folder, schema(sample=UNIFORM), **options)
    (batch,), _ = load(folder, schema(sample=UNIFORM, split=split), **options)
    assert by_row(as_python(batch)) == by_row(as_python(plain))
    lengths = plain.features["item"].lengths()
    assert torch.equal(batch.split["uih"].events, lengths.long())
    assert torch.equal(batch.split["uih"].older, (lengths.long() - 3).clamp(min=0))


def test_a_state_resumes_with_the_same_samples(folder):
    read_and_go_on(partial(loader_on, folder, schema(sample=UNIFORM), shuffle=True, batch_size=9), 3)


def samples_of_rank(rank: int, ranks: int, folder: Path, state: Any, options: dict[str, Any]) -> Any:
    """(samples of this rank by row, state after two steps), from `state` on; without one only those two steps."""
    with loader_on(folder, schema(sample=UNIFORM), shuffle=True, seed=1, batch_size=4, **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        found = []
        for step, batch in enumerate(loader):
            found += as_python(batch)
            if state is None and step == 1:
                return by_row(found), loader.state_dict()
        return by_row(found), None


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("balance", [None, Balance()], ids=["as dealt", "balanced"])
def test_ranks_and_resumes_on_other_world_sizes_draw_the_same(rows, folder, balance):
    expected = rows.expected(uih(sample=UNIFORM), seed=1)
    options: dict[str, Any] = {"balance": balance, "drop_last": False, "uneven": "empty"}
    begun = shared_world(2).run(samples_of_rank, folder, None, options)
    rest = shared_world(3).run(samples_of_rank, folder, begun[0][1], options)
    parts = [of for of, _ in (*begun, *rest)]
    assert sum(map(len, parts)) == len(expected)
    assert {row: lists for part in parts for row, lists in part.items()} == expected


def steps_of_rank(rank: int, ranks: int, folder: Path) -> list[tuple[int, int]]:
    """(events of this rank, events of all ranks by the plan) of each step."""
    with loader_on(folder, schema(sample=UNIFORM), shuffle=True, batch_size=10, balance=Balance()) as loader:
        return [(batch.features["item"].values().numel(), batch.stats.global_items["uih"]) for batch in loader]


@pytest.mark.xdist_group("ranks")
def test_batches_are_balanced_by_the_lengths_that_were_drawn(folder):
    for (first, total), (second, other) in zip(*shared_world(2).run(steps_of_rank, folder), strict=True):
        assert first + second == total == other
        assert abs(first - second) <= 40  # at most one history


@pytest.mark.parametrize("field", FIELDS)
def test_a_row_that_a_policy_drops_is_not_read(tmp_path, field):
    """Its lists are null, or have other lengths than the null one."""
    rows = Rows(tmp_path, files=1, rows=30)
    path = next(tmp_path.glob("*.parquet"))
    table = pl.read_parquet(path)
    table = table.with_columns(pl.when(pl.col("row") % 4 == 0).then(None).otherwise(pl.col(field)).alias(field))
    other = tmp_path / "nulls"
    write(other / path.name, table.to_arrow().cast(pl.read_parquet(path).to_arrow().schema), group=7)
    found = by_row(read(ParquetSource(other, nulls={field: "drop"}), schema(sample=UNIFORM)))
    assert set(found) == {row for row in rows.lists if row % 4}


def test_the_same_batches_by_both_decoders(folder):
    batches = [
        load(ParquetSource(folder, decoder=decoder), schema(sample=UNIFORM), shuffle=True)[0] for decoder in DECODERS
    ]
    assert all(same(one, other) for one, other in zip(*batches, strict=True))
