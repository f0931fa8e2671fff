"""The contract by the real cuda-bindings on host memory."""

import contextlib
from typing import Any

import host_cuda
import pytest
import transport_contract as contract
from host_cuda import NAME, Setup, failing, world_for
from transport_jobs import AllToAll, open_by

from fscomm.transports.ring.cuda_api import CudaError
from fsranks.errors import PeerError

setup = host_cuda.setup
pytestmark = host_cuda.on_host_cuda


@pytest.mark.parametrize(
    ("size", "case", "args"),
    [
        (3, contract.many_in_flight, (False,)),
        (3, contract.growth, (True,)),
        pytest.param(2, contract.two_classes, (), marks=pytest.mark.long),
        pytest.param(2, contract.giant_pair, (), marks=pytest.mark.long),
        (3, contract.not_done_while_a_rank_holds_back, ()),
        (3, contract.kept_alive, ()),
        (3, contract.closed, ()),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_contract(setup: Setup, size: int, case: Any, args: tuple[object, ...]) -> None:
    world_for(setup, size).run(host_cuda.run, setup, case, NAME, *args)


@pytest.mark.long
def test_nothing_is_left_after_close(setup: Setup) -> None:
    world_for(setup, 2).run(host_cuda.run, setup, contract.nothing_left, NAME, False)


def breaks(rank: int, world_size: int) -> str:
    transport = open_by(NAME)
    job = AllToAll("breaks", [[500] * world_size] * world_size, (64,))

    def twice() -> None:  # a rank may have got all of the first before rank 1 broke
        job.run(transport)
        job.run(transport)

    fails = failing("cuMemcpyBatchAsync", 700, after=3) if rank == 1 else contextlib.nullcontext()
    with fails, pytest.raises(PeerError if rank != 1 else CudaError) as caught:
        twice()
    return str(caught.value)


def test_an_error_of_the_driver_in_the_middle_of_an_operation_is_told_to_all(setup: Setup) -> None:
    said = world_for(setup, 3).run(host_cuda.run, setup, breaks)
    why = "cuMemcpyBatchAsync on CUDA device 0: CUDA_ERROR_ILLEGAL_ADDRESS"
    assert said[1] == why
    for text in (said[0], said[2]):
        assert "rank 1" in text
        assert why in text
