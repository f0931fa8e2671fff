"""Balanced loaders and `rebalance` on gloo ranks: batches, states saved along the way, and what goes on from them."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import golden_digest as digest
import torch
from golden_data import SCHEMA, number, sources
from patience import PATIENCE_S
from torchrec import KeyedJaggedTensor
from worlds import shared_world

from fsdata import Balance, FreeScaleDataLoader, Polynomial, Power, global_mean, rebalance

State = dict[str, Any]
SIZES = (2, 3)
COUNTED = Polynomial(linear=1, quadratic=1, candidate=1)
CAP = 31  # elements: the longest sample has 13, four samples about 33
SHUFFLED = {"shuffle": True, "mix": "weighted", "shuffle_window": 2}

CASES: dict[str, dict[str, Any]] = {
    "default": {"balance": Balance(), **SHUFFLED},
    "default, in order": {"balance": Balance()},
    "fbs": {"balance": Balance("fbs", cost=COUNTED), "mix": "time"},
    "vbs": {"balance": Balance("vbs", cost=Polynomial(linear=7, quadratic=2)), "shuffle": True},
    "vbs-contiguous": {"balance": Balance("vbs-contiguous", cost=Power(alpha=1.5)), "mix": "weighted"},
    "repair": {"balance": Balance("repair", cost=Power(alpha=1)), "mix": "time", "shuffle": True},
    "hierarchical": {"balance": Balance("hierarchical", cost=COUNTED, ranks_per_node=1), "batch_size": 6},
    "capped": {"balance": Balance(cost=COUNTED, max_tokens=CAP), "prefetch": 0},
    "capped vbs": {"balance": Balance("vbs", cost=COUNTED, max_tokens=CAP), **SHUFFLED},
    "capped, dropping": {"balance": Balance("repair", cost=COUNTED, max_tokens=CAP), "dropping": True},
    "dropping": {"balance": Balance(cost=COUNTED), "dropping": True, **SHUFFLED},
    "dropping, plain": {"dropping": True, "mix": "time"},
    "dropping, plain, empty": {"dropping": True, "uneven": "empty", **SHUFFLED},
    "tuned": {"balance": Balance(autotune=True), "prefetch": 0, "shuffle": True},
}
RESUMED = ("default", "capped vbs", "dropping", "dropping, plain, empty", "tuned")
LOADED_ON = {**dict.fromkeys(RESUMED, (1, 2, 3)), "tuned": (2, 3)}


def loader(folder: Path, *, dropping: bool = False, **options: Any) -> FreeScaleDataLoader:
    options = {"batch_size": 4, "seed": 5, "num_threads": 2, "timeout_s": PATIENCE_S, **options}
    return FreeScaleDataLoader(sources(folder, dropping=dropping), SCHEMA, **options)


def balanced(folder: Path, *, size: int) -> dict[str, Any]:
    """By case: batches of one or two epochs by rank, what was dropped, states saved after some batches."""
    answers = shared_world(size).run(_run_all, folder)
    found: dict[str, Any] = {}
    fingerprints = {}
    for name in CASES:
        states = answers[0][name][1]
        assert all(answer[name][1] == states for answer in answers), name
        fingerprints[name] = digest.fingerprint(states.values())
        found[name] = {"batches": [answer[name][0] for answer in answers], "states": states}
    return {"fingerprints": digest.shared({name: fingerprints[name] for name in RESUMED}), **found}


def _run_all(rank: int, size: int, folder: Path) -> dict[str, tuple[list[str], dict[str, State]]]:
    return {name: _run(rank, folder, options, resumed=name in RESUMED) for name, options in CASES.items()}


def _run(rank: int, folder: Path, options: dict[str, Any], *, resumed: bool) -> tuple[list[str], dict[str, State]]:
    lines, states = [], {}
    with loader(folder, **options) as made:
        for epoch in range(2 if resumed else 1):
            for batch in made:
                mean = f" {_mean(batch)}" if options.get("balance") is not None else ""
                lines.append(digest.line(batch) + mean)
                if (epoch, batch.stats.step) in ((0, 2), (1, 0)):
                    states[f"epoch {epoch}"] = json.loads(json.dumps(made.state_dict()))
                made.report_step(_seconds(rank, batch))
            lines.append(f"{made.dropped} dropped")
        states["end"] = json.loads(json.dumps(made.state_dict()))
    return lines, states


def _mean(batch: Any) -> float:
    """Over candidates, of losses whose sum is exact."""
    labels = batch.labels["click"].values
    return global_mean(torch.arange(len(labels), dtype=torch.float64), batch, over="click").item()


def _seconds(rank: int, batch: Any) -> float:
    """What a rank says it took: rank 1 is slower."""
    return (100 + len(batch.features.values())) * (3 if rank == 1 else 2) / 1024


def continuations(folder: Path, found: dict[str, Any], *, size: int) -> dict[str, Any]:
    """What new loaders give after the states of `balanced`, which may come from a file, by rank."""
    jobs: dict[int, dict[str, tuple[str, State]]] = {}
    for name in RESUMED:
        for point, state in found[name]["states"].items():
            whole = {**state, "fingerprint": digest.fingerprint_of(found, name)}
            for after in LOADED_ON[name]:
                where = f"{name}, saved on {size} ranks, {point}, loaded on {after}"
                jobs.setdefault(after, {})[where] = (name, whole)
    result = {}
    for after, of_size in jobs.items():
        answers = shared_world(after).run(_continue, folder, of_size)
        result.update({where: [answer[where] for answer in answers] for where in of_size})
    return result


def _continue(rank: int, size: int, folder: Path, jobs: dict[str, tuple[str, State]]) -> dict[str, str]:
    result = {}
    for wanted in RESUMED:
        todo = {where: state for where, (name, state) in jobs.items() if name == wanted}
        for part in [[where] for where in todo] if "tuned" in wanted else [list(todo)]:  # what was reported stays
            with loader(folder, **CASES[wanted]) as made:
                for where in part:
                    made.load_state_dict(todo[where])
                    result[where] = digest.rest(_reported(made, rank))
    return result


def _reported(made: FreeScaleDataLoader, rank: int) -> Iterator[Any]:
    for batch in made:
        yield batch
        made.report_step(_seconds(rank, batch))


class Own:
    """A loader as users have it: `steps` batches of 4 + rank samples, an epoch after another."""

    def __init__(self, rank: int, steps: int) -> None:
        self.rank, self.steps, self.at = rank, steps, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.at < self.steps:
            self.at += 1
            yield self.batch(self.at - 1)
        self.at = 0

    def batch(self, step: int) -> dict[str, Any]:
        marks = [self.rank * 1000 + step * 10 + row for row in range(4 + self.rank)]
        lengths = [number("length", mark, below=9) for mark in marks]
        items = [mark * 10 + i for mark, count in zip(marks, lengths, strict=True) for i in range(count)]
        ids = KeyedJaggedTensor(
            keys=["mark", "item"],
            values=torch.tensor(marks + items),
            lengths=torch.tensor([1] * len(marks) + lengths, dtype=torch.int32),
        )
        target = torch.tensor([[mark / 8, mark / 4] for mark in marks])
        return {"ids": ids, "other": (target, torch.tensor(marks, dtype=torch.int16)), "nothing": None}

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


WRAPPED: dict[str, dict[str, Any]] = {
    "default": {"lengths": "ids.item"},
    "vbs": {"lengths": {"uih": "ids.item"}, "balance": Balance("vbs", cost=Power(alpha=2))},
    "capped": {"lengths": "ids.item", "balance": Balance(cost=COUNTED, max_tokens=40)},
}


def rebalanced(folder: Path) -> dict[str, Any]:
    """By case and number of ranks: the batches of two epochs by rank, and the ranks' states after the third batch."""
    found: dict[str, Any] = {name: {} for name in WRAPPED}
    for size in SIZES:
        answers = shared_world(size).run(_rebalance_all)
        for name in WRAPPED:
            found[name][str(size)] = {
                "batches": [answer[name][0] for answer in answers],
                "states": [answer[name][1] for answer in answers],
            }
    return found


