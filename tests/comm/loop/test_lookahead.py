"""One batch ahead: what a loop sees is what its loader gives, in any loop, with any loader, and on the device."""

import contextlib
import copy
import dataclasses
import itertools
import random
import threading
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lookahead_parts import META, Event, Flaky, Forgets, Loader, Told, ahead, seen
from torch.utils.data import DataLoader, DistributedSampler
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.loop.moving import to_device
from fscomm.loop.random_numbers import private_generators
from fsranks.errors import PeerError

END = object()


def events_of(items: list[Any]) -> list[Event]:
    """What a listener is told of one loop over `items`, batches and errors.

    The first batch is handed out before the second one is pulled, each later one when the next was pulled.
    """

    def told(item: Any) -> Event:
        return ("end",) if item is END else ("fail", str(item)) if isinstance(item, OSError) else ("announce", item)

    events: list[Event] = []
    first, pulled = True, False
    for item, following in itertools.pairwise([*items, END, END]):
        if not pulled:
            events.append(told(item))
        pulled = isinstance(item, str) and not first
        if isinstance(item, str):
            events += [("end",) if first else told(following), ("hold", item)]
            first = False
    return [*events, ("finish",)]


@given(kinds=st.lists(st.booleans(), max_size=7))
def test_a_loop_sees_what_the_loader_gives_and_the_listener_hears_of_it_a_batch_before(kinds: list[bool]) -> None:
    items = [f"batch {i}" if kind else OSError(f"file {i}") for i, kind in enumerate(kinds)]
    told = Told()
    batches = ahead(Flaky(*items), told)
    assert told.events == []
    assert [each if isinstance(each, str) else each[0] for each in seen(batches)] == [str(item) for item in items]
    assert told.events == events_of(items)
    with pytest.raises(StopIteration):
        next(batches)
    assert batches.unconsumed is None


KINDS: dict[str, Callable[[str], Any]] = {
    "loader": list,
    "iterator": iter,
    "generator": lambda source: (each for each in source),
    "map": lambda source: map(str, source),
}


@pytest.mark.parametrize("kind", KINDS)
@given(size=st.integers(0, 5), counts=st.lists(st.integers(1, 6), max_size=4), once=st.booleans())
def test_loops_that_are_left_after_any_number_of_batches(kind: str, size: int, counts: list[int], once: bool) -> None:
    """Another loop is another epoch of a loader, and goes on with an iterator, also with one over the look-ahead
    (`once`); no batch of that is lost."""
    source = "abcde"[:size]
    plain, own = KINDS[kind](source), KINDS[kind](source)
    batches = ahead(own)
    loops, plain_loops = (iter(batches), iter(plain)) if once else (batches, plain)
    for count in counts:
        assert list(itertools.islice(loops, count)) == list(itertools.islice(plain_loops, count))
    if kind != "loader":
        rest = [] if batches.unconsumed is None else [batches.unconsumed]
        assert [*rest, *own] == list(plain)
    else:
        assert len(batches) == size


def test_length_and_other_attributes_are_the_loader_s() -> None:
    with pytest.raises(TypeError, match="has no len"):
        len(ahead(x for x in "ab"))
    sampler = DistributedSampler(list(range(8)), num_replicas=2, rank=0, seed=1)
    loader = DataLoader(list(range(8)), batch_size=2, sampler=sampler)
    batches = ahead(loader)
    assert (batches.sampler, batches.dataset, batches.batch_size) == (sampler, loader.dataset, 2)
    for epoch in range(2):
        batches.sampler.set_epoch(epoch)
        assert torch.equal(torch.cat(list(batches)), torch.cat(list(loader)))
    with pytest.raises(AttributeError, match="neither the lookahead nor its DataLoader has an attribute 'smapler'"):
        batches.smapler  # noqa: B018
    assert not hasattr(batches, "_iterator"), "only what is public"


# Loops that are left, and started again.


def test_a_loop_left_early_and_started_again_is_the_loader_s() -> None:
    loader, told = Loader(4), Told()
    batches = ahead(loader, told)
    assert list(itertools.islice(batches, 2)) == ["0.0", "0.1"]
    assert batches.unconsumed == "0.2"
    loader.at = 0
    told.events.clear()
    assert list(batches) == ["0.0", "0.1", "0.2", "0.3"]
    assert told.events[0] == ("end",), "the batch that was announced is given up"
    assert loader.events[2:5] == [("pulled", 2), ("closed",), ("pulled", 0)]
    assert batches.unconsumed is None


