"""A place in the data remembers every number of ranks that it was reached with."""

from dataclasses import replace

from fsdata.order.progress import Progress


def test_every_change_of_the_number_of_ranks_is_remembered() -> None:
    of_two = replace(Progress.start(0, 2), positions=(3, 4))
    of_three = replace(of_two.on(3), positions=(1, 0, 2))
    again = of_three.on(2)
    assert (again.history, again.positions) == (((3, 4), (1, 0, 2)), (0, 0))
    assert again.first_world_size == 2
    assert of_three.on(3) is of_three


def test_a_change_before_the_first_row_leaves_nothing_behind() -> None:
    assert Progress.start(0, 2).on(3) == Progress.start(0, 3)
