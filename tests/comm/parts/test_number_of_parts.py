"""Which number of parts is chosen, of times that the test makes up."""

from collections.abc import Mapping

import pytest

from fscomm.parts.number_of_parts import AUTO, ENOUGH, NOTHING, SPAN, NumberOfParts, Took


def tried_out(numbers: tuple[int, ...], step_us: Mapping[int, int], lost: frozenset[int] = frozenset()) -> int | None:
    """The number that a loop ends with; `lost`: steps of which no time is known."""
    found = NumberOfParts(numbers)
    for step in range(3 * SPAN * len(numbers)):
        number = found.of(step)
        found.add(NOTHING if step in lost else Took(number, step_us[number], 7))
    return found.chosen


@pytest.mark.parametrize(
    ("numbers", "step_us", "chosen"),
    [
        (AUTO, {1: 900, 2: 700, 4: 600, 8: 650}, 4),
        (AUTO, {1: 900, 2: 901, 4: 950, 8: 990}, 1),
        (AUTO, {1: 905, 2: 903, 4: 901, 8: 900}, 1),  # nothing worth more parts
        (AUTO, {1: 990, 2: 905, 4: 903, 8: 900}, 2),
        ((8, 2), {8: 900, 2: 905}, 2),
        ((8, 2), {8: 900, 2: 925}, 8),
        ((6,), {6: 1}, 6),
    ],
)
def test_the_fastest_is_chosen_and_the_fewest_of_those_that_are_as_fast(
    numbers: tuple[int, ...], step_us: dict[int, int], chosen: int
) -> None:
    assert tried_out(numbers, step_us) == chosen


def test_numbers_take_turns_until_all_of_them_are_measured() -> None:
    lost = frozenset(range(SPAN, 2 * SPAN))  # the first turn of the second number
    assert tried_out((1, 2), {1: 900, 2: 700}, lost) == 2
    found = NumberOfParts((1, 2))
    assert [found.of(step) for step in range(3 * SPAN)] == [2] * SPAN + [1] * SPAN + [2] * SPAN


def test_one_slow_step_counts_little() -> None:
    found = NumberOfParts((1, 2))
    for number, times in ((1, [800, 800, 9000, 800]), (2, [850] * ENOUGH)):
        assert found.chosen is None
        for step_us in times:
            found.add(Took(number, step_us, 100 * number))
    assert found.chosen == 1
    assert [tuple(each) for each in found.tried] == [(1, 4, 0.8, 0.1), (2, 4, 0.85, 0.2)]
