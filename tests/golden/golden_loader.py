"""Orders and saved states of loaders in one process; ranks are given by hand, because no row drops out."""

import json
import runpy
from itertools import islice
from pathlib import Path
from typing import Any

import golden_digest as digest
from golden_data import SCHEMA, sources

from fsdata import FreeScaleDataLoader

State = dict[str, Any]
SIZES = (1, 2, 3)
ORDERS: dict[str, dict[str, Any]] = {
    f"{mix}{', shuffled' if shuffle else ''}": {"mix": mix, "shuffle": shuffle}
    for mix in ("sequential", "weighted", "time")
    for shuffle in (False, True)
}
RESUMED = ("sequential", "weighted, shuffled", "time, shuffled")


def loader(folder: Path, rank: int, size: int, *, dropping: bool = False, **options: Any) -> FreeScaleDataLoader:
    options = {"batch_size": 4, "shuffle_window": 3, "seed": 11, "prefetch": 0, "num_threads": 2, **options}
    return FreeScaleDataLoader(sources(folder, dropping=dropping), SCHEMA, rank=rank, world_size=size, **options)


def orders(folder: Path) -> dict[str, Any]:
    """Every batch of the first two epochs, by order, number of ranks, rank and epoch."""
    return {
        name: {str(size): [_epochs(folder, rank, size, options) for rank in range(size)] for size in SIZES}
        for name, options in ORDERS.items()
    }


def _epochs(folder: Path, rank: int, size: int, options: dict[str, Any]) -> list[list[str]]:
    with loader(folder, rank, size, **options) as made:
        return [[digest.line(batch) for batch in made] for _ in range(2)]


def others(folder: Path) -> dict[str, Any]:
    """Other seeds, windows, batch sizes and later epochs; rows that drop out; a job file."""
    with loader(folder, 0, 1, shuffle=True, seed=12, shuffle_window=2, batch_size=7, mix="weighted") as made:
        made.set_epoch(5)
        later = [digest.line(batch) for batch in made]
    with loader(folder, 0, 1, dropping=True) as made:
        dropping = [digest.line(batch) for batch in made]
        dropping += [str(len(made)), *map(str, made.skipped)]
    schema, source = runpy.run_path(str(folder / "job.py"))["JOB"]
    with FreeScaleDataLoader(source, schema, batch_size=6, rank=0, world_size=1, num_threads=1) as made:
        from_file = [digest.line(batch) for batch in made]
        state = made.state_dict()
    return {
        "other numbers": later,
        "dropping": dropping,
        "job file": from_file,
        "state of the job file": digest.as_first_released(state),
    }


def states(folder: Path) -> dict[str, Any]:
    """Saved states by order and number of ranks, without the fingerprints, which are the same in many of them."""
    found: dict[str, Any] = {}
    fingerprints = {}
    for name in RESUMED:
        saved = {str(size): _states(folder, size, ORDERS[name]) for size in SIZES}
        saved["2, then 3"] = {"middle": _on_other_ranks(folder, saved["2"]["middle"], ORDERS[name])}
        fingerprints[name] = digest.fingerprint(each for of_size in saved.values() for each in of_size.values())
        found[name] = {"states": saved}
    return {"fingerprints": digest.shared(fingerprints), **found}


def _states(folder: Path, size: int, options: dict[str, Any]) -> dict[str, State]:
    """At several points, all of which are the same on every rank."""
    by_rank = [_states_of_rank(folder, rank, size, options) for rank in range(size)]
    assert all(states == by_rank[0] for states in by_rank)
    return by_rank[0]


def _states_of_rank(folder: Path, rank: int, size: int, options: dict[str, Any]) -> dict[str, State]:
    with loader(folder, rank, size, **options) as made:
        found = {"start": _saved(made)}
        for batch in made:
            if batch.stats.step == 2:
                found["middle"] = _saved(made)
            found["last batch"] = _saved(made)
        found["end"] = _saved(made)
        for _ in islice(made, 2):
            found["second epoch"] = _saved(made)
    return found


def _on_other_ranks(folder: Path, state: State, options: dict[str, Any]) -> State:
    """The state after one more batch on three ranks."""
    with loader(folder, 1, 3, **options) as made:
        made.load_state_dict(state)
        next(iter(made))
        return _saved(made)


def _saved(made: FreeScaleDataLoader) -> State:
    return json.loads(json.dumps(made.state_dict()))


def continuations(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    """What new loaders on 1, 2 and 3 ranks give after `states`, which may come from a file."""
    result: dict[str, Any] = {}
    for name in RESUMED:
        states, fingerprint = found[name]["states"], digest.fingerprint_of(found, name)
        # Starts differ only in the number of ranks: one of them is enough.
        points = [(size, point) for size in states for point in states[size] if size == "1" or point != "start"]
        for after in SIZES:
            for rank in range(after):
                with loader(folder, rank, after, **ORDERS[name]) as made:
                    for before, point in points:
                        made.load_state_dict({**states[before][point], "fingerprint": fingerprint})
                        where = f"{name}, saved on {before} ranks, {point}, loaded on {after}"
                        result.setdefault(where, []).append(digest.rest(made))
    return result
