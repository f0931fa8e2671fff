"""The state of a loader, one batch ahead: that of the batch the user holds."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lookahead_parts import Loader, Told, ahead
from torchdata.stateful_dataloader import StatefulDataLoader

from fsdata import FreeScaleDataLoader, ParquetSource, Schema, Sequence


def test_states_are_those_of_a_loop_without_lookahead_and_the_user_s() -> None:
    plain, states = Loader(4), []
    for _ in range(2):
        for _ in plain:
            states.append(copy.deepcopy(plain.state_dict()))
        states.append(copy.deepcopy(plain.state_dict()))
    batches, seen = ahead(Loader(4)), []
    assert batches.state_dict() == Loader(4).state_dict()
    for _ in range(2):
        for _ in batches:
            batches.state_dict()["inner"]["at"] = 99
            seen.append(batches.state_dict())
        seen.append(batches.state_dict())
    assert seen == states, "neither the loader nor the user changes what was saved"


class Counting(Loader):
    """Its state tells of an end."""

    ends = 0

    def _batches(self) -> Iterator[str]:
        yield from super()._batches()
        self.ends += 1

    def state_dict(self) -> dict[str, Any]:
        return {"ends": self.ends}


def test_the_state_is_that_of_an_ended_loader_only_after_the_end() -> None:
    batches = ahead(Counting(3))
    assert [batches.state_dict()["ends"] for _ in batches] == [0, 0, 0]
    assert batches.state_dict() == {"ends": 1}


@pytest.mark.parametrize("stop", range(1, 6))
def test_a_state_resumes_after_the_batch_held(stop: int) -> None:
    batches = ahead(Loader(5))
    assert list(itertools.islice(batches, stop))[-1] == f"0.{stop - 1}"
    state = batches.state_dict()
    batches.close()
    assert batches.state_dict() == state, "closing does not move the state"
    resumed = ahead(Loader(5))
    resumed.load_state_dict(state)
    assert list(resumed) == ([f"0.{n}" for n in range(stop, 5)] or [f"1.{n}" for n in range(5)])


def test_a_state_is_loaded_in_mid_epoch() -> None:
    told = Told()
    batches = ahead(Loader(5), told)
    it = iter(batches)
    assert [next(it), next(it)] == ["0.0", "0.1"]
    state = batches.state_dict()
    assert next(it) == "0.2"
    batches.load_state_dict(state)
    assert batches.unconsumed is None
    with pytest.raises(RuntimeError, match="a state was loaded"):
        next(it)
    told.events.clear()
    assert list(batches) == ["0.2", "0.3", "0.4"]
    assert told.events[0] == ("end",), "the batch that was announced is given up"


class Changing(Loader):
    """Takes what may have changed."""

    changed: Any = None

    def load_state_dict(self, state: dict[str, Any], *, changed: Any = ()) -> None:
        super().load_state_dict(state)
        self.changed = changed


def test_what_may_have_changed_is_passed_on_to_the_loader() -> None:
    loader = Changing(5)
    batches = ahead(loader)
    batches.load_state_dict(loader.state_dict())
    assert loader.changed == ()
    batches.load_state_dict(loader.state_dict(), changed=("weights", "sources"))
    assert loader.changed == ("weights", "sources")


def test_a_loader_without_state() -> None:
    batches = ahead([1, 2, 3, 4])
    for _ in range(3):
        with pytest.raises(TypeError, match=r"state_dict\(\) of its loader, but a list has none"):
            batches.state_dict()
        next(batches)
    with pytest.raises(TypeError, match=r"load_state_dict\(\) of its loader, but a list has none"):
        batches.load_state_dict({})
    assert next(batches) == 4, "a state that cannot be loaded disturbs nothing"


def test_a_state_that_cannot_be_saved_is_an_error_only_for_who_asks() -> None:
    class Broken(Loader):
        def state_dict(self) -> Any:
            raise NotImplementedError("worker processes")

    batches = ahead(Broken(3))
    for number in range(2):
        assert next(batches) == f"0.{number}"
        with pytest.raises(NotImplementedError, match="worker processes"):
            batches.state_dict()
    assert next(batches) == "0.2"


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
@pytest.mark.parametrize(("make", "stop"), [(shuffled, 1), (shuffled, 8), (numbered, 4), (numbered, 8)])
def test_states_of_real_loaders(make: Any, stop: int, tmp_path: Any) -> None:
    def run(loader: Any, batches: Any) -> tuple[list[list[int]], Any]:
        seen: list[list[int]] = []
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