def test_an_iterator_that_is_left_early_gives_no_batch_up() -> None:
    told = Told()
    batches = ahead(iter("abcd"), told)
    assert list(itertools.islice(batches, 2)) == ["a", "b"]
    told.events.clear()
    assert list(batches) == ["c", "d"]
    assert told.events[0] == ("announce", "d")


class StartsOver:
    def __init__(self, source: str) -> None:
        self._source = source

    def __iter__(self) -> "StartsOver":
        self._it = iter(self._source)
        return self

    def __next__(self) -> str:
        return next(self._it)


def test_a_loader_that_returns_itself_and_starts_over() -> None:
    batches = ahead(StartsOver("abc"))
    for _ in range(2):
        assert list(batches) == list("abc")
    it = iter(batches)
    assert next(it) == "a"
    with pytest.raises(RuntimeError, match=r"StartsOver.__iter__ returns itself.*keep `it = iter\(lookahead\)`"):
        next(iter(batches))
    assert list(it) == ["b", "c"]


def test_an_older_loop_cannot_go_on() -> None:
    batches = ahead(["a", "b", "c"])
    older, newer = iter(batches), iter(batches)
    with pytest.raises(RuntimeError, match="a newer one was started"):
        next(older)
    assert list(newer) == ["a", "b", "c"]


def test_one_look_ahead_inside_another() -> None:
    """What the outer one had fetched ahead is announced again."""
    told = Told()
    outer, inner = ahead(["a", "b", "c", "d"], told), ahead(["x", "y"], told)
    it = iter(outer)
    assert [next(it), next(it)] == ["a", "b"]
    assert list(inner) == ["x", "y"]
    told.events.clear()
    assert next(it) == "c"
    assert told.events == [("announce", "c"), ("announce", "d"), ("hold", "c")]
    assert list(it) == ["d"]


def closing(closed: list[str]) -> Iterator[str]:
    try:
        yield from "abcd"
    finally:
        closed.append("closed")


def test_close_ends_the_iterator_but_not_the_user_s() -> None:
    closed: list[str] = []
    loader, source = Loader(5), closing(closed)
    batches, of_iterator = ahead(loader), ahead(source)
    it = iter(batches)
    assert [next(it), next(it)] == ["0.0", "0.1"]
    assert [next(of_iterator), next(of_iterator)] == ["a", "b"]
    for each in (batches, batches, of_iterator):
        each.close()
    assert loader.events[-1] == ("closed",)
    for use in (lambda: next(batches), lambda: iter(batches), lambda: next(it)):
        with pytest.raises(RuntimeError, match=r"fscomm.enable` block"):
            use()
    assert batches.unconsumed == "0.2"
    assert closed == []
    assert [of_iterator.unconsumed, *source] == ["c", "d"]


class Closing:
    def __init__(self, closed: list[str]) -> None:
        self._closed = closed

    def __iter__(self) -> Iterator[str]:
        return closing(self._closed)


@pytest.mark.parametrize("make", [closing, Closing])
def test_the_finally_of_a_generator_runs_when_the_last_loop_over_it_is_left(make: Callable[[list[str]], Any]) -> None:
    closed: list[str] = []
    for batch in ahead(make(closed), Forgets()):
        if batch == "b":
            break
    assert closed == ["closed"], "nothing else refers to it"
    closed.clear()
    kept = ahead(make(closed), Forgets())
    it = iter(kept)
    assert [next(it), next(it)] == ["a", "b"]
    kept.close()
    assert closed == ["closed"]
    assert kept.unconsumed == "c"


# Errors, and batches that are one object.


@pytest.mark.parametrize("kind", [OSError, SystemExit])
def test_a_pending_error_is_not_lost_with_its_loop(kind: type[BaseException]) -> None:
    def source() -> Iterator[str]:
        yield from ("a", "b")
        raise kind("disk")

    batches = ahead(source())
    assert list(itertools.islice(batches, 2)) == ["a", "b"]
    with pytest.raises(kind, match="disk") as caught:
        list(batches)
    assert "source" in [entry.name for entry in caught.traceback], "the loader's own frames are shown"


@pytest.mark.parametrize("error", [KeyboardInterrupt("ctrl-c"), PeerError("rank 1 is gone")])
def test_an_interrupt_and_a_lost_rank_are_raised_at_once_and_lose_nothing(error: BaseException) -> None:
    """Not after another step, in which all would wait for that rank again."""
    told = Told()
    batches = ahead(Flaky("a", "b", error, "c"), told)
    it = iter(batches)
    assert next(it) == "a"
    with pytest.raises(type(error)):
        next(it)
    assert told.of("fail") == ([str(error)] if isinstance(error, Exception) else [])
    assert batches.unconsumed == "b"
    assert list(it) == ["b", "c"]


