"""One batch ahead: order of events, states, errors, and loaders that do not behave."""

import copy
import dataclasses
import itertools
from collections import OrderedDict, defaultdict, namedtuple
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.lookahead import Lookahead, to_device
from fsdata import FreeScaleDataLoader, ParquetSource, Schema, Sequence

META = torch.device("meta")  # another device that every machine has


class Told:
    """A listener that keeps what it was told, in one list with what the loader did."""

    def __init__(self, events: list | None = None, fails_at: tuple | None = None) -> None:
        self.events = [] if events is None else events
        self._fails_at = fails_at

    def announce(self, batch: Any) -> None:
        self._tell("announce", batch)

    def hold(self, batch: Any) -> None:
        self._tell("hold", batch)

    def end(self) -> None:
        self.events.append(("end",))

    def finish(self) -> None:
        self.events.append(("finish",))

    def fail(self, error: Exception) -> None:
        self.events.append(("fail", str(error)))

    def _tell(self, what: str, batch: Any) -> None:
        self.events.append((what, batch))
        if self.events[-1] == self._fails_at:
            raise ConnectionError("rank 1 is gone")


class Loader:
    """Batches 0 .. count - 1 of every epoch as strings, with a state that counts them, and errors where asked for."""

    def __init__(
        self, count: int, *, fails: dict[int, BaseException] | None = None, events: list | None = None
    ) -> None:
        self.count = count
        self.fails = dict(fails or {})
        self.events = [] if events is None else events
        self.at = 0
        self.epoch = 0
        self._inner = {"at": 0}

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        if self.at >= self.count:
            self.epoch, self.at = self.epoch + 1, 0
        return self._batches()

    def _batches(self):
        try:
            while self.at < self.count:
                if self.at in self.fails:
                    raise self.fails.pop(self.at)
                self.at += 1
                self._inner["at"] = self.at
                self.events.append(("pulled", self.at - 1))
                yield f"{self.epoch}.{self.at - 1}"
        finally:
            self.events.append(("closed",))

    def state_dict(self):
        return {"epoch": self.epoch, "inner": self._inner}  # the inner dict is written to later

    def load_state_dict(self, state):
        self.epoch, self.at = state["epoch"], state["inner"]["at"]
        self._inner = dict(state["inner"])


class Flaky:
    """An iterator that goes on after an error, as one that skips broken files does."""

    def __init__(self, *items: Any) -> None:
        self._items = iter(items)

    def __iter__(self):
        return self

    def __next__(self):
        item = next(self._items)
        if isinstance(item, BaseException):
            raise item
        return item


def ahead(loader: Any, listener: Told | None = None, device: torch.device | None = None) -> Lookahead:
    return Lookahead(loader, listener=listener or Told(), device=device)


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


@settings(max_examples=50, deadline=None)
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


def test_states_are_those_of_a_loop_without_lookahead():
    plain, states = Loader(4), []
    for _ in range(2):
        for _ in plain:
            states.append(copy.deepcopy(plain.state_dict()))
        states.append(copy.deepcopy(plain.state_dict()))
    batches, seen = ahead(Loader(4)), []
    assert batches.state_dict() == Loader(4).state_dict()
    for _ in range(2):
        for _ in batches:
            seen.append(batches.state_dict())
        seen.append(batches.state_dict())
    assert seen == states


@pytest.mark.parametrize("stop", range(1, 6))
def test_a_state_resumes_after_the_batch_held(stop):
    batches = ahead(Loader(5))
    assert list(itertools.islice(batches, stop))[-1] == f"0.{stop - 1}"
    state = batches.state_dict()
    batches.close()
    assert batches.state_dict() == state, "closing does not move the state"
    resumed = ahead(Loader(5))
    resumed.load_state_dict(state)
    expected = [f"0.{n}" for n in range(stop, 5)] or [f"1.{n}" for n in range(5)]
    assert list(resumed) == expected


def test_a_state_does_not_change_afterwards_and_is_the_user_s():
    batches = ahead(Loader(5))
    next(batches)
    state = batches.state_dict()
    kept = copy.deepcopy(state)
    next(batches)
    assert state == kept
    batches.state_dict()["inner"]["at"] = 99
    assert batches.state_dict()["inner"]["at"] == 2


def test_a_state_is_loaded_in_mid_epoch():
    told = Told()
    batches = ahead(Loader(5), told)
    it = iter(batches)
    next(it)
    state = batches.state_dict()
    next(it), next(it)
    batches.load_state_dict(state)
    assert told.events[-1] == ("end",)
    assert batches.unconsumed is None
    with pytest.raises(RuntimeError, match="a state was loaded"):
        next(it)
    assert list(batches) == ["0.1", "0.2", "0.3", "0.4"]


def test_a_loader_without_state():
    batches = ahead([1, 2, 3])
    for _ in range(2):
        with pytest.raises(TypeError, match=r"state_dict\(\) of its loader, but a list has none"):
            batches.state_dict()
        next(batches)
    with pytest.raises(TypeError, match=r"load_state_dict\(\) of its loader, but a list has none"):
        batches.load_state_dict({})
    assert next(batches) == 3, "a state that cannot be loaded disturbs nothing"


