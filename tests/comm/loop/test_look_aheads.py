"""Look-aheads in whole training loops: results are in `test_exact`; here is what was served."""

import pytest
from exact import compare
from exact_configs import CONFIGS
from exact_loops import LOOPS
from worlds import shared_world


def served(rank: int, size: int, loop: str) -> tuple[list[str], int, dict[str, str]]:
    found, said = compare(rank, size, CONFIGS["loops"], LOOPS[loop])
    report = said["report"]
    return found, sum(each["served"] for each in report["forwards"].values()), said["fallbacks"]


def test_one_step_runs_plainly_until_features_are_known() -> None:
    for found, forwards, fallbacks in shared_world(2).run(served, "base"):
        assert found == []
        assert forwards == 2 * (CONFIGS["loops"].steps - 1)  # of two modules
        assert fallbacks == {}


@pytest.mark.parametrize(
    ("loop", "at_least"), [("dropout", 14), pytest.param("two_loaders_in_turn", 22, marks=pytest.mark.long)]
)
def test_served(loop: str, at_least: int) -> None:
    for found, forwards, fallbacks in shared_world(2).run(served, loop):
        assert found == []
        assert forwards >= at_least
        assert fallbacks == {}


@pytest.mark.parametrize("loop", [pytest.param("drawing", marks=pytest.mark.long), "drawing_on_one_rank"])
def test_a_loader_that_draws_the_training_s_numbers(loop: str) -> None:
    """After the second batch nothing is served, on all ranks, and the reason says what to do."""
    for found, forwards, fallbacks in shared_world(2).run(served, loop):
        assert found == []
        assert forwards <= 2
        assert all("rng='own'" in why for why in fallbacks.values())
        assert len(fallbacks) == 2