@pytest.mark.parametrize(("fails_at", "draws"), [(("announce", "c"), False), (("hold", "b"), True)])
def test_what_the_listener_raises_is_raised_at_once_and_the_batch_is_kept(fails_at: Event, draws: bool) -> None:
    told = Told(fails_at=fails_at, depends=draws)
    batches = ahead("abc", told)
    it = iter(batches)
    assert next(it) == "a"
    with pytest.raises(ConnectionError, match="rank 1"):
        next(it)
    told.fails_at = None
    assert batches.unconsumed == "b"
    assert next(it) == "b"


@pytest.mark.parametrize("device", [None, META])
def test_the_same_object_twice_in_a_row(device: torch.device | None) -> None:
    a, b = {"x": 1}, {"x": 2}
    told = Told()
    batches = ahead([a, b, a, b, b], told, device)
    assert list(batches) == [a, b, a, b, b]
    assert len(told.of("announce")) == 5
    once = ahead([a])
    assert [*once, *once] == [a, a], "the last of an epoch may be the first of the next"


def refilled(write: Callable[[torch.Tensor, int], object], give: Callable[[torch.Tensor], Any]) -> Iterator[Any]:
    memory = torch.zeros(4, dtype=torch.int64)
    for number in range(4):
        write(memory, number)
        yield give(memory)