def test_a_state_that_cannot_be_saved_is_an_error_only_for_who_asks():
    class Broken(Loader):
        def state_dict(self):
            raise NotImplementedError("worker processes")

    batches = ahead(Broken(2))
    assert next(batches) == "0.0"
    with pytest.raises(NotImplementedError, match="worker processes"):
        batches.state_dict()
    assert next(batches) == "0.1"


def test_the_state_is_taken_before_the_next_batch_is_pulled():
    events: list = []

    class Watched(Loader):
        def state_dict(self):
            events.append(("state", self.at))
            return super().state_dict()

    batches = ahead(Watched(3, events=events))
    next(batches)
    assert events == [("pulled", 0), ("state", 1), ("pulled", 1)]


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
    blocking: bool | None = None

    def to(self, device, non_blocking=False):
        return OwnTo(self.x.to(device), not non_blocking)


class PlainTo:
    def __init__(self, x):
        self.x = x

    def to(self, device):
        return PlainTo(self.x.to(device))


def one() -> torch.Tensor:
    return torch.ones(2)


def test_batches_move_whole():
    count: dict[str, torch.Tensor] = defaultdict(one, x=one())
    batch = {
        "tensor": one(),
        "named": Named(one(), "l"),
        "tuple": (one(), [one(), 3, None]),
        "kjt": KeyedJaggedTensor(["a"], torch.tensor([1]), lengths=torch.tensor([1])),
        "frozen": Frozen(one(), "n"),
        "late": Late(one()),
        "own": OwnTo(one()),
        "plain": PlainTo(one()),
        "ordered": OrderedDict(x=one()),
        "default": count,
    }
    moved = to_device(batch, META)
    assert moved["tensor"].device == moved["named"].x.device == moved["tuple"][0].device == META
    assert isinstance(moved["named"], Named)
    assert moved["named"].label == "l"
    assert moved["tuple"][1][0].device == META
    assert moved["tuple"][1][1:] == [3, None]
    assert moved["kjt"].values().device == moved["kjt"].lengths().device == META
    assert moved["frozen"].x.device == META
    assert moved["frozen"].name == "n"
    assert moved["late"].x.device == META
    assert not hasattr(moved["late"], "late")
    assert moved["own"].x.device == META
    assert moved["own"].blocking is False
    assert moved["plain"].x.device == META
    assert isinstance(moved["ordered"], OrderedDict)
    assert isinstance(moved["default"], defaultdict)
    assert moved["default"]["x"].device == moved["ordered"]["x"].device == META
    assert batch["tensor"].device == batch["frozen"].x.device == count["x"].device == torch.device("cpu")


def test_what_is_not_understood_stays():
    for value in (None, 3, "text", Frozen, MappingProxyType({"x": one()}), object()):
        assert to_device(value, META) is value
    batch = {"x": one()}
    assert to_device(batch, None) is batch


def test_batches_are_announced_on_the_device():
    told = Told()
    (batch,) = ahead([{"x": one()}], told, META)
    announced, held = told.events[0][1], told.events[2][1]
    assert batch["x"].device == META
    assert announced is held
    assert held is batch


def test_an_error_of_moving_is_the_loader_s():
    class Stuck:
        def to(self, device):
            raise MemoryError("out of memory")

    told = Told()
    batches = ahead([{"x": one()}, Stuck()], told, META)
    next(batches)
    assert told.events[1] == ("fail", "out of memory")
    with pytest.raises(MemoryError):
        next(batches)


def shuffled(folder: Any) -> FreeScaleDataLoader:
    rows = pa.table({"user": range(60), "items": [[n] * (n % 5) for n in range(60)]})
    pq.write_table(rows, folder / "rows.parquet", row_group_size=10)
    schema = Schema(sequences=[Sequence("history", fields=("items",))], context=("user",))
    source = ParquetSource(folder / "rows.parquet")
    return FreeScaleDataLoader([source], schema, batch_size=8, shuffle=True, seed=3, rank=0, world_size=1)


def numbered(_: Any) -> StatefulDataLoader:
    return StatefulDataLoader(list(range(60)), batch_size=8, collate_fn=list)


def users(batch: Any) -> list[int]:
    return batch if isinstance(batch, list) else batch.features["user"].values().tolist()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own
@pytest.mark.parametrize("make", [shuffled, numbered])
@pytest.mark.parametrize("stop", [1, 4, 7, 8])
def test_states_of_real_loaders(make, stop, tmp_path):
    def run(loader: Any, batches: Any) -> tuple[list, Any]:
        seen: list = []
        state = None
        while len(seen) < 12:
            for batch in batches:
                seen.append(users(batch))
                if len(seen) == stop:
                    state = copy.deepcopy(batches.state_dict())
        return seen, state

    plain, plain_state = run(loader := make(tmp_path), loader)
    followed, state = run(loader := make(tmp_path), ahead(loader))
    assert followed == plain
    assert state == plain_state
    resumed = ahead(make(tmp_path))
    resumed.load_state_dict(state)
    rest = [users(batch) for batch in resumed] or [users(batch) for batch in resumed]
    assert rest == plain[stop : stop + len(rest)]
    assert len(rest) == (8 - stop or 8)
