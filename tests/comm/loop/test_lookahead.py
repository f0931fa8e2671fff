"""One batch ahead: order of events, errors, loops left and started again, loaders that do not behave."""

import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lookaheads import META, Flaky, Loader, Told, ahead

from fsranks.errors import PeerError


def test_order_of_events():
    told = Told()
    batches = ahead(["a", "b", "c"], told)
    it = iter(batches)
    assert told.events == []
    assert next(it) == "a"
    assert told.events == [("announce", "a"), ("announce", "b"), ("hold", "a")]
    assert next(it) == "b"
    assert told.events[3:] == [("announce", "c"), ("hold", "b")]
    assert next(it) == "c"
    assert told.events[5:] == [("end",), ("hold", "c")]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(it)
    assert told.events[7:] == [("finish",), ("finish",)]
    assert batches.unconsumed is None


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=3))
def test_batches_are_those_of_the_loader(sizes):
    sources = [[f"{n}.{i}" for i in range(size)] for n, size in enumerate(sizes)]
    for source in sources:
        told = Told()
        batches = ahead(source, told)
        for _ in range(3):
            assert list(batches) == source
        assert [event[1] for event in told.events if event[0] == "hold"] == source * 3
        assert told.events.count(("end",)) == 3


def test_empty_loader():
    told = Told()
    assert list(ahead([], told)) == []
    assert told.events == [("end",), ("finish",)]


def test_a_loader_of_one():
    told = Told()
    assert list(ahead(["a"], told)) == ["a"]
    assert told.events == [("announce", "a"), ("end",), ("hold", "a"), ("finish",)]


def test_next_without_iter_starts_the_first_epoch_only():
    batches = ahead(["a", "b"])
    assert [next(batches), next(batches)] == ["a", "b"]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)
    assert list(batches) == ["a", "b"]


def test_length_is_the_loader_s():
    assert len(ahead([1, 2, 3])) == 3
    assert list(ahead(x for x in "ab")) == ["a", "b"]
    with pytest.raises(TypeError, match="has no len"):
        len(ahead(x for x in "ab"))


def test_other_attributes_are_the_loader_s():
    sampler = torch.utils.data.DistributedSampler(list(range(8)), num_replicas=2, rank=0, seed=1)
    loader = torch.utils.data.DataLoader(list(range(8)), batch_size=2, sampler=sampler)
    batches = ahead(loader)
    assert (batches.sampler, batches.dataset, batches.batch_size) == (sampler, loader.dataset, 2)
    for epoch in range(2):
        batches.sampler.set_epoch(epoch)
        assert torch.equal(torch.cat(list(batches)), torch.cat(list(loader)))
        assert sampler.epoch == epoch
    with pytest.raises(AttributeError, match="neither the lookahead nor its DataLoader has an attribute 'smapler'"):
        batches.smapler  # noqa: B018
    assert not hasattr(batches, "_iterator"), "only what is public"
    assert copy.copy(batches).batch_size == 2
    batches.close()
    assert batches.sampler is sampler


def test_a_loop_left_early_and_started_again_is_the_loader_s():
    loader, told = Loader(4), Told()
    batches = ahead(loader, told)
    assert next(iter(batches)) == "0.0"
    assert batches.unconsumed == "0.1"
    loader.at = 0
    told.events.clear()
    assert list(batches) == ["0.0", "0.1", "0.2", "0.3"]
    assert told.events[0] == ("end",), "the batch that was announced is given up"
    assert batches.unconsumed is None


def test_one_iterator_in_two_loops_goes_on():
    batches = ahead(Loader(5))
    it = iter(batches)
    assert list(itertools.islice(it, 2)) == ["0.0", "0.1"]
    assert batches.unconsumed == "0.2"
    assert list(it) == ["0.2", "0.3", "0.4"]


@pytest.mark.parametrize("make", [iter, lambda source: (x for x in source), lambda source: map(str, source)])
def test_an_iterator_left_early_loses_nothing(make):
    told = Told()
    batches = ahead(make(["a", "b", "c", "d"]), told)
    for batch in batches:
        if batch == "b":
            break
    assert batches.unconsumed == "c"
    assert list(batches) == ["c", "d"]
    assert list(batches) == []
    assert told.events.index(("end",)) > told.events.index(("announce", "d")), "no batch was given up"


def test_what_is_unconsumed_after_close_continues_the_loader():
    source = iter("abcd")
    batches = ahead(source)
    assert next(batches) == "a"
    batches.close()
    assert batches.unconsumed == "b"
    assert list(itertools.chain([batches.unconsumed], source)) == ["b", "c", "d"]


class StartsOver:
    def __init__(self, source):
        self._source = source

    def __iter__(self):
        self._it = iter(self._source)
        return self

    def __next__(self):
        return next(self._it)


def test_a_loader_that_returns_itself_and_starts_over():
    batches = ahead(StartsOver("abc"))
    assert list(batches) == list("abc")
    assert list(batches) == list("abc")
    it = iter(batches)
    assert next(it) == "a"
    with pytest.raises(RuntimeError, match=r"StartsOver.__iter__ returns itself.*keep `it = iter\(lookahead\)`"):
        next(iter(batches))
    assert list(it) == ["b", "c"]
    assert list(batches) == list("abc")


