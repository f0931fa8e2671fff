"""The loader on one process: every row once, the right values, one order, exact resume."""

import itertools
import json
import threading
from dataclasses import replace

import pytest
from patience import until
from sets import SCHEMA, expected, same, samples_of, two_sources

from fsdata import FreeScaleDataLoader, ParquetSource, SchemaError, StateError

MIXES = ("sequential", "weighted", "time")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sets")


@pytest.fixture(scope="module")
def sources(folder):
    return two_sources(folder)


@pytest.fixture
def loader_of(sources):
    """Makes loaders and closes them."""
    made = []

    def make(sources=sources, schema=SCHEMA, **options):
        loader = FreeScaleDataLoader(sources, schema, **{"batch_size": 4, "prefetch": 0, **options})
        made.append(loader)
        return loader

    yield make
    for loader in made:
        loader.close()


def order_of(loader):
    return [sample["row"] for batch in loader for sample in samples_of(batch)]


ORDERS = [
    (1, False, "sequential"),
    (1, True, "time"),
    (2, False, "weighted"),
    (3, True, "weighted"),
    (3, False, "time"),
]
MORE_ORDERS = [case for case in itertools.product((1, 2, 3), (False, True), MIXES) if case not in ORDERS]


@pytest.mark.parametrize(
    ("world_size", "shuffle", "mix"),
    [*ORDERS, *(pytest.param(*case, marks=pytest.mark.long) for case in MORE_ORDERS)],
)
def test_every_row_arrives_once_with_the_values_pyarrow_reads(loader_of, folder, world_size, shuffle, mix):
    want = expected(folder)
    seen = []
    sizes = []
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "shuffle": shuffle, "mix": mix}
        loader = loader_of(**options, num_threads=1 + rank)
        batches = list(loader)
        assert len(batches) == len(loader)
        sizes.append([len(batch) for batch in batches])
        for batch in batches:
            assert batch.features.keys() == ["row", "country", "item", "action", "candidate"]
            assert batch.stats.global_samples == min(4 * world_size, 63 - 4 * world_size * batch.stats.step)
            for sample in samples_of(batch):
                assert sample == want[sample["row"]]
                seen.append(sample["row"])
    assert sorted(seen) == sorted(want)
    assert all(max(step) - min(step) <= 1 for step in zip(*sizes, strict=True))


@pytest.mark.parametrize("mix", MIXES)
def test_the_order_does_not_depend_on_threads_or_prefetching(loader_of, mix):
    orders = [
        order_of(loader_of(shuffle=True, shuffle_window=2, mix=mix, num_threads=threads, prefetch=prefetch))
        for threads, prefetch in ((1, 0), (3, 0), (2, 2))
    ]
    assert orders[0] == orders[1] == orders[2]


def test_golden_order(loader_of):
    """Saved states and experiments rely on it: a change of this order is a change of the state's version."""
    assert order_of(loader_of(shuffle=True, seed=7))[:12] == [24, 122, 33, 107, 28, 101, 32, 108, 22, 105, 103, 31]
    assert order_of(loader_of(mix="time", seed=7, rank=1, world_size=2))[:8] == [20, 21, 22, 23, 24, 25, 26, 27]


def test_sources_keep_their_order(loader_of):
    assert order_of(loader_of()) == [*range(40), *range(100, 123)]
    assert order_of(loader_of(mix="time")) == [*range(40), *range(100, 123)]
    weighted = order_of(loader_of(mix="weighted"))
    assert [row for row in weighted if row < 100] == list(range(40))
    assert sum(row >= 100 for row in weighted[:12]) in (5, 6, 7, 8, 9)


def test_epochs_differ_and_set_epoch_repeats_one(loader_of):
    loader = loader_of(shuffle=True)
    first, second = order_of(loader), order_of(loader)
    assert first != second
    assert sorted(first) == sorted(second)
    loader.set_epoch(0)
    assert order_of(loader) == first
    assert order_of(loader) == second