def _rebalance_all(rank: int, size: int) -> dict[str, tuple[list[str], Any]]:
    result = {}
    for name, options in WRAPPED.items():
        with rebalance(Own(rank, 5 - rank), timeout_s=PATIENCE_S, **options) as made:
            lines = []
            for _ in range(2):
                for step, batch in enumerate(made):
                    lines.append(_line(batch, made.last))
                    if step == 2:
                        state = made.state_dict()
        result[name] = (lines, state)
    return result


def _line(batch: dict[str, Any], last: Any) -> str:
    target, marks = batch["other"]
    tensors = [batch["ids"].values(), batch["ids"].lengths(), target, marks, last.origin]
    said = [sorted(batch), batch["ids"].keys(), batch["nothing"], digest.stats_of(last)]
    return f"{digest.words(marks.tolist())}: {digest.of_parts([*said, *map(digest.of_tensor, tensors)])}"


def rebalanced_continuations(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    """What `rebalance` gives after the states of `rebalanced`, by rank."""
    return {
        f"{name} on {size} ranks": shared_world(int(size)).run(_rebalance_rest, name, of_size["states"])
        for name, sizes in found.items()
        for size, of_size in sizes.items()
    }


def _rebalance_rest(rank: int, size: int, name: str, states: list[Any]) -> list[str]:
    with rebalance(Own(rank, 5 - rank), timeout_s=PATIENCE_S, **WRAPPED[name]) as made:
        made.load_state_dict(states[rank])
        return [_line(batch, made.last) for batch in islice(made, 9)]
