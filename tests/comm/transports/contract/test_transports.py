"""One contract for all transports."""

from pathlib import Path

import pytest
import transport_contract as contract
from transport_jobs import OPENERS
from worlds import shared_world

SIZE = 3

FULL = "copy-engine"  # goes through all cases in the fast tier
each_transport = pytest.mark.parametrize("name", OPENERS)
one_and_long_all = pytest.mark.parametrize(
    "name", [name if name == FULL else pytest.param(name, marks=pytest.mark.long) for name in OPENERS]
)
verified_and_long_not = pytest.mark.parametrize(
    "verify", [True, pytest.param(False, marks=pytest.mark.long)], ids=["verified", "vouched for"]
)


@one_and_long_all
@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.long) for size in (SIZE, 4))])
def test_all_kinds_of_splits_dtypes_and_shapes(name: str, size: int) -> None:
    shared_world(size).run(contract.all_kinds, name, size != 4)


def test_the_only_rank() -> None:
    world = shared_world(1)
    world.run(contract.all_kinds, "gloo", True)
    world.run(contract.many_in_flight, "gloo", True)
    world.run(contract.input_errors, "gloo")
    world.run(contract.autograd, "gloo")


@each_transport
def test_input_errors_issue_nothing(name: str) -> None:
    shared_world(SIZE).run(contract.input_errors, name)


@each_transport
@verified_and_long_not
def test_many_in_flight(name: str, verify: bool) -> None:
    shared_world(SIZE).run(contract.many_in_flight, name, verify)


@each_transport
@verified_and_long_not
def test_growth_while_operations_are_under_way(name: str, verify: bool) -> None:
    shared_world(SIZE).run(contract.growth, name, verify)


@one_and_long_all
@verified_and_long_not
def test_nothing_is_left_after_close(name: str, verify: bool) -> None:
    shared_world(2).run(contract.nothing_left, name, verify)


@each_transport
@pytest.mark.parametrize(
    "case",
    [
        contract.done_without_wait,
        contract.not_done_while_a_rank_holds_back,
        contract.kept_alive,
        contract.closed,
    ],
    ids=lambda case: case.__name__,
)
def test_contract(name: str, case: object) -> None:
    shared_world(SIZE).run(case, name)  # type: ignore[arg-type]


@one_and_long_all
@pytest.mark.parametrize(
    "case", [contract.giant_pair, contract.two_classes, contract.autograd], ids=lambda case: case.__name__
)
def test_contract_with_many_rows(name: str, case: object) -> None:
    shared_world(SIZE).run(case, name)  # type: ignore[arg-type]


@each_transport
def test_meet(name: str, tmp_path: Path) -> None:
    shared_world(SIZE).run(contract.all_meet, name, tmp_path)