@pytest.mark.parametrize(
    ("shuffle", "prefetch", "places"),
    [
        (True, 2, (0, 8, 15, 16, 32)),
        *(pytest.param(*case, range(33), marks=pytest.mark.long) for case in itertools.product((False, True), (0, 2))),
    ],
)
def test_resume_at_every_batch_is_the_uninterrupted_run(loader_of, shuffle, prefetch, places):
    options = {"shuffle": shuffle, "shuffle_window": 3, "mix": "weighted", "prefetch": prefetch}
    whole = loader_of(**options)
    states, batches = [whole.state_dict()], []
    for _ in range(2):
        for batch in whole:
            batches.append(batch)
            states.append(json.loads(json.dumps(whole.state_dict())))
    assert len(states) == 33
    for at in places:
        loader = loader_of(**options)
        loader.load_state_dict(states[at])
        again = list(loader)
        end = 16 if at < 16 else 32
        expected_batches = batches[at:end] if at < 32 else None
        if expected_batches is not None:
            assert len(again) == len(expected_batches)
            assert all(map(same, again, expected_batches))
        else:
            assert again[0].stats.epoch == 2


@pytest.mark.parametrize(
    ("before", "after", "shuffle"),
    [
        (2, 3, True),
        (3, 1, False),
        *(pytest.param(*case, True, marks=pytest.mark.long) for case in ((3, 2), (1, 3), (3, 1))),
        *(pytest.param(*case, False, marks=pytest.mark.long) for case in ((2, 3), (3, 2), (1, 3))),
    ],
)
def test_resume_on_other_ranks_sees_every_remaining_sample_once(loader_of, before, after, shuffle):
    options = {"shuffle": shuffle, "shuffle_window": 2, "mix": "time"}
    seen, states = [], []
    for rank in range(before):
        loader = loader_of(rank=rank, world_size=before, **options)
        iterator = iter(loader)
        for _ in range(3):
            seen += [sample["row"] for sample in samples_of(next(iterator))]
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states)

    # A second change of mind, after one more step on the new number of ranks.
    middle = []
    for rank in range(after):
        loader = loader_of(rank=rank, world_size=after, **options)
        loader.load_state_dict(states[0])
        middle += [sample["row"] for sample in samples_of(next(iter(loader)))]
        state = loader.state_dict()
    rest = []
    for rank in range(2):
        loader = loader_of(rank=rank, world_size=2, batch_size=3, **options)
        loader.load_state_dict(state)
        rest += order_of(loader)
    assert sorted(seen + middle + rest) == [*range(40), *range(100, 123)]


def test_the_state_of_a_loop_left_early_is_that_of_the_batch_last_yielded(loader_of):
    loader = loader_of(prefetch=3)
    whole = list(loader_of())
    for batch in loader:
        if batch.stats.step == 4:
            break
    until(lambda: loader._steps.step >= 8)  # the batches made ahead, which the state must not count
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert all(map(same, loader, whole[5:]))


def test_state_of_other_data_is_refused(loader_of, folder):
    state = loader_of(seed=1).state_dict()
    with pytest.raises(StateError, match="seed=1"):
        loader_of(seed=2).load_state_dict(state)
    with pytest.raises(StateError, match="source 0"):
        loader_of(sources=[ParquetSource(str(folder / "own" / "part-0.parquet"))]).load_state_dict(state)
    with pytest.raises(StateError, match="version"):
        loader_of().load_state_dict({**state, "version": 99})
    with pytest.raises(StateError, match="not a loader state"):
        loader_of().load_state_dict({"step": 3})
    for damage in ({"positions": "x"}, {"positions": []}, {"positions": [-1]}, {"epoch": -1}):
        with pytest.raises(StateError, match="damaged"):
            loader_of(seed=1).load_state_dict({**state, **damage})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"mix": "random"}, "mix must be one of 'sequential', 'weighted', 'time'"),
        ({"uneven": "pad"}, "uneven must be one of"),
        ({"prefetch": -1}, "prefetch"),
        ({"num_threads": 0}, "num_threads"),
        ({"shuffle_window": 0}, "shuffle_window"),
        ({"rank": 1}, "world_size"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"sources": []}, "sources is empty"),
    ],
)
def test_nonsense_arguments_are_named(loader_of, options, message):
    with pytest.raises(ValueError, match=message):
        loader_of(**options)