def test_an_older_loop_cannot_go_on():
    batches = ahead(["a", "b", "c"])
    older = iter(batches)
    assert next(older) == "a"
    newer = iter(batches)
    assert next(newer) == "a"
    with pytest.raises(RuntimeError, match="a newer one was started"):
        next(older)
    assert list(newer) == ["b", "c"]


def test_an_error_comes_after_the_batch_before_it():
    told = Told()
    it = iter(ahead(Loader(9, fails={2: OSError("disk")}), told))
    assert next(it) == "0.0"
    assert next(it) == "0.1"
    assert told.events[-2:] == [("fail", "disk"), ("hold", "0.1")]
    with pytest.raises(OSError, match="disk") as caught:
        next(it)
    assert "_batches" in [entry.name for entry in caught.traceback], "the loader's own frames are shown"
    with pytest.raises(StopIteration):
        next(it)


def test_an_error_on_the_first_batch_is_raised_at_once():
    told = Told()
    with pytest.raises(OSError, match="disk"):
        next(ahead(Loader(2, fails={0: OSError("disk")}), told))
    assert told.events == [("fail", "disk")]


def test_an_error_on_the_second_batch_comes_after_the_first():
    told = Told()
    batches = ahead(Loader(2, fails={1: OSError("disk")}), told)
    assert next(batches) == "0.0"
    assert told.events == [("announce", "0.0"), ("fail", "disk"), ("hold", "0.0")]
    with pytest.raises(OSError, match="disk"):
        next(batches)


def test_a_loader_that_goes_on_after_an_error():
    told = Told()
    batches = ahead(Flaky("a", "b", OSError("one file"), "c", OSError("x"), OSError("y"), "d"), told)
    got = []
    while True:
        try:
            got.append(next(batches))
        except OSError as error:
            got.append(str(error))
        except StopIteration:
            break
    assert got == ["a", "b", "one file", "c", "x", "y", "d"]
    assert [event[1] for event in told.events if event[0] == "announce"] == list("abcd")
    assert [event[1] for event in told.events if event[0] == "hold"] == list("abcd")


def test_a_pending_error_is_not_lost_with_its_loop():
    def source():
        yield "a"
        raise OSError("disk")

    batches = ahead(source())
    assert next(iter(batches)) == "a"
    with pytest.raises(OSError, match="disk"):
        list(batches)


def test_an_interrupt_is_raised_at_once_and_loses_nothing():
    told = Told()
    batches = ahead(Flaky("a", "b", KeyboardInterrupt(), "c"), told)
    assert next(batches) == "a"
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert batches.unconsumed == "b"
    assert told.events[-1] == ("hold", "a")
    assert list(batches._epoch) == ["b", "c"]


def test_a_lost_rank_is_raised_at_once():
    """Not after another step, in which all would wait for that rank again."""
    told = Told()
    batches = ahead(Loader(9, fails={1: PeerError("rank 1 is gone")}), told)
    with pytest.raises(PeerError, match="rank 1 is gone"):
        next(batches)
    assert told.events[-1] == ("fail", "rank 1 is gone")
    assert batches.unconsumed == "0.0"


def test_what_the_listener_raises_is_raised_at_once():
    told = Told(fails_at=("announce", "c"))
    batches = ahead("abcd", told)
    assert next(batches) == "a"
    with pytest.raises(ConnectionError, match="rank 1"):
        next(batches)
    assert batches.unconsumed == "b"
    with pytest.raises(ConnectionError):
        next(ahead("abcd", Told(fails_at=("hold", "a"))))


def reused(buffer: dict, count: int):
    for n in range(count):
        buffer["x"] = n
        yield buffer


@pytest.mark.parametrize("device", [None, META])
def test_the_same_object_twice_in_a_row(device):
    told = Told()
    batches = ahead(reused({}, 5), told, device)
    with pytest.raises(ValueError, match=r"same dict object twice in a row.*copy\.copy"):
        next(batches)
    assert [event[0] for event in told.events] == ["announce"]


def test_the_same_object_later_on():
    a, b = {"x": 1}, {"x": 2}
    batches = ahead([a, b, a, b, b])
    assert [next(batches) for _ in range(3)] == [a, b, a]
    with pytest.raises(ValueError, match="same dict object"):
        next(batches)


def test_equal_batches_are_no_reuse():
    assert len(list(ahead([{"x": 1} for _ in range(4)]))) == 4
    first = {"x": 1}
    batches = ahead([first])
    assert [*batches, *batches] == [first, first], "the last of an epoch may be the first of the next"


def test_close_ends_the_iterator_but_not_the_user_s():
    loader = Loader(5)
    batches = ahead(loader)
    it = iter(batches)
    next(it)
    assert loader.events[-1] == ("pulled", 1)
    batches.close()
    batches.close()
    assert loader.events[-1] == ("closed",)
    for use in (lambda: next(batches), lambda: iter(batches), lambda: next(it)):
        with pytest.raises(RuntimeError, match=r"fscomm.enable` block"):
            use()
    assert batches.unconsumed == "0.1"
    never = ahead([1])
    never.close()
    assert never.unconsumed is None


def test_a_new_epoch_closes_the_one_left():
    loader = Loader(5)
    batches = ahead(loader)
    next(iter(batches))
    next(iter(batches))
    assert loader.events == [("pulled", 0), ("pulled", 1), ("closed",), ("pulled", 2), ("pulled", 3)]