WRITES: dict[str, Callable[[torch.Tensor, int], object]] = {
    "in place": lambda memory, number: memory.fill_(number),
    "numpy": lambda memory, number: memory.numpy().fill(number),
    "data": lambda memory, number: memory.data.copy_(torch.full((4,), number)),
    "two swapped": lambda memory, number: memory.numpy().__setitem__([0, 3], [number, -number]),
}
GIVES: dict[str, Callable[[torch.Tensor], Any]] = {
    "KJT": lambda memory: KeyedJaggedTensor(keys=["x"], values=memory[:3], lengths=torch.tensor([1, 2])),
    "lengths": lambda memory: [KeyedJaggedTensor(keys=["x"], values=torch.arange(9), lengths=memory)],
    "dict": lambda memory: {"ids": {"x": memory.view(2, 2)}},
    "same": lambda memory: (memory,),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("give", GIVES)
def test_a_loader_that_reuses_its_memory_is_refused(write: str, give: str) -> None:
    batches = ahead(refilled(WRITES[write], GIVES[give]))
    assert len(list(itertools.islice(batches, 1))) == 1
    with pytest.raises(ValueError, match="gave before, or replaced tensors in it"):
        next(batches)
    assert len(list(ahead(copy.deepcopy(each) for each in refilled(WRITES[write], GIVES[give])))) == 4
    assert len(list(ahead(refilled(WRITES[write], GIVES[give]), Told(depends=True)))) == 4, "pulled in turn"


def test_a_batch_that_is_filled_with_new_tensors_is_refused() -> None:
    def loader() -> Iterator[dict[str, torch.Tensor]]:
        batch: dict[str, torch.Tensor] = {}
        for number in range(4):
            batch["x"] = torch.tensor([number])
            yield batch

    batches = ahead(loader())
    next(batches)
    with pytest.raises(ValueError, match="into the dict that it gave before"):
        next(batches)


# Random numbers that loader and training draw.

DRAWS: dict[str | None, Callable[[], Any]] = {
    None: lambda: None,
    "torch": lambda: float(torch.rand(())),
    "numpy": lambda: float(np.random.random()),
    "python": random.random,
}


def drawing(kind: str | None) -> Iterator[Any]:
    yield from ([i, DRAWS[kind]()] for i in range(6))


def played(batches: Iterator[Any], user: str | None) -> list[Any]:
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    return seen(batches, DRAWS[user])


def early(told: Told) -> list[bool]:
    """For every batch handed out: whether another one was announced before."""
    kinds = [kind for kind, *_ in told.events if kind in ("announce", "hold")]
    return [kinds[:i].count("announce") - kinds[:i].count("hold") > 1 for i, kind in enumerate(kinds) if kind == "hold"]


@pytest.mark.parametrize("user", DRAWS)
@pytest.mark.parametrize("loader", DRAWS)
def test_all_draw_what_they_draw_in_the_plain_loop(loader: str | None, user: str | None) -> None:
    told = Told()
    assert played(ahead(drawing(loader), told), user) == played(drawing(loader), user)
    both = loader is not None and user == loader
    assert early(told) == [False] + [not both] * 4 + [False]


def test_a_rank_that_draws_holds_all_ranks_back() -> None:
    told = Told(depends=True)  # another rank said so
    assert list(ahead(["a", "b", "c"], told)) == ["a", "b", "c"]
    assert early(told) == [False] * 3


@pytest.mark.parametrize("kind", ["torch", "numpy", "python"])
def test_whoever_begins_to_draw_later_is_noticed_before_it_matters(kind: str) -> None:
    """All steps up to the error are those of the plain loop."""
    draw = DRAWS[kind]

    def loader(drawn: tuple[int, ...]) -> Iterator[Any]:
        yield from ([number, draw() if number in drawn else 0] for number in range(8))

    def steps(batches: Iterator[Any], drawn: tuple[int, ...]) -> list[Any]:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(3)
        found: list[Any] = []
        with contextlib.suppress(RuntimeError):
            found.extend((batch, draw() if batch[0] in drawn else 0) for batch in batches)
        return found

    always = tuple(range(8))
    for of_loader, of_user, last in [((5,), always, 5), (always, (5,), 6), ((2, 4), (6,), 8), ((7,), (0, 1, 2), 8)]:
        found = steps(ahead(loader(of_loader)), of_user)
        assert found == steps(loader(of_loader), of_user)[:last]


def test_a_generator_that_drew_may_draw_again() -> None:
    """Such as an endless one over epochs that are shuffled, whose next epoch begins nobody knows when."""

    def endless() -> Iterator[list[float]]:
        for _ in range(3):
            order = torch.randperm(5)
            yield from ([float(each)] for each in order)

    told = Told()
    assert played(ahead(endless(), told), "torch") == played(endless(), "torch")
    assert not any(early(told))
    assert played(ahead(endless(), told := Told()), None) == played(endless(), None)
    assert any(early(told))


PRIVATE: dict[str, tuple[Callable[[int], Any], Callable[[Any], float]]] = {
    "torch": (lambda seed: torch.Generator().manual_seed(seed), lambda g: float(torch.rand((), generator=g))),
    "numpy": (np.random.default_rng, lambda g: g.random()),
    "numpy legacy": (np.random.RandomState, lambda g: g.random_sample()),
    "python": (random.Random, lambda g: g.random()),
}


class InAttribute:
    def __init__(self, generator: Any, draw: Callable[[Any], float]) -> None:
        self.parts = {"sampler": [generator]}
        self.draw = draw

    def __iter__(self) -> Iterator[list[float]]:
        return ([float(number), self.draw(self.parts["sampler"][0])] for number in range(6))


def in_local(generator: Any, draw: Callable[[Any], float]) -> Iterator[list[float]]:
    mine = generator
    del generator
    for number in range(6):
        yield [float(number), draw(mine)]


def in_closure(generator: Any, draw: Callable[[Any], float]) -> Iterator[list[float]]:
    def pull(number: int) -> list[float]:
        return [float(number), draw(generator)]

    return map(pull, range(6))


def in_partial(generator: Any, draw: Callable[[Any], float]) -> Iterator[list[float]]:
    return map(partial(lambda made, number: [float(number), draw(made)], generator), range(6))


@pytest.mark.parametrize("where", [InAttribute, in_local, in_closure, in_partial])
@pytest.mark.parametrize("kind", PRIVATE)
def test_a_generator_that_loader_and_step_share(kind: str, where: Callable[..., Any]) -> None:
    make, draw = PRIVATE[kind]

    def loop(wrap: Callable[[Any], Any], shared: bool) -> list[Any]:
        generator = make(3)
        own = generator if shared else make(4)
        return [(batch, draw(own)) for batch in wrap(where(generator, draw))]

    for shared in (True, False):
        told = Told()
        assert loop(lambda loader, told=told: ahead(loader, told), shared) == loop(iter, shared)
        assert early(told) == [False] + [not shared] * 4 + [False]


def test_a_generator_of_a_loader_with_threads_is_left_alone() -> None:
    generator = np.random.default_rng(3)
    loader = InAttribute(generator, lambda g: g.random())
    assert private_generators(loader) == [generator]
    loader.parts["thread"] = [threading.Thread()]
    assert private_generators(loader) == []


def test_a_loader_that_asks_what_the_step_did() -> None:
    def losses(wrap: Callable[[Any], Any]) -> list[float]:
        found = [1.0]
        found.extend(batch * 2 + 1 for batch in wrap(found[-1] for _ in range(6)))
        return found

    told = Told()
    assert losses(lambda loader: ahead(loader, told, early=False)) == losses(iter)
    assert early(told) == [False] * 6
    assert losses(lambda loader: ahead(loader)) != losses(iter), "a batch that is pulled early knows no later loss"


def test_state_and_errors_without_pulling_early() -> None:
    loader = Loader(3)
    batches = ahead(loader, early=False)
    assert next(batches) == "0.0"
    assert batches.state_dict() == loader.state_dict() == {"epoch": 0, "inner": {"at": 1}}
    assert batches.unconsumed is None
    assert [next(batches), next(batches)] == ["0.1", "0.2"]
    assert seen(ahead(Flaky("a", OSError("disk"), "b"), early=False)) == [("a", None), "disk", ("b", None)]


def test_an_epoch_s_first_batch_is_pulled_in_its_turn() -> None:
    """A shuffled DataLoader draws with the first batch of an epoch; that is not early in any epoch."""
    told = Told()
    batches = ahead(DataLoader(list(range(5)), shuffle=True), told)
    for _ in range(3):
        played(iter(batches), "torch")
    assert early(told) == [False, True, True, True, False] + [True, True, True, True, False] * 2


def test_a_stream_of_its_own() -> None:
    """The training step draws as if the loader drew nothing; the loader, as if the step drew nothing."""
    told = Told()
    found = played(ahead(drawing("torch"), told, rng="own"), "torch")
    assert [drawn for _, drawn in found] == [drawn for _, drawn in played(drawing(None), "torch")]
    assert [batch for batch, _ in found] == [batch for batch, _ in played(drawing("torch"), None)]
    assert early(told) == [False] + [True] * 4 + [False]
    with pytest.raises(ValueError, match="rng must be 'shared' or 'own', got 'mine'"):
        ahead([], rng="mine")


# Batches move to the device.

Named = namedtuple("Named", ["x", "label"])


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: torch.Tensor
    name: str


@dataclasses.dataclass
class Late:
    x: torch.Tensor
    late: Any = dataclasses.field(init=False)


@dataclasses.dataclass
class OwnTo:
    x: torch.Tensor
    non_blocking: bool = False

    def to(self, device: torch.device, non_blocking: bool = False) -> "OwnTo":
        return OwnTo(self.x.to(device), non_blocking)


class PlainTo:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: torch.device) -> "PlainTo":
        return PlainTo(self.x.to(device))