def test_wrong_types_are_named(loader_of):
    with pytest.raises(TypeError, match="ParquetSource"):
        loader_of(sources=["data/*.parquet"])
    with pytest.raises(TypeError, match=r"balance=Balance\(\)"):
        loader_of(balance=True)
    with pytest.raises(TypeError, match="Schema"):
        loader_of(schema={"sequences": []})


def test_no_thread_is_left(loader_of):
    before = set(threading.enumerate())
    loader = loader_of(prefetch=2, num_threads=2)
    next(iter(loader))
    assert set(threading.enumerate()) > before
    loader.close()
    loader.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError, match="closed"):
        iter(loader)


def test_an_iterator_of_a_closed_loader_says_so(loader_of):
    loader = loader_of()
    iterator = iter(loader)
    loader.close()
    with pytest.raises(RuntimeError, match="was closed"):
        next(iterator)


def test_more_ranks_than_rows(loader_of, tmp_path):
    from sets import write

    write(tmp_path / "few", 2)
    source = ParquetSource(str(tmp_path / "few"))
    sizes = [[len(batch) for batch in loader_of(sources=source, rank=rank, world_size=3)] for rank in range(3)]
    assert sizes == [[1], [1], [0]]


def test_rows_that_drop_out_on_one_rank(loader_of, folder):
    import polars as pl

    source = ParquetSource(str(folder / "own"), filter=pl.col("row") % 4 != 1)
    want = [row for row in range(40) if row % 4 != 1]
    loader = loader_of(sources=source)
    assert order_of(loader) == want
    states = []
    seen = []
    for batch in loader:
        seen.append([sample["row"] for sample in samples_of(batch)])
        states.append(loader.state_dict())
    for at, state in enumerate(states[:-1]):
        again = loader_of(sources=source)
        again.load_state_dict(state)
        assert order_of(again) == [row for step in seen[at + 1 :] for row in step]
    with pytest.raises(ValueError, match="init_process_group"):
        loader_of(sources=source, rank=0, world_size=2)


def test_the_batch_carries_what_pipelines_need(loader_of):
    from torchrec.streamable import Pipelineable

    batch = next(iter(loader_of()))
    assert isinstance(batch, Pipelineable)
    assert same(batch.to("cpu"), batch)
    assert batch.loss_weight == 1.0
    assert batch.features is batch.features


def test_a_source_without_a_list_label_follows_the_others(loader_of, folder, tmp_path):
    import pyarrow.parquet as pq

    path = folder / "own" / "part-0.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["click"]), tmp_path / "unlabelled.parquet")
    sources = [ParquetSource(str(tmp_path / "unlabelled.parquet"), defaults={"click": 0.5}), ParquetSource(str(path))]
    batches = list(loader_of(sources=sources))
    assert all(len(batch.labels["click"]) == len(batch) for batch in batches)
    clicks = [sample["click"] for sample in samples_of(batches[0])]
    candidates = [sample["candidate"] for sample in samples_of(batches[0])]
    assert clicks == [[0.5] * len(of) for of in candidates]


def test_times_that_cannot_be_compared_are_refused(loader_of, folder, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "own" / "part-0.parquet"
    table = pq.read_table(path)
    when = table["row"].cast(pa.timestamp("s"))
    pq.write_table(table.append_column("when", when), tmp_path / "when.parquet")
    schema = replace(SCHEMA, time="when")
    one = ParquetSource(str(path), columns={"when": "row"})
    with pytest.raises(SchemaError, match=r"integer in .*ns in"):
        loader_of(sources=[one, ParquetSource(str(tmp_path / "when.parquet"))], schema=schema, mix="time")
    with pytest.raises(SchemaError, match="which is not set"):
        loader_of(sources=[ParquetSource(str(path))] * 2, schema=replace(SCHEMA, time=None), mix="time")
