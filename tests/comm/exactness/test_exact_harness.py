"""The harness of the exactness tests: its data collide, its loops train every table, and it sees a single bit."""

import pytest
import torch
from exact import compare, differences, flat, plain, raw_state
from exact_configs import CONFIGS
from exact_data import batches
from exact_loops import base, state_dict_everywhere
from exact_model import Config, build
from worlds import shared_world


def test_one_bit_is_a_difference() -> None:
    here = {"a": [torch.zeros(3), {"b": torch.ones(2, dtype=torch.float16)}], "c": 1.0}
    there = flat(here)
    assert differences(here, there) == []
    there["a"][1]["b"].view(torch.int16)[1] += 1
    assert differences(here, there) == ["/a/1/b: 1 of 2 differ, by up to 0.000977"]
    assert differences({"c": 1}, {"c": 1.0}) == ["/c: 1 against 1.0"]
    assert differences({"c": 1}, {}) == ["/c: on one side only"]


def _rows(config: Config, size: int, step: int, feature: str) -> list[int]:
    rows: list[int] = []
    for rank in range(size):
        for kjt in batches(config, rank, size, step, step + 1)[0].ids.values():
            if feature in set(kjt.keys()):
                rows += kjt[feature].values().tolist()
    return rows


def test_data_have_collisions_duplicates_and_empty_parts() -> None:
    config, size = CONFIGS["several"], 4
    shared, total, doubled, features_without = 0, 0, 0, 0
    for step in range(config.steps - 1):
        for feature in config.features:
            now, then = _rows(config, size, step, feature), _rows(config, size, step + 1, feature)
            shared += sum(row in set(now) for row in then)
            total += len(then)
            doubled += len(now) - len(set(now))
            features_without += not now
    assert 0.2 < shared / total < 0.8
    assert doubled > 50
    assert features_without > 0
    sizes = {len(batch.dense) for rank in range(size) for batch in batches(config, rank, size, 0, config.steps)}
    assert len(sizes) >= 4
    assert any(not kjt.values().numel() for kjt in batches(config, 3, size, 3, 4)[0].ids.values())


def changes(rank: int, size: int, config: Config) -> list[str]:
    """Names of the tensors that training did not change, and of what is not finite."""
    model, optimizer = build(config, size)
    start = flat(raw_state(model, optimizer))
    end = plain(rank, size, config, base)["end"]
    touched = {line.split(":")[0] for line in differences(start, end)}
    return [
        f"{name}/{part}"
        for name in start
        for part in range(len(start[name]) if "weights" in name else 0)
        if f"/{name}/{part}" not in touched
    ]


def test_training_changes_every_table() -> None:
    untouched = shared_world(2).run(changes, CONFIGS["several"])
    assert untouched == [[], []]


@pytest.mark.parametrize("size", [2, pytest.param(1, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)])
def test_a_plain_run_repeats_to_the_bit(size: int) -> None:
    for found, said in shared_world(size).run(compare, CONFIGS["several"], state_dict_everywhere, "plain"):
        assert found == []
        assert said == {}