class InPlace(PlainTo):
    """Its `to` returns nothing."""

    def to(self, device: torch.device) -> None:  # type: ignore[override]
        self.x = self.x.to(device)


def test_batches_of_any_structure_move_whole() -> None:
    one, keys = torch.ones(2), ["a"]
    counts: dict[str, torch.Tensor] = defaultdict(lambda: one, x=one)
    kjt = KeyedJaggedTensor(keys, torch.tensor([1]), lengths=torch.tensor([1]))
    with_x = [Named(one, "l"), Frozen(one, "n"), Late(one), OwnTo(one), PlainTo(one), InPlace(one)]
    batch = {
        "tensor": one,
        "tuple": (one, [one, 3, None]),
        "kjt": kjt,
        "all": with_x,
        "of": OrderedDict(x=one, c=counts),
    }
    moved = to_device(batch, META)
    found = [moved["tensor"], moved["tuple"][0], moved["tuple"][1][0], moved["kjt"].values(), moved["kjt"].lengths()]
    found += [moved["of"]["x"], moved["of"]["c"]["x"], *(each.x for each in moved["all"])]
    assert {tensor.device for tensor in found} == {META}
    assert moved["tuple"][1][1:] == [3, None]
    assert list(map(type, moved["all"])) == list(map(type, with_x))
    assert (moved["all"][0].label, moved["all"][1].name, moved["all"][3].non_blocking) == ("l", "n", True)
    assert not hasattr(moved["all"][2], "late")
    assert (type(moved["of"]), type(moved["of"]["c"])) == (OrderedDict, defaultdict)
    assert moved["all"][-1] is with_x[-1], "it moved in place"
    assert {one.device, with_x[0].x.device, counts["x"].device} == {torch.device("cpu")}
    for value in (None, 3, "text", Frozen, MappingProxyType({"x": one}), object()):
        assert to_device(value, META) is value


def test_batches_are_announced_on_the_device_and_an_error_of_moving_is_the_loader_s() -> None:
    class Stuck:
        def to(self, device: torch.device) -> None:
            raise OSError("out of memory")

    told = Told()
    (batch, _), error = seen(ahead([{"x": torch.ones(2)}, Stuck()], told, META))
    assert batch["x"].device == META
    assert told.of("announce")[0] is told.of("hold")[0] is batch
    assert told.of("fail") == [error] == ["out of memory"]
