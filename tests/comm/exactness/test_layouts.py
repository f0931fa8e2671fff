"""Models that make their KJTs of plain tensors of any layout are served, to the bit, whatever lies beside the ids."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest
from exact import Run, check_equal, compare
from exact_configs import CONFIGS
from exact_device import on_a_device
from exact_model import Batch
from layouts import LAYOUTS, as_plain_ids, without_ids
from odd_tensors import ODD
from programs import reversed_ids
from worlds import shared_world

from fscomm.loop import moving
from fscomm.recipes.recipe import Recipe

CONFIG = CONFIGS["small"].but(max_batch=8, even=True)
STEPS = 12
Change = Callable[[int, Batch, Run], None]


def trained(run: Run, change: Change) -> None:
    """On batches that `change` has changed."""
    batches = run.loader(0, STEPS)
    for step, batch in enumerate(batches):
        change(step, batch, run)
    run.train_all(batches)


def in_layout(step: int, batch: Batch, run: Run, name: str) -> None:
    batch.ids = {module: as_plain_ids(kjt, name) for module, kjt in batch.ids.items()}


def shares(change: Change, size: int = 2) -> list[dict[str, float]]:
    """By rank and module, the share of the forwards that were served, where nothing differs."""
    found = []
    for said in check_equal(shared_world(size), compare, CONFIG, partial(trained, change=change)):
        forwards = said["report"]["forwards"].items()
        found.append({name: of["served"] / (of["served"] + sum(of["plain"].values())) for name, of in forwards})
    return found


QUICK = ("values and offsets", "jagged", "padded by 0")  # test_features.py reads all of them


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in LAYOUTS]
)
def test_every_layout_is_served_from_the_second_step(name: str) -> None:
    for by_module in shares(partial(in_layout, name=name)):
        assert by_module.keys() == {"embeddings.a", "embeddings.b"}
        assert min(by_module.values()) >= 1 - 1.1 / STEPS


def read_on_a_device(rank: int, size: int) -> tuple[list[str], list[bool]]:
    """What differs, and of each KJT that was made of a batch on its way to the device, whether that was behind the
    copies."""
    problems, behind, read = list[str](), list[bool](), Recipe.read
    loop = partial(trained, change=partial(in_layout, name="values and lengths of each key"))
    with (
        mock.patch.object(moving, "to_device", lambda batch, _: replace(batch)),
        on_a_device(problems) as device,
        mock.patch.object(Recipe, "read", autospec=True) as noted,
    ):

        def read_and_note(recipe: Recipe, batch: Any, **options: Any) -> Any:
            found, moment = device.moved.get(id(batch), (None, device.now()))
            if found is batch:
                behind.append(moment.is_before(device.now()))
            return read(recipe, batch, **options)

        noted.side_effect = read_and_note
        found, _ = compare(rank, size, CONFIG, loop)
    return found + problems, behind


def test_kjts_are_made_of_a_batch_behind_its_copies_to_the_device() -> None:
    for behind in check_equal(shared_world(2), read_on_a_device):
        assert len(behind) >= 2 * (STEPS - 2)
        assert all(behind)


def beside_odd_ones(step: int, batch: Batch, run: Run) -> None:
    in_layout(step, batch, run, "values and lengths of each key")
    batch.beside = [make() for make, _ in ODD.values()]


def test_tensors_of_any_kind_lie_beside_the_ids() -> None:
    assert min(share for by_module in shares(beside_odd_ones) for share in by_module.values()) >= 1 - 1.1 / STEPS


def two_alike_at_first(step: int, batch: Batch, run: Run) -> None:
    """On rank 0 the model's ids come second, on rank 1 they come first."""
    ids = {}
    for module, kjt in batch.ids.items():
        other = as_plain_ids(kjt if step == 0 else reversed_ids(kjt), "values and lengths")
        of_module = as_plain_ids(kjt, "values and lengths")
        pair = {f"other {module}": other, module: of_module}
        ids |= pair if run.rank == 0 else dict(reversed(pair.items()))
    batch.ids = ids


def test_a_wrong_source_is_corrected() -> None:
    """Two steps were announced by it, on one rank: they run plainly on all ranks, and the report says why."""
    reported = check_equal(shared_world(2), compare, CONFIG, partial(trained, change=two_alike_at_first))
    for said in reported:
        assert {forwards["served"] for forwards in said["report"]["forwards"].values()} == {STEPS - 3}
    said, other = reported
    for words in ("step 1: it got other features", "on rank 0 its", "but others were announced"):
        assert words in said["fallbacks"]["embeddings.a"]
    assert "rank 0 could not use what was fetched ahead" in other["fallbacks"]["embeddings.a"]


def strays_at_second(step: int, batch: Batch, run: Run) -> None:
    """As `two_alike_at_first`, and what is announced from the wrong one are ids that no table has."""
    two_alike_at_first(step, batch, run)
    if step:
        for module in run.config.modules:
            other = batch.ids[f"other {module}"]
            values = other.tensors["values"]
            values[step % 2 :: 2] = 10_000 if step % 3 else -5


@pytest.mark.parametrize("dedup", [False, True])
def test_a_wrong_source_with_ids_that_no_table_has(dedup: bool) -> None:
    """They are announced all the same, and no forward looks them up."""
    loop = partial(trained, change=strays_at_second)
    for said in check_equal(shared_world(2), compare, CONFIG.but(dedup=dedup), loop):
        assert all(forwards["served"] >= STEPS - 4 for forwards in said["report"]["forwards"].values())


def nothing_at_first(step: int, batch: Batch, run: Run) -> None:
    """No ids in the first step: every list fits every feature."""
    for module, kjt in batch.ids.items():
        batch.ids[module] = as_plain_ids(kjt if step else without_ids(kjt), "values and lengths of each key")


def test_a_first_step_without_ids() -> None:
    assert min(share for by_module in shares(nothing_at_first) for share in by_module.values()) >= 1 - 5.1 / STEPS


def of_two_structures(step: int, batch: Batch, run: Run) -> None:
    """From the fifth step on every third batch has its ids somewhere else."""
    if step >= 4 and step % 3 == 1:
        batch.ids, batch.moved = {}, batch.ids


def test_batches_of_several_structures() -> None:
    """Only the first one of a new structure runs plainly."""
    for by_module in shares(of_two_structures):
        assert min(by_module.values()) >= 1 - 2.1 / STEPS
